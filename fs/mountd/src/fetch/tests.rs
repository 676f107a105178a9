//! Fetching without threads: what is queued where, and what late and early readers are told.

use std::time::Duration;

use dsec_erofs::{Attributes, Timestamp, Tree};
use dsec_format::extents::{self, Extent as Entry};
use dsec_format::frame::Codec;
use dsec_format::layer::{Layer as Stored, Totals};
use dsec_format::locations::{Locations, Record};
use dsec_format::pack::Place;
use dsec_format::{ChunkDigest, PackDigest};

use super::plan::Run;
use super::*;
use crate::cache;
use crate::layer;

const CHUNK_BYTES: u32 = 128 << 10;

/// A layer of `count` chunks, each in a frame of its own, whose bytes nobody has.
fn layer(directory: &std::path::Path, count: u32) -> Arc<Layer> {
    let attributes = Attributes { mode: 0o755, uid: 0, gid: 0, mtime: Timestamp { secs: 0, nanos: 0 } };
    let device_bytes = u64::from(count) * u64::from(CHUNK_BYTES);
    let mut metadata = Vec::new();
    dsec_erofs::write(&Tree::new(attributes).unwrap(), device_bytes, &mut metadata).unwrap();
    let digest = |index: u32| ChunkDigest::of(&index.to_le_bytes());
    let entry = |index: u32| Entry::new(u64::from(index) * u64::from(CHUNK_BYTES), digest(index), CHUNK_BYTES);
    let extents: Vec<Entry> = (0..count).map(entry).collect();
    let totals = Totals { device_bytes, data_bytes: device_bytes, logical_bytes: 0, inodes: 1 };
    let stored = Stored::new(metadata, extents::encode(&extents, device_bytes), totals);
    layer::unpack(&stored.digest(), &stored.encode(1)[..], directory).unwrap();
    fs_err::write(directory.join("slot"), "1").unwrap();
    let layer = Layer::open(&stored.digest(), directory).unwrap();
    let place = |index: u32| Place {
        frame_offset: 32 + u64::from(index * CHUNK_BYTES),
        stored_bytes: CHUNK_BYTES,
        plain_bytes: CHUNK_BYTES,
        codec: Codec::Plain,
        chunk_offset: 0,
        chunk_bytes: CHUNK_BYTES,
    };
    let records = (0..count).map(|index| Record::new(0, &place(index))).collect();
    let locations = Locations { packs: vec![PackDigest::of(b"pack")], records };
    layer.set_located(0, Some(Arc::new(Located::create(&locations, &directory.join("locations-0")))));
    Arc::new(layer)
}

struct Idle {
    _root: tempfile::TempDir,
    shared: Shared,
    queues: Queues,
    layer: Arc<Layer>,
}

impl Idle {
    fn new(options: Options) -> Self {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("layer");
        fs_err::create_dir(&directory).unwrap();
        let layer = layer(&directory, 64);
        let bounds = cache::Options { budget_bytes: 16 << 20, memory_bytes: 1 << 20 };
        let cache = Arc::new(Cache::open(&root.path().join("cache"), bounds).unwrap());
        // A frame is a run.
        let options = Options { join_bytes: 1, ..options };
        let (shared, queues) = Shared::new(cache, Arc::new(Sources::new(Vec::new())), options);
        Self { _root: root, shared, queues, layer }
    }

    /// A read of one chunk, as the fetcher takes it over; the answer comes through the channel.
    fn read(&self, extent: u32) -> Receiver<Result<(), ReadError>> {
        let (sender, receiver) = bounded(1);
        let digest = self.layer.extent(extent).unwrap().chunk;
        let piece = Piece { extent, digest, source: 0..1, target: 0, bytes: None };
        let done = Box::new(move |answer: Result<&[u8], ReadError>| sender.send(answer.map(|_| ())).unwrap());
        let deadline = Instant::now() + Duration::from_secs(60);
        let pending = Pending::new(Arc::clone(&self.layer), 1, vec![piece], deadline, done);
        self.shared.pending.add(&pending);
        self.shared.submit(pending);
        receiver
    }

    fn flight(&self, extent: u32) -> Option<Arc<Flight>> {
        lock(&self.shared.flights).get(&self.layer.extent(extent).unwrap().chunk).cloned()
    }

    /// The extents that wait in a queue, which is empty then.
    fn queued(queue: &Receiver<Work>) -> Vec<u32> {
        let extents = |work| match work {
            Work::Fetch { flight, .. } => flight.run.extents.clone(),
            Work::Locate { .. } => panic!("the locations are known"),
        };
        queue.try_iter().flat_map(extents).collect()
    }
}

#[test]
fn a_read_of_what_is_queued_ahead_makes_it_a_demand_once() {
    let idle = Idle::new(Options::default());
    let _first = (idle.read(8), idle.read(9), idle.read(10));
    assert_eq!(idle.queues.ahead.len(), 0, "a start that goes on twice is no reader in order");
    let _third = idle.read(11);
    assert_eq!(Idle::queued(&idle.queues.demand), [8, 9, 10, 11]);
    assert_eq!(idle.queues.ahead.len(), 2, "12 and 13 are fetched ahead");
    let _late = (idle.read(12), idle.read(12));
    assert_eq!(Idle::queued(&idle.queues.demand), [12], "whoever reads does not wait behind what nobody reads yet");
    assert_eq!(idle.queues.ahead.len(), 2);
    let flight = idle.flight(12).unwrap();
    assert!(flight.begin() && !flight.begin(), "of its two entries one is taken");
    // One that is under way is joined and not queued again.
    assert!(idle.flight(13).unwrap().begin());
    let _joined = idle.read(13);
    assert!(idle.queues.demand.is_empty());
}

#[test]
fn what_is_queued_ahead_has_a_bound_and_the_rest_is_not_promised() {
    let idle = Idle::new(Options { queued_ahead: 3, ..Options::default() });
    let mut reads = Vec::new();
    let mut next = 0;
    while next < 60 {
        reads.push(idle.read(next));
        next = (next..64).find(|extent| idle.flight(*extent).is_none()).unwrap_or(64);
    }
    assert_eq!(idle.queues.ahead.len(), 3);
    let queued = [Idle::queued(&idle.queues.demand), Idle::queued(&idle.queues.ahead)].concat();
    for extent in 0..64 {
        assert_eq!(idle.flight(extent).is_some(), queued.contains(&extent), "extent {extent}");
    }
}

#[test]
fn who_meets_a_flight_that_landed_without_its_chunk_is_told_at_once() {
    let idle = Idle::new(Options::default());
    let flight = Flight::new(&idle.layer, Run { extents: vec![5] }, true);
    idle.shared.take_off(&flight, &mut lock(&idle.shared.flights));
    assert!(flight.land(&Arc::new(Landed { chunks: Chunks::new(), may_retry: false })).is_empty());
    assert_eq!(idle.read(5).try_recv(), Ok(Err(ReadError::Unavailable)));
}

#[test]
fn what_a_flight_did_not_bring_is_asked_for_anew() {
    let idle = Idle::new(Options { deadline: Duration::ZERO, ..Options::default() });
    let answer = idle.read(5);
    let flight = idle.flight(5).unwrap();
    assert_eq!(Idle::queued(&idle.queues.demand), [5]);
    // No source, and no time: it lands with nothing, and the reader, who has time left, is on another flight.
    idle.shared.fly(&flight, Instant::now());
    assert!(answer.try_recv().is_err());
    assert_eq!(Idle::queued(&idle.queues.demand), [5]);
    assert!(!Arc::ptr_eq(&flight, &idle.flight(5).unwrap()));
}

#[test]
fn reads_that_wait_have_a_bound() {
    let idle = Idle::new(Options { waiting_reads: 2, ..Options::default() });
    let (first, _second) = (idle.read(20), idle.read(30));
    std::thread::scope(|scope| {
        let third = scope.spawn(|| idle.read(40));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!third.is_finished() && idle.flight(40).is_none());
        let flight = idle.flight(20).unwrap();
        let landed = Landed { chunks: Chunks::new(), may_retry: false };
        for pending in flight.land(&Arc::new(landed)) {
            idle.shared.try_again_or_fail(&pending, false);
        }
        third.join().unwrap();
    });
    assert_eq!(first.try_recv(), Ok(Err(ReadError::Unavailable)));
    assert!(idle.flight(40).is_some());
}
