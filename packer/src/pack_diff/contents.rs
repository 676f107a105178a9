//! The file data of an upper directory, for the pipeline.
//!
//! A file that only its metadata was copied up of, or that a renamed directory brings along, is read from the chunks of
//! the layers below; the pipeline cuts it again where it was cut before, so nothing of it is stored anew.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use dsec_erofs::{InodeId, Kind, Tree};
use rustix::fs::{AtFlags, Statx, StatxFlags};

use crate::content::{Content, Contents, Job, Jobs, Ranges};
use crate::input;
use crate::paths::Shown;
use crate::tree::{self, Error as TreeError, FileTree, PathError};
use crate::upper::{Handle, Upper};
use crate::view::Piece;

/// See the [module](self).
pub(super) struct UpperContents<'a, 's> {
    upper: &'a Upper<'s>,
}

impl<'a, 's> UpperContents<'a, 's> {
    pub(super) fn new(upper: &'a Upper<'s>) -> Self {
        Self { upper }
    }
}

impl Contents for UpperContents<'_, '_> {
    fn jobs<'a>(&'a self, tree: &'a Tree) -> Jobs<'a> {
        Box::new(Files { upper: self.upper, tree, walk: tree.walk(), levels: Vec::new(), seen: HashSet::new() })
    }
}

/// A directory on the way to where the walk is; opened when one of its files is wanted.
struct Level<'a, 's> {
    inode: InodeId,
    name: Vec<u8>,
    handle: Option<Arc<Handle>>,
    upper: &'a Upper<'s>,
}

struct Files<'a, 's> {
    upper: &'a Upper<'s>,
    tree: &'a Tree,
    walk: dsec_erofs::tree::Walk<'a>,
    levels: Vec<Level<'a, 's>>,
    /// Files with several names that were met.
    seen: HashSet<InodeId>,
}

impl<'a> Iterator for Files<'a, '_> {
    type Item = Result<Job<'a>, input::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.levels.is_empty() {
            let (inode, name) = (Tree::ROOT, Vec::new());
            self.levels.push(Level { inode, name, handle: None, upper: self.upper });
        }
        loop {
            let step = self.walk.advance()?;
            while self.levels.last().is_some_and(|level| level.inode != step.dir) {
                self.levels.pop();
            }
            let name = step.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
            match self.tree.kind(step.inode) {
                Kind::Directory => {
                    self.levels.push(Level { inode: step.inode, name, handle: None, upper: self.upper });
                }
                Kind::Regular { bytes: 1.. } if self.tree.nlink(step.inode) > 1 && !self.seen.insert(step.inode) => {}
                Kind::Regular { bytes: bytes @ 1.. } => {
                    let path = step.path.to_vec();
                    let directory = match open_last(&mut self.levels) {
                        Ok(directory) => directory,
                        Err(error) => return Some(Err(PathError::at(&path)(error).into())),
                    };
                    let upper = self.upper;
                    let open = Box::new(move || open(upper, &directory, &name, path));
                    return Some(Ok(Job { inode: step.inode, bytes, open }));
                }
                _ => {}
            }
        }
    }
}

/// The last directory, with those above it opened as far as needed.
fn open_last(levels: &mut [Level<'_, '_>]) -> Result<Arc<Handle>, TreeError> {
    let mut above: Option<Arc<Handle>> = None;
    for level in levels {
        let handle = match (&level.handle, &above) {
            (Some(handle), _) => Arc::clone(handle),
            (None, None) => Arc::new(level.upper.root()?),
            (None, Some(above)) => Arc::new(level.upper.child(above, &level.name)?),
        };
        level.handle = Some(Arc::clone(&handle));
        above = Some(handle);
    }
    above.ok_or_else(|| TreeError::io("find its directory")(rustix::io::Errno::NOENT))
}

fn open<'a>(
    upper: &'a Upper<'_>,
    directory: &Handle,
    name: &[u8],
    path: Vec<u8>,
) -> Result<Box<dyn Content + 'a>, input::Error> {
    let opened = upper.child(directory, name).and_then(|handle| upper.content(&handle));
    let opened = opened.map_err(PathError::at(&path))?;
    match opened {
        tree::Content::File { file, data } => {
            let before = status(&file).map_err(PathError::at(&path))?;
            let mut ranges = Ranges::default();
            data.into_iter().for_each(|range| ranges.add(range, before.stx_size));
            Ok(Box::new(OpenFile { file, before, ranges, path }))
        }
        tree::Content::Stored(pieces) => {
            let pieces: Vec<Piece> = pieces.collect::<Result<_, _>>().map_err(PathError::at(&path))?;
            let file_bytes = pieces.last().map_or(0, Piece::file_end);
            let mut ranges = Ranges::default();
            pieces.iter().for_each(|piece| ranges.add(piece.file_offset..piece.file_end(), file_bytes));
            Ok(Box::new(Stored { upper, pieces, ranges, path }))
        }
    }
}

/// A file of the upper directory.
struct OpenFile {
    file: File,
    before: Statx,
    ranges: Ranges,
    path: Vec<u8>,
}

fn status(file: &File) -> Result<Statx, TreeError> {
    rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).map_err(TreeError::io("stat it"))
}

impl Content for OpenFile {
    fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), input::Error> {
        self.file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => input::Error::Changed { path: Shown::new(&self.path) },
            _ => PathError::at(&self.path)(TreeError::std_io("read it")(error)).into(),
        })
    }

    fn finish(&self) -> Result<(), input::Error> {
        let after = status(&self.file).map_err(PathError::at(&self.path))?;
        let key = |status: &Statx| {
            let (mtime, ctime) = (status.stx_mtime, status.stx_ctime);
            (status.stx_size, mtime.tv_sec, mtime.tv_nsec, ctime.tv_sec, ctime.tv_nsec)
        };
        if key(&after) == key(&self.before) {
            return Ok(());
        }
        Err(input::Error::Changed { path: Shown::new(&self.path) })
    }
}

/// A file whose data is in the layers below.
struct Stored<'a, 's> {
    upper: &'a Upper<'s>,
    pieces: Vec<Piece>,
    ranges: Ranges,
    path: Vec<u8>,
}

impl Content for Stored<'_, '_> {
    fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    fn read_at(&self, mut buffer: &mut [u8], offset: u64) -> Result<(), input::Error> {
        let mut at = offset;
        let first = self.pieces.partition_point(|piece| piece.file_end() <= offset);
        for piece in &self.pieces[first..] {
            if buffer.is_empty() {
                return Ok(());
            }
            let bytes = self.upper.lower_bytes(piece).map_err(PathError::at(&self.path))?;
            // The range that is read lies inside one run of pieces.
            let skip = usize::try_from(at - piece.file_offset).unwrap_or(usize::MAX).min(bytes.len());
            let length = buffer.len().min(bytes.len() - skip);
            let (filled, rest) = buffer.split_at_mut(length);
            filled.copy_from_slice(&bytes[skip..skip + length]);
            buffer = rest;
            at += length as u64;
        }
        if buffer.is_empty() { Ok(()) } else { Err(input::Error::Changed { path: Shown::new(&self.path) }) }
    }

    fn finish(&self) -> Result<(), input::Error> {
        Ok(())
    }
}
