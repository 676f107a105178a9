//! Unpacking: a layer's stored form, as a stream, into the files that are mapped and mounted.
//!
//! Memory does not grow with the layer. Nothing is written beyond the sizes of the identity record, which is checked
//! against the digest first; a digest runs along with every byte.

use std::io::{Read, Write};
use std::path::Path;

use dsec_format::LayerDigest;
use dsec_format::digest::BlobDigest;
use dsec_format::extents::Map;
use dsec_format::frame::Codec;
use dsec_format::layer::{self, HEADER_BYTES, Header};
use dsec_sys::mapped::Mapped;

use super::{EXTENTS_FILE, Error, HEADER_FILE, METADATA_FILE};

const COPY_BYTES: usize = 256 << 10;

/// Unpacks a layer into an empty directory and checks all of it.
///
/// # Errors
/// The first thing that is wrong; the directory then holds an unfinished layer.
pub fn unpack(digest: &LayerDigest, mut stream: impl Read, directory: &Path) -> Result<(), Error> {
    let broken = |source| Error::Stream { layer: *digest, source };
    let malformed = |source| Error::Layer { layer: *digest, source };
    let io = |source| Error::Io { layer: *digest, source };
    let mut bytes = [0; HEADER_BYTES];
    stream.read_exact(&mut bytes).map_err(broken)?;
    let header = Header::decode(&bytes, digest).map_err(malformed)?;
    let (identity, storage) = (&header.identity, &header.storage);

    let metadata = Blob {
        name: "metadata",
        codec: storage.metadata_codec,
        stored_bytes: storage.metadata_stored_bytes.get(),
        plain_bytes: identity.metadata_bytes.get(),
        digest: identity.metadata_digest,
    };
    metadata.unpack(digest, &mut stream, &directory.join(METADATA_FILE))?;
    let extents = Blob {
        name: "extent map",
        codec: storage.extents_codec,
        stored_bytes: storage.extents_stored_bytes.get(),
        plain_bytes: identity.extents_bytes.get(),
        digest: identity.extents_digest,
    };
    extents.unpack(digest, &mut stream, &directory.join(EXTENTS_FILE))?;
    if stream.read(&mut [0; 1]).map_err(broken)? != 0 {
        let need_bytes = header.stored_bytes();
        return Err(malformed(layer::Error::Length { need_bytes, have_bytes: need_bytes + 1 }));
    }

    let map = |name| Mapped::open(fs_err::File::open(directory.join(name))?.file());
    let extents = map(EXTENTS_FILE).map_err(io)?;
    let decoded = Map::decode(&extents).map_err(|source| Error::Extents { layer: *digest, source })?;
    if decoded.device_bytes() != identity.device_bytes.get() {
        return Err(malformed(layer::Error::Sizes));
    }
    let metadata = map(METADATA_FILE).map_err(io)?;
    let checked = dsec_erofs::check(&metadata).map_err(|source| Error::Metadata { layer: *digest, source })?;
    if checked.device_bytes != identity.device_bytes.get() {
        return Err(malformed(layer::Error::Sizes));
    }
    fs_err::write(directory.join(HEADER_FILE), bytes).map_err(io)
}

struct Blob {
    name: &'static str,
    codec: u8,
    stored_bytes: u64,
    plain_bytes: u64,
    digest: BlobDigest,
}

impl Blob {
    fn unpack(&self, layer: &LayerDigest, stream: &mut impl Read, path: &Path) -> Result<(), Error> {
        let wrong = || Error::Layer { layer: *layer, source: layer::Error::Blob { blob: self.name } };
        let broken = |source| Error::Stream { layer: *layer, source };
        let mut stored = stream.take(self.stored_bytes);
        let plain: Box<dyn Read + '_> = match Codec::from_number(self.codec) {
            Ok(Codec::Plain) => Box::new(&mut stored),
            Ok(Codec::Zstd) => Box::new(zstd::stream::read::Decoder::new(&mut stored).map_err(broken)?),
            Err(source) => return Err(Error::Layer { layer: *layer, source: source.into() }),
        };
        // One byte more than it may have, to see that there is no more.
        let found = copy(plain.take(self.plain_bytes + 1), layer, path)?;
        if found != (self.plain_bytes, self.digest) {
            return Err(wrong());
        }
        // A decoder may stop before the end of what is stored.
        std::io::copy(&mut stored, &mut std::io::sink()).map_err(broken)?;
        if stored.limit() == 0 { Ok(()) } else { Err(wrong()) }
    }
}

fn copy(mut plain: impl Read, layer: &LayerDigest, path: &Path) -> Result<(u64, BlobDigest), Error> {
    let io = |source| Error::Io { layer: *layer, source };
    let mut file = fs_err::File::create(path).map_err(io)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; COPY_BYTES];
    let mut total = 0;
    loop {
        let have = match plain.read(&mut buffer) {
            Ok(0) => break,
            Ok(have) => have,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(source) => return Err(Error::Stream { layer: *layer, source }),
        };
        let part = buffer.get(..have).unwrap_or_default();
        hasher.update(part);
        file.write_all(part).map_err(io)?;
        total += have as u64;
    }
    Ok((total, BlobDigest::from_bytes(*hasher.finalize().as_bytes())))
}
