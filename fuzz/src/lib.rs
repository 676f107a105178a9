//! One function per decoder: takes any bytes, must neither panic nor take much memory, and what it accepts must be
//! written again as the same bytes where there is only one way to write it.
//!
//! The fuzz targets call these; so does `tests/tests/fuzz.rs`, which includes this file and needs no fuzzing compiler.
//!
//! Decoders that check a digest first would stop at almost every input. So the digest is computed from the input, as
//! an attacker would.

use std::mem::offset_of;

use dsec_format::digest::{BlobDigest, DIGEST_BYTES};
use dsec_format::environment::Environment;
use dsec_format::extents::Map;
use dsec_format::frame::Codec;
use dsec_format::image::Image;
use dsec_format::layer::{self, IDENTITY_BYTES, Layer};
use dsec_format::locations::{HEADER_BYTES, Header, Locations};
use dsec_format::pack::{FOOTER_BYTES, Footer};
use dsec_format::protocol::stream;
use dsec_format::refs::Ref;
use dsec_format::{EnvironmentDigest, ImageDigest, LayerDigest, frame, pack};

/// A name, and what takes the bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: &[Target] = &[
    ("pack", pack),
    ("frame", frame),
    ("extents", extents),
    ("layer", layer),
    ("locations", locations),
    ("image", image),
    ("environment", environment),
    ("reference", reference),
    ("stream", stream),
    ("erofs", erofs),
];

/// A pack's preamble, footer and tables.
pub fn pack(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    seal_pack(&mut bytes);
    let Ok(tables) = pack::decode(&bytes) else { return };
    for chunk in tables.chunks() {
        let place = tables.find(&chunk.digest).expect("a chunk of the table is found in it");
        assert!(place.chunk_offset + place.chunk_bytes <= place.plain_bytes);
        assert!(place.frame_offset + u64::from(place.stored_bytes) <= bytes.len() as u64);
    }
}

/// Makes the footer's digest that of the tables.
fn seal_pack(bytes: &mut [u8]) {
    let Some(footer) = bytes.len().checked_sub(FOOTER_BYTES) else { return };
    let start = bytes[footer..].first_chunk().map(|start| u64::from_le_bytes(*start));
    let start = start.and_then(|start| usize::try_from(start).ok());
    let Some(tables) = start.and_then(|start| bytes.get(start..footer)) else { return };
    let digest = BlobDigest::of(tables);
    let at = footer + offset_of!(Footer, tables_digest);
    bytes[at..at + DIGEST_BYTES].copy_from_slice(digest.as_bytes());
}

/// A frame. The first byte chooses the codec, the next four the plain size.
pub fn frame(bytes: &[u8]) {
    let Some((head, stored)) = bytes.split_first_chunk::<5>() else { return };
    let [codec, size @ ..] = *head;
    let Ok(codec) = Codec::from_number(codec) else { return };
    let plain_bytes = u32::from_le_bytes(size);
    if let Ok(plain) = frame::decode(codec, stored, plain_bytes) {
        assert_eq!(plain.len(), plain_bytes as usize);
    }
}

/// An extent map, and look-ups in it.
pub fn extents(bytes: &[u8]) {
    if let Ok(map) = Map::decode_trusted(bytes) {
        for offset in [0, 1, map.device_bytes() / 2, map.device_bytes(), u64::MAX] {
            let range = map.overlapping(offset, 4096);
            assert!(range.end <= map.extents().len());
        }
    }
    if let Ok(map) = Map::decode(bytes) {
        assert_eq!(dsec_format::extents::encode(map.extents(), map.device_bytes()).len(), bytes.len());
        let mut end = 0;
        for extent in map.extents() {
            assert!(extent.device_offset.get() >= end && extent.end() <= map.device_bytes());
            end = extent.end();
        }
    }
}

/// A layer, under the name that its identity record gives it.
pub fn layer(bytes: &[u8]) {
    let Some(identity) = bytes.get(..IDENTITY_BYTES) else { return };
    let digest = LayerDigest::of(identity);
    let Ok(header) = layer::Header::decode(bytes, &digest) else { return };
    // The header bounds what is allocated; a fuzzer's memory is smaller than the largest layer.
    if header.identity.metadata_bytes.get() + header.identity.extents_bytes.get() > 64 << 20 {
        return;
    }
    if let Ok(layer) = Layer::decode(bytes, &digest) {
        assert_eq!(layer.digest(), digest);
        assert!(bytes.len() >= layer::HEADER_BYTES);
    }
}

/// Locations, under the name of the layer that they state.
pub fn locations(bytes: &[u8]) {
    let layer = bytes.get(32..64).and_then(|bytes| bytes.try_into().ok()).map(LayerDigest::from_bytes);
    let Some(layer) = layer else { return };
    let mut bytes = bytes.to_vec();
    if let Some(body) = bytes.get(HEADER_BYTES..) {
        let digest = BlobDigest::of(body);
        let at = offset_of!(Header, body_digest);
        bytes[at..at + DIGEST_BYTES].copy_from_slice(digest.as_bytes());
    }
    if let Ok(locations) = Locations::decode(&bytes, &layer) {
        assert_eq!(locations.encode(&layer).len(), bytes.len());
        assert!(locations.records.iter().all(|record| (record.pack.get() as usize) < locations.packs.len()));
    }
}

/// An image.
pub fn image(bytes: &[u8]) {
    if let Ok(image) = Image::decode(bytes, &ImageDigest::of(bytes)) {
        assert_eq!(image.encode(), bytes);
    }
}

/// An environment.
pub fn environment(bytes: &[u8]) {
    if let Ok(environment) = Environment::decode(bytes, &EnvironmentDigest::of(bytes)) {
        assert_eq!(environment.encode(), bytes);
    }
}

/// A ref.
pub fn reference(bytes: &[u8]) {
    if let Ok(record) = Ref::decode(bytes) {
        assert_eq!(record.encode(), bytes);
    }
}

/// The header of a piece of a command's output.
pub fn stream(bytes: &[u8]) {
    if let Ok(header) = stream::Header::decode(bytes) {
        assert_eq!(bytes.get(..stream::HEADER_BYTES), Some(&header.encode()[..]));
    }
}

/// A metadata image: whatever is accepted can be opened.
pub fn erofs(bytes: &[u8]) {
    if dsec_erofs::check(bytes).is_ok() {
        dsec_erofs::Image::open(bytes).expect("what the check accepts can be opened");
    }
}
