//! Reading chunks: from memory, then from the disk, and ahead of a reader that goes through a segment in order.
//!
//! What was fetched together lies together, so a reader that goes on in a segment will want what follows. A thread of its
//! own reads and hashes it meanwhile; the first chunk of each window that it brings carries the order for the next one,
//! so it stays one window ahead and stops with the reader.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crossbeam_channel::{Receiver, Sender};
use dsec_format::ChunkDigest;

use super::index::Index;
use super::lock;
use super::memory::Memory;
use super::segment::Segment;
use crate::counters::Counter;

/// A read that goes on where the last one of the same segment ended brings this much at once.
const AT_ONCE_BYTES: u32 = 128 << 10;
/// What the thread brings at a time.
const AHEAD_BYTES: u32 = 512 << 10;
/// How far from the end of the last read one may start and still go on from it.
const GAP_BYTES: u32 = 64 << 10;
/// Loads of one chunk by several readers at once are made one after the other, by stripes of the digest.
const LOAD_STRIPES: usize = 64;
/// Orders for the thread that may wait; more are for nobody's good.
pub(super) const MAX_ORDERS: usize = 16;

/// Where to read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) segment: u32,
    pub(super) offset: u32,
}

#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) index: Index,
    pub(super) memory: Memory,
    /// By number, so the oldest first. Changed only by who holds the writer.
    pub(super) segments: RwLock<BTreeMap<u32, Arc<Segment>>>,
    pub(super) damaged: Counter,
    loading: Vec<Mutex<()>>,
}

impl Lookup {
    pub(super) fn new(index: Index, memory_bytes: usize, segments: BTreeMap<u32, Arc<Segment>>) -> Self {
        Self {
            index,
            memory: Memory::new(memory_bytes),
            segments: RwLock::new(segments),
            damaged: Counter::default(),
            loading: (0..LOAD_STRIPES).map(|_| Mutex::new(())).collect(),
        }
    }

    /// A chunk, its bytes checked. Orders what may be wanted next.
    pub(super) fn get(&self, digest: &ChunkDigest, orders: Option<&Sender<Order>>) -> Option<Arc<[u8]>> {
        let (bytes, order) = match self.memory.get(digest) {
            Some(found) => found,
            None => self.load(digest)?,
        };
        if let (Some(order), Some(orders)) = (order, orders) {
            // A full queue means that the thread is behind: then reading ahead does not help.
            let _ = orders.try_send(order);
        }
        Some(bytes)
    }

    fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// Reads a chunk from the disk into memory.
    fn load(&self, digest: &ChunkDigest) -> Option<(Arc<[u8]>, Option<Order>)> {
        let stripe = usize::from(digest.as_bytes().first().copied().unwrap_or(0)) % LOAD_STRIPES;
        let _one_at_a_time = self.loading.get(stripe).map(lock);
        if let Some(found) = self.memory.get(digest) {
            return Some(found);
        }
        let place = self.index.find(digest)?;
        let Some(segment) = self.segment(place.segment) else {
            // Its batch was still being written when its segment went.
            self.index.remove_at(digest, place.segment);
            return None;
        };
        let goes_on = segment.goes_on(place.offset, GAP_BYTES);
        let want_bytes = if goes_on { place.bytes.max(AT_ONCE_BYTES) } else { place.bytes };
        let loaded = segment.read(place.offset, want_bytes).unwrap_or_else(|error| {
            tracing::warn!(chunk = %digest, %error, "a cached chunk cannot be read");
            Vec::new()
        });
        let end = loaded.last().map(|(entry, _)| entry.offset + entry.bytes);
        let mut found = None;
        for (entry, bytes) in loaded {
            if entry.digest != *digest {
                self.memory.insert_new(entry.digest, bytes, false, None);
            } else if ChunkDigest::of(&bytes) == *digest {
                self.memory.insert(*digest, Arc::clone(&bytes));
                found = Some(bytes);
            }
        }
        if found.is_none() {
            self.drop_damaged(digest, place.segment);
        }
        let order = end.filter(|_| goes_on).map(|offset| Order { segment: place.segment, offset });
        found.map(|bytes| (bytes, order))
    }

    fn drop_damaged(&self, digest: &ChunkDigest, segment: u32) {
        self.damaged.increment();
        tracing::warn!(chunk = %digest, segment, "a cached chunk was damaged and is dropped");
        self.index.remove_at(digest, segment);
    }

    /// Fulfils orders until there is nobody left to give one.
    pub(super) fn read_ahead(&self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            if let Err(error) = self.fulfil(order) {
                tracing::debug!(segment = order.segment, %error, "reading ahead failed");
            }
        }
    }

    fn fulfil(&self, order: Order) -> std::io::Result<()> {
        let Some(segment) = self.segment(order.segment) else { return Ok(()) };
        let (number, segment, offset) = match segment.next_entry(order.offset) {
            Some(next) if self.memory.contains(&next.digest) => return Ok(()),
            Some(next) => (order.segment, segment, next.offset),
            // At the end of a segment its reader goes on in the next.
            None => match self.segment_after(order.segment) {
                Some((number, next)) => (number, next, 0),
                None => return Ok(()),
            },
        };
        let loaded = segment.read(offset, AHEAD_BYTES)?;
        let end = loaded.last().map_or(offset, |(entry, _)| entry.offset + entry.bytes);
        let mut order = Some(Order { segment: number, offset: end });
        for (entry, bytes) in loaded {
            if self.memory.contains(&entry.digest) {
                continue;
            }
            if ChunkDigest::of(&bytes) == entry.digest {
                self.memory.insert_new(entry.digest, bytes, true, order.take());
            }
        }
        Ok(())
    }

    fn segment_after(&self, number: u32) -> Option<(u32, Arc<Segment>)> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let mut after = segments.range((Bound::Excluded(number), Bound::Unbounded));
        after.next().map(|(number, segment)| (*number, Arc::clone(segment)))
    }
}
