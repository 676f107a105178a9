//! Fetching: brings the chunks that reads wait for from the sources into the cache.
//!
//! Invariants:
//! - One fetch per frame whatever the fan-in: a frame's chunks enter the table of flights together, before the request is
//!   sent, and leave it after they are in the cache. A reader of a chunk in flight joins.
//! - Only bytes whose digest is right are delivered or cached. Everything else is tried again, from the next source too,
//!   until the deadline of the read; then the read fails.
//! - The bytes of requests in flight are bounded, as are the threads, the reads that wait, and what is queued ahead.
//! - A read never waits behind what is fetched ahead: what it joins before it has begun becomes a demand.
//! - A panic of a request is a request that failed: its readers are told, its thread goes on.
//! - No reader waits on a thread: a read is a list of pieces that is completed by whoever brings the last one.
//!
//! Frames that lie next to each other and are wanted together become one ranged read. A reader that goes through a
//! layer in order has what follows fetched ahead, behind every demand.

mod download;
mod failures;
mod flight;
mod gate;
mod layers;
mod pending;
mod plan;
mod sources;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use dsec_format::ChunkDigest;
use dsec_format::protocol::mountd::FetchStatus;

use crate::cache::Cache;
use crate::chain::chain;
use crate::counters::Counter;
use crate::layer::{Layer, Located};

use self::flight::{Flight, Landed};
use self::gate::Gate;
pub use self::layers::bring;
pub(crate) use self::pending::assemble;
pub use self::pending::{Done, Pending, Piece, ReadError};
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
    /// Runs that are queued ahead of readers; what would be more is not fetched ahead.
    pub queued_ahead: usize,
    /// Reads that wait at once; one more waits to be taken over.
    pub waiting_reads: usize,
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
            queued_ahead: 256,
            waiting_reads: 8192,
            deadline: Duration::from_secs(30),
        }
    }
}

/// Chunks that a fetch brought, checked.
type Chunks = HashMap<ChunkDigest, Arc<[u8]>>;

enum Work {
    /// Learn where a layer's chunks are.
    Locate { layer: Arc<Layer> },
    /// Bring chunks.
    Fetch { flight: Arc<Flight>, deadline: Instant },
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
    failures: Sender<failures::Failure>,
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
        let (shared, queues) = Shared::new(cache, sources, options);
        let (stop, stopped) = bounded(0);
        let shared = Arc::new(shared);
        let mut threads = Vec::new();
        for number in 0..options.threads.max(2) {
            // One thread never does what is not urgent.
            let ahead_queue = if number == 0 { crossbeam_channel::never() } else { queues.ahead.clone() };
            let (shared, queue, stopped) = (Arc::clone(&shared), queues.demand.clone(), stopped.clone());
            let thread = std::thread::Builder::new().name(format!("fetch-{number}"));
            threads.push(thread.spawn(move || work(&shared, &queue, &ahead_queue, &stopped))?);
        }
        let (failures, told) = (queues.failures, stopped.clone());
        let thread = std::thread::Builder::new().name("failures".to_owned());
        threads.push(thread.spawn(move || failures::tell(&failures, &told))?);
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("deadline".to_owned());
        threads.push(thread.spawn(move || watch_deadlines(&watched, &stopped))?);
        Ok(Self { shared, threads, stop: Some(stop) })
    }

    /// When a read that starts now has to be over.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.shared.options.deadline
    }

    /// Takes over a read of which pieces are missing. It is answered from another thread. Waits while too many reads
    /// wait: then the kernel is asked for no more either.
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

/// Runs what must not take its thread along. None if it panicked.
fn caught<T>(what: &str, run: impl FnOnce() -> T) -> Option<T> {
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(run));
    if outcome.is_err() {
        tracing::error!(what, "a fetch thread panicked and goes on");
    }
    outcome.ok()
}

/// The ends of the queues that threads take work from.
struct Queues {
    /// Bounded by the reads that wait: a read makes as many entries as it lacks runs.
    demand: Receiver<Work>,
    ahead: Receiver<Work>,
    failures: Receiver<failures::Failure>,
}

impl Shared {
    fn new(cache: Arc<Cache>, sources: Arc<Sources>, options: Options) -> (Self, Queues) {
        let (demand, demand_queue) = unbounded();
        let (background, background_queue) = bounded(options.queued_ahead);
        let (failures, failures_queue) = failures::channel();
        let shared = Self {
            cache,
            sources,
            options,
            flights: Mutex::default(),
            ahead: Mutex::default(),
            locating: Mutex::default(),
            demand,
            background,
            gate: Gate::new(options.in_flight_bytes),
            pending: pending::Table::new(options.waiting_reads),
            failures,
            counters: Counters::default(),
        };
        (shared, Queues { demand: demand_queue, ahead: background_queue, failures: failures_queue })
    }

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
        let mut started: Vec<Arc<Flight>> = Vec::new();
        let mut arrived = Vec::new();
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
                let flight = Flight::new(&layer, run, true);
                self.take_off(&flight, &mut flights);
                started.push(flight);
            }
            self.fetch_ahead(&layer, located, &wanted, &mut flights);
        }
        self.counters.shared.add(joined.len() as u64);
        let waiting = joined.iter().filter(|flight| flight.make_urgent()).cloned();
        for flight in waiting.chain(started.iter().cloned()) {
            self.enqueue(Work::Fetch { flight, deadline: pending.deadline() });
        }
        for flight in joined.into_iter().chain(started) {
            self.join(&flight, &pending);
        }
        if !arrived.is_empty() {
            let chunks = arrived.iter().filter_map(|digest| Some((*digest, self.cache.get(digest)?))).collect();
            // A chunk that was there a moment ago and is not now was damaged: it is worth another try.
            self.deliver(&pending, &arrived, &Landed { chunks, may_retry: true });
        }
    }

    /// Enters the chunks of a flight in the table: those that are neither there nor in the cache.
    fn take_off(&self, flight: &Arc<Flight>, flights: &mut HashMap<ChunkDigest, Arc<Flight>>) {
        for digest in flight.meant().iter().filter(|digest| !self.cache.contains(digest)) {
            flights.entry(*digest).or_insert_with(|| Arc::clone(flight));
        }
    }

    /// Queues what follows the `wanted` extents when the layer is read in order, as far as the queue takes it.
    fn fetch_ahead(
        &self,
        layer: &Arc<Layer>,
        located: &Located,
        wanted: &[u32],
        flights: &mut HashMap<ChunkDigest, Arc<Flight>>,
    ) {
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return };
        let ahead = {
            let mut all = lock(&self.ahead);
            all.entry(layer.slot()).or_default().advance(*first, *last, layer, self.options.ahead_bytes)
        };
        let absent = |index: &u32| {
            let extent = layer.extent(*index);
            extent.is_some_and(|extent| !flights.contains_key(&extent.chunk) && !self.cache.contains(&extent.chunk))
        };
        let extents: Vec<u32> = ahead.filter(absent).collect();
        let deadline = Instant::now() + self.options.deadline;
        for run in plan::runs(located, &extents, self.options.join_bytes) {
            let flight = Flight::new(layer, run, false);
            // Before it is in the table nobody can join it, so one that finds no place is simply forgotten.
            if self.background.try_send(Work::Fetch { flight: Arc::clone(&flight), deadline }).is_err() {
                return;
            }
            self.take_off(&flight, flights);
        }
    }

    fn join(&self, flight: &Flight, pending: &Arc<Pending>) {
        if let Some(landed) = flight.join(pending) {
            self.deliver(pending, &flight.expected_by(pending), &landed);
        }
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
        // One too many to be told is counted all the same.
        let _ = failures::Failure::of(pending, error).map(|failure| self.failures.try_send(failure));
        pending.fail(error, || {
            self.counters.errors.increment();
            pending.layer().errors.increment();
        });
    }

    fn run(&self, work: Work) {
        match work {
            Work::Locate { layer } => self.locate(&layer),
            Work::Fetch { flight, deadline } => {
                if flight.begin() {
                    self.fly(&flight, deadline);
                }
            }
        }
    }

    fn locate(&self, layer: &Arc<Layer>) {
        let deadline = Instant::now() + self.options.deadline;
        let result = caught("locations", || self.locate_anywhere(layer, deadline));
        let waiting = lock(&self.locating).remove(&layer.slot()).unwrap_or_default();
        match result {
            Some(Ok(located)) => waiting.into_iter().for_each(|pending| self.dispatch(pending, &located)),
            Some(Err(error)) => {
                layer.set_trouble(chain(&error));
                for pending in waiting {
                    self.try_again_or_fail(&pending, sources::is_transient(&error));
                }
            }
            None => waiting.iter().for_each(|pending| self.try_again_or_fail(pending, true)),
        }
    }

    fn fly(&self, flight: &Arc<Flight>, deadline: Instant) {
        let landed = caught("chunks", || self.download(&flight.layer, &flight.run, deadline));
        let landed = Arc::new(landed.unwrap_or_else(|| Landed { chunks: Chunks::new(), may_retry: true }));
        for (digest, bytes) in &landed.chunks {
            self.cache.remember(digest, bytes);
        }
        // Who wants what did not come starts anew and does not meet this flight again.
        self.leave(flight, |digest| !landed.chunks.contains_key(digest));
        for pending in flight.land(&landed) {
            self.deliver(&pending, &flight.expected_by(&pending), &landed);
        }
        // In the order of the layer, so that what is read in order later lies in order.
        let brought =
            flight.meant().iter().filter_map(|digest| Some((*digest, Arc::clone(landed.chunks.get(digest)?))));
        let in_order: Vec<_> = brought.collect();
        caught("cache", || self.cache.insert(&in_order));
        self.leave(flight, |_| true);
    }

    /// Takes chunks of a flight out of the table.
    fn leave(&self, flight: &Arc<Flight>, which: impl Fn(&ChunkDigest) -> bool) {
        let mut flights = lock(&self.flights);
        for digest in flight.meant().iter().filter(|digest| which(digest)) {
            if flights.get(digest).is_some_and(|known| Arc::ptr_eq(known, flight)) {
                flights.remove(digest);
            }
        }
    }
}
