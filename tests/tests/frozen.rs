//! Every form that was ever written stays readable, and the present encoders still write the present one.

use std::collections::BTreeMap;
use std::path::Path;

use dsec_format::extents::Map;
use dsec_format::frame::Codec;
use dsec_format::layer::{Header, Layer};
use dsec_format::locations::Locations;
use dsec_format::{LayerDigest, frame, pack};
use dsec_store::pack::{EncodedFrame, FrameChunk, PackWriter};
use dsec_tests::frozen::{self, Frozen};
use fs_err as fs;

fn listed(directory: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(directory.join("digests.txt")).unwrap();
    let pair = |line: &str| line.split_once(' ').map(|(name, digest)| (name.to_owned(), digest.to_owned())).unwrap();
    text.lines().map(pair).collect()
}

fn stored(sample: &Frozen) -> Vec<u8> {
    fs::read(frozen::directory().join(sample.name)).unwrap()
}

fn sample(name: &str) -> Frozen {
    frozen::all().unwrap().into_iter().find(|sample| sample.name == name).unwrap()
}

#[test]
fn every_sample_of_every_version_is_listed_and_readable() {
    let versions = frozen::directory().parent().unwrap().to_owned();
    let mut seen = 0;
    for version in fs::read_dir(versions).unwrap() {
        let directory = version.unwrap().path();
        let listed = listed(&directory);
        let mut files: Vec<_> = fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "digests.txt")
            .collect();
        files.sort();
        assert_eq!(files, listed.keys().cloned().collect::<Vec<_>>(), "{}", directory.display());
        for (name, digest) in listed {
            let bytes = fs::read(directory.join(&name)).unwrap();
            frozen::decode(&name, &digest, &bytes).unwrap();
            seen += 1;
        }
    }
    assert!(seen >= 7);
}

#[test]
fn every_format_has_a_sample_of_its_present_form() {
    let listed = listed(&frozen::directory());
    for sample in frozen::all().unwrap() {
        let hint = "a new form is a new version: see docs/format/README.md";
        // Compressed bytes may change with zstd, and with them the digest of a pack and what locations say of it; what
        // is around them is compared below.
        if !["pack", "locations"].contains(&sample.name) {
            assert_eq!(listed.get(sample.name), Some(&sample.digest), "{}: {hint}", sample.name);
        }
        if !["pack", "locations", "layer"].contains(&sample.name) {
            assert_eq!(stored(&sample), sample.bytes, "{}: {hint}", sample.name);
        }
    }
}

#[test]
fn the_pack_writer_still_writes_the_frozen_bytes_around_the_same_frames() {
    let bytes = stored(&sample("pack"));
    let tables = pack::decode(&bytes).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut writer = PackWriter::new(directory.path());
    let codecs: Vec<_> = tables.frames().iter().map(|entry| Codec::from_number(entry.codec).unwrap()).collect();
    assert!(codecs.contains(&Codec::Zstd) && codecs.contains(&Codec::Plain), "{codecs:?}");
    for (number, (entry, codec)) in (0..).zip(tables.frames().iter().zip(codecs)) {
        let start = usize::try_from(entry.offset.get()).unwrap();
        let stored = &bytes[start..start + entry.stored_bytes.get() as usize];
        let plain = frame::decode(codec, stored, entry.plain_bytes.get()).unwrap();
        let chunks = tables.chunks().iter().filter(|chunk| chunk.frame.get() == number).map(|chunk| FrameChunk {
            digest: chunk.digest,
            offset: chunk.offset.get(),
            bytes: chunk.bytes.get(),
        });
        let encoded = EncodedFrame::copied(codec, stored.to_vec(), &plain, chunks.collect()).unwrap();
        assert!(writer.append(encoded).unwrap().is_none());
    }
    let pack = writer.close().unwrap().unwrap();
    assert_eq!(fs::read(pack.path()).unwrap(), bytes);
}

#[test]
fn locations_are_still_written_as_they_are_read() {
    let bytes = stored(&sample("locations"));
    let layer = frozen::layer().digest();
    assert_eq!(Locations::decode(&bytes, &layer).unwrap().encode(&layer), bytes);
}

#[test]
fn the_layer_still_has_the_frozen_name_and_plain_parts() {
    let sample = sample("layer");
    let bytes = stored(&sample);
    let digest: LayerDigest = sample.digest.parse().unwrap();
    let layer = Layer::decode(&bytes, &digest).unwrap();
    assert_eq!(layer, frozen::layer().layer);
    let header = Header::decode(&bytes, &digest).unwrap();
    assert_eq!(header.stored_bytes(), bytes.len() as u64);
    assert_eq!(Map::decode(&layer.extents).unwrap().extents().len(), frozen::layer().chunks.len());
}
