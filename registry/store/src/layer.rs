//! Layers in stored form, streamed: neither part is ever whole in memory.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use dsec_format::LayerDigest;
use dsec_format::digest::BlobDigest;
use dsec_format::frame::Codec;
use dsec_format::layer::{self, Blob, HEADER_BYTES, Header, Identity, Storage, Totals};
use dsec_format::locations;
use fs_err as fs;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use crate::error::{Damage, Error};
use crate::layout::Object;

/// No part of a layer that is held in memory is larger, nor are locations: an extent map of 20 million chunks.
pub const MAX_IN_MEMORY_BYTES: u64 = layer::MAX_IN_MEMORY_BYTES;

/// Why a layer cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The stored form cannot be read.
    #[error("layer cannot be read")]
    Read(#[source] io::Error),
    /// It is not the layer it should be.
    #[error("layer is damaged")]
    Damaged(#[from] layer::Error),
    /// What it unpacks to cannot be written.
    #[error("unpacked layer cannot be written")]
    Write(#[source] io::Error),
}

/// Writes the stored form of a layer whose plain parts are the files `metadata` and `extents` to the new file `out`,
/// compressed at a zstd `level`. Not durable.
///
/// # Errors
/// An I/O error of any of the three.
pub fn write(metadata: &Path, extents: &Path, totals: Totals, level: i32, out: &Path) -> io::Result<Identity> {
    let mut out = fs::File::create(out)?;
    out.write_all(&[0; HEADER_BYTES])?;
    let metadata = write_part(metadata, level, &mut out)?;
    let extents = write_part(extents, level, &mut out)?;
    let storage = Storage {
        metadata_stored_bytes: U64::new(metadata.stored_bytes),
        extents_stored_bytes: U64::new(extents.stored_bytes),
        metadata_codec: metadata.codec as u8,
        extents_codec: extents.codec as u8,
        reserved: [0; 14],
    };
    let identity = Identity::new(metadata.blob, extents.blob, totals);
    out.seek(SeekFrom::Start(0))?;
    out.write_all(identity.as_bytes())?;
    out.write_all(storage.as_bytes())?;
    Ok(identity)
}

struct Part {
    blob: Blob,
    codec: Codec,
    stored_bytes: u64,
}

fn write_part(plain: &Path, level: i32, out: &mut fs::File) -> io::Result<Part> {
    let mut file = fs::File::open(plain)?;
    let plain_bytes = file.metadata()?.len();
    let start = out.stream_position()?;
    let mut hasher = Hashing { inner: &mut file, hasher: blake3::Hasher::new(), bytes: 0 };
    let mut encoder = zstd::stream::write::Encoder::new(&mut *out, level)?;
    encoder.set_pledged_src_size(Some(plain_bytes))?;
    io::copy(&mut hasher, &mut encoder)?;
    let blob = Blob { bytes: hasher.bytes, digest: BlobDigest::from_bytes(*hasher.hasher.finalize().as_bytes()) };
    encoder.finish()?;
    let stored_bytes = out.stream_position()? - start;
    if stored_bytes < blob.bytes {
        return Ok(Part { blob, codec: Codec::Zstd, stored_bytes });
    }
    out.seek(SeekFrom::Start(start))?;
    file.seek(SeekFrom::Start(0))?;
    io::copy(&mut file, out)?;
    out.set_len(start + blob.bytes)?;
    Ok(Part { blob, codec: Codec::Plain, stored_bytes: blob.bytes })
}

struct Hashing<R> {
    inner: R,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}

/// Reads and checks the header of the layer `digest`.
///
/// # Errors
/// As [`unpack`].
pub fn read_header(stored: &mut dyn Read, digest: &LayerDigest) -> Result<Header, UnpackError> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    stored.take(HEADER_BYTES as u64).read_to_end(&mut header).map_err(UnpackError::Read)?;
    Ok(Header::decode(&header, digest)?)
}

/// Unpacks the stored layer `digest` into its plain metadata image and extent map. What was written is right only when
/// this returns `Ok`: until then it is unverified.
///
/// # Errors
/// As [`UnpackError`]; never more is written than the identity record states.
pub fn unpack(
    stored: &mut dyn Read,
    digest: &LayerDigest,
    metadata: &mut dyn Write,
    extents: &mut dyn Write,
) -> Result<Identity, UnpackError> {
    let header = read_header(stored, digest)?;
    let (identity, storage) = (&header.identity, &header.storage);
    unpack_part(
        stored,
        storage.metadata_stored_bytes.get(),
        Codec::from_number(storage.metadata_codec).map_err(layer::Error::from)?,
        Blob { bytes: identity.metadata_bytes.get(), digest: identity.metadata_digest },
        "metadata",
        metadata,
    )?;
    unpack_part(
        stored,
        storage.extents_stored_bytes.get(),
        Codec::from_number(storage.extents_codec).map_err(layer::Error::from)?,
        Blob { bytes: identity.extents_bytes.get(), digest: identity.extents_digest },
        "extent map",
        extents,
    )?;
    let more = io::copy(&mut stored.take(1), &mut io::sink()).map_err(UnpackError::Read)?;
    if more > 0 {
        let need_bytes = header.stored_bytes();
        return Err(layer::Error::Length { need_bytes, have_bytes: need_bytes + more }.into());
    }
    Ok(header.identity)
}

/// Checks the whole stored layer `digest` and gives its plain extent map. `store` is for errors.
///
/// # Errors
/// [`Error::Damaged`], [`Error::TooLarge`] for a map over [`MAX_IN_MEMORY_BYTES`], or reading failed.
pub fn read_extents(stored: &mut dyn Read, digest: &LayerDigest, store: &str) -> Result<Vec<u8>, Error> {
    let mut extents = Bounded(Vec::new());
    match unpack(stored, digest, &mut io::sink(), &mut extents) {
        Ok(_) => Ok(extents.0),
        // A remote source sends its own error through the reader.
        Err(UnpackError::Read(error)) => Err(error.downcast::<Error>().unwrap_or_else(Error::Io)),
        Err(UnpackError::Damaged(error)) => Err(damaged(digest, store, error)),
        Err(UnpackError::Write(_)) => Err(Error::TooLarge {
            object: format!("extent map of {}", Object::layer(digest)),
            have_bytes: MAX_IN_MEMORY_BYTES + 1,
            allowed_bytes: MAX_IN_MEMORY_BYTES,
        }),
    }
}

/// Refuses locations of `have_bytes` bytes that are too many for a layer of `chunks` chunks, or for memory.
pub(crate) fn bound_locations(layer: &LayerDigest, chunks: u64, have_bytes: u64, store: &str) -> Result<(), Error> {
    let object = Object::locations(layer).to_string();
    let need_bytes = locations::most_bytes(chunks);
    if have_bytes > need_bytes {
        return Err(Error::Damaged {
            object,
            store: store.to_owned(),
            source: Damage::Length { need_bytes, have_bytes },
        });
    }
    let allowed_bytes = MAX_IN_MEMORY_BYTES;
    if have_bytes > allowed_bytes { Err(Error::TooLarge { object, have_bytes, allowed_bytes }) } else { Ok(()) }
}

/// Decodes the whole stored layer `digest`. `store` is for errors.
pub(crate) fn decode(stored: &[u8], digest: &LayerDigest, store: &str) -> Result<layer::Layer, Error> {
    layer::Layer::decode(stored, digest).map_err(|error| match error {
        layer::Error::InMemory { plain_bytes } => Error::TooLarge {
            object: Object::layer(digest).to_string(),
            have_bytes: plain_bytes,
            allowed_bytes: MAX_IN_MEMORY_BYTES,
        },
        error => damaged(digest, store, error),
    })
}

/// The error for a layer in `store` that is damaged.
pub(crate) fn damaged(digest: &LayerDigest, store: &str, damage: impl Into<Damage>) -> Error {
    Error::Damaged { object: Object::layer(digest).to_string(), store: store.to_owned(), source: damage.into() }
}

/// A vector that refuses to grow over [`MAX_IN_MEMORY_BYTES`].
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.0.len() + bytes.len()) as u64 > MAX_IN_MEMORY_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn unpack_part(
    stored: &mut dyn Read,
    stored_bytes: u64,
    codec: Codec,
    expected: Blob,
    blob: &'static str,
    out: &mut dyn Write,
) -> Result<(), UnpackError> {
    let (failed, left_bytes) = (Cell::new(false), Cell::new(stored_bytes));
    let mut stored = Observed { inner: stored, left_bytes: &left_bytes, failed: &failed };
    let mut copy = |plain: &mut dyn Read| match copy_part(plain, expected, blob, out) {
        // zstd reports damaged input as a failed read; a read that did fail is told apart by the flag.
        Err(UnpackError::Read(_)) if !failed.get() => Err(layer::Error::Blob { blob }.into()),
        result => result,
    };
    match codec {
        Codec::Plain => copy(&mut stored)?,
        Codec::Zstd => copy(&mut zstd::stream::read::Decoder::new(stored).map_err(UnpackError::Read)?)?,
    }
    // The data was whole, but the object ends before the part does.
    if left_bytes.get() > 0 { Err(layer::Error::Blob { blob }.into()) } else { Ok(()) }
}

/// The stored bytes of one part; notes how many are left, and whether reading itself failed.
struct Observed<'a> {
    inner: &'a mut dyn Read,
    left_bytes: &'a Cell<u64>,
    failed: &'a Cell<bool>,
}

impl Read for Observed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let allowed = usize::try_from(self.left_bytes.get()).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = self.inner.read(&mut buffer[..allowed]).inspect_err(|error| {
            self.failed.set(error.kind() != io::ErrorKind::Interrupted);
        })?;
        self.left_bytes.set(self.left_bytes.get() - count as u64);
        Ok(count)
    }
}

fn copy_part(plain: &mut dyn Read, expected: Blob, blob: &'static str, out: &mut dyn Write) -> Result<(), UnpackError> {
    let mut hasher = blake3::Hasher::new();
    let mut left = expected.bytes;
    let mut buffer = vec![0; 128 * 1024];
    loop {
        let count = match plain.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(UnpackError::Read(error)),
        };
        if count as u64 > left {
            return Err(layer::Error::Blob { blob }.into());
        }
        left -= count as u64;
        hasher.update(&buffer[..count]);
        out.write_all(&buffer[..count]).map_err(UnpackError::Write)?;
    }
    let found = BlobDigest::from_bytes(*hasher.finalize().as_bytes());
    if left == 0 && found == expected.digest { Ok(()) } else { Err(layer::Error::Blob { blob }.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsec_format::layer::Layer;

    fn sample(noise: bool) -> Layer {
        let byte = |n: u32| if noise { blake3::hash(&n.to_le_bytes()).as_bytes()[0] } else { 7 };
        let metadata = (0..8192).map(byte).collect();
        let totals = Totals { device_bytes: 4096, data_bytes: 10, logical_bytes: 10, inodes: 2 };
        Layer::new(metadata, dsec_format::extents::encode(&[], 4096), totals)
    }

    fn totals(layer: &Layer) -> Totals {
        let identity = &layer.identity;
        Totals {
            device_bytes: identity.device_bytes.get(),
            data_bytes: identity.data_bytes.get(),
            logical_bytes: identity.logical_bytes.get(),
            inodes: identity.inodes.get(),
        }
    }

    #[test]
    fn streamed_and_in_memory_forms_read_each_other() {
        for noise in [false, true] {
            let layer = sample(noise);
            let directory = tempfile::tempdir().unwrap();
            let path = |name: &str| directory.path().join(name);
            fs::write(path("m"), &layer.metadata).unwrap();
            fs::write(path("x"), &layer.extents).unwrap();
            let identity = write(&path("m"), &path("x"), totals(&layer), 3, &path("l")).unwrap();
            assert_eq!(identity, layer.identity);
            let stored = fs::read(path("l")).unwrap();
            assert_eq!(Layer::decode(&stored, &layer.digest()).unwrap(), layer);

            for stored in [stored, layer.encode(3)] {
                let (mut metadata, mut extents) = (Vec::new(), Vec::new());
                unpack(&mut stored.as_slice(), &layer.digest(), &mut metadata, &mut extents).unwrap();
                assert_eq!((metadata, extents), (layer.metadata.clone(), layer.extents.clone()));
            }
        }
    }

    #[test]
    fn every_truncation_every_extension_and_every_flipped_bit_is_refused() {
        let layer = sample(false);
        let stored = layer.encode(3);
        let check = |bytes: &[u8]| {
            unpack(&mut &*bytes, &layer.digest(), &mut io::sink(), &mut io::sink()).map_err(|error| match error {
                UnpackError::Damaged(_) => {}
                other => panic!("{other:?}"),
            })
        };
        for length in 0..stored.len() {
            assert!(check(&stored[..length]).is_err(), "length {length}");
        }
        assert!(check(&[&stored[..], &[0]].concat()).is_err());
        for bit in 0..stored.len() * 8 {
            let mut bad = stored.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // As in the format's own test: a bit of a compressed stream may be without effect.
            assert!(check(&bad).is_err() || bit / 8 >= HEADER_BYTES, "bit {bit}");
        }
    }
}
