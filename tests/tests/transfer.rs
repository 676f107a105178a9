//! Push and pull: only what is missing moves, in its frames, and a transfer that was cut goes on.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use dsec_format::environment::Environment;
use dsec_format::image::Image;
use dsec_format::layer::Layer;
use dsec_format::locations::Locations;
use dsec_format::protocol::registry::{Expected, RefList};
use dsec_format::refs::{Ref, RefName, Target};
use dsec_format::{ChunkDigest, EnvironmentDigest, ImageDigest, LayerDigest, PackDigest};
use dsec_store::error::{Damage, Result};
use dsec_store::layout::Object;
use dsec_store::transfer::{Options, Stats};
use dsec_store::{ChunkReader, Error, LocalStore, Monitor, Silent, Source, Stage, Store, transfer_ref};
use dsec_tests::samples::{self, Sample};
use fs_err as fs;

const PACK_BYTES: u64 = 200_000;

struct Pair {
    directory: tempfile::TempDir,
    from: LocalStore,
    to: LocalStore,
}

impl Pair {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let from = LocalStore::create(&directory.path().join("from")).unwrap();
        let to = LocalStore::create(&directory.path().join("to")).unwrap();
        Self { directory, from, to }
    }

    fn publish(&self, name: &str, samples: &[&Sample]) -> Image {
        publish(&self.from, name, samples)
    }

    fn push(&self, name: &str) -> Result<Stats> {
        push(&self.from, &self.to, name, &Silent)
    }
}

fn publish(store: &dyn Store, name: &str, samples: &[&Sample]) -> Image {
    for sample in samples {
        sample.put(store, PACK_BYTES).unwrap();
    }
    let image = samples::image(samples);
    let target = Target::Image(store.put_image(&image).unwrap());
    store.set_ref(&name.parse().unwrap(), target, Expected::Anything).unwrap();
    image
}

fn push(from: &dyn Source, to: &LocalStore, name: &str, monitor: &dyn Monitor) -> Result<Stats> {
    let scratch = to.scratch()?;
    let options = Options::new(scratch.path());
    let name = name.parse().unwrap();
    transfer_ref(from, &name, to, &name, Expected::Anything, &options, monitor).map(|(_, stats)| stats)
}

/// Every chunk of a sample can be read from a store, and is right.
fn assert_whole(store: &dyn Source, sample: &Sample) {
    let mut reader = ChunkReader::open(store, &sample.digest()).unwrap();
    for (index, chunk) in sample.chunks.iter().enumerate() {
        assert_eq!(reader.read(index).unwrap(), chunk, "chunk {index}");
    }
}

fn pack_files(store: &LocalStore) -> usize {
    let shards = fs::read_dir(store.path().join("packs")).map(Iterator::collect).unwrap_or_else(|_| Vec::new());
    shards.into_iter().map(|shard| fs::read_dir(shard.unwrap().path()).unwrap().count()).sum()
}

#[test]
fn a_push_moves_everything_once_and_nothing_twice() {
    let pair = Pair::new();
    // The second layer shares chunks with the first, and has one of its own twice.
    let base = Sample::seeded(0, 200, 6000);
    let mut chunks = Sample::seeded(150, 100, 6000).chunks;
    chunks.push(chunks[60].clone());
    let top = Sample::of(chunks);
    let image = pair.publish("app", &[&base, &top]);

    let stats = pair.push("app").unwrap();
    assert_eq!((stats.moved_chunks, stats.layers, stats.skipped_layers), (250, 2, 0));
    assert_eq!(stats.moved_bytes, 250 * 6000);
    assert_eq!(stats.skipped_bytes, 51 * 6000);
    assert_eq!(pair.to.read_ref(&"app".parse().unwrap()).unwrap().target, Target::Image(image.digest()));
    for sample in [&base, &top] {
        assert_whole(&pair.to, sample);
    }

    let again = pair.push("app").unwrap();
    assert_eq!((again.sent_bytes, again.moved_chunks, again.packs, again.skipped_layers), (0, 0, 0, 2));
}

#[test]
fn only_missing_chunks_move_and_whole_frames_keep_their_bytes() {
    let pair = Pair::new();
    let old = Sample::seeded(0, 1000, 5000);
    pair.publish("app", &[&old]);
    pair.push("app").unwrap();
    let before = pack_files(&pair.to);
    // One chunk in the middle of a run is new, and a run of new ones at the end.
    let mut chunks = old.chunks.clone();
    chunks[500] = samples::data(9_999, 5000);
    chunks.extend(Sample::seeded(2000, 60, 5000).chunks);
    let new = Sample::of(chunks);
    pair.publish("app", &[&new]);
    let stats = pair.push("app").unwrap();
    assert_eq!((stats.moved_chunks, stats.packs), (61, 1));
    assert!(stats.sent_bytes < 61 * 5000 + 100_000, "{stats:?}");
    assert_eq!(pack_files(&pair.to), before + 1);
    assert_whole(&pair.to, &new);
    assert_whole(&pair.to, &old);
}

#[test]
fn environments_move_with_their_images() {
    let pair = Pair::new();
    let (base, tool) = (Sample::seeded(0, 5, 500), Sample::seeded(5, 5, 500));
    let (base_image, tool_image) = (pair.publish("base", &[&base]), pair.publish("tool", &[&tool]));
    let mut environment = Environment::new(base_image.digest());
    environment.toolkits.push(tool_image.digest());
    let digest = pair.from.put_environment(&environment).unwrap();
    pair.from.set_ref(&"env".parse().unwrap(), Target::Environment(digest), Expected::Absent).unwrap();
    pair.push("env").unwrap();
    assert_eq!(pair.to.read_environment(&digest).unwrap(), environment);
    assert_whole(&pair.to, &tool);
}

#[test]
fn a_damaged_source_is_named_and_the_destination_keeps_its_ref() {
    let pair = Pair::new();
    let old = Sample::seeded(0, 10, 3000);
    let first = pair.publish("app", &[&old]);
    pair.push("app").unwrap();
    let new = Sample::seeded(100, 10, 3000);
    pair.publish("app", &[&new]);
    let pack = pair.from.read_locations(&new.digest(), u64::MAX).unwrap().packs[0];
    let path = Object::pack(&pack).path(pair.from.path());
    let mut bytes = fs::read(&path).unwrap();
    bytes[200] ^= 1;
    fs::write(&path, bytes).unwrap();

    let error = pair.push("app").unwrap_err();
    assert!(error.to_string().contains(&pack.to_string()), "{error}");
    assert!(matches!(error, Error::Damaged { source: Damage::Chunk { .. } | Damage::Frame(_), .. }), "{error:?}");
    assert_eq!(pair.to.read_ref(&"app".parse().unwrap()).unwrap().target, Target::Image(first.digest()));
    assert_whole(&pair.to, &old);
}

/// Ends a transfer at its n-th question.
struct StopAt {
    left: AtomicU64,
}

impl Monitor for StopAt {
    fn begin(&self, _stage: Stage, _total: Option<u64>) {}

    fn advance(&self, _amount: u64) {}

    fn interrupted(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

#[test]
fn an_interrupted_push_goes_on_where_it_was() {
    let sample = Sample::seeded(0, 4000, 6000);
    for stop_at in [0, 1, 2, 4] {
        let pair = Pair::new();
        let image = pair.publish("app", &[&sample]);
        let monitor = StopAt { left: AtomicU64::new(stop_at) };
        let error = push(&pair.from, &pair.to, "app", &monitor).unwrap_err();
        assert!(matches!(error, Error::Interrupted), "{error:?}");
        assert!(matches!(pair.to.read_ref(&"app".parse().unwrap()), Err(Error::NotFound { .. })));
        let arrived: u64 = pair.to.missing_chunks(&digests(&sample)).unwrap().len() as u64;
        let stats = pair.push("app").unwrap();
        assert_eq!(stats.moved_chunks, arrived, "what was missing is what moves");
        assert!(pair.to.has_image(&image.digest()).unwrap());
        assert_whole(&pair.to, &sample);
        drop(pair.directory);
    }
}

fn digests(sample: &Sample) -> Vec<ChunkDigest> {
    sample.chunks.iter().map(|chunk| ChunkDigest::of(chunk)).collect()
}

/// Counts reads of packs and their bytes.
struct Counting<'a> {
    inner: &'a LocalStore,
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

impl Source for Counting<'_> {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn read_ref(&self, name: &RefName) -> Result<Ref> {
        self.inner.read_ref(name)
    }
    fn list_refs(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<RefList> {
        self.inner.list_refs(prefix, after, limit)
    }
    fn read_image(&self, digest: &ImageDigest) -> Result<Image> {
        self.inner.read_image(digest)
    }
    fn read_environment(&self, digest: &EnvironmentDigest) -> Result<Environment> {
        self.inner.read_environment(digest)
    }
    fn open_layer(&self, digest: &LayerDigest) -> Result<Box<dyn Read + Send>> {
        self.inner.open_layer(digest)
    }
    fn read_layer(&self, digest: &LayerDigest) -> Result<Layer> {
        self.inner.read_layer(digest)
    }
    fn read_locations(&self, digest: &LayerDigest, chunks: u64) -> Result<Locations> {
        self.inner.read_locations(digest, chunks)
    }
    fn read_pack(&self, digest: &PackDigest, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.inner.read_pack(digest, offset, bytes)
    }
    fn pack_bytes(&self, digest: &PackDigest) -> Result<u64> {
        self.inner.pack_bytes(digest)
    }
}

#[test]
fn reads_are_joined_and_fetch_each_frame_once() {
    let pair = Pair::new();
    let sample = Sample::seeded(0, 2000, 6000);
    pair.publish("app", &[&sample]);
    let stored: u64 = {
        let locations = pair.from.read_locations(&sample.digest(), u64::MAX).unwrap();
        let frames: std::collections::BTreeMap<_, _> = locations
            .records
            .iter()
            .map(|record| ((record.pack.get(), record.frame_offset.get()), u64::from(record.stored_bytes.get())))
            .collect();
        frames.values().sum()
    };
    let counting = Counting { inner: &pair.from, reads: AtomicU64::new(0), read_bytes: AtomicU64::new(0) };
    push(&counting, &pair.to, "app", &Silent).unwrap();
    let (reads, read_bytes) = (counting.reads.into_inner(), counting.read_bytes.into_inner());
    assert_eq!(read_bytes, stored);
    assert_eq!(reads, pack_files(&pair.from) as u64, "packs of this size are read at once");

    let counting = Counting { inner: &pair.from, reads: AtomicU64::new(0), read_bytes: AtomicU64::new(0) };
    assert_whole(&counting, &sample);
    assert_eq!(counting.read_bytes.into_inner(), stored);
}

#[test]
fn a_reader_refuses_bytes_that_are_not_the_chunk() {
    let pair = Pair::new();
    let sample = Sample::seeded(0, 20, 3000);
    pair.publish("app", &[&sample]);
    let locations = pair.from.read_locations(&sample.digest(), u64::MAX).unwrap();
    let path = Object::pack(&locations.packs[0]).path(pair.from.path());
    damage_byte(&path, locations.records[3].frame_offset.get() + 7);
    let mut reader = ChunkReader::open(&pair.from, &sample.digest()).unwrap();
    let error = (0..20).find_map(|index| reader.read(index).map(<[u8]>::len).err()).unwrap();
    assert!(error.to_string().contains(&locations.packs[0].to_string()), "{error}");
}

fn damage_byte(path: &Path, at: u64) {
    let mut bytes = fs::read(path).unwrap();
    bytes[usize::try_from(at).unwrap()] ^= 0x10;
    fs::write(path, bytes).unwrap();
}
