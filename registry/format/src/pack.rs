//! Packs: objects of many compressed chunks.
//!
//! ```text
//! preamble | frame | frame | … | frame table | chunk table | footer
//! ```
//!
//! A pack is named by the BLAKE3 of all its bytes. It is read either whole (upload, fsck) or by range: the footer gives
//! the tables, the tables give each frame. The chunk table is sorted by digest and has no duplicates, so it can be
//! searched where it lies. A pack is immutable; it says nothing about who uses its chunks.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ChunkDigest;
use crate::chunk::MAX_CHUNK_BYTES;
use crate::digest::BlobDigest;
use crate::frame::{self, Codec, MAX_FRAME_PLAIN_BYTES};
use crate::preamble::{self, PREAMBLE_BYTES, Preamble};

/// Opens a pack.
pub const MAGIC: [u8; 8] = *b"DSECPACK";
/// Closes a pack.
pub const FOOTER_MAGIC: [u8; 8] = *b"DSECPEND";
/// Bytes in the footer.
pub const FOOTER_BYTES: usize = 64;
/// Bytes in a frame table entry.
pub const FRAME_ENTRY_BYTES: usize = 24;
/// Bytes in a chunk table entry.
pub const CHUNK_ENTRY_BYTES: usize = 48;
/// No pack is larger.
pub const MAX_PACK_BYTES: u64 = 1 << 30;
/// A writer closes a pack when it has reached this size.
pub const TARGET_PACK_BYTES: u64 = 32 << 20;
/// No pack has more chunks: bounds what the tables may claim before they are read.
pub const MAX_PACK_CHUNKS: u32 = 1 << 20;

const OBJECT: &str = "pack";

/// Where one frame lies in its pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FrameEntry {
    /// Offset in the pack.
    pub offset: U64,
    /// Bytes in the pack.
    pub stored_bytes: U32,
    /// Bytes after decoding.
    pub plain_bytes: U32,
    /// Number of a [`Codec`].
    pub codec: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

/// Where one chunk lies in its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChunkEntry {
    /// Name of the chunk.
    pub digest: ChunkDigest,
    /// Index into the frame table.
    pub frame: U32,
    /// Offset in the decoded frame.
    pub offset: U32,
    /// Plain bytes of the chunk.
    pub bytes: U32,
    /// Zero.
    pub reserved: U32,
}

/// The last bytes of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Footer {
    /// Offset of the frame table in the pack; the chunk table follows it, the footer follows that.
    pub tables_offset: U64,
    /// Entries in the frame table.
    pub frames: U32,
    /// Entries in the chunk table.
    pub chunks: U32,
    /// BLAKE3 of both tables.
    pub tables_digest: BlobDigest,
    /// Zero.
    pub reserved: U64,
    /// [`FOOTER_MAGIC`].
    pub magic: [u8; 8],
}

const _: () = assert!(size_of::<FrameEntry>() == FRAME_ENTRY_BYTES);
const _: () = assert!(size_of::<ChunkEntry>() == CHUNK_ENTRY_BYTES);
const _: () = assert!(size_of::<Footer>() == FOOTER_BYTES);

/// Why bytes are not a pack.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Magic, version, features, length.
    #[error(transparent)]
    Preamble(#[from] preamble::Error),
    /// The pack is over [`MAX_PACK_BYTES`] or shorter than its fixed parts.
    #[error("pack of {pack_bytes} bytes is outside the allowed sizes")]
    Size {
        /// Its size.
        pack_bytes: u64,
    },
    /// The pack does not end in [`FOOTER_MAGIC`]: cut off, or not a pack.
    #[error("pack has no footer: it is truncated or was never finished")]
    Footer,
    /// The footer's numbers do not fit the pack's size.
    #[error("pack footer does not fit the pack: tables at {tables_offset}, {frames} frames, {chunks} chunks")]
    Layout {
        /// Stated offset of the tables.
        tables_offset: u64,
        /// Stated number of frames.
        frames: u32,
        /// Stated number of chunks.
        chunks: u32,
    },
    /// The tables are not what the footer's digest names.
    #[error("pack tables do not match their digest")]
    TablesDigest,
    /// A frame entry is impossible.
    #[error("pack frame {index} is malformed")]
    Frame {
        /// Index in the frame table.
        index: u32,
    },
    /// A chunk entry is impossible or out of order.
    #[error("pack chunk {index} is malformed or out of order")]
    Chunk {
        /// Index in the chunk table.
        index: u32,
    },
    /// An unknown codec.
    #[error(transparent)]
    Codec(#[from] frame::Error),
}

impl Footer {
    /// Decodes the last [`FOOTER_BYTES`] of a pack of `pack_bytes` bytes and checks that its numbers fit.
    ///
    /// # Errors
    /// [`Error::Size`], [`Error::Footer`], [`Error::Layout`] or a preamble error for a short slice.
    pub fn decode(last: &[u8], pack_bytes: u64) -> Result<Self, Error> {
        if pack_bytes > MAX_PACK_BYTES || pack_bytes < (PREAMBLE_BYTES + FOOTER_BYTES) as u64 {
            return Err(Error::Size { pack_bytes });
        }
        let footer: Self = preamble::read(OBJECT, last)?;
        if footer.magic != FOOTER_MAGIC || footer.reserved.get() != 0 {
            return Err(Error::Footer);
        }
        let tables_end = footer.tables_offset.get().checked_add(footer.tables_bytes());
        let fits = footer.tables_offset.get() >= PREAMBLE_BYTES as u64
            && tables_end == Some(pack_bytes - FOOTER_BYTES as u64)
            && footer.chunks.get() <= MAX_PACK_CHUNKS
            && footer.frames.get() <= footer.chunks.get();
        if fits {
            return Ok(footer);
        }
        Err(Error::Layout {
            tables_offset: footer.tables_offset.get(),
            frames: footer.frames.get(),
            chunks: footer.chunks.get(),
        })
    }

    /// Bytes of both tables together.
    #[must_use]
    pub fn tables_bytes(&self) -> u64 {
        u64::from(self.frames.get()) * FRAME_ENTRY_BYTES as u64
            + u64::from(self.chunks.get()) * CHUNK_ENTRY_BYTES as u64
    }
}

/// The tables of a pack, checked against the footer's digest and for consistency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    frames: Vec<FrameEntry>,
    chunks: Vec<ChunkEntry>,
}

/// Where a chunk is: its frame, and its range in the decoded frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Offset of the frame in the pack.
    pub frame_offset: u64,
    /// Stored bytes of the frame.
    pub stored_bytes: u32,
    /// Plain bytes of the frame.
    pub plain_bytes: u32,
    /// How the frame is stored.
    pub codec: Codec,
    /// Offset of the chunk in the decoded frame.
    pub chunk_offset: u32,
    /// Bytes of the chunk.
    pub chunk_bytes: u32,
}

impl Tables {
    /// Builds the tables of a new pack; sorts the chunks.
    #[must_use]
    pub fn new(frames: Vec<FrameEntry>, mut chunks: Vec<ChunkEntry>) -> Self {
        chunks.sort_unstable_by_key(|chunk| chunk.digest);
        Self { frames, chunks }
    }

    /// Decodes and checks the tables: `bytes` is what lies between the footer's `tables_offset` and the footer.
    ///
    /// # Errors
    /// A digest mismatch, or the first entry that is impossible.
    pub fn decode(bytes: &[u8], footer: &Footer) -> Result<Self, Error> {
        if bytes.len() as u64 != footer.tables_bytes() || BlobDigest::of(bytes) != footer.tables_digest {
            return Err(Error::TablesDigest);
        }
        let (frames, chunks) = bytes.split_at(footer.frames.get() as usize * FRAME_ENTRY_BYTES);
        let frames = <[FrameEntry]>::ref_from_bytes(frames).map_err(|_| Error::TablesDigest)?;
        let chunks = <[ChunkEntry]>::ref_from_bytes(chunks).map_err(|_| Error::TablesDigest)?;
        check_frames(frames, footer.tables_offset.get())?;
        check_chunks(chunks, frames)?;
        Ok(Self { frames: frames.to_vec(), chunks: chunks.to_vec() })
    }

    /// The tables and the footer that close a pack whose frames end at `tables_offset`.
    #[must_use]
    pub fn encode(&self, tables_offset: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(
            self.frames.len() * FRAME_ENTRY_BYTES + self.chunks.len() * CHUNK_ENTRY_BYTES + FOOTER_BYTES,
        );
        bytes.extend_from_slice(self.frames.as_bytes());
        bytes.extend_from_slice(self.chunks.as_bytes());
        let footer = Footer {
            tables_offset: U64::new(tables_offset),
            frames: U32::new(u32::try_from(self.frames.len()).expect("a pack has at most MAX_PACK_CHUNKS frames")),
            chunks: U32::new(u32::try_from(self.chunks.len()).expect("a pack has at most MAX_PACK_CHUNKS chunks")),
            tables_digest: BlobDigest::of(&bytes),
            reserved: U64::ZERO,
            magic: FOOTER_MAGIC,
        };
        bytes.extend_from_slice(footer.as_bytes());
        bytes
    }

    /// The frames, in the order of the pack.
    #[must_use]
    pub fn frames(&self) -> &[FrameEntry] {
        &self.frames
    }

    /// The chunks, sorted by digest.
    #[must_use]
    pub fn chunks(&self) -> &[ChunkEntry] {
        &self.chunks
    }

    /// Where a chunk is in this pack.
    #[must_use]
    pub fn find(&self, digest: &ChunkDigest) -> Option<Place> {
        let index = self.chunks.binary_search_by_key(digest, |chunk| chunk.digest).ok()?;
        self.place(&self.chunks[index])
    }

    /// Where the chunk of an entry is.
    #[must_use]
    pub fn place(&self, chunk: &ChunkEntry) -> Option<Place> {
        let frame = self.frames.get(chunk.frame.get() as usize)?;
        Some(Place {
            frame_offset: frame.offset.get(),
            stored_bytes: frame.stored_bytes.get(),
            plain_bytes: frame.plain_bytes.get(),
            codec: Codec::from_number(frame.codec).ok()?,
            chunk_offset: chunk.offset.get(),
            chunk_bytes: chunk.bytes.get(),
        })
    }
}

fn check_frames(frames: &[FrameEntry], tables_offset: u64) -> Result<(), Error> {
    let mut end = PREAMBLE_BYTES as u64;
    for (index, frame) in (0..).zip(frames) {
        let codec = Codec::from_number(frame.codec)?;
        let (stored, plain) = (frame.stored_bytes.get(), frame.plain_bytes.get());
        let sound = frame.offset.get() == end
            && frame.reserved == [0; 7]
            && plain > 0
            && plain <= MAX_FRAME_PLAIN_BYTES
            && stored > 0
            && stored <= plain
            && (codec != Codec::Plain || stored == plain);
        if !sound {
            return Err(Error::Frame { index });
        }
        end += u64::from(stored);
    }
    // Nothing hides between the last frame and the tables.
    if end == tables_offset {
        Ok(())
    } else {
        Err(Error::Frame { index: u32::try_from(frames.len()).unwrap_or(u32::MAX) })
    }
}

fn check_chunks(chunks: &[ChunkEntry], frames: &[FrameEntry]) -> Result<(), Error> {
    let mut previous: Option<ChunkDigest> = None;
    for (index, chunk) in (0..).zip(chunks) {
        let frame = frames.get(chunk.frame.get() as usize).ok_or(Error::Chunk { index })?;
        let end = u64::from(chunk.offset.get()) + u64::from(chunk.bytes.get());
        let sound = chunk.reserved.get() == 0
            && chunk.bytes.get() > 0
            && chunk.bytes.get() <= MAX_CHUNK_BYTES
            && end <= u64::from(frame.plain_bytes.get())
            && previous.is_none_or(|previous| previous < chunk.digest);
        if !sound {
            return Err(Error::Chunk { index });
        }
        previous = Some(chunk.digest);
    }
    Ok(())
}

/// Checks the first bytes of a pack.
///
/// # Errors
/// As [`Preamble::check`].
pub fn check_preamble(first: &[u8]) -> Result<(), Error> {
    let preamble: Preamble = preamble::read(OBJECT, first)?;
    Ok(preamble.check(OBJECT, MAGIC)?)
}

/// Decodes a whole pack's tables from its bytes.
///
/// # Errors
/// Anything that makes the bytes not a pack. The pack's own digest is the caller's to check.
pub fn decode(bytes: &[u8]) -> Result<Tables, Error> {
    check_preamble(bytes)?;
    let pack_bytes = bytes.len() as u64;
    let footer_at = bytes.len().checked_sub(FOOTER_BYTES).ok_or(Error::Size { pack_bytes })?;
    let footer = Footer::decode(&bytes[footer_at..], pack_bytes)?;
    let tables_at = usize::try_from(footer.tables_offset.get()).map_err(|_| Error::Size { pack_bytes })?;
    Tables::decode(&bytes[tables_at..footer_at], &footer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let (a, b) = ([1; 100], [2; 50]);
        let plain = [&a[..], &b[..]].concat();
        let (codec, stored) = frame::encode(&plain, 3).unwrap();
        let frame = FrameEntry {
            offset: U64::new(PREAMBLE_BYTES as u64),
            stored_bytes: U32::new(stored.len() as u32),
            plain_bytes: U32::new(150),
            codec: codec as u8,
            reserved: [0; 7],
        };
        let chunk = |bytes: &[u8], offset: u32| ChunkEntry {
            digest: ChunkDigest::of(bytes),
            frame: U32::ZERO,
            offset: U32::new(offset),
            bytes: U32::new(bytes.len() as u32),
            reserved: U32::ZERO,
        };
        let tables = Tables::new(vec![frame], vec![chunk(&a, 0), chunk(&b, 100)]);
        let mut pack = Preamble::new(MAGIC).as_bytes().to_vec();
        pack.extend_from_slice(&stored);
        pack.extend_from_slice(&tables.encode(pack.len() as u64));
        pack
    }

    #[test]
    fn round_trip() {
        let tables = decode(&sample()).unwrap();
        let place = tables.find(&ChunkDigest::of(&[2; 50])).unwrap();
        assert_eq!((place.chunk_offset, place.chunk_bytes, place.plain_bytes), (100, 50, 150));
        assert_eq!(tables.find(&ChunkDigest::of(b"absent")), None);
    }

    #[test]
    fn every_flipped_bit_outside_the_frames_and_every_truncation_is_refused() {
        let pack = sample();
        let tables = decode(&pack).unwrap();
        let frames_end = PREAMBLE_BYTES + tables.frames()[0].stored_bytes.get() as usize;
        for bit in 0..pack.len() * 8 {
            // Bits of frames are covered by the digests of pack and chunks; ignorable features by nothing.
            let byte = bit / 8;
            if (PREAMBLE_BYTES..frames_end).contains(&byte) || (12..20).contains(&byte) {
                continue;
            }
            let mut bad = pack.clone();
            bad[byte] ^= 1 << (bit % 8);
            assert!(decode(&bad).is_err(), "bit {bit}");
        }
        for length in 0..pack.len() {
            assert!(decode(&pack[..length]).is_err(), "length {length}");
        }
    }
}
