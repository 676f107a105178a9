//! Where a file has data and where it has holes.

use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::content::Ranges;

/// The data of an open file of `bytes` bytes: ranges in order, apart from one another, in whole blocks of 4,096 bytes
/// except that the last one ends with the file. A block that has any data counts as data.
///
/// A file system that knows no holes answers that all is data.
///
/// # Errors
/// The kernel's.
pub fn data_ranges(file: impl AsFd, bytes: u64) -> Result<Vec<Range<u64>>, Errno> {
    let mut ranges = Ranges::default();
    let mut position = 0;
    while position < bytes {
        let start = match rustix::fs::seek(&file, SeekFrom::Data(position)) {
            Ok(start) if start < bytes => start,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        let end = match rustix::fs::seek(&file, SeekFrom::Hole(start)) {
            Ok(end) => end.min(bytes),
            // The file became shorter meanwhile; whoever reads it finds that out.
            Err(Errno::NXIO) => bytes,
            Err(errno) => return Err(errno),
        };
        let end = end.max(start + 1);
        ranges.add(start..end, bytes);
        position = end;
    }
    Ok(ranges.as_slice().to_vec())
}
