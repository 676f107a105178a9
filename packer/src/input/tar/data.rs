//! Reading the files of an archive that was gone through before.

use std::collections::HashSet;
use std::io::{self, Read};
use std::sync::Arc;

use dsec_erofs::{InodeId, Kind, Tree};

use super::entry::{Piece, Place};
use super::supply::DataStore;
use crate::content::{Content, Contents, Job, Jobs, Ranges};
use crate::input::{Error, tar};

/// Where each file's data is.
pub(super) struct Data {
    store: Arc<DataStore>,
    /// Sorted by inode.
    places: Vec<(InodeId, Place)>,
}

impl Data {
    pub(super) fn new(store: DataStore, places: Vec<(InodeId, Place)>) -> Self {
        Self { store: Arc::new(store), places }
    }

    /// The bytes of a file, which has `bytes`.
    pub(super) fn reader(&self, inode: InodeId, bytes: u64) -> MemberReader {
        let place = self.place(inode).cloned().expect("a file gets its place with its inode");
        MemberReader { store: Arc::clone(&self.store), place, bytes, at: 0 }
    }

    fn place(&self, inode: InodeId) -> Option<&Place> {
        let index = self.places.binary_search_by_key(&inode, |(inode, _)| *inode).ok()?;
        Some(&self.places[index].1)
    }
}

impl Contents for Data {
    fn jobs<'a>(&'a self, tree: &'a Tree) -> Jobs<'a> {
        let mut walk = tree.walk();
        let mut seen = HashSet::new();
        Box::new(std::iter::from_fn(move || {
            loop {
                let step = walk.advance()?;
                let Kind::Regular { bytes: bytes @ 1.. } = tree.kind(step.inode) else { continue };
                if tree.nlink(step.inode) > 1 && !seen.insert(step.inode) {
                    continue;
                }
                let place = self.place(step.inode).expect("a file gets its place with its inode");
                let store = Arc::clone(&self.store);
                let open = Box::new(move || Ok(Box::new(Member::new(store, place, bytes)) as Box<dyn Content>));
                return Some(Ok(Job { inode: step.inode, bytes, open }));
            }
        }))
    }
}

struct Member<'a> {
    store: Arc<DataStore>,
    place: &'a Place,
    ranges: Ranges,
}

impl<'a> Member<'a> {
    fn new(store: Arc<DataStore>, place: &'a Place, bytes: u64) -> Self {
        Self { store, place, ranges: place.ranges(bytes) }
    }
}

/// Fills `buffer` from `offset` of a file on.
fn read_at(store: &DataStore, place: &Place, buffer: &mut [u8], offset: u64) -> Result<(), tar::Error> {
    match place {
        Place::Whole { at } => store.read_at(buffer, at + offset),
        Place::Pieces(pieces) => read_pieces(store, pieces, buffer, offset),
    }
}

fn read_pieces(store: &DataStore, pieces: &[Piece], buffer: &mut [u8], offset: u64) -> Result<(), tar::Error> {
    buffer.fill(0);
    let end = offset + buffer.len() as u64;
    let first = pieces.partition_point(|piece| piece.file_offset + piece.bytes <= offset);
    for piece in pieces[first..].iter().take_while(|piece| piece.file_offset < end) {
        let from = piece.file_offset.max(offset);
        let to = (piece.file_offset + piece.bytes).min(end);
        // Both lie inside the buffer.
        let inside = |at: u64| usize::try_from(at - offset).expect("inside the buffer");
        let part = &mut buffer[inside(from)..inside(to)];
        store.read_at(part, piece.at + (from - piece.file_offset))?;
    }
    Ok(())
}

/// The bytes of one member, front to back.
pub(in crate::input) struct MemberReader {
    store: Arc<DataStore>,
    place: Place,
    bytes: u64,
    at: u64,
}

impl MemberReader {
    /// Its size.
    pub(in crate::input) fn length_bytes(&self) -> u64 {
        self.bytes
    }

    /// Begins anew.
    pub(in crate::input) fn rewind(&mut self) {
        self.at = 0;
    }
}

impl Read for MemberReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = usize::try_from(self.bytes - self.at).unwrap_or(usize::MAX).min(buffer.len());
        read_at(&self.store, &self.place, &mut buffer[..length], self.at).map_err(|error| match error {
            tar::Error::Read(error) => error,
            error => io::Error::other(error),
        })?;
        self.at += length as u64;
        Ok(length)
    }
}

impl Content for Member<'_> {
    fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        Ok(read_at(&self.store, self.place, buffer, offset)?)
    }

    fn finish(&self) -> Result<(), Error> {
        Ok(self.store.check()?)
    }
}
