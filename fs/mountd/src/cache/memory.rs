//! Chunks in memory, the least recently used ones dropped. The kernel reads a chunk in pieces; each piece after the
//! first finds it here, so a chunk is read and hashed once.
//!
//! A chunk that came along with a read of its neighbour is kept unverified, and hashed when it is first asked for.

use std::sync::{Arc, Mutex};

use dsec_format::ChunkDigest;
use lru::LruCache;

use super::lock;

#[derive(Debug)]
struct Kept {
    bytes: Arc<[u8]>,
    verified: bool,
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

    /// A chunk, verified. One that fails is dropped.
    pub(super) fn get(&self, digest: &ChunkDigest) -> Option<Arc<[u8]>> {
        let bytes = {
            let mut state = lock(&self.state);
            let kept = state.chunks.get(digest)?;
            if kept.verified {
                return Some(Arc::clone(&kept.bytes));
            }
            Arc::clone(&kept.bytes)
        };
        let sound = ChunkDigest::of(&bytes) == *digest;
        let mut state = lock(&self.state);
        if sound {
            if let Some(kept) = state.chunks.get_mut(digest) {
                kept.verified = true;
            }
            return Some(bytes);
        }
        if let Some(dropped) = state.chunks.pop(digest) {
            state.used_bytes -= dropped.bytes.len();
        }
        None
    }

    pub(super) fn insert(&self, digest: ChunkDigest, bytes: Arc<[u8]>, verified: bool) {
        let mut state = lock(&self.state);
        state.used_bytes += bytes.len();
        if let Some((_, replaced)) = state.chunks.push(digest, Kept { bytes, verified }) {
            state.used_bytes -= replaced.bytes.len();
        }
        while state.used_bytes > self.limit_bytes {
            let Some((_, dropped)) = state.chunks.pop_lru() else { break };
            state.used_bytes -= dropped.bytes.len();
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
            memory.insert(ChunkDigest::of(&chunk(n)), chunk(n), true);
        }
        assert!(lock(&memory.state).used_bytes <= 1000);
        assert!(memory.get(&ChunkDigest::of(&chunk(0))).is_none());
        assert!(memory.get(&ChunkDigest::of(&chunk(4))).is_some());
    }

    #[test]
    fn unverified_bytes_are_checked_at_first_use() {
        let memory = Memory::new(1000);
        let digest = ChunkDigest::of(b"right");
        memory.insert(digest, Arc::from(&b"wrong"[..]), false);
        assert!(memory.get(&digest).is_none());
        assert!(!memory.contains(&digest));
        memory.insert(digest, Arc::from(&b"right"[..]), false);
        assert_eq!(memory.get(&digest).as_deref(), Some(&b"right"[..]));
    }
}
