//! The file system without mounts: cache, fetcher and one layer over sources that misbehave on demand.

use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dsec_format::environment::Environment;
use dsec_format::image::{Image, LayerRecord};
use dsec_format::locations::Locations;
use dsec_format::protocol::registry::RefList;
use dsec_format::refs::{Ref, RefName};
use dsec_format::{EnvironmentDigest, ImageDigest, LayerDigest, PackDigest};
use dsec_mountd::cache::{self, Cache};
use dsec_mountd::device::Reader;
use dsec_mountd::fetch::{self, Fetcher, Sources};
use dsec_mountd::layer::{Layer, Layers};
use dsec_store::error::{Error, Result};
use dsec_store::{LocalStore, Source};

use crate::{fixture, oddities};

/// What a source does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Half of the bytes.
    Short,
    /// All bytes, one of them wrong.
    Flipped,
    /// The bytes of another place.
    Elsewhere,
    /// An answer of a server: 500, 401, ...
    Status(u16),
    /// The right answer, late.
    Slow(Duration),
    /// No connection.
    Unreachable,
    /// No such pack.
    Gone,
    /// Locations of more than there is.
    Padded,
    /// A bug of this program on the way.
    Panic,
}

/// A store that does wrong what the script says, one entry a request, and then what `after` says.
pub(crate) struct Faulty {
    store: LocalStore,
    script: Mutex<VecDeque<Fault>>,
    after: Mutex<Option<Fault>>,
    /// Every range that was asked for.
    pub(crate) asked: Mutex<Vec<(PackDigest, u64, u64)>>,
    pub(crate) locations_asked: Mutex<usize>,
}

impl Faulty {
    pub(crate) fn new(store: &Path, script: &[Fault], after: Option<Fault>) -> Arc<Self> {
        Arc::new(Self {
            store: LocalStore::open(store).unwrap(),
            script: Mutex::new(script.iter().copied().collect()),
            after: Mutex::new(after),
            asked: Mutex::default(),
            locations_asked: Mutex::default(),
        })
    }

    pub(crate) fn set_after(&self, fault: Option<Fault>) {
        *self.after.lock().unwrap() = fault;
    }

    fn next(&self) -> Option<Fault> {
        self.script.lock().unwrap().pop_front().or(*self.after.lock().unwrap())
    }

    fn failure(&self, fault: Fault, object: String) -> Option<Error> {
        let url = "fake".to_owned();
        match fault {
            Fault::Status(status) => Some(Error::Refused { url, status, message: "fault".to_owned() }),
            Fault::Unreachable => Some(Error::Unreachable { url, source: "fault".into() }),
            Fault::Gone => Some(Error::NotFound { object, store: url }),
            Fault::Slow(time) => {
                std::thread::sleep(time);
                None
            }
            Fault::Panic => panic!("a bug that a test has planted"),
            Fault::Short | Fault::Flipped | Fault::Elsewhere | Fault::Padded => None,
        }
    }
}

/// A share of a faulty store.
pub(crate) struct Shared(pub(crate) Arc<Faulty>);

impl Source for Shared {
    fn describe(&self) -> String {
        "fake".to_owned()
    }

    fn read_ref(&self, name: &RefName) -> Result<Ref> {
        self.0.store.read_ref(name)
    }

    fn list_refs(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<RefList> {
        self.0.store.list_refs(prefix, after, limit)
    }

    fn read_image(&self, digest: &ImageDigest) -> Result<Image> {
        self.0.store.read_image(digest)
    }

    fn read_environment(&self, digest: &EnvironmentDigest) -> Result<Environment> {
        self.0.store.read_environment(digest)
    }

    fn open_layer(&self, digest: &LayerDigest) -> Result<Box<dyn Read + Send>> {
        let mut stream = self.0.store.open_layer(digest)?;
        if *self.0.after.lock().unwrap() != Some(Fault::Short) {
            return Ok(stream);
        }
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        bytes.truncate(bytes.len() / 2);
        Ok(Box::new(std::io::Cursor::new(bytes)))
    }

    fn read_layer(&self, digest: &LayerDigest) -> Result<dsec_format::layer::Layer> {
        self.0.store.read_layer(digest)
    }

    fn read_locations(&self, digest: &LayerDigest, chunks: u64) -> Result<Locations> {
        *self.0.locations_asked.lock().unwrap() += 1;
        // What is wrong with bytes is wrong with packs only: locations carry a digest of their own.
        let after = *self.0.after.lock().unwrap();
        let fault = after.and_then(|fault| self.0.failure(fault, "locations".to_owned()));
        let mut locations = fault.map_or_else(|| self.0.store.read_locations(digest, chunks), Err)?;
        if after == Some(Fault::Padded) {
            locations.records.extend_from_within(..);
        }
        Ok(locations)
    }

    fn read_pack(&self, digest: &PackDigest, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        self.0.asked.lock().unwrap().push((*digest, offset, bytes));
        let fault = self.0.next();
        if let Some(error) = fault.and_then(|fault| self.0.failure(fault, digest.to_string())) {
            return Err(error);
        }
        let offset = if fault == Some(Fault::Elsewhere) { offset - 1 } else { offset };
        let mut answer = self.0.store.read_pack(digest, offset, bytes)?;
        match fault {
            Some(Fault::Short) => answer.truncate(answer.len() / 2),
            Some(Fault::Flipped) => {
                let middle = answer.len() / 2;
                answer[middle] ^= 1;
            }
            _ => {}
        }
        Ok(answer)
    }

    fn pack_bytes(&self, digest: &PackDigest) -> Result<u64> {
        self.0.store.pack_bytes(digest)
    }
}

/// The deadline of reads in tests of faults.
pub(crate) const DEADLINE: Duration = Duration::from_millis(1500);

/// A store with one layer in a directory of its own.
pub(crate) struct World {
    pub(crate) root: tempfile::TempDir,
    pub(crate) built: fixture::Built,
    pub(crate) record: LayerRecord,
}

/// Everything up to the device.
pub(crate) struct Rig {
    pub(crate) cache: Arc<Cache>,
    pub(crate) reader: Reader,
    pub(crate) layer: Arc<Layer>,
}

impl World {
    /// `bytes` of data, most of it in large files.
    pub(crate) fn new(bytes: usize) -> Self {
        let root = tempfile::tempdir().unwrap();
        let tree = root.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        for (number, part) in oddities::noise(bytes as u64, bytes).chunks(700_001).enumerate() {
            std::fs::write(tree.join(format!("part-{number:04}")), part).unwrap();
            std::fs::write(tree.join(format!("part-{number:04}-note")), format!("note {number}")).unwrap();
        }
        let store = LocalStore::create(&root.path().join("store")).unwrap();
        let built = fixture::build(&store, &tree, "data:1");
        let record = store.read_image(&built.image).unwrap().layers[0].clone();
        Self { root, built, record }
    }

    pub(crate) fn store(&self) -> std::path::PathBuf {
        self.root.path().join("store")
    }

    pub(crate) fn faulty(&self, script: &[Fault], after: Option<Fault>) -> Arc<Faulty> {
        Faulty::new(&self.store(), script, after)
    }

    pub(crate) fn rig(&self, sources: &[&Arc<Faulty>]) -> Rig {
        self.rig_with(sources, &self.root.path().join("cache"), 256 << 20)
    }

    pub(crate) fn rig_with(&self, sources: &[&Arc<Faulty>], cache: &Path, budget_bytes: u64) -> Rig {
        // Little memory, so that reads go to the disk.
        let options = cache::Options { budget_bytes, memory_bytes: 1 << 20 };
        let cache = Arc::new(Cache::open(cache, options).unwrap());
        let layers = Layers::open(&cache.directory().layers(), u64::MAX).unwrap();
        let store = LocalStore::open(&self.store()).unwrap();
        let layer = layers.open_or_unpack(&self.record, || store.open_layer(&self.record.digest)).unwrap();
        let sources = sources.iter().map(|source| Box::new(Shared(Arc::clone(source))) as Box<dyn Source>);
        let sources = Arc::new(Sources::new(sources.collect()));
        let options = fetch::Options { deadline: DEADLINE, ..fetch::Options::default() };
        let fetcher = Fetcher::start(Arc::clone(&cache), sources, options).unwrap();
        Rig { cache: Arc::clone(&cache), reader: Reader::new(cache, fetcher), layer: Arc::new(layer) }
    }
}

impl Rig {
    /// Reads the whole device in pieces and compares it.
    pub(crate) fn read_all(&self, want: &[u8]) {
        const PIECE: usize = 131_072;
        for (number, want) in want.chunks(PIECE).enumerate() {
            let have = self.reader.read_now(&self.layer, (number * PIECE) as u64, PIECE as u64).unwrap();
            assert!(have == want, "piece {number}");
        }
    }
}
