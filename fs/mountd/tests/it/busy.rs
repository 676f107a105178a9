//! A daemon that is asked much at once: what takes long for one stops nobody else. Needs root and FUSE.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dsec_erofs::{Attributes, Timestamp, Tree};
use dsec_format::environment::Environment;
use dsec_format::extents::{self, Extent};
use dsec_format::image::{Config, Image, LayerRecord};
use dsec_format::layer::{Layer, Totals};
use dsec_format::locations::Locations;
use dsec_format::protocol::registry::RefList;
use dsec_format::refs::{Ref, RefName, Spec};
use dsec_format::{ChunkDigest, EnvironmentDigest, ImageDigest, LayerDigest, PackDigest};
use dsec_mountd::node::{Node, Options};
use dsec_mountd::road::Wish;
use dsec_mountd::{cache, fetch};
use dsec_store::Source;
use dsec_store::error::Result;

const CHUNK_BYTES: u32 = 4096;

/// One image of one layer with many chunks, which nobody has.
struct Huge {
    image: Image,
    layer: Vec<u8>,
}

impl Huge {
    fn new(chunks: u32) -> Self {
        let device_bytes = u64::from(chunks) * u64::from(CHUNK_BYTES);
        let root = Attributes { mode: 0o755, uid: 0, gid: 0, mtime: Timestamp { secs: 0, nanos: 0 } };
        let mut metadata = Vec::new();
        dsec_erofs::write(&Tree::new(root).unwrap(), device_bytes, &mut metadata).unwrap();
        let digest = |index: u32| ChunkDigest::of(&index.to_le_bytes());
        let extent = |index| Extent::new(u64::from(index) * u64::from(CHUNK_BYTES), digest(index), CHUNK_BYTES);
        let extents: Vec<Extent> = (0..chunks).map(extent).collect();
        let totals = Totals { device_bytes, data_bytes: device_bytes, logical_bytes: 0, inodes: 1 };
        let layer = Layer::new(metadata, extents::encode(&extents, device_bytes), totals);
        let record = LayerRecord {
            digest: layer.digest(),
            metadata_bytes: layer.metadata.len() as u64,
            data_bytes: device_bytes,
            logical_bytes: 0,
            inodes: 1,
        };
        Self { image: Image::new("amd64", vec![record], Config::default()), layer: layer.encode(1) }
    }
}

impl Source for Huge {
    fn describe(&self) -> String {
        "huge".to_owned()
    }

    fn read_ref(&self, _: &RefName) -> Result<Ref> {
        panic!("images are asked for by digest")
    }

    fn list_refs(&self, _: &str, _: Option<&str>, _: usize) -> Result<RefList> {
        panic!("nobody lists")
    }

    fn read_image(&self, _: &ImageDigest) -> Result<Image> {
        Ok(self.image.clone())
    }

    fn read_environment(&self, _: &EnvironmentDigest) -> Result<Environment> {
        panic!("there are no environments")
    }

    fn open_layer(&self, _: &LayerDigest) -> Result<Box<dyn Read + Send>> {
        Ok(Box::new(std::io::Cursor::new(self.layer.clone())))
    }

    fn read_layer(&self, _: &LayerDigest) -> Result<Layer> {
        panic!("layers are streamed")
    }

    fn read_locations(&self, _: &LayerDigest, _: u64) -> Result<Locations> {
        panic!("nobody reads")
    }

    fn read_pack(&self, _: &PackDigest, _: u64, _: u64) -> Result<Vec<u8>> {
        panic!("nobody reads")
    }

    fn pack_bytes(&self, _: &PackDigest) -> Result<u64> {
        panic!("nobody reads")
    }
}

#[test]
fn privileged_who_asks_how_the_daemon_is_holds_up_nobody() {
    let root = tempfile::tempdir().unwrap();
    let huge = Huge::new(400_000);
    let image = huge.image.digest();
    let node = Node::start(Options {
        sources: vec![Box::new(huge)],
        cache: root.path().join("cache"),
        cache_options: cache::Options { budget_bytes: 16 << 20, memory_bytes: 1 << 20 },
        metadata_bytes: 1 << 30,
        fetch: fetch::Options::default(),
        run: root.path().join("run"),
        road: Wish::Fuse,
        fuse_threads: 2,
        linger: Duration::from_secs(60),
    })
    .expect("these tests need root and FUSE");
    node.mount(&Spec::Digest(image), "test").unwrap();
    let start = Instant::now();
    assert_eq!(node.status().images.len(), 1);
    let status_takes = start.elapsed();
    let over = AtomicBool::new(false);
    let releases_take = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                node.status();
            }
        });
        let start = Instant::now();
        for _ in 0..40 {
            node.release("nobody");
            std::thread::sleep(status_takes / 400);
        }
        let taken = start.elapsed();
        over.store(true, Ordering::Relaxed);
        taken
    });
    node.stop().unwrap();
    assert!(releases_take < status_takes * 4, "40 releases took {releases_take:?}, a status takes {status_takes:?}");
}
