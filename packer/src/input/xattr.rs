//! Reading the extended attributes of entries of an open directory.
//!
//! There is no `llistxattrat` before Linux 6.13, and a symlink cannot be opened: so an entry is named through
//! `/proc/self/fd/N/NAME`, which begins at the open directory and does not follow the last component.

use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use super::Error;
use crate::paths::Shown;

/// How the storage of the source holds a file, like its inode flags: not part of what the file is.
pub(crate) const STORAGE_HINTS: &[&[u8]] = &[b"btrfs."];

/// Keeps its buffers from entry to entry.
#[derive(Debug, Default)]
pub(super) struct Reader {
    path: Vec<u8>,
    names: Vec<u8>,
}

/// The extended attributes of one entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Xattrs(Vec<(Vec<u8>, Vec<u8>)>);

impl Xattrs {
    /// As the tree takes them.
    pub(super) fn pairs(&self) -> Vec<(&[u8], &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect()
    }
}

impl Reader {
    /// Those of something open.
    pub(super) fn of_open(&mut self, fd: &OwnedFd, path: &[u8]) -> Result<Xattrs, Error> {
        self.read(
            path,
            |names| rustix::fs::flistxattr(fd, spare_capacity(names)),
            |name, value| rustix::fs::fgetxattr(fd, name, spare_capacity(value)),
        )
    }

    /// Those of the entry `name` of an open directory.
    pub(super) fn of_entry(&mut self, fd: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<Xattrs, Error> {
        let mut entry = std::mem::take(&mut self.path);
        entry.clear();
        write!(entry, "/proc/self/fd/{}/", fd.as_raw_fd()).expect("writing to memory does not fail");
        entry.extend_from_slice(name);
        let xattrs = self.read(
            path,
            |names| rustix::fs::llistxattr(entry.as_slice(), spare_capacity(names)),
            |name, value| rustix::fs::lgetxattr(entry.as_slice(), name, spare_capacity(value)),
        );
        self.path = entry;
        xattrs
    }

    fn read(
        &mut self,
        path: &[u8],
        list: impl Fn(&mut Vec<u8>) -> rustix::io::Result<usize>,
        get: impl Fn(&[u8], &mut Vec<u8>) -> rustix::io::Result<usize>,
    ) -> Result<Xattrs, Error> {
        match grow(&mut self.names, 1024, &list) {
            Ok(()) => {}
            // A file system without extended attributes.
            Err(Errno::NOTSUP) => return Ok(Xattrs::default()),
            Err(errno) => return Err(Error::entry("list the xattrs of", path)(errno)),
        }
        let mut xattrs = Vec::new();
        for name in self.names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            if STORAGE_HINTS.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            let mut value = Vec::new();
            match grow(&mut value, 256, |value| get(name, value)) {
                Ok(()) => xattrs.push((name.to_vec(), value)),
                Err(Errno::NODATA) => return Err(Error::Changed { path: Shown::new(path) }),
                Err(errno) => return Err(Error::entry("read an xattr of", path)(errno)),
            }
        }
        Ok(Xattrs(xattrs))
    }
}

/// Calls `fill` with more and more room, up to the most that the kernel gives.
fn grow(
    buffer: &mut Vec<u8>,
    first_bytes: usize,
    fill: impl Fn(&mut Vec<u8>) -> rustix::io::Result<usize>,
) -> rustix::io::Result<()> {
    const MOST_BYTES: usize = 64 * 1024;
    let mut room = first_bytes;
    loop {
        buffer.clear();
        buffer.reserve(room);
        match fill(buffer) {
            Err(Errno::RANGE) if room < MOST_BYTES => room = MOST_BYTES,
            filled => return filled.map(|_| ()),
        }
    }
}
