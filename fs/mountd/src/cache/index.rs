//! Which chunk lies where on the disk: hash tables in memory, some 60 bytes a chunk.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use dsec_format::ChunkDigest;

const SHARDS: usize = 16;

/// Where a chunk lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: u32,
    pub(super) offset: u32,
    pub(super) bytes: u32,
}

#[derive(Debug)]
struct Slot {
    place: Place,
    /// Read since it was written.
    touched: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Index {
    shards: Vec<RwLock<HashMap<ChunkDigest, Slot>>>,
}

impl Index {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }

    fn shard(&self, digest: &ChunkDigest) -> &RwLock<HashMap<ChunkDigest, Slot>> {
        let first = digest.as_bytes().last().copied().unwrap_or(0);
        let shard = self.shards.get(usize::from(first) % SHARDS);
        shard.expect("the index has SHARDS shards")
    }

    fn read<T>(&self, digest: &ChunkDigest, then: impl FnOnce(&Slot) -> T) -> Option<T> {
        self.shard(digest).read().unwrap_or_else(PoisonError::into_inner).get(digest).map(then)
    }

    pub(super) fn contains(&self, digest: &ChunkDigest) -> bool {
        self.read(digest, |_| ()).is_some()
    }

    /// Where a chunk is, for a reader: it counts as used.
    pub(super) fn find(&self, digest: &ChunkDigest) -> Option<Place> {
        self.read(digest, |slot| {
            slot.touched.store(true, Ordering::Relaxed);
            slot.place
        })
    }

    /// Whether the chunk in this segment was used; it does not count as used any more.
    pub(super) fn take_touched(&self, digest: &ChunkDigest, segment: u32) -> bool {
        self.read(digest, |slot| slot.place.segment == segment && slot.touched.swap(false, Ordering::Relaxed))
            .unwrap_or(false)
    }

    pub(super) fn insert(&self, digest: ChunkDigest, place: Place) {
        let slot = Slot { place, touched: AtomicBool::new(false) };
        self.shard(&digest).write().unwrap_or_else(PoisonError::into_inner).insert(digest, slot);
    }

    /// Forgets a chunk if it lies in this segment.
    pub(super) fn remove_at(&self, digest: &ChunkDigest, segment: u32) -> bool {
        let mut shard = self.shard(digest).write().unwrap_or_else(PoisonError::into_inner);
        let here = shard.get(digest).is_some_and(|slot| slot.place.segment == segment);
        if here {
            shard.remove(digest);
        }
        here
    }

    pub(super) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().unwrap_or_else(PoisonError::into_inner).len() as u64).sum()
    }
}
