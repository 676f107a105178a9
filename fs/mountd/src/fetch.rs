//! Fetching: brings the chunks that reads wait for from the sources into the cache.
//!
//! Invariants:
//! - One fetch per frame whatever the fan-in: a frame's chunks enter the table of flights together, before the request is
//!   sent, and leave it after they are in the cache. A reader of a chunk in flight joins.
//! - Only bytes whose digest is right are delivered or cached. Everything else is tried again, from the next source too,
//!   until the deadline of the read; then the read fails.
//! - The bytes of requests in flight are bounded, as are the threads. What waits is bounded by what the kernel asks.
//! - No reader waits on a thread: a read is a list of pieces that is completed by whoever brings the last one.
//!
//! Frames that lie next to each other and are wanted together become one ranged read. A reader that goes through a
//! layer in order has what follows fetched ahead, behind every demand.

mod download;
mod gate;
mod pending;
mod plan;
mod sources;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use dsec_format::ChunkDigest;
use dsec_format::protocol::mountd::FetchStatus;

use crate::cache::Cache;
use crate::counters::Counter;
use crate::layer::{Layer, Located};

use self::gate::Gate;
pub(crate) use self::pending::assemble;
pub use self::pending::{Done, Pending, Piece, ReadError};
use self::plan::Run;
pub use self::sources::{Remote, Sources};

/// Bounds of fetching.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Requests at once.
    pub threads: usize,
    /// Bytes of requests in flight, together.
    pub in_flight_bytes: u64,
    /// Longest ranged read that frames are joined into.
    pub join_bytes: u64,
    /// Most that is fetched ahead of a reader that reads in order.
    pub ahead_bytes: u64,
    /// From the start of a read to its failure.
    pub deadline: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 16,
            in_flight_bytes: 64 << 20,
            join_bytes: 1 << 20,
            ahead_bytes: 2 << 20,
            deadline: Duration::from_secs(30),
        }
    }
}

/// Chunks that a fetch brought, checked.
type Chunks = HashMap<ChunkDigest, Arc<[u8]>>;

/// What came of a flight.
#[derive(Debug)]
struct Landed {
    chunks: Chunks,
    /// Whether what is missing may be had by another try.
    may_retry: bool,
}

#[derive(Debug)]
enum FlightState {
    Flying(Vec<Arc<Pending>>),
    Landed(Arc<Landed>),
}

/// One fetch under way.
#[derive(Debug)]
struct Flight {
    state: Mutex<FlightState>,
}

enum Work {
    /// Learn where a layer's chunks are.
    Locate { layer: Arc<Layer> },
    /// Bring chunks.
    Fetch { layer: Arc<Layer>, run: Run, flight: Arc<Flight>, deadline: Instant },
}

/// What the FUSE side and the threads of the fetcher share.
#[derive(Debug)]
struct Shared {
    cache: Arc<Cache>,
    sources: Arc<Sources>,
    options: Options,
    flights: Mutex<HashMap<ChunkDigest, Arc<Flight>>>,
    ahead: Mutex<HashMap<u32, plan::Ahead>>,
    /// By the slot of the layer: what waits for its locations, which are being asked for.
    locating: Mutex<HashMap<u32, Vec<Arc<Pending>>>>,
    demand: Sender<Work>,
    background: Sender<Work>,
    gate: Gate,
    pending: pending::Table,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    requests: Counter,
    bytes: Counter,
    shared: Counter,
    retries: Counter,
    errors: Counter,
    corrupt: Counter,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Work")
    }
}

/// See the [module](self). Dropping it ends its threads; reads that wait then fail.
#[derive(Debug)]
pub struct Fetcher {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    stop: Option<Sender<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fetcher {
    /// Starts the threads.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn start(cache: Arc<Cache>, sources: Arc<Sources>, options: Options) -> std::io::Result<Self> {
        let (demand, demand_queue) = unbounded();
        let (background, background_queue) = unbounded();
        let (stop, stopped) = crossbeam_channel::bounded(0);
        let shared = Arc::new(Shared {
            cache,
            sources,
            options,
            flights: Mutex::default(),
            ahead: Mutex::default(),
            locating: Mutex::default(),
            demand,
            background,
            gate: Gate::new(options.in_flight_bytes),
            pending: pending::Table::default(),
            counters: Counters::default(),
        });
        let mut threads = Vec::new();
        for number in 0..options.threads.max(2) {
            // One thread never does what is not urgent.
            let ahead_queue = if number == 0 { crossbeam_channel::never() } else { background_queue.clone() };
            let (shared, queue, stopped) = (Arc::clone(&shared), demand_queue.clone(), stopped.clone());
            let thread = std::thread::Builder::new().name(format!("fetch-{number}"));
            threads.push(thread.spawn(move || work(&shared, &queue, &ahead_queue, &stopped))?);
        }
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("deadline".to_owned());
        threads.push(thread.spawn(move || watch_deadlines(&watched, &stopped))?);
        Ok(Self { shared, threads, stop: Some(stop) })
    }

    /// When a read that starts now has to be over.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.shared.options.deadline
    }

    /// Takes over a read of which pieces are missing. It is answered from another thread.
    pub fn submit(&self, pending: Arc<Pending>) {
        self.shared.pending.add(&pending);
        self.shared.submit(pending);
    }

    /// The figures of fetching.
    pub fn status(&self) -> FetchStatus {
        let counters = &self.shared.counters;
        FetchStatus {
            requests: counters.requests.value(),
            bytes: counters.bytes.value(),
            shared: counters.shared.value(),
            retries: counters.retries.value(),
            errors: counters.errors.value(),
            corrupt: counters.corrupt.value(),
        }
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.stop.take();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a fetch thread panicked");
            }
        }
        for pending in self.shared.pending.take_all() {
            self.shared.fail(&pending, ReadError::Stopped);
        }
    }
}

fn work(shared: &Arc<Shared>, demand: &Receiver<Work>, ahead: &Receiver<Work>, stopped: &Receiver<()>) {
    loop {
        if let Ok(work) = demand.try_recv() {
            shared.run(work);
            continue;
        }
        crossbeam_channel::select! {
            recv(demand) -> work => if let Ok(work) = work { shared.run(work) },
            recv(ahead) -> work => if let Ok(work) = work { shared.run(work) },
            recv(stopped) -> _ => return,
        }
    }
}

fn watch_deadlines(shared: &Shared, stopped: &Receiver<()>) {
    const TICK: Duration = Duration::from_millis(50);
    while stopped.recv_timeout(TICK) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
        for pending in shared.pending.take_expired(Instant::now()) {
            shared.fail(&pending, ReadError::Deadline);
        }
    }
}

impl Shared {
    fn submit(&self, pending: Arc<Pending>) {
        let layer = Arc::clone(pending.layer());
        let mut locating = lock(&self.locating);
        if let Some(located) = layer.any_located() {
            drop(locating);
            return self.dispatch(pending, &located);
        }
        let waiting = locating.entry(layer.slot()).or_default();
        waiting.push(pending);
        if waiting.len() == 1 {
            self.enqueue(Work::Locate { layer });
        }
    }

    fn enqueue(&self, work: Work) {
        // The queues live as long as `Shared` does: their receivers are in the threads, which hold it.
        if self.demand.send(work).is_err() {
            tracing::error!("no fetch thread is left");
        }
    }

    /// Joins the flights that bring what is missing, and starts those that nobody has started.
    fn dispatch(&self, pending: Arc<Pending>, located: &Located) {
        let layer = Arc::clone(pending.layer());
        let mut joined: Vec<Arc<Flight>> = Vec::new();
        let mut started: Vec<(Run, Arc<Flight>)> = Vec::new();
        let mut arrived = Vec::new();
        let ahead;
        {
            let mut flights = lock(&self.flights);
            let mut wanted = Vec::new();
            for (extent, digest) in pending.missing() {
                if let Some(flight) = flights.get(&digest) {
                    if !joined.iter().any(|known| Arc::ptr_eq(known, flight)) {
                        joined.push(Arc::clone(flight));
                    }
                } else if self.cache.contains(&digest) {
                    arrived.push(digest);
                } else {
                    wanted.push(extent);
                }
            }
            for run in plan::runs(located, &wanted, self.options.join_bytes) {
                let flight = self.take_off(&layer, &run, &mut flights);
                joined.push(Arc::clone(&flight));
                started.push((run, flight));
            }
            ahead = self.plan_ahead(&layer, located, &wanted, &mut flights);
        }
        self.counters.shared.add((joined.len() - started.len()) as u64);
        for (run, flight) in started {
            self.enqueue(Work::Fetch { layer: Arc::clone(&layer), run, flight, deadline: pending.deadline() });
        }
        for (run, flight) in ahead {
            let deadline = Instant::now() + self.options.deadline;
            let work = Work::Fetch { layer: Arc::clone(&layer), run, flight, deadline };
            if self.background.send(work).is_err() {
                tracing::error!("no fetch thread is left");
            }
        }
        for flight in joined {
            self.join(&flight, &pending);
        }
        if !arrived.is_empty() {
            let chunks = arrived.iter().filter_map(|digest| Some((*digest, self.cache.get(digest)?))).collect();
            // A chunk that was there a moment ago and is not now was damaged: it is worth another try.
            self.deliver(&pending, &arrived, &Landed { chunks, may_retry: true });
        }
    }

    /// Enters the chunks of a run in the table: those that are neither there nor in the cache.
    fn take_off(&self, layer: &Layer, run: &Run, flights: &mut HashMap<ChunkDigest, Arc<Flight>>) -> Arc<Flight> {
        let flight = Arc::new(Flight { state: Mutex::new(FlightState::Flying(Vec::new())) });
        for extent in run.extents.iter().filter_map(|index| layer.extent(*index)) {
            if !self.cache.contains(&extent.chunk) {
                flights.entry(extent.chunk).or_insert_with(|| Arc::clone(&flight));
            }
        }
        flight
    }

    fn plan_ahead(
        &self,
        layer: &Layer,
        located: &Located,
        wanted: &[u32],
        flights: &mut HashMap<ChunkDigest, Arc<Flight>>,
    ) -> Vec<(Run, Arc<Flight>)> {
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return Vec::new() };
        let ahead = {
            let mut all = lock(&self.ahead);
            all.entry(layer.slot()).or_default().advance(*first, *last, layer, self.options.ahead_bytes)
        };
        let absent = |index: &u32| {
            let extent = layer.extent(*index);
            extent.is_some_and(|extent| !flights.contains_key(&extent.chunk) && !self.cache.contains(&extent.chunk))
        };
        let extents: Vec<u32> = ahead.filter(absent).collect();
        let runs = plan::runs(located, &extents, self.options.join_bytes);
        runs.into_iter().map(|run| (run.clone(), self.take_off(layer, &run, flights))).collect()
    }

    fn join(&self, flight: &Flight, pending: &Arc<Pending>) {
        let landed = match &mut *lock(&flight.state) {
            FlightState::Flying(waiting) => {
                waiting.push(Arc::clone(pending));
                return;
            }
            FlightState::Landed(landed) => Arc::clone(landed),
        };
        let missing: Vec<ChunkDigest> = pending.missing().into_iter().map(|(_, digest)| digest).collect();
        let brought: Vec<ChunkDigest> =
            missing.into_iter().filter(|digest| landed.chunks.contains_key(digest)).collect();
        self.deliver(pending, &brought, &landed);
    }

    /// Gives a read what has come. `expected` are the chunks that this flight was to bring for it.
    fn deliver(&self, pending: &Arc<Pending>, expected: &[ChunkDigest], landed: &Landed) {
        if pending.supply(&landed.chunks) {
            self.pending.remove(pending);
            pending.answer();
            return;
        }
        let failed = expected.iter().any(|digest| !landed.chunks.contains_key(digest));
        if !failed {
            return;
        }
        self.try_again_or_fail(pending, landed.may_retry);
    }

    fn try_again_or_fail(&self, pending: &Arc<Pending>, may_retry: bool) {
        if may_retry && Instant::now() < pending.deadline() && pending.count_try() {
            self.submit(Arc::clone(pending));
        } else {
            self.pending.remove(pending);
            self.fail(pending, ReadError::Unavailable);
        }
    }

    fn fail(&self, pending: &Pending, error: ReadError) {
        pending.fail(error, || {
            self.counters.errors.increment();
            pending.layer().errors.increment();
        });
    }

    fn run(&self, work: Work) {
        match work {
            Work::Locate { layer } => self.locate(&layer),
            Work::Fetch { layer, run, flight, deadline } => self.fly(&layer, &run, &flight, deadline),
        }
    }

    fn locate(&self, layer: &Arc<Layer>) {
        let result = self.locate_anywhere(layer, Instant::now() + self.options.deadline);
        let waiting = lock(&self.locating).remove(&layer.slot()).unwrap_or_default();
        match result {
            Ok(located) => waiting.into_iter().for_each(|pending| self.dispatch(pending, &located)),
            Err(error) => {
                tracing::warn!(layer = %layer.digest(), %error, "no source says where the chunks of a layer are");
                for pending in waiting {
                    self.try_again_or_fail(&pending, sources::is_transient(&error));
                }
            }
        }
    }

    fn fly(&self, layer: &Arc<Layer>, run: &Run, flight: &Flight, deadline: Instant) {
        let landed = Arc::new(self.download(layer, run, deadline));
        for (digest, bytes) in &landed.chunks {
            self.cache.remember(digest, bytes);
        }
        let before = std::mem::replace(&mut *lock(&flight.state), FlightState::Landed(Arc::clone(&landed)));
        let meant: Vec<ChunkDigest> =
            run.extents.iter().filter_map(|index| layer.extent(*index)).map(|extent| extent.chunk).collect();
        if let FlightState::Flying(waiting) = before {
            for pending in waiting {
                let missing = pending.missing().into_iter().map(|(_, digest)| digest);
                let expected: Vec<ChunkDigest> = missing.filter(|digest| meant.contains(digest)).collect();
                self.deliver(&pending, &expected, &landed);
            }
        }
        // In the order of the layer, so that what is read in order later lies in order.
        let mut seen = std::collections::HashSet::new();
        let in_order: Vec<_> = meant
            .iter()
            .filter(|digest| seen.insert(**digest))
            .filter_map(|digest| Some((*digest, Arc::clone(landed.chunks.get(digest)?))))
            .collect();
        self.cache.insert(&in_order);
        let mut flights = lock(&self.flights);
        for digest in &meant {
            if flights.get(digest).is_some_and(|known| std::ptr::eq(Arc::as_ptr(known), flight)) {
                flights.remove(digest);
            }
        }
    }
}
