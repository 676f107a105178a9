//! Where a file has data and where it has holes.

use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use dsec_format::chunk::BLOCK_BYTES;

/// The data of an open file of `bytes` bytes: ranges in order, apart from one another, in whole blocks of 4,096 bytes
/// except that the last one ends with the file. A block that has any data counts as data.
///
/// A file system that knows no holes answers that all is data.
///
/// # Errors
/// The kernel's.
pub fn data_ranges(file: impl AsFd, bytes: u64) -> Result<Vec<Range<u64>>, Errno> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
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
        push(&mut ranges, start..end.max(start + 1), bytes);
        position = end.max(start + 1);
    }
    Ok(ranges)
}

/// Rounds a range out to blocks and joins it to the last one where they touch.
fn push(ranges: &mut Vec<Range<u64>>, range: Range<u64>, file_bytes: u64) {
    let block = u64::from(BLOCK_BYTES);
    let start = range.start / block * block;
    let end = range.end.div_ceil(block).saturating_mul(block).min(file_bytes);
    match ranges.last_mut() {
        Some(last) if last.end >= start => last.end = last.end.max(end),
        _ => ranges.push(start..end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_blocks_and_apart() {
        let mut ranges = Vec::new();
        for range in [512..1024, 4095..4096, 4096..5000, 12_288..12_289, 20_480..20_500] {
            push(&mut ranges, range, 20_500);
        }
        assert_eq!(ranges, [0..8192, 12_288..16_384, 20_480..20_500]);
    }
}
