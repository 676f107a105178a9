//! Layers: an EROFS metadata image and an extent map, compressed, behind a header that names both.
//!
//! ```text
//! identity record (160) | storage record (32) | stored metadata | stored extent map
//! ```
//!
//! The layer digest is BLAKE3 of the identity record alone. The record holds the digests and sizes of the *plain*
//! metadata and extent map, so how they are compressed is not part of a layer's identity, nor is where its chunks lie.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::chunk::BLOCK_BYTES;
use crate::digest::BlobDigest;
use crate::extents::MAX_DEVICE_BYTES;
use crate::frame::Codec;
use crate::preamble::{self, PREAMBLE_BYTES, Preamble};
use crate::{LayerDigest, frame};

/// Opens a layer.
pub const MAGIC: [u8; 8] = *b"DSECLAYR";
/// Bytes in the identity record.
pub const IDENTITY_BYTES: usize = 160;
/// Bytes in the storage record.
pub const STORAGE_BYTES: usize = 32;
/// Bytes before the stored metadata.
pub const HEADER_BYTES: usize = IDENTITY_BYTES + STORAGE_BYTES;
/// No layer has more plain metadata, nor a larger plain extent map.
pub const MAX_BLOB_BYTES: u64 = 16 << 30;
/// No layer with more plain bytes in both parts is decoded in memory; larger ones are streamed.
pub const MAX_IN_MEMORY_BYTES: u64 = 1 << 30;

const OBJECT: &str = "layer";

/// What a layer is; its BLAKE3 is the layer digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Identity {
    /// Magic, version, features.
    pub preamble: Preamble,
    /// Size of the plain EROFS metadata image, a multiple of 4096.
    pub metadata_bytes: U64,
    /// BLAKE3 of the plain metadata image.
    pub metadata_digest: BlobDigest,
    /// Size of the plain extent map.
    pub extents_bytes: U64,
    /// BLAKE3 of the plain extent map.
    pub extents_digest: BlobDigest,
    /// Size of the data device, a multiple of 4096.
    pub device_bytes: U64,
    /// Plain bytes of all chunks on the data device: the file data of the layer, each identical file once.
    pub data_bytes: U64,
    /// Sum of the sizes of all regular files, holes included, each hard-link group once.
    pub logical_bytes: U64,
    /// Inodes in the metadata image.
    pub inodes: U64,
    /// Zero.
    pub reserved: [u8; 16],
}

/// How a layer is stored; not part of its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Storage {
    /// Bytes of the stored metadata, right after the header.
    pub metadata_stored_bytes: U64,
    /// Bytes of the stored extent map, right after the metadata.
    pub extents_stored_bytes: U64,
    /// [`Codec`] of the metadata.
    pub metadata_codec: u8,
    /// [`Codec`] of the extent map.
    pub extents_codec: u8,
    /// Zero.
    pub reserved: [u8; 14],
}

const _: () = assert!(size_of::<Identity>() == IDENTITY_BYTES);
const _: () = assert!(size_of::<Storage>() == STORAGE_BYTES);
const _: () = assert!(PREAMBLE_BYTES == 32);

/// Why bytes are not a layer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Magic, version, features, length.
    #[error(transparent)]
    Preamble(#[from] preamble::Error),
    /// A size in the header is over its limit or misaligned.
    #[error("layer header states impossible sizes")]
    Sizes,
    /// The header is not that of the named layer.
    #[error("layer header does not match digest {expected}")]
    Digest {
        /// The name that was asked for.
        expected: LayerDigest,
    },
    /// The object is shorter or longer than its header says.
    #[error("layer has {have_bytes} bytes, its header says {need_bytes}")]
    Length {
        /// What the header says.
        need_bytes: u64,
        /// What is there.
        have_bytes: u64,
    },
    /// The metadata or extent map does not decompress to what the identity record names.
    #[error("layer {blob} does not match its digest")]
    Blob {
        /// `metadata` or `extent map`.
        blob: &'static str,
    },
    /// A layer that is sound so far, and too large for memory.
    #[error("layer has {plain_bytes} plain bytes, too many to decode in memory")]
    InMemory {
        /// Plain bytes of both parts, by the identity record.
        plain_bytes: u64,
    },
    /// An unknown codec.
    #[error(transparent)]
    Codec(#[from] frame::Error),
}

/// The first [`HEADER_BYTES`] of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// What the layer is.
    pub identity: Identity,
    /// How it is stored.
    pub storage: Storage,
}

/// Size and name of one plain blob of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blob {
    /// Plain bytes.
    pub bytes: u64,
    /// BLAKE3 of the plain bytes.
    pub digest: BlobDigest,
}

impl Blob {
    /// Describes bytes in memory.
    #[must_use]
    pub fn of(plain: &[u8]) -> Self {
        Self { bytes: plain.len() as u64, digest: BlobDigest::of(plain) }
    }
}

impl Identity {
    /// The identity of a layer whose blobs are described: for writers that stream them.
    #[must_use]
    pub fn new(metadata: Blob, extents: Blob, totals: Totals) -> Self {
        Self {
            preamble: Preamble::new(MAGIC),
            metadata_bytes: U64::new(metadata.bytes),
            metadata_digest: metadata.digest,
            extents_bytes: U64::new(extents.bytes),
            extents_digest: extents.digest,
            device_bytes: U64::new(totals.device_bytes),
            data_bytes: U64::new(totals.data_bytes),
            logical_bytes: U64::new(totals.logical_bytes),
            inodes: U64::new(totals.inodes),
            reserved: [0; 16],
        }
    }

    /// The name of the layer.
    #[must_use]
    pub fn digest(&self) -> LayerDigest {
        LayerDigest::of(self.as_bytes())
    }
}

impl Header {
    /// Decodes the header and checks magic, version, limits, and the identity record against the name of the layer.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn decode(bytes: &[u8], expected: &LayerDigest) -> Result<Self, Error> {
        let header = Self::decode_unnamed(bytes)?;
        if header.identity.digest() != *expected {
            return Err(Error::Digest { expected: *expected });
        }
        Ok(header)
    }

    /// As [`Header::decode`], for a layer whose name is not known beforehand.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn decode_unnamed(bytes: &[u8]) -> Result<Self, Error> {
        let header: Self = preamble::read(OBJECT, bytes)?;
        header.identity.preamble.check(OBJECT, MAGIC)?;
        header.check_sizes()?;
        Codec::from_number(header.storage.metadata_codec)?;
        Codec::from_number(header.storage.extents_codec)?;
        if header.identity.reserved != [0; 16] || header.storage.reserved != [0; 14] {
            return Err(preamble::Error::Reserved { object: OBJECT }.into());
        }
        Ok(header)
    }

    fn check_sizes(&self) -> Result<(), Error> {
        let (identity, storage) = (&self.identity, &self.storage);
        let block = u64::from(BLOCK_BYTES);
        let sound = (1..=MAX_BLOB_BYTES).contains(&identity.metadata_bytes.get())
            && identity.metadata_bytes.get().is_multiple_of(block)
            && (1..=MAX_BLOB_BYTES).contains(&identity.extents_bytes.get())
            && identity.device_bytes.get() <= MAX_DEVICE_BYTES
            && identity.device_bytes.get().is_multiple_of(block)
            && identity.data_bytes.get() <= identity.device_bytes.get()
            && storage.metadata_stored_bytes.get() <= identity.metadata_bytes.get()
            && storage.extents_stored_bytes.get() <= identity.extents_bytes.get();
        if sound { Ok(()) } else { Err(Error::Sizes) }
    }

    /// Bytes of the whole stored layer.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.storage.metadata_stored_bytes.get() + self.storage.extents_stored_bytes.get()
    }
}

/// The plain parts of a layer, in memory, each checked against the identity record.
///
/// For layers of a size that the caller has bounded; those that handle any layer stream the parts through files, with
/// [`Header`] and [`Identity`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// What the layer is.
    pub identity: Identity,
    /// The EROFS metadata image. Its digest is right; its *structure* is for `dsec_erofs::check`.
    pub metadata: Vec<u8>,
    /// The encoded extent map. Its digest is right; its entries are for [`crate::extents::Map::decode`].
    pub extents: Vec<u8>,
}

/// What the writer of a layer knows beside the two blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// See [`Identity::device_bytes`].
    pub device_bytes: u64,
    /// See [`Identity::data_bytes`].
    pub data_bytes: u64,
    /// See [`Identity::logical_bytes`].
    pub logical_bytes: u64,
    /// See [`Identity::inodes`].
    pub inodes: u64,
}

impl Layer {
    /// A layer of a plain metadata image and a plain extent map.
    #[must_use]
    pub fn new(metadata: Vec<u8>, extents: Vec<u8>, totals: Totals) -> Self {
        let identity = Identity::new(Blob::of(&metadata), Blob::of(&extents), totals);
        Self { identity, metadata, extents }
    }

    /// The name of the layer.
    #[must_use]
    pub fn digest(&self) -> LayerDigest {
        self.identity.digest()
    }

    /// The stored form, compressed at a zstd `level`.
    #[must_use]
    pub fn encode(&self, level: i32) -> Vec<u8> {
        let (metadata_codec, metadata) = compress(&self.metadata, level);
        let (extents_codec, extents) = compress(&self.extents, level);
        let storage = Storage {
            metadata_stored_bytes: U64::new(metadata.len() as u64),
            extents_stored_bytes: U64::new(extents.len() as u64),
            metadata_codec: metadata_codec as u8,
            extents_codec: extents_codec as u8,
            reserved: [0; 14],
        };
        let mut bytes = Vec::with_capacity(HEADER_BYTES + metadata.len() + extents.len());
        bytes.extend_from_slice(self.identity.as_bytes());
        bytes.extend_from_slice(storage.as_bytes());
        bytes.extend_from_slice(&metadata);
        bytes.extend_from_slice(&extents);
        bytes
    }

    /// Decodes a stored layer and checks everything against its name.
    ///
    /// # Errors
    /// The first thing that is wrong. Allocates the sizes of the identity record, after that record has been checked
    /// against `expected`; more than [`MAX_IN_MEMORY_BYTES`] is [`Error::InMemory`] before anything is allocated.
    pub fn decode(bytes: &[u8], expected: &LayerDigest) -> Result<Self, Error> {
        let header = Header::decode(bytes, expected)?;
        let need_bytes = header.stored_bytes();
        if bytes.len() as u64 != need_bytes {
            return Err(Error::Length { need_bytes, have_bytes: bytes.len() as u64 });
        }
        // Each is at most `MAX_BLOB_BYTES`.
        let plain_bytes = header.identity.metadata_bytes.get() + header.identity.extents_bytes.get();
        if plain_bytes > MAX_IN_MEMORY_BYTES {
            return Err(Error::InMemory { plain_bytes });
        }
        // The conversions hold: both parts lie inside `bytes`.
        let split =
            HEADER_BYTES + usize::try_from(header.storage.metadata_stored_bytes.get()).map_err(|_| Error::Sizes)?;
        let identity = header.identity;
        let metadata = decompress(
            Codec::from_number(header.storage.metadata_codec)?,
            &bytes[HEADER_BYTES..split],
            identity.metadata_bytes.get(),
            &identity.metadata_digest,
            "metadata",
        )?;
        let extents = decompress(
            Codec::from_number(header.storage.extents_codec)?,
            &bytes[split..],
            identity.extents_bytes.get(),
            &identity.extents_digest,
            "extent map",
        )?;
        Ok(Self { identity, metadata, extents })
    }
}

fn compress(plain: &[u8], level: i32) -> (Codec, Vec<u8>) {
    match zstd::bulk::compress(plain, level) {
        Ok(stored) if stored.len() < plain.len() => (Codec::Zstd, stored),
        _ => (Codec::Plain, plain.to_vec()),
    }
}

fn decompress(
    codec: Codec,
    stored: &[u8],
    plain_bytes: u64,
    digest: &BlobDigest,
    blob: &'static str,
) -> Result<Vec<u8>, Error> {
    let capacity = usize::try_from(plain_bytes).map_err(|_| Error::Sizes)?;
    let plain = match codec {
        Codec::Plain => stored.to_vec(),
        Codec::Zstd => zstd::bulk::decompress(stored, capacity).map_err(|_| Error::Blob { blob })?,
    };
    // The record states both: bytes with this digest may still be fewer than it says.
    let is_stated = plain.len() == capacity && BlobDigest::of(&plain) == *digest;
    if is_stated { Ok(plain) } else { Err(Error::Blob { blob }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Layer {
        let totals = Totals { device_bytes: 4096, data_bytes: 10, logical_bytes: 10, inodes: 2 };
        Layer::new(vec![7; 8192], crate::extents::encode(&[], 4096), totals)
    }

    #[test]
    fn round_trip_and_level_is_not_identity() {
        let layer = sample();
        for level in [1, 19] {
            assert_eq!(Layer::decode(&layer.encode(level), &layer.digest()).unwrap(), layer);
        }
    }

    #[test]
    fn plain_sizes_are_bounded_before_anything_is_allocated() {
        let mut layer = sample();
        for metadata_bytes in [MAX_IN_MEMORY_BYTES, MAX_BLOB_BYTES] {
            layer.identity.metadata_bytes = U64::new(metadata_bytes);
            let plain_bytes = metadata_bytes + layer.extents.len() as u64;
            assert_eq!(Layer::decode(&layer.encode(3), &layer.digest()), Err(Error::InMemory { plain_bytes }));
        }
    }

    #[test]
    fn parts_that_are_shorter_than_stated_are_refused() {
        for (metadata, blob) in [(true, "metadata"), (false, "extent map")] {
            for plain in [false, true] {
                let mut layer = sample();
                let mut stored = layer.encode(3);
                // The digest is that of the bytes; the size beside it is not theirs.
                let size =
                    if metadata { &mut layer.identity.metadata_bytes } else { &mut layer.identity.extents_bytes };
                *size = U64::new(size.get() + 4096);
                if plain {
                    let (_, storage) = Header::mut_from_prefix(&mut stored).map(|(header, _)| ((), header)).unwrap();
                    storage.storage.metadata_codec = Codec::Plain as u8;
                    storage.storage.extents_codec = Codec::Plain as u8;
                    storage.storage.metadata_stored_bytes = U64::new(layer.metadata.len() as u64);
                    storage.storage.extents_stored_bytes = U64::new(layer.extents.len() as u64);
                    stored.truncate(HEADER_BYTES);
                    stored.extend_from_slice(&layer.metadata);
                    stored.extend_from_slice(&layer.extents);
                }
                stored[..IDENTITY_BYTES].copy_from_slice(layer.identity.as_bytes());
                assert_eq!(Layer::decode(&stored, &layer.digest()), Err(Error::Blob { blob }));
            }
        }
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_refused() {
        let layer = sample();
        let (bytes, digest) = (layer.encode(3), layer.digest());
        for length in 0..bytes.len() {
            assert!(Layer::decode(&bytes[..length], &digest).is_err(), "length {length}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // A compressed stream may tolerate a flipped bit (a descriptor bit without effect): then the plain bytes
            // are the same, which is all that is promised.
            if let Ok(decoded) = Layer::decode(&bad, &digest) {
                assert_eq!(decoded, layer, "bit {bit}");
                assert!(bit / 8 >= HEADER_BYTES, "bit {bit} of the header was accepted");
            }
        }
    }
}
