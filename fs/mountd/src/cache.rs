//! The chunk cache of a node: verified chunks in memory, plain chunks in segment files on a local disk.
//!
//! Invariants:
//! - A chunk is handed out only after its bytes were hashed: on arrival by whoever fetched it, and again whenever it
//!   comes back from the disk. A chunk that fails is dropped and reads as absent; so a torn write, a power cut and a
//!   flipped bit all end in a new fetch, and nothing here needs fsync.
//! - The directory has a version and a lock: a second daemon gets one clear error.
//! - A disk that refuses writes (full, failing, read-only) costs the cache, never a read: [`Cache::insert`] has no error,
//!   it counts, and there is an alarm in the figures until a write goes well again.
//! - What is removed by hand while it is in use costs what was in it: directories are made again.
//! - The segments stay within the budget: room is made before a batch is written. The oldest segment goes first;
//!   chunks of it that were used since they were written move on to the newest (a clock, by segments).
//!
//! Chunks are stored plain: a chunk out of the cache costs one read and one hash. Segments are read and written with
//! O_DIRECT where the file system takes it, so the page cache holds what the kernel's own file system reads, once.
//!
//! Not here: where chunks come from.

mod aligned;
mod directory;
mod index;
mod lookup;
mod memory;
mod segment;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use dsec_format::ChunkDigest;
use dsec_format::protocol::mountd::CacheStatus;

pub use self::directory::{Directory, Error};
use self::index::Index;
use self::lookup::{Lookup, Order};
use self::segment::Segment;
use crate::chain::chain;

/// Budgets below this are refused: they could not hold a few segments.
pub const MIN_BUDGET_BYTES: u64 = 16 << 20;
/// Largest segment file.
const MAX_SEGMENT_BYTES: u64 = 64 << 20;
/// A full cache is emptied down to this share of the budget, in per cent.
const LOW_WATERMARK_PERCENT: u64 = 95;
/// At most this share of an evicted segment, in per cent, moves on because it was used.
const RESCUE_PERCENT: u64 = 25;
/// After the disk refused a write, how long no other is tried.
const DISK_REST: Duration = Duration::from_secs(2);
/// How a cache is made.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes that the segments may use on the disk.
    pub budget_bytes: u64,
    /// Bytes of chunks kept in memory.
    pub memory_bytes: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Cache {
    directory: Directory,
    budget_bytes: u64,
    segment_bytes: u64,
    lookup: Arc<Lookup>,
    writer: Mutex<Writer>,
    /// None while the value is dropped.
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    used_bytes: AtomicU64,
    /// Why the disk took the last write not.
    alarm: Mutex<Option<String>>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
    bypassed: AtomicU64,
}

#[derive(Debug)]
struct Writer {
    active: Option<Arc<Segment>>,
    next_number: u32,
    resting_until: Option<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the locks here guard is consistent between any two statements, so a panic elsewhere spoils nothing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

impl Cache {
    /// Opens the cache in a directory, which is made if it is missing, and reads the tables of its segments.
    ///
    /// # Errors
    /// The directory is something else, of another version, locked by another process, or cannot be used.
    pub fn open(path: &Path, options: Options) -> Result<Self, Error> {
        if options.budget_bytes < MIN_BUDGET_BYTES {
            return Err(Error::Budget { budget_bytes: options.budget_bytes });
        }
        let directory = Directory::open(path)?;
        let index = Index::new();
        let mut segments = BTreeMap::new();
        let mut used_bytes = 0;
        for number in directory.segment_numbers()? {
            match Segment::load(&directory, number, &index) {
                Ok(segment) => {
                    used_bytes += segment.disk_bytes();
                    segments.insert(number, Arc::new(segment));
                }
                Err(error) => {
                    tracing::warn!(segment = number, %error, "dropped an unreadable cache segment");
                    segment::remove_files(&directory, number).map_err(Error::Io)?;
                }
            }
        }
        let next_number = segments.keys().next_back().map_or(0, |last| last.wrapping_add(1));
        let lookup = Arc::new(Lookup::new(index, options.memory_bytes, segments));
        let (orders, queue) = crossbeam_channel::bounded(lookup::MAX_ORDERS);
        let reader = Arc::clone(&lookup);
        let thread = std::thread::Builder::new().name("read-ahead".to_owned());
        let thread = thread.spawn(move || reader.read_ahead(&queue)).map_err(Error::Io)?;
        let cache = Self {
            directory,
            budget_bytes: options.budget_bytes,
            segment_bytes: (options.budget_bytes / 16).clamp(MIN_BUDGET_BYTES / 16, MAX_SEGMENT_BYTES),
            lookup,
            writer: Mutex::new(Writer { active: None, next_number, resting_until: None }),
            orders: Some(orders),
            thread: Some(thread),
            used_bytes: AtomicU64::new(used_bytes),
            alarm: Mutex::default(),
            counters: Counters::default(),
        };
        // The budget may be smaller than when the cache was last used.
        cache.make_room(&mut lock(&cache.writer), 0);
        Ok(cache)
    }

    /// The directory, for what else lives in it.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The chunk of a digest, from memory or from the disk, its bytes checked.
    pub fn get(&self, digest: &ChunkDigest) -> Option<Arc<[u8]>> {
        let found = self.lookup.get(digest, self.orders.as_ref());
        add(if found.is_some() { &self.counters.hits } else { &self.counters.misses }, 1);
        found
    }

    /// Whether the chunk is believed to be there. It may still turn out damaged when it is read.
    pub fn contains(&self, digest: &ChunkDigest) -> bool {
        self.lookup.index.contains(digest) || self.lookup.memory.contains(digest)
    }

    /// Whether the chunk is on the local disk.
    pub fn is_on_disk(&self, digest: &ChunkDigest) -> bool {
        self.lookup.index.contains(digest)
    }

    /// Keeps a chunk in memory. Its bytes have been checked.
    pub fn remember(&self, digest: &ChunkDigest, bytes: &Arc<[u8]>) {
        self.lookup.memory.insert(*digest, Arc::clone(bytes));
    }

    /// Writes chunks, whose bytes have been checked, to the disk: those that it lacks, in one piece, so that what was
    /// fetched together lies together. What goes wrong is counted and logged.
    pub fn insert(&self, chunks: &[(ChunkDigest, Arc<[u8]>)]) {
        let mut batch: Vec<&(ChunkDigest, Arc<[u8]>)> = Vec::with_capacity(chunks.len());
        let mut batch_bytes = 0;
        for chunk in chunks.iter().filter(|(digest, _)| !self.lookup.index.contains(digest)) {
            if batch_bytes + chunk.1.len() as u64 > self.segment_bytes {
                self.insert_batch(&batch);
                batch.clear();
                batch_bytes = 0;
            }
            batch_bytes += chunk.1.len() as u64;
            batch.push(chunk);
        }
        self.insert_batch(&batch);
    }

    /// The figures of the cache.
    pub fn status(&self) -> CacheStatus {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStatus {
            budget_bytes: self.budget_bytes,
            used_bytes: value(&self.used_bytes),
            chunks: self.lookup.index.len(),
            hits: value(&self.counters.hits),
            misses: value(&self.counters.misses),
            evictions: value(&self.counters.evictions),
            damaged: self.lookup.damaged.value(),
            bypassed: value(&self.counters.bypassed),
            alarm: lock(&self.alarm).clone(),
        }
    }

    /// What is due from time to time: sees whether the directory was emptied by hand, and whether a disk that refused is
    /// well again.
    pub fn tick(&self) {
        let mut writer = lock(&self.writer);
        if writer.active.as_ref().is_some_and(|active| !active.is_linked()) || !self.directory.is_whole() {
            // What is written there now would be lost with the process.
            writer.active = None;
            match self.directory.restore() {
                Ok(()) => tracing::warn!("the cache was emptied by hand; its directories are made again"),
                Err(error) => self.refused(&mut writer, &error),
            }
        }
        let rests = writer.resting_until.is_some_and(|until| Instant::now() < until);
        if !rests && lock(&self.alarm).is_some() {
            match self.directory.try_to_write() {
                Ok(()) => self.took(&mut writer),
                Err(error) => self.refused(&mut writer, &error),
            }
        }
    }

    fn insert_batch(&self, batch: &[&(ChunkDigest, Arc<[u8]>)]) {
        if batch.is_empty() {
            return;
        }
        if lock(&self.writer).resting_until.is_some_and(|until| Instant::now() < until) {
            add(&self.counters.bypassed, 1);
            return;
        }
        match self.append(batch) {
            Ok(()) => self.took(&mut lock(&self.writer)),
            Err(error) => {
                add(&self.counters.bypassed, 1);
                self.refused(&mut lock(&self.writer), &error);
            }
        }
    }

    /// The disk refuses writes: no other is tried for a while.
    fn refused(&self, writer: &mut Writer, error: &dyn std::error::Error) {
        writer.active = None;
        writer.resting_until = Some(Instant::now() + DISK_REST);
        let said = lock(&self.alarm).replace(chain(error));
        if said.is_none() {
            tracing::error!(error = chain(error), "the cache disk refuses writes; reads go on without it");
        }
    }

    /// The disk took a write. One that began before another was refused says nothing.
    fn took(&self, writer: &mut Writer) {
        if writer.resting_until.is_none_or(|until| until <= Instant::now()) && lock(&self.alarm).take().is_some() {
            tracing::info!("the cache disk takes writes again");
        }
    }

    fn append(&self, batch: &[&(ChunkDigest, Arc<[u8]>)]) -> std::io::Result<()> {
        let (segment, offset) = {
            let mut writer = lock(&self.writer);
            if !self.make_room(&mut writer, segment::disk_bytes(batch)) {
                return Err(std::io::Error::from(rustix::io::Errno::NOSPC));
            }
            self.reserve(&mut writer, batch)?
        };
        segment.write(offset, batch, &self.lookup.index)
    }

    /// A place for a batch in the active segment, or in a new one. From here on it counts as used.
    fn reserve(
        &self,
        writer: &mut Writer,
        batch: &[&(ChunkDigest, Arc<[u8]>)],
    ) -> std::io::Result<(Arc<Segment>, u32)> {
        let full = || std::io::Error::from(rustix::io::Errno::FBIG);
        let active = writer.active.clone();
        let place = active.and_then(|active| Some((active.reserve(batch, self.segment_bytes)?, active)));
        let (offset, segment) = match place {
            Some(place) => place,
            None => {
                let segment = self.begin_segment(writer)?;
                (segment.reserve(batch, u64::from(u32::MAX)).ok_or_else(full)?, segment)
            }
        };
        add(&self.used_bytes, segment::disk_bytes(batch));
        Ok((segment, offset))
    }

    fn begin_segment(&self, writer: &mut Writer) -> std::io::Result<Arc<Segment>> {
        let number = writer.next_number;
        // One that was half made is not tried again.
        writer.next_number = number.wrapping_add(1);
        let segment = match Segment::create(&self.directory, number) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.directory.restore().map_err(std::io::Error::other)?;
                Segment::create(&self.directory, number)?
            }
            created => created?,
        };
        let segment = Arc::new(segment);
        self.lookup.segments.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::clone(&segment));
        writer.active = Some(Arc::clone(&segment));
        Ok(segment)
    }

    /// Evicts until `need_bytes` fit the budget. False if they cannot.
    fn make_room(&self, writer: &mut Writer, need_bytes: u64) -> bool {
        let fits = |limit: u64| self.used_bytes.load(Ordering::Relaxed) + need_bytes <= limit;
        if fits(self.budget_bytes) {
            return true;
        }
        while !fits(self.budget_bytes / 100 * LOW_WATERMARK_PERCENT) {
            let active = writer.active.as_ref().map(|segment| segment.number());
            let oldest = {
                let segments = self.lookup.segments.read().unwrap_or_else(PoisonError::into_inner);
                segments.values().find(|segment| Some(segment.number()) != active).cloned()
            };
            if !oldest.is_some_and(|oldest| self.evict(writer, &oldest)) {
                break;
            }
        }
        fits(self.budget_bytes)
    }

    /// Removes a segment: first what is said about it, then its files. False when the disk kept a file.
    fn evict(&self, writer: &mut Writer, segment: &Segment) -> bool {
        let number = segment.number();
        let rescued = self.rescue(segment);
        self.lookup.segments.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        let removed =
            segment.entries().iter().filter(|entry| self.lookup.index.remove_at(&entry.digest, number)).count();
        add(&self.counters.evictions, (removed as u64).saturating_sub(rescued.len() as u64));
        if let Err(error) = segment::remove_files(&self.directory, number) {
            add(&self.counters.bypassed, 1);
            tracing::error!(segment = number, %error, "a cache segment could not be removed");
            return false;
        }
        self.used_bytes.fetch_sub(segment.disk_bytes(), Ordering::Relaxed);
        let batch: Vec<_> = rescued.iter().collect();
        if !batch.is_empty() {
            let moved =
                self.reserve(writer, &batch).and_then(|(target, at)| target.write(at, &batch, &self.lookup.index));
            if let Err(error) = moved {
                tracing::debug!(%error, "used chunks of an evicted segment are lost");
            }
        }
        true
    }

    /// The used chunks of a segment that is about to go, up to a share of it.
    fn rescue(&self, segment: &Segment) -> Vec<(ChunkDigest, Arc<[u8]>)> {
        let limit = segment.disk_bytes() / 100 * RESCUE_PERCENT;
        let mut bytes = 0;
        let mut rescued = Vec::new();
        for entry in segment.entries() {
            if bytes + u64::from(entry.bytes) > limit {
                break;
            }
            if self.lookup.index.take_touched(&entry.digest, segment.number())
                && let Some(chunk) = segment.read_chunk(&entry)
            {
                bytes += u64::from(entry.bytes);
                rescued.push((entry.digest, chunk));
            }
        }
        rescued
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.orders.take();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that reads ahead panicked");
        }
    }
}
