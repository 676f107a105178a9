//! The file data of a [`FileTree`] that was walked before, for the pipeline.
//!
//! A file that is in chunks already (of an overlay's lower layers: one that only its metadata was copied up of, or that a
//! renamed directory brings along) is read from these; the pipeline cuts it again where it was cut before, so nothing of
//! it is stored anew.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use dsec_erofs::{Attributes, InodeId, Kind, Tree};
use rustix::fs::Statx;

use super::directory::{attributes_of, is_same_state, stat};
use super::{Content as TreeContent, Error as TreeError, FileTree, PathError};
use crate::chunks::ChunkReader;
use crate::content::{Content, Contents, Job, Jobs, Ranges};
use crate::input::Error;
use crate::paths::Shown;
use crate::view::{Piece, ranges_of};

/// See the [module](self).
pub(crate) struct TreeContents<'c, T> {
    source: T,
    /// For what is in chunks.
    chunks: Option<&'c ChunkReader<'c>>,
}

impl<'c, T> TreeContents<'c, T> {
    pub(crate) fn new(source: T, chunks: Option<&'c ChunkReader<'c>>) -> Self {
        Self { source, chunks }
    }
}

impl<T> Contents for TreeContents<'_, T>
where
    T: FileTree + Sync,
    T::Handle: Send + Sync,
{
    fn jobs<'a>(&'a self, tree: &'a Tree) -> Jobs<'a> {
        let root = Level { inode: Tree::ROOT, name: Vec::new(), handle: None };
        Box::new(Files { contents: self, tree, walk: tree.walk(), levels: vec![root], seen: HashSet::new() })
    }
}

/// A directory on the way to where the walk is; opened when one of its files is wanted.
struct Level<H> {
    inode: InodeId,
    name: Vec<u8>,
    handle: Option<Arc<H>>,
}

struct Files<'a, 'c, T: FileTree> {
    contents: &'a TreeContents<'c, T>,
    tree: &'a Tree,
    walk: dsec_erofs::tree::Walk<'a>,
    levels: Vec<Level<T::Handle>>,
    /// Files with several names that were met.
    seen: HashSet<InodeId>,
}

impl<'a, T> Iterator for Files<'a, '_, T>
where
    T: FileTree + Sync,
    T::Handle: Send + Sync,
{
    type Item = Result<Job<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let step = self.walk.advance()?;
            while self.levels.last().is_some_and(|level| level.inode != step.dir) {
                self.levels.pop();
            }
            let name = step.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
            match self.tree.kind(step.inode) {
                Kind::Directory => self.levels.push(Level { inode: step.inode, name, handle: None }),
                Kind::Regular { bytes: 1.. } if self.tree.nlink(step.inode) > 1 && !self.seen.insert(step.inode) => {}
                Kind::Regular { bytes: bytes @ 1.. } => {
                    let seen = Seen { path: step.path.to_vec(), bytes, attributes: self.tree.attributes(step.inode) };
                    let contents = self.contents;
                    let directory = match open_last(&contents.source, &mut self.levels) {
                        Ok(directory) => directory,
                        Err(source) => return Some(Err(PathError::at(&seen.path)(source).into())),
                    };
                    let open = Box::new(move || contents.open(&directory, &name, seen));
                    return Some(Ok(Job { inode: step.inode, bytes, open }));
                }
                _ => {}
            }
        }
    }
}

/// The last directory, with those above it opened as far as needed.
fn open_last<T: FileTree>(source: &T, levels: &mut [Level<T::Handle>]) -> Result<Arc<T::Handle>, TreeError> {
    let opened = levels.iter().rposition(|level| level.handle.is_some()).unwrap_or(0);
    let mut above: Option<Arc<T::Handle>> = None;
    for level in levels.iter_mut().skip(opened) {
        let handle = match (&level.handle, &above) {
            (Some(handle), _) => Arc::clone(handle),
            (None, None) => Arc::new(source.root()?),
            (None, Some(above)) => Arc::new(source.child(above, &level.name)?),
        };
        level.handle = Some(Arc::clone(&handle));
        above = Some(handle);
    }
    above.ok_or_else(|| TreeError::io("find its directory")(rustix::io::Errno::NOENT))
}

/// What the walk saw of a file.
struct Seen {
    path: Vec<u8>,
    bytes: u64,
    attributes: Attributes,
}

impl Seen {
    fn changed(&self) -> Error {
        Error::Changed { path: Shown::new(&self.path) }
    }

    fn at(&self) -> impl FnOnce(TreeError) -> Error {
        let at = PathError::at(&self.path);
        move |source| at(source).into()
    }
}

impl<T: FileTree> TreeContents<'_, T> {
    fn open<'a>(&'a self, directory: &T::Handle, name: &[u8], seen: Seen) -> Result<Box<dyn Content + 'a>, Error> {
        let handle = self.source.child(directory, name).map_err(seen.at())?;
        if self.source.attributes(&handle).map_err(seen.at())? != seen.attributes {
            return Err(seen.changed());
        }
        match self.source.content(&handle).map_err(seen.at())? {
            TreeContent::File { file, data } => {
                let before = stat(&file).map_err(seen.at())?;
                let is_file = before.stx_mode & 0o170_000 == 0o100_000;
                let is_seen = attributes_of(&before).mtime == seen.attributes.mtime && before.stx_size == seen.bytes;
                if !is_file || !is_seen {
                    return Err(seen.changed());
                }
                let mut ranges = Ranges::default();
                data.into_iter().for_each(|range| ranges.add(range, seen.bytes));
                Ok(Box::new(OpenFile { file, before, ranges, seen }))
            }
            TreeContent::Stored(pieces) => {
                let pieces: Vec<Piece> = pieces.collect::<Result<_, _>>().map_err(seen.at())?;
                let chunks = self.chunks.ok_or_else(super::not_in_chunks).map_err(seen.at())?;
                Ok(Box::new(Stored { chunks, ranges: ranges_of(&pieces), pieces, seen }))
            }
        }
    }
}

/// A file of this machine.
struct OpenFile {
    file: File,
    before: Statx,
    ranges: Ranges,
    seen: Seen,
}

impl Content for OpenFile {
    fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        self.file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.seen.changed(),
            _ => self.seen.at()(TreeError::std_io("read it")(error)),
        })
    }

    fn finish(&self) -> Result<(), Error> {
        let after = stat(&self.file).map_err(self.seen.at())?;
        if is_same_state(&after, &self.before) { Ok(()) } else { Err(self.seen.changed()) }
    }
}

/// A file whose data is in chunks.
struct Stored<'a> {
    chunks: &'a ChunkReader<'a>,
    pieces: Vec<Piece>,
    ranges: Ranges,
    seen: Seen,
}

impl Content for Stored<'_> {
    fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    fn read_at(&self, mut buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        let mut at = offset;
        let first = self.pieces.partition_point(|piece| piece.file_end() <= offset);
        for piece in &self.pieces[first..] {
            if buffer.is_empty() {
                return Ok(());
            }
            let bytes = self.chunks.piece(piece).map_err(TreeError::Store).map_err(self.seen.at())?;
            // The range that is read lies inside one run of pieces.
            let skip = usize::try_from(at - piece.file_offset).unwrap_or(usize::MAX).min(bytes.len());
            let length = buffer.len().min(bytes.len() - skip);
            let (filled, rest) = buffer.split_at_mut(length);
            filled.copy_from_slice(&bytes[skip..skip + length]);
            buffer = rest;
            at += length as u64;
        }
        if buffer.is_empty() { Ok(()) } else { Err(self.seen.changed()) }
    }

    fn finish(&self) -> Result<(), Error> {
        Ok(())
    }
}
