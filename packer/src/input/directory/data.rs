//! Reading the files of a directory that was walked before.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use dsec_erofs::{Attributes, InodeId, Kind, Tree, tree};
use rustix::fs::{Mode, OFlags, SeekFrom, Statx};
use rustix::io::Errno;

use super::walk::{attributes, changed, stat};
use crate::content::{Content, Contents, Job, Jobs, Ranges};
use crate::input::Error;
use crate::paths::Shown;

/// The files below an open directory.
pub(super) struct Data {
    root: Arc<OwnedFd>,
}

impl Data {
    pub(super) fn new(root: Arc<OwnedFd>) -> Self {
        Self { root }
    }
}

impl Contents for Data {
    fn jobs<'a>(&'a self, tree: &'a Tree) -> Jobs<'a> {
        let root = Level { inode: Tree::ROOT, name: Vec::new(), fd: Some(Arc::clone(&self.root)) };
        Box::new(Files { tree, walk: tree.walk(), levels: vec![root], seen: HashSet::new() })
    }
}

/// A directory on the way to where the walk is; opened when one of its files is wanted.
struct Level {
    inode: InodeId,
    name: Vec<u8>,
    fd: Option<Arc<OwnedFd>>,
}

struct Files<'a> {
    tree: &'a Tree,
    walk: tree::Walk<'a>,
    levels: Vec<Level>,
    /// Files with several names that were met.
    seen: HashSet<InodeId>,
}

impl<'a> Iterator for Files<'a> {
    type Item = Result<Job<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let step = self.walk.advance()?;
            while self.levels.last().is_some_and(|level| level.inode != step.dir) {
                self.levels.pop();
            }
            let name = step.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            match self.tree.kind(step.inode) {
                Kind::Directory => {
                    self.levels.push(Level { inode: step.inode, name: name.to_vec(), fd: None });
                }
                Kind::Regular { bytes: 1.. } if self.tree.nlink(step.inode) > 1 && !self.seen.insert(step.inode) => {}
                Kind::Regular { bytes: bytes @ 1.. } => {
                    let expected = Expected {
                        name: name.to_vec(),
                        path: Shown::new(step.path),
                        bytes,
                        attributes: self.tree.attributes(step.inode),
                    };
                    return Some(job(&mut self.levels, step.inode, expected));
                }
                _ => {}
            }
        }
    }
}

fn job<'a>(levels: &mut [Level], inode: InodeId, expected: Expected) -> Result<Job<'a>, Error> {
    let parent = open_last(levels).map_err(Error::entry("open the directory of", expected.path.as_bytes()))?;
    let bytes = expected.bytes;
    let open =
        Box::new(move || OpenFile::open(parent.as_fd(), expected).map(|file| Box::new(file) as Box<dyn Content>));
    Ok(Job { inode, bytes, open })
}

/// The last directory, with those above it opened as far as needed.
fn open_last(levels: &mut [Level]) -> Result<Arc<OwnedFd>, Errno> {
    // The root is always open.
    let first = levels.iter().rposition(|level| level.fd.is_some()).ok_or(Errno::BADF)?;
    let mut fd = levels[first].fd.clone().ok_or(Errno::BADF)?;
    for level in &mut levels[first + 1..] {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fd = Arc::new(rustix::fs::openat(&fd, level.name.as_slice(), flags, Mode::empty())?);
        level.fd = Some(Arc::clone(&fd));
    }
    Ok(fd)
}

/// What the walk saw of a file.
struct Expected {
    name: Vec<u8>,
    path: Shown,
    bytes: u64,
    attributes: Attributes,
}

struct OpenFile {
    fd: OwnedFd,
    path: Shown,
    before: Statx,
    ranges: Ranges,
}

impl OpenFile {
    fn open(parent: BorrowedFd<'_>, expected: Expected) -> Result<Self, Error> {
        let Expected { name, path, bytes, attributes: seen } = expected;
        let fd = open_for_reading(parent, &name).map_err(Error::entry("open", path.as_bytes()))?;
        let before = stat(fd.as_fd(), b"").map_err(Error::entry("stat", path.as_bytes()))?;
        let is_file = before.stx_mode & 0o170_000 == 0o100_000;
        if !is_file || before.stx_size != bytes || attributes(&before) != seen {
            return Err(Error::Changed { path });
        }
        let ranges = find_data(&fd, bytes).map_err(Error::entry("find the holes of", path.as_bytes()))?;
        Ok(Self { fd, path, before, ranges })
    }
}

/// Without touching the access time where that is allowed, and without waiting should it have become a pipe.
fn open_for_reading(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(parent, name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::openat(parent, name, flags, Mode::empty()),
        opened => opened,
    }
}

fn find_data(fd: &OwnedFd, bytes: u64) -> rustix::io::Result<Ranges> {
    let mut ranges = Ranges::default();
    let mut at = 0;
    while at < bytes {
        let start = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            start => start?,
        };
        let end = rustix::fs::seek(fd, SeekFrom::Hole(start))?;
        ranges.add(start..end.min(bytes), bytes);
        at = end;
    }
    Ok(ranges)
}

impl Content for OpenFile {
    fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    fn read_at(&self, mut buffer: &mut [u8], mut offset: u64) -> Result<(), Error> {
        while !buffer.is_empty() {
            match rustix::io::pread(&self.fd, &mut *buffer, offset) {
                Ok(0) => return Err(Error::Changed { path: self.path.clone() }),
                Ok(read) => {
                    buffer = &mut buffer[read..];
                    offset += read as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::entry("read", self.path.as_bytes())(errno)),
            }
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), Error> {
        let after = stat(self.fd.as_fd(), b"").map_err(Error::entry("stat", self.path.as_bytes()))?;
        if changed(&after, &self.before) { Err(Error::Changed { path: self.path.clone() }) } else { Ok(()) }
    }
}
