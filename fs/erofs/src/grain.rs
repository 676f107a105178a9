//! How finely the metadata image tells the holes of a file.
//!
//! Exact holes need chunks as small as the smallest step between data and hole, and an index for each chunk of the
//! file, hole or not. Where that costs much more than the data, larger chunks are used: of this many bytes, the *grain*
//! of the file. A grain with any data is data as a whole, and takes all its bytes on the device; what is not data in it
//! reads as zeros there. So the cost of a file follows its data, not its size. The holes inside grains are not lost:
//! the extent map has nothing there.

use std::ops::Range;

use crate::format::{BLOCK_BYTES, CHUNK_BITS_MASK, CHUNK_INDEXES_MAX, GRAIN_INDEXES_MIN, GRAIN_INDEXES_PER_BLOCK};

/// The grain of a file of `file_bytes` bytes with data in these ranges; `None` when its holes are told exactly.
///
/// The ranges are in order and apart; each starts at a multiple of 4,096 and ends at one or with the file.
pub fn grain_bytes(file_bytes: u64, data: &[Range<u64>]) -> Option<u64> {
    let file_blocks = file_bytes.div_ceil(BLOCK_BYTES);
    let allowed = indexes_allowed(data.iter().map(|range| (range.end - range.start).div_ceil(BLOCK_BYTES)).sum());
    let borders = data.iter().flat_map(|range| [range.start / BLOCK_BYTES, range.end.div_ceil(BLOCK_BYTES)]);
    let exact = Chunks::of(file_blocks, borders);
    let largest = u32::from(CHUNK_BITS_MASK);
    let enough = (0..largest).find(|bits| file_blocks.div_ceil(1 << bits) <= allowed).unwrap_or(largest);
    (exact.count > allowed && enough > exact.bits).then_some(BLOCK_BYTES << enough)
}

/// What the file takes on the data device, in whole blocks. `u64::MAX` stands for anything above.
pub fn device_bytes(file_bytes: u64, data: &[Range<u64>]) -> u64 {
    let whole_blocks = |bytes: u64| bytes.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
    let Some(grain) = grain_bytes(file_bytes, data) else {
        return data.iter().fold(0, |sum: u64, range| sum.saturating_add(whole_blocks(range.end - range.start)));
    };
    let (mut sum, mut end) = (0_u64, 0);
    for range in data {
        let start = (range.start / grain * grain).max(end);
        end = range.end.div_ceil(grain).saturating_mul(grain).min(file_bytes).max(end);
        sum = sum.saturating_add(whole_blocks(end - start));
    }
    sum
}

/// Chunk indexes that a file with so many blocks of data may have.
fn indexes_allowed(data_blocks: u64) -> u64 {
    data_blocks.saturating_mul(GRAIN_INDEXES_PER_BLOCK).clamp(GRAIN_INDEXES_MIN, CHUNK_INDEXES_MAX)
}

/// The chunks of a file: all of one size, each wholly a hole or wholly in one piece on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunks {
    /// Binary logarithm of the blocks in a chunk.
    pub(crate) bits: u32,
    /// Number of chunks.
    pub(crate) count: u64,
}

impl Chunks {
    /// The largest chunks of a file of `file_blocks` blocks that have all `borders` at borders of theirs, but no larger
    /// than the file needs. The end of the file need not be such a border.
    pub(crate) fn of(file_blocks: u64, borders: impl Iterator<Item = u64>) -> Chunks {
        let inner = borders.filter(|&border| border != 0 && border < file_blocks);
        let alignment = inner.map(u64::trailing_zeros).min().unwrap_or(u64::BITS);
        let enough = file_blocks.max(1).next_power_of_two().trailing_zeros();
        let bits = alignment.min(enough).min(u32::from(CHUNK_BITS_MASK));
        Chunks { bits, count: file_blocks.div_ceil(1 << bits) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const TIB: u64 = 1 << 40;

    fn at(place: u64) -> Range<u64> {
        place..place + 4096
    }

    fn device_bytes_of(file_bytes: u64, data: Range<u64>) -> u64 {
        device_bytes(file_bytes, std::slice::from_ref(&data))
    }

    #[test]
    fn small_files_and_dense_ones_are_told_exactly() {
        assert_eq!(grain_bytes(64 << 20, &[at(4096)]), None);
        assert_eq!(grain_bytes(0, &[]), None);
        assert_eq!(grain_bytes(i64::MAX as u64, &[]), None, "nothing but a hole is one chunk");
        let half = 0..4 * TIB;
        assert_eq!(grain_bytes(8 * TIB, &[half]), None, "large steps need few chunks");
        let dense: Vec<_> = (0..100_000).map(|number| at(number * 65_536)).collect();
        assert_eq!(grain_bytes(100_000 * 65_536, &dense), None, "16 indexes a block of data are worth it");
        assert_eq!(device_bytes(100_000 * 65_536, &dense), 100_000 * 4096);
    }

    #[test]
    fn the_grain_follows_size_and_data() {
        assert_eq!(grain_bytes((64 << 20) + 4096, &[at(4096)]), Some(8192));
        assert_eq!(grain_bytes(10 * GIB, &[at(4096), at(5 * GIB)]), Some(GIB / 1024));
        assert_eq!(grain_bytes(300 * GIB, &[at(4096)]), Some(32 << 20));
        assert_eq!(grain_bytes(8 * TIB, &[at(0)]), Some(512 << 20));
        let many: Vec<_> = (0..10_000).map(|number| at(number * GIB / 2)).collect();
        assert_eq!(grain_bytes(8 * TIB, &many), Some(64 << 20));
        assert_eq!(grain_bytes(i64::MAX as u64, &[at(4096)]), Some(8 * TIB), "no chunk is larger");
    }

    #[test]
    fn the_device_has_every_grain_with_data_once() {
        let grain = 512 << 20;
        assert_eq!(device_bytes(8 * TIB, &[at(4096)]), grain);
        assert_eq!(device_bytes(8 * TIB, &[at(4096), at(8192 * 4), at(grain - 4096), at(3 * grain)]), 2 * grain);
        assert_eq!(device_bytes_of(8 * TIB, grain - 4096..grain + 4096), 2 * grain);
        assert_eq!(device_bytes_of(8 * TIB + 5, 8 * TIB - 4096..8 * TIB + 5), 1024 * 1024 * 1024 + 4096);
        let last = i64::MAX as u64;
        assert_eq!(device_bytes(last, &[at(0), last - 4095..last]), 16 * TIB);
        assert_eq!(device_bytes_of(5000, 0..5000), 8192);
    }
}
