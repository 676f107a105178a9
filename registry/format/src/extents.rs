//! Extent maps: which chunk holds which range of a layer's data device.
//!
//! The data device is virtual: every run of file data lies on it at a 4 KiB-aligned offset, its chunks one after the
//! other, byte to byte. The map has one entry a chunk, in the order of the device. What no entry covers reads as zero:
//! the padding from the end of a run to the next block boundary and, in a map with [`INCOMPAT_GAPS`], whole blocks
//! before, between and behind runs: holes of files whose metadata image does not have them.
//!
//! The map is used where it lies (mapped memory): [`Map`] borrows it.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ChunkDigest;
use crate::chunk::{BLOCK_BYTES, MAX_CHUNK_BYTES};
use crate::preamble::{self, Preamble};

/// Opens an extent map.
pub const MAGIC: [u8; 8] = *b"DSECXMAP";
/// Bytes before the first entry.
pub const HEADER_BYTES: usize = 64;
/// Bytes in an entry.
pub const ENTRY_BYTES: usize = 48;
/// EROFS block addresses have 32 bits: a data device is at most 16 TiB.
pub const MAX_DEVICE_BYTES: u64 = (u32::MAX as u64) * BLOCK_BYTES as u64;
/// `incompat` feature: there are whole blocks of the device that no entry covers.
pub const INCOMPAT_GAPS: u32 = 0x1;

const OBJECT: &str = "extent map";

/// Before the first entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Magic, version, features.
    pub preamble: Preamble,
    /// Number of entries.
    pub extents: U64,
    /// Size of the data device, a multiple of 4096.
    pub device_bytes: U64,
    /// Zero.
    pub reserved: [u8; 16],
}

/// One chunk on the data device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Extent {
    /// Offset on the data device.
    pub device_offset: U64,
    /// Name of the chunk.
    pub chunk: ChunkDigest,
    /// Plain bytes of the chunk.
    pub bytes: U32,
    /// Zero.
    pub reserved: U32,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(size_of::<Extent>() == ENTRY_BYTES);

impl Extent {
    /// An entry.
    #[must_use]
    pub fn new(device_offset: u64, chunk: ChunkDigest, bytes: u32) -> Self {
        Self { device_offset: U64::new(device_offset), chunk, bytes: U32::new(bytes), reserved: U32::ZERO }
    }

    /// First offset after this entry.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.device_offset.get().saturating_add(u64::from(self.bytes.get()))
    }
}

/// Why bytes are not an extent map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Magic, version, features, length.
    #[error(transparent)]
    Preamble(#[from] preamble::Error),
    /// The number of entries does not fit the bytes.
    #[error("extent map states {extents} entries but has {have_bytes} bytes")]
    Count {
        /// Stated entries.
        extents: u64,
        /// Bytes there.
        have_bytes: u64,
    },
    /// The stated device size is over the limit or no multiple of the block.
    #[error("extent map states an impossible device of {device_bytes} bytes")]
    Device {
        /// Stated size.
        device_bytes: u64,
    },
    /// The map states gaps and has none.
    #[error("extent map states gaps but has none")]
    NoGap,
    /// An entry is malformed, overlaps the one before, starts off a block or behind a gap that is not stated, or leaves
    /// the device.
    #[error("extent {index} is malformed, out of order or outside the device")]
    Extent {
        /// Index of the entry.
        index: u64,
    },
}

/// Encodes a map. `extents` must be what [`Map::decode`] accepts, in order. Gaps between them are stated if there are any.
#[must_use]
pub fn encode(extents: &[Extent], device_bytes: u64) -> Vec<u8> {
    let ends = std::iter::once(0).chain(extents.iter().map(Extent::end));
    let starts = extents.iter().map(|extent| extent.device_offset.get()).chain(std::iter::once(device_bytes));
    let has_gaps = ends.zip(starts).any(|(end, start)| start > next_block(end));
    let mut preamble = Preamble::new(MAGIC);
    preamble.incompat = U32::new(if has_gaps { INCOMPAT_GAPS } else { 0 });
    let header = Header {
        preamble,
        extents: U64::new(extents.len() as u64),
        device_bytes: U64::new(device_bytes),
        reserved: [0; 16],
    };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + size_of_val(extents));
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(extents.as_bytes());
    bytes
}

/// A checked extent map over bytes that someone else owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Map<'a> {
    extents: &'a [Extent],
    device_bytes: u64,
    has_gaps: bool,
}

impl<'a> Map<'a> {
    /// Checks header and every entry. Linear in the number of entries; no allocation.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let map = Self::decode_trusted(bytes)?;
        check(map)?;
        Ok(map)
    }

    /// As [`Map::decode`] but without looking at each entry: for bytes that were checked before (the digest of a blob
    /// that this node has decoded once). Look-ups stay free of panics for any bytes.
    ///
    /// # Errors
    /// A header that is wrong.
    pub fn decode_trusted(bytes: &'a [u8]) -> Result<Self, Error> {
        let header: Header = preamble::read(OBJECT, bytes)?;
        header.preamble.check_with(OBJECT, MAGIC, INCOMPAT_GAPS)?;
        let extents = header.extents.get();
        let count_error = || Error::Count { extents, have_bytes: bytes.len() as u64 };
        let entries = <[Extent]>::ref_from_bytes(&bytes[HEADER_BYTES..]).map_err(|_| count_error())?;
        if entries.len() as u64 != extents {
            return Err(count_error());
        }
        let device_bytes = header.device_bytes.get();
        if device_bytes > MAX_DEVICE_BYTES || !device_bytes.is_multiple_of(u64::from(BLOCK_BYTES)) {
            return Err(Error::Device { device_bytes });
        }
        if header.reserved != [0; 16] {
            return Err(preamble::Error::Reserved { object: OBJECT }.into());
        }
        Ok(Self { extents: entries, device_bytes, has_gaps: header.preamble.incompat.get() & INCOMPAT_GAPS != 0 })
    }

    /// All entries, in the order of the device.
    #[must_use]
    pub fn extents(&self) -> &'a [Extent] {
        self.extents
    }

    /// Size of the data device, a multiple of 4096.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// Whether there may be whole blocks that no entry covers, which are holes of files.
    #[must_use]
    pub fn has_gaps(&self) -> bool {
        self.has_gaps
    }

    /// Index range of the entries that overlap `[offset, offset + bytes)`.
    #[must_use]
    pub fn overlapping(&self, offset: u64, bytes: u64) -> std::ops::Range<usize> {
        let first = self.extents.partition_point(|extent| extent.end() <= offset);
        let end = offset.saturating_add(bytes);
        let last = self.extents.partition_point(|extent| extent.device_offset.get() < end);
        first..last.max(first)
    }
}

/// The first block boundary at or behind the end of an extent.
fn next_block(end: u64) -> u64 {
    end.div_ceil(u64::from(BLOCK_BYTES)).saturating_mul(u64::from(BLOCK_BYTES))
}

fn check(map: Map<'_>) -> Result<(), Error> {
    let (mut end, mut gaps) = (0, false);
    for (index, extent) in (0..).zip(map.extents) {
        let (start, bytes) = (extent.device_offset.get(), extent.bytes.get());
        let run_goes_on = start == end && index > 0;
        let run_begins = start == next_block(end);
        let behind_gap = map.has_gaps && start.is_multiple_of(u64::from(BLOCK_BYTES)) && start > next_block(end);
        let sound = bytes > 0
            && bytes <= MAX_CHUNK_BYTES
            && extent.reserved.get() == 0
            && (run_goes_on || run_begins || behind_gap)
            && start.checked_add(u64::from(bytes)).is_some_and(|end| end <= map.device_bytes);
        if !sound {
            return Err(Error::Extent { index });
        }
        gaps |= behind_gap;
        end = start + u64::from(bytes);
    }
    let gaps = gaps || map.device_bytes > next_block(end);
    if map.has_gaps && !gaps { Err(Error::NoGap) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let chunk = |n: u8| ChunkDigest::of(&[n]);
        encode(
            &[Extent::new(0, chunk(1), 5000), Extent::new(5000, chunk(2), 10), Extent::new(8192, chunk(1), 1)],
            12288,
        )
    }

    #[test]
    fn look_up() {
        let bytes = sample();
        let map = Map::decode(&bytes).unwrap();
        assert_eq!(map.overlapping(0, 1), 0..1);
        assert_eq!(map.overlapping(4999, 2), 0..2);
        assert_eq!(map.overlapping(5010, 100), 2..2);
        assert_eq!(map.overlapping(0, u64::MAX), 0..3);
        assert_eq!(map.overlapping(20_000, 4096), 3..3);
    }

    #[test]
    fn gaps_are_stated_and_overlaps_and_overruns_are_refused() {
        let chunk = ChunkDigest::of(b"x");
        let incompat = |bytes: &mut [u8], bits: u8| bytes[20] = bits;
        for gaps in [
            vec![Extent::new(4096, chunk, 1)],
            vec![Extent::new(0, chunk, 10), Extent::new(8192, chunk, 10)],
            vec![Extent::new(4096, chunk, 5000), Extent::new(9096, chunk, 10)],
            vec![Extent::new(0, chunk, 10)],
        ] {
            let mut bytes = encode(&gaps, 12288);
            assert!(Map::decode(&bytes).unwrap().has_gaps(), "{gaps:?}");
            assert_eq!(encode(Map::decode(&bytes).unwrap().extents(), 12288), bytes);
            incompat(&mut bytes, 0);
            // What is behind the last extent was always allowed.
            assert_eq!(Map::decode(&bytes).is_ok(), gaps == [Extent::new(0, chunk, 10)], "{gaps:?}");
            incompat(&mut bytes, 3);
            assert!(matches!(Map::decode(&bytes), Err(Error::Preamble(preamble::Error::Features { bits: 2, .. }))));
        }
        let mut bytes = sample();
        assert!(!Map::decode(&bytes).unwrap().has_gaps());
        incompat(&mut bytes, 1);
        assert_eq!(Map::decode(&bytes), Err(Error::NoGap));
        for bad in [
            vec![Extent::new(0, chunk, 10), Extent::new(5, chunk, 10)],
            vec![Extent::new(0, chunk, 10), Extent::new(12, chunk, 10)],
            vec![Extent::new(0, chunk, 10), Extent::new(8193, chunk, 10)],
            vec![Extent::new(8192, chunk, 10), Extent::new(4096, chunk, 10)],
            vec![Extent::new(0, chunk, 0)],
            vec![Extent::new(0, chunk, MAX_CHUNK_BYTES + 1)],
            vec![Extent::new(0, chunk, 12289)],
            vec![Extent::new(u64::MAX - 4095, chunk, 1)],
        ] {
            for bits in [0, 1] {
                let mut bytes = encode(&bad, 12288);
                incompat(&mut bytes, bits);
                assert!(Map::decode(&bytes).is_err(), "{bad:?}");
            }
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        let bytes = sample();
        for length in 0..bytes.len() {
            assert!(Map::decode(&bytes[..length]).is_err(), "length {length}");
        }
    }
}
