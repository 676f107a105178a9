//! Reads that wait for chunks.
//!
//! A read is a list of pieces, each a range of a chunk. It owns no buffer: the chunks it has are shared with everyone
//! else who wants them, so many readers of one chunk cost one chunk. The answer is put together when all are there, and
//! given exactly once: by whoever brings the last piece, by the deadline, or by the end of the daemon.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use dsec_format::ChunkDigest;

use super::{Chunks, lock};
use crate::layer::Layer;

/// A read is handed to the sources again at most so often by chance meetings (a chunk damaged on the disk, a flight
/// that it joined late); each time they are tried until their own deadline.
const MAX_TRIES: u32 = 8;

/// Why a read failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Its deadline passed.
    #[error("deadline passed")]
    Deadline,
    /// No source has the right bytes.
    #[error("no source has the right bytes")]
    Unavailable,
    /// The daemon stops.
    #[error("daemon stops")]
    Stopped,
}

/// Takes the answer of a read.
pub type Done = Box<dyn FnOnce(Result<&[u8], ReadError>) + Send>;

/// A part of a read that one chunk supplies.
#[derive(Debug)]
pub struct Piece {
    /// Index of the extent in the layer's map.
    pub extent: u32,
    /// The chunk.
    pub digest: ChunkDigest,
    /// Which bytes of the chunk.
    pub source: Range<usize>,
    /// Where in the answer they go.
    pub target: usize,
    /// The chunk's bytes, when they are there.
    pub bytes: Option<Arc<[u8]>>,
}

struct State {
    pieces: Vec<Piece>,
    /// None once it was answered.
    done: Option<Done>,
}

/// What is being fetched, and who waits for it.
pub struct Pending {
    id: AtomicU64,
    layer: Arc<Layer>,
    length: usize,
    deadline: Instant,
    tries: AtomicU32,
    state: Mutex<State>,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("layer", self.layer.digest()).field("length", &self.length).finish()
    }
}

thread_local! {
    static ANSWER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Puts an answer of `length` bytes together; what no piece covers is zero. A piece without bytes, or with a chunk that
/// is too short, is answered with None.
pub(crate) fn assemble<T>(pieces: &[Piece], length: usize, then: impl FnOnce(Option<&[u8]>) -> T) -> T {
    if let [only] = pieces
        && only.target == 0
        && only.source.len() == length
    {
        return then(only.bytes.as_ref().and_then(|bytes| bytes.get(only.source.clone())));
    }
    ANSWER.with_borrow_mut(|answer| {
        answer.clear();
        answer.resize(length, 0);
        for piece in pieces {
            let source = piece.bytes.as_ref().and_then(|bytes| bytes.get(piece.source.clone()));
            let target = answer.get_mut(piece.target..piece.target + piece.source.len());
            match (source, target) {
                (Some(source), Some(target)) => target.copy_from_slice(source),
                _ => return then(None),
            }
        }
        then(Some(answer))
    })
}

impl Pending {
    /// A read of `length` bytes.
    pub fn new(layer: Arc<Layer>, length: usize, pieces: Vec<Piece>, deadline: Instant, done: Done) -> Arc<Self> {
        Arc::new(Self {
            id: AtomicU64::new(0),
            layer,
            length,
            deadline,
            tries: AtomicU32::new(0),
            state: Mutex::new(State { pieces, done: Some(done) }),
        })
    }

    /// Of which layer.
    pub fn layer(&self) -> &Arc<Layer> {
        &self.layer
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Counts one more handing over to the sources. False when there were enough.
    pub(super) fn count_try(&self) -> bool {
        self.tries.fetch_add(1, Ordering::Relaxed) < MAX_TRIES
    }

    /// The extents whose chunks it lacks; none once it was answered.
    pub(super) fn missing(&self) -> Vec<(u32, ChunkDigest)> {
        let state = lock(&self.state);
        if state.done.is_none() {
            return Vec::new();
        }
        let missing = state.pieces.iter().filter(|piece| piece.bytes.is_none());
        missing.map(|piece| (piece.extent, piece.digest)).collect()
    }

    /// Takes the chunks that it lacks. True when it has all now and waits for its answer.
    pub(super) fn supply(&self, chunks: &Chunks) -> bool {
        let mut state = lock(&self.state);
        for piece in state.pieces.iter_mut().filter(|piece| piece.bytes.is_none()) {
            piece.bytes = chunks.get(&piece.digest).cloned();
        }
        state.done.is_some() && state.pieces.iter().all(|piece| piece.bytes.is_some())
    }

    /// Answers with the bytes, if nobody has answered.
    pub(super) fn answer(&self) {
        let (done, pieces) = {
            let mut state = lock(&self.state);
            (state.done.take(), std::mem::take(&mut state.pieces))
        };
        if let Some(done) = done {
            assemble(&pieces, self.length, |bytes| done(bytes.ok_or(ReadError::Unavailable)));
        }
    }

    /// Answers with an error, if nobody has answered; `count` is called before that.
    pub(super) fn fail(&self, error: ReadError, count: impl FnOnce()) {
        let done = {
            let mut state = lock(&self.state);
            state.pieces.clear();
            state.done.take()
        };
        if let Some(done) = done {
            count();
            done(Err(error));
        }
    }
}

/// All reads that wait, in the order of their deadlines, up to a bound.
#[derive(Debug)]
pub(super) struct Table {
    limit: usize,
    last_id: AtomicU64,
    left: Condvar,
    waiting: Mutex<BTreeMap<(Instant, u64), Arc<Pending>>>,
}

impl Table {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, last_id: AtomicU64::new(0), left: Condvar::new(), waiting: Mutex::default() }
    }

    /// Waits while as many reads wait as may: each of them ends at its deadline. Not for the threads that end reads.
    pub(super) fn add(&self, pending: &Arc<Pending>) {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        pending.id.store(id, Ordering::Relaxed);
        let full = |waiting: &mut BTreeMap<_, _>| waiting.len() >= self.limit;
        let waiting = self.left.wait_while(lock(&self.waiting), full);
        waiting.unwrap_or_else(PoisonError::into_inner).insert((pending.deadline, id), Arc::clone(pending));
    }

    pub(super) fn remove(&self, pending: &Pending) {
        lock(&self.waiting).remove(&(pending.deadline, pending.id.load(Ordering::Relaxed)));
        self.left.notify_one();
    }

    pub(super) fn take_expired(&self, now: Instant) -> Vec<Arc<Pending>> {
        let mut waiting = lock(&self.waiting);
        let later = waiting.split_off(&(now, u64::MAX));
        let expired: Vec<_> = std::mem::replace(&mut *waiting, later).into_values().collect();
        if !expired.is_empty() {
            self.left.notify_all();
        }
        expired
    }

    pub(super) fn take_all(&self) -> Vec<Arc<Pending>> {
        self.left.notify_all();
        std::mem::take(&mut *lock(&self.waiting)).into_values().collect()
    }
}
