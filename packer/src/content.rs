//! Where the bytes of regular files come from, whatever the input is.
//!
//! An input gives a tree without file data and, apart from it, something that hands out the data of each file. A reader
//! of a file is told where its data and its holes are, in whole blocks, and reads only the data.

use std::ops::Range;

use dsec_erofs::{InodeId, Tree};
use dsec_format::chunk::BLOCK_BYTES;

use crate::input;

/// The data of all regular files of one tree.
pub(crate) trait Contents: Sync {
    /// One job for every regular file that is not empty, in the order of paths; a file with several names comes under
    /// the first.
    fn jobs<'a>(&'a self, tree: &'a Tree) -> Jobs<'a>;
}

/// See [`Contents::jobs`].
pub(crate) type Jobs<'a> = Box<dyn Iterator<Item = Result<Job<'a>, input::Error>> + 'a>;

/// Opens a file, on whatever thread reads it.
pub(crate) type Open<'a> = Box<dyn FnOnce() -> Result<Box<dyn Content + 'a>, input::Error> + Send + 'a>;

/// A file that is to be read.
pub(crate) struct Job<'a> {
    /// Which one.
    pub(crate) inode: InodeId,
    /// Its size, which is not zero.
    pub(crate) bytes: u64,
    /// Opens it.
    pub(crate) open: Open<'a>,
}

/// An open file.
pub(crate) trait Content: Send {
    /// Where its data is: see [`Ranges`].
    fn ranges(&self) -> &Ranges;

    /// Fills `buffer` with the bytes from `offset` on, all of which lie inside one range.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), input::Error>;

    /// After the last read: an error when the file changed since it was opened.
    fn finish(&self) -> Result<(), input::Error>;
}

/// The parts of a file that are data: each starts at a block boundary, and ends at one or at the end of the file; they
/// are sorted and there is a hole of at least one block between two of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    ranges: Vec<Range<u64>>,
}

impl Ranges {
    /// A file without holes.
    pub(crate) fn whole(file_bytes: u64) -> Self {
        let mut ranges = Self::default();
        ranges.add(0..file_bytes, file_bytes);
        ranges
    }

    /// Adds data after what was added before. A block that is touched at all is data.
    pub(crate) fn add(&mut self, data: Range<u64>, file_bytes: u64) {
        let block = u64::from(BLOCK_BYTES);
        let start = data.start / block * block;
        let end = data.end.checked_next_multiple_of(block).unwrap_or(u64::MAX).min(file_bytes);
        if data.is_empty() || start >= end {
            return;
        }
        match self.ranges.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => self.ranges.push(start..end),
        }
    }

    /// The ranges in order.
    pub(crate) fn as_slice(&self) -> &[Range<u64>] {
        &self.ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_rounded_outwards_and_joined() {
        let mut ranges = Ranges::default();
        for data in [5..6, 4000..5000, 8191..8191, 8192..8193, 20_000..20_001, 29_999..30_000] {
            ranges.add(data, 30_000);
        }
        assert_eq!(ranges.as_slice(), [0..12_288, 16_384..20_480, 28_672..30_000]);
        assert_eq!(Ranges::whole(1).ranges, vec![Range { start: 0, end: 1 }]);
        assert_eq!(Ranges::whole(0).as_slice(), []);
        let mut far = Ranges::default();
        far.add(u64::MAX - 1..u64::MAX, u64::MAX);
        assert_eq!(far.ranges, vec![Range { start: u64::MAX - 4095, end: u64::MAX }]);
    }
}
