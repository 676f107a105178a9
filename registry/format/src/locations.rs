//! Locations: in which pack, and where in it, each chunk of a layer lies in one store.
//!
//! Derived from the packs' tables and replaced when a store moves chunks, so it is not part of any identity and nothing
//! is trusted because of it: a wrong location leads to a chunk that fails its digest. It exists so that a reader learns
//! with one request where everything is. One record per extent, in the order of the layer's extent map.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::digest::BlobDigest;
use crate::frame::{self, Codec, MAX_FRAME_PLAIN_BYTES};
use crate::pack::{MAX_PACK_BYTES, Place};
use crate::preamble::{self, Preamble};
use crate::{LayerDigest, PackDigest};

/// Opens a locations object.
pub const MAGIC: [u8; 8] = *b"DSECLOCS";
/// Bytes before the pack digests.
pub const HEADER_BYTES: usize = 128;
/// Bytes in a record.
pub const RECORD_BYTES: usize = 32;

const OBJECT: &str = "locations";

/// Before the pack digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Magic, version, features.
    pub preamble: Preamble,
    /// The layer whose chunks are located.
    pub layer: LayerDigest,
    /// Number of pack digests.
    pub packs: U32,
    /// Zero.
    pub reserved0: U32,
    /// Number of records.
    pub records: U64,
    /// BLAKE3 of what follows the header.
    pub body_digest: BlobDigest,
    /// Zero.
    pub reserved1: [u8; 16],
}

/// Where one chunk lies. Its size is in the extent map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Record {
    /// Offset of the frame in the pack.
    pub frame_offset: U64,
    /// Index into the pack digests.
    pub pack: U32,
    /// Stored bytes of the frame.
    pub stored_bytes: U32,
    /// Plain bytes of the frame.
    pub plain_bytes: U32,
    /// Offset of the chunk in the decoded frame.
    pub chunk_offset: U32,
    /// Number of a [`Codec`].
    pub codec: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(size_of::<Record>() == RECORD_BYTES);

impl Record {
    /// A record for a chunk at `place` in the pack of index `pack`.
    #[must_use]
    pub fn new(pack: u32, place: &Place) -> Self {
        Self {
            frame_offset: U64::new(place.frame_offset),
            pack: U32::new(pack),
            stored_bytes: U32::new(place.stored_bytes),
            plain_bytes: U32::new(place.plain_bytes),
            chunk_offset: U32::new(place.chunk_offset),
            codec: place.codec as u8,
            reserved: [0; 7],
        }
    }

    /// The frame's codec.
    ///
    /// # Errors
    /// An unknown number; not after [`Locations::decode`].
    pub fn codec(&self) -> Result<Codec, frame::Error> {
        Codec::from_number(self.codec)
    }
}

/// Why bytes are not locations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Magic, version, features, length.
    #[error(transparent)]
    Preamble(#[from] preamble::Error),
    /// They are those of another layer.
    #[error("locations are those of layer {found}")]
    Layer {
        /// The layer that the object names.
        found: LayerDigest,
    },
    /// Counts do not fit the bytes.
    #[error("locations state {packs} packs and {records} records but have {have_bytes} bytes")]
    Count {
        /// Stated packs.
        packs: u32,
        /// Stated records.
        records: u64,
        /// Bytes there.
        have_bytes: u64,
    },
    /// The body is not what the header's digest names.
    #[error("locations do not match their digest")]
    Digest,
    /// A record is impossible.
    #[error("location record {index} is malformed")]
    Record {
        /// Index of the record.
        index: u64,
    },
}

/// Decoded locations of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locations {
    /// The packs that the records refer to.
    pub packs: Vec<PackDigest>,
    /// One record per extent of the layer.
    pub records: Vec<Record>,
}

/// What the header of locations says, checked against their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    packs: u32,
    records: u64,
    body_digest: BlobDigest,
}

impl Head {
    /// Decodes the first [`HEADER_BYTES`] of the locations of `layer`, which have `have_bytes` bytes in all.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn decode(header: &[u8], layer: &LayerDigest, have_bytes: u64) -> Result<Self, Error> {
        let header: Header = preamble::read(OBJECT, header)?;
        header.preamble.check(OBJECT, MAGIC)?;
        if header.layer != *layer {
            return Err(Error::Layer { found: header.layer });
        }
        if header.reserved0.get() != 0 || header.reserved1 != [0; 16] {
            return Err(preamble::Error::Reserved { object: OBJECT }.into());
        }
        let (packs, records) = (header.packs.get(), header.records.get());
        if stored_bytes(packs, records) != Some(have_bytes) {
            return Err(Error::Count { packs, records, have_bytes });
        }
        Ok(Self { packs, records, body_digest: header.body_digest })
    }

    /// Number of records.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Bytes of the pack digests, right after the header.
    #[must_use]
    pub fn packs_bytes(&self) -> usize {
        self.packs as usize * size_of::<PackDigest>()
    }
}

/// Most bytes of the locations of a layer with so many chunks: each may lie in a pack of its own.
#[must_use]
pub const fn most_bytes(chunks: u64) -> u64 {
    chunks.saturating_mul((RECORD_BYTES + size_of::<PackDigest>()) as u64).saturating_add(HEADER_BYTES as u64)
}

/// Bytes of locations with so many packs and records.
fn stored_bytes(packs: u32, records: u64) -> Option<u64> {
    let packs_bytes = u64::from(packs) * size_of::<PackDigest>() as u64;
    records.checked_mul(RECORD_BYTES as u64)?.checked_add(packs_bytes)?.checked_add(HEADER_BYTES as u64)
}

impl Locations {
    /// The stored form.
    #[must_use]
    pub fn encode(&self, layer: &LayerDigest) -> Vec<u8> {
        let mut body = Vec::with_capacity(size_of_val(self.packs.as_slice()) + size_of_val(self.records.as_slice()));
        body.extend_from_slice(self.packs.as_bytes());
        body.extend_from_slice(self.records.as_bytes());
        let header = Header {
            preamble: Preamble::new(MAGIC),
            layer: *layer,
            packs: U32::new(u32::try_from(self.packs.len()).expect("records index packs with 32 bits")),
            reserved0: U32::ZERO,
            records: U64::new(self.records.len() as u64),
            body_digest: BlobDigest::of(&body),
            reserved1: [0; 16],
        };
        [header.as_bytes(), &body].concat()
    }

    /// Decodes and checks the locations of `layer`.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn decode(bytes: &[u8], layer: &LayerDigest) -> Result<Self, Error> {
        let head = Head::decode(bytes, layer, bytes.len() as u64)?;
        let body = &bytes[HEADER_BYTES..];
        if BlobDigest::of(body) != head.body_digest {
            return Err(Error::Digest);
        }
        let Head { packs, records, .. } = head;
        let count_error = || Error::Count { packs, records, have_bytes: bytes.len() as u64 };
        let (pack_bytes, record_bytes) = body.split_at(head.packs_bytes());
        let pack_digests = <[PackDigest]>::ref_from_bytes(pack_bytes).map_err(|_| count_error())?;
        let record_slice = <[Record]>::ref_from_bytes(record_bytes).map_err(|_| count_error())?;
        check(record_slice, packs)?;
        Ok(Self { packs: pack_digests.to_vec(), records: record_slice.to_vec() })
    }
}

fn check(records: &[Record], packs: u32) -> Result<(), Error> {
    for (index, record) in (0..).zip(records) {
        let plain = record.plain_bytes.get();
        let sound = record.pack.get() < packs
            && record.reserved == [0; 7]
            && record.codec().is_ok()
            && (1..=MAX_FRAME_PLAIN_BYTES).contains(&plain)
            && (1..=plain).contains(&record.stored_bytes.get())
            && record.chunk_offset.get() < plain
            && record.frame_offset.get() < MAX_PACK_BYTES;
        if !sound {
            return Err(Error::Record { index });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_truncation_and_flips() {
        let layer = LayerDigest::of(b"layer");
        let place = Place {
            frame_offset: 32,
            stored_bytes: 10,
            plain_bytes: 20,
            codec: Codec::Zstd,
            chunk_offset: 5,
            chunk_bytes: 15,
        };
        let locations = Locations { packs: vec![PackDigest::of(b"pack")], records: vec![Record::new(0, &place)] };
        let bytes = locations.encode(&layer);
        assert_eq!(Locations::decode(&bytes, &layer).unwrap(), locations);
        assert!(Locations::decode(&bytes, &LayerDigest::of(b"other")).is_err());
        for length in 0..bytes.len() {
            assert!(Locations::decode(&bytes[..length], &layer).is_err(), "length {length}");
        }
        for bit in 0..bytes.len() * 8 {
            if (12..20).contains(&(bit / 8)) {
                continue; // features that a reader may ignore
            }
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Locations::decode(&bad, &layer).is_err(), "bit {bit}");
        }
    }
}
