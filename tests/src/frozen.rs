//! One object of every format in its present version, made from fixed values: what the frozen samples in
//! `fixtures/format` were written from, and are compared with.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use dsec_format::digest::BlobDigest;
use dsec_format::environment::{Environment, Limits};
use dsec_format::extents::{self, Extent};
use dsec_format::image::{Config, Image, Provenance};
use dsec_format::locations::{Locations, Record};
use dsec_format::pack;
use dsec_format::refs::{Ref, Target};
use dsec_format::{ChunkDigest, EnvironmentDigest, ImageDigest, LayerDigest};
use fs_err as fs;

use crate::samples::{LEVEL, Sample};

/// Where the samples of version 1 are.
#[must_use]
pub fn directory() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/format/v1"))
}

/// A sample: its file name, its digest (of what its document says is hashed), its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frozen {
    /// Name of the file.
    pub name: &'static str,
    /// Digest in text form.
    pub digest: String,
    /// The object.
    pub bytes: Vec<u8>,
}

/// The layer that pack, extent map and locations of the samples belong to: a frame of several chunks, one of
/// a large chunk, and one that zstd does not shrink.
#[must_use]
pub fn layer() -> Sample {
    let noise: Vec<u8> = (0..16u8).flat_map(|n| *ChunkDigest::of(&[n]).as_bytes()).collect();
    let text = |word: &str, times| word.repeat(times).into_bytes();
    let large = [noise.clone(), text("n", 300_000)].concat();
    Sample::of(vec![text("base ", 1000), text("x", 1), text("tool", 1024), large, noise])
}

/// The extent map of a file with holes that its metadata image does not have: before, between and behind its data.
#[must_use]
pub fn extents_with_gaps() -> Vec<u8> {
    let chunk = |word: &[u8]| ChunkDigest::of(word);
    let extents = [
        Extent::new(8192, chunk(b"behind a hole"), 4096),
        Extent::new(12_288, chunk(b"goes on"), 100),
        Extent::new(1 << 40, chunk(b"far away"), 4096),
    ];
    extents::encode(&extents, (1 << 40) + 65_536)
}

/// An image with every key.
#[must_use]
pub fn image() -> Image {
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let config = Config {
        user: "1000:1000".into(),
        working_dir: "/work".into(),
        env: vec!["PATH=/usr/bin:/bin".into(), "GREETING=\"häi\"\n\u{1}".into()],
        entrypoint: vec!["/init".into()],
        cmd: vec!["sh".into(), "-c".into(), "true".into()],
        stop_signal: "SIGINT".into(),
        labels: map(&[("b", "2"), ("a", "1")]),
    };
    let mut image = Image::new("amd64", vec![layer().record()], config);
    image.provenance = Some(Provenance {
        parent: Some(ImageDigest::of(b"parent")),
        created_secs: Some(1_764_547_200),
        author: Some("somebody".into()),
        commands: vec!["make".into()],
    });
    image.annotations = map(&[("org.example.note", "kept")]);
    image
}

/// An environment with every key.
#[must_use]
pub fn environment() -> Environment {
    let mut environment = Environment::new(image().digest());
    environment.workspace = Some(ImageDigest::of(b"workspace"));
    environment.toolkits = vec![ImageDigest::of(b"one tool"), ImageDigest::of(b"another tool")];
    environment.config = Config { cmd: vec!["bash".into()], ..Config::default() };
    environment.limits = Limits { memory_bytes: Some(1 << 30), cpu_millis: Some(1500), pids: Some(256) };
    environment
}

/// A ref to an environment.
///
/// # Errors
/// None: the name is valid.
pub fn reference() -> Result<Ref> {
    Ok(Ref::new("team/app:v1.0".parse()?, Target::Environment(environment().digest()), 1_764_547_200_123))
}

/// All samples.
///
/// # Errors
/// A temporary file cannot be written.
pub fn all() -> Result<Vec<Frozen>> {
    let sample = layer();
    let scratch = tempfile::tempdir()?;
    let packs = sample.packs(scratch.path(), 1 << 30)?;
    let pack_bytes = fs::read(packs[0].path())?;
    let digest = sample.digest();
    let locations = locations(&sample, &pack_bytes)?;
    let (image, environment) = (image(), environment());
    let frozen = |name, digest: String, bytes| Frozen { name, digest, bytes };
    let (extents, reference) = (sample.layer.extents.clone(), reference()?.encode());
    let extents_with_gaps = extents_with_gaps();
    Ok(vec![
        frozen("pack", packs[0].digest().to_string(), pack_bytes),
        frozen("extents", BlobDigest::of(&extents).to_string(), extents),
        frozen("extents-with-gaps", BlobDigest::of(&extents_with_gaps).to_string(), extents_with_gaps),
        frozen("layer", digest.to_string(), sample.layer.encode(LEVEL)),
        frozen("locations", BlobDigest::of(&locations).to_string(), locations),
        frozen("image.json", image.digest().to_string(), image.encode()),
        frozen("environment.json", environment.digest().to_string(), environment.encode()),
        frozen("ref.json", BlobDigest::of(&reference).to_string(), reference),
    ])
}

fn locations(sample: &Sample, pack_bytes: &[u8]) -> Result<Vec<u8>> {
    let tables = pack::decode(pack_bytes)?;
    let digest = dsec_format::PackDigest::of(pack_bytes);
    let records = sample.chunks.iter().filter_map(|chunk| tables.find(&ChunkDigest::of(chunk)));
    let locations = Locations { packs: vec![digest], records: records.map(|place| Record::new(0, &place)).collect() };
    Ok(locations.encode(&sample.digest()))
}

/// Decodes a sample as what its file name says, and checks it against its digest.
///
/// # Errors
/// Whatever is wrong with it.
pub fn decode(name: &str, digest: &str, bytes: &[u8]) -> Result<()> {
    use dsec_format::extents::Map;
    use dsec_format::layer::Layer;
    match name {
        "pack" => drop(pack::decode(bytes)?),
        "extents" | "extents-with-gaps" => {
            anyhow::ensure!(Map::decode(bytes)?.has_gaps() == (name == "extents-with-gaps"), "{name}: gaps");
        }
        "layer" => drop(Layer::decode(bytes, &digest.parse::<LayerDigest>()?)?),
        "locations" => drop(Locations::decode(bytes, &layer().digest())?),
        "image.json" => drop(Image::decode(bytes, &digest.parse()?)?),
        "environment.json" => drop(Environment::decode(bytes, &digest.parse::<EnvironmentDigest>()?)?),
        "ref.json" => drop(Ref::decode(bytes)?),
        _ => anyhow::bail!("no format is called {name}"),
    }
    let named = match name {
        // The name of a layer covers its identity record alone.
        "layer" => bytes.get(..dsec_format::layer::IDENTITY_BYTES).unwrap_or_default(),
        _ => bytes,
    };
    anyhow::ensure!(BlobDigest::of(named).to_string() == digest, "{name} has another digest than is listed");
    Ok(())
}
