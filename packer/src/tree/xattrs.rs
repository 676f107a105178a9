//! Reading the extended attributes of what a descriptor refers to.
//!
//! An `O_PATH` descriptor refuses `flistxattr`, and a symlink cannot be opened otherwise: so it is named through its link
//! in `/proc`, which leads to the inode itself.

use std::os::fd::AsFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use super::directory::magic_link;
use super::{Error, Xattrs};

/// How the storage of the source holds a file, like its inode flags: not part of what the file is.
const STORAGE_HINTS: &[&[u8]] = &[b"btrfs."];
/// The most that the kernel gives: of names together, and of one value.
const MOST_BYTES: usize = 64 * 1024;

/// All xattrs that the caller may see, sorted by name.
pub(crate) fn xattrs_of(fd: impl AsFd) -> Result<Xattrs, Error> {
    let path = magic_link(fd);
    let mut names = Vec::new();
    match grow(&mut names, 1024, |names| rustix::fs::listxattr(path.as_str(), spare_capacity(names))) {
        Ok(()) => {}
        // A file system without extended attributes has none.
        Err(Errno::NOTSUP) => return Ok(Xattrs::new()),
        Err(errno) => return Err(Error::io("list its xattrs")(errno)),
    }
    let mut xattrs = Xattrs::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if STORAGE_HINTS.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let mut value = Vec::new();
        match grow(&mut value, 256, |value| rustix::fs::getxattr(path.as_str(), name, spare_capacity(value))) {
            Ok(()) => xattrs.push((name.to_vec(), value)),
            Err(Errno::NODATA) => return Err(Error::Changed),
            Err(errno) => return Err(Error::io("read an xattr of it")(errno)),
        }
    }
    xattrs.sort_unstable();
    Ok(xattrs)
}

/// Calls `fill` with more and more room.
fn grow(
    buffer: &mut Vec<u8>,
    first_bytes: usize,
    fill: impl Fn(&mut Vec<u8>) -> rustix::io::Result<usize>,
) -> rustix::io::Result<()> {
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
