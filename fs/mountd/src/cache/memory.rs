//! Chunks in memory, the least recently used ones dropped. The kernel reads a chunk in pieces; each piece after the
//! first finds it here, so a chunk is read and hashed once.
//!
//! A chunk that came along with a read of its neighbour is kept unverified, and hashed when it is first asked for.

use std::sync::{Arc, Mutex};

use dsec_format::ChunkDigest;
use lru::LruCache;

use super::lock;
use super::lookup::Order;

#[derive(Debug)]
struct Kept {
    bytes: Arc<[u8]>,
    verified: bool,
    /// What to read ahead once this is asked for.
    order: Option<Order>,
}

#[derive(Debug)]
struct State {
    chunks: LruCache<ChunkDigest, Kept>,
    used_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Memory {
    state: Mutex<State>,
    limit_bytes: usize,
}

impl Memory {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self { state: Mutex::new(State { chunks: LruCache::unbounded(), used_bytes: 0 }), limit_bytes }
    }

    pub(super) fn contains(&self, digest: &ChunkDigest) -> bool {
        lock(&self.state).chunks.contains(digest)
    }

    /// A chunk, verified, and what to read ahead now. One that fails is dropped.
    pub(super) fn get(&self, digest: &ChunkDigest) -> Option<(Arc<[u8]>, Option<Order>)> {
        let (bytes, order) = {
            let mut state = lock(&self.state);
            let kept = state.chunks.get_mut(digest)?;
            let found = (Arc::clone(&kept.bytes), kept.order.take());
            if kept.verified {
                return Some(found);
            }
            found
        };
        let sound = ChunkDigest::of(&bytes) == *digest;
        let mut state = lock(&self.state);
        if sound {
            if let Some(kept) = state.chunks.get_mut(digest) {
                kept.verified = true;
            }
            return Some((bytes, order));
        }
        if let Some(dropped) = state.chunks.pop(digest) {
            state.used_bytes -= dropped.bytes.len();
        }
        None
    }

    /// Keeps a chunk that has been checked.
    pub(super) fn insert(&self, digest: ChunkDigest, bytes: Arc<[u8]>) {
        lock(&self.state).put(digest, Kept { bytes, verified: true, order: None }, self.limit_bytes);
    }

    /// Keeps a chunk that is not there yet.
    pub(super) fn insert_new(&self, digest: ChunkDigest, bytes: Arc<[u8]>, verified: bool, order: Option<Order>) {
        let mut state = lock(&self.state);
        if !state.chunks.contains(&digest) {
            state.put(digest, Kept { bytes, verified, order }, self.limit_bytes);
        }
    }
}

impl State {
    fn put(&mut self, digest: ChunkDigest, kept: Kept, limit_bytes: usize) {
        self.used_bytes += kept.bytes.len();
        if let Some((_, replaced)) = self.chunks.push(digest, kept) {
            self.used_bytes -= replaced.bytes.len();
        }
        while self.used_bytes > limit_bytes {
            let Some((_, dropped)) = self.chunks.pop_lru() else { break };
            self.used_bytes -= dropped.bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_within_its_bytes_and_drops_the_oldest() {
        let memory = Memory::new(1000);
        let chunk = |n: u8| -> Arc<[u8]> { Arc::from(vec![n; 300]) };
        for n in 0..5 {
            memory.insert(ChunkDigest::of(&chunk(n)), chunk(n));
        }
        assert!(lock(&memory.state).used_bytes <= 1000);
        assert!(memory.get(&ChunkDigest::of(&chunk(0))).is_none());
        assert!(memory.get(&ChunkDigest::of(&chunk(4))).is_some());
    }

    #[test]
    fn unverified_bytes_are_checked_at_first_use() {
        let memory = Memory::new(1000);
        let digest = ChunkDigest::of(b"right");
        memory.insert_new(digest, Arc::from(&b"wrong"[..]), false, None);
        assert!(memory.get(&digest).is_none());
        assert!(!memory.contains(&digest));
        memory.insert_new(digest, Arc::from(&b"right"[..]), false, None);
        assert_eq!(memory.get(&digest).unwrap().0.as_ref(), b"right");
    }
}
