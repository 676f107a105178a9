//! Flights: fetches that are queued or under way, and who waits for what they bring.
//!
//! A flight that was planned ahead of a reader is queued behind every demand. The first reader that joins it before it
//! has begun makes it urgent, and it is queued as a demand as well: whichever entry is met first begins it, the other
//! is then nothing.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use dsec_format::ChunkDigest;

use super::plan::Run;
use super::{Chunks, Pending, lock};
use crate::layer::Layer;

/// What came of a flight.
#[derive(Debug)]
pub(super) struct Landed {
    pub(super) chunks: Chunks,
    /// Whether what is missing may be had by another try.
    pub(super) may_retry: bool,
}

#[derive(Debug)]
enum State {
    Flying(Vec<Arc<Pending>>),
    Landed(Arc<Landed>),
}

/// One fetch.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) layer: Arc<Layer>,
    pub(super) run: Run,
    /// The chunks that it is to bring, in the order of the layer.
    meant: Vec<ChunkDigest>,
    /// Whether it was queued as a demand.
    urgent: AtomicBool,
    /// Whether a thread has taken it.
    begun: AtomicBool,
    state: Mutex<State>,
}

impl Flight {
    pub(super) fn new(layer: &Arc<Layer>, run: Run, urgent: bool) -> Arc<Self> {
        let mut seen = HashSet::new();
        let extents = run.extents.iter().filter_map(|index| layer.extent(*index));
        let meant = extents.map(|extent| extent.chunk).filter(|digest| seen.insert(*digest)).collect();
        Arc::new(Self {
            layer: Arc::clone(layer),
            run,
            meant,
            urgent: AtomicBool::new(urgent),
            begun: AtomicBool::new(false),
            state: Mutex::new(State::Flying(Vec::new())),
        })
    }

    /// The chunks that it is to bring, in the order of the layer.
    pub(super) fn meant(&self) -> &[ChunkDigest] {
        &self.meant
    }

    /// A read wants it. True if it has to be queued as a demand: it has not begun and is not queued so yet.
    pub(super) fn make_urgent(&self) -> bool {
        !self.begun.load(Ordering::Acquire) && !self.urgent.swap(true, Ordering::AcqRel)
    }

    /// True for the first thread that takes it.
    pub(super) fn begin(&self) -> bool {
        !self.begun.swap(true, Ordering::AcqRel)
    }

    /// What a read lacks and this flight is, or was, to bring.
    pub(super) fn expected_by(&self, pending: &Pending) -> Vec<ChunkDigest> {
        let missing = pending.missing().into_iter().map(|(_, digest)| digest);
        missing.filter(|digest| self.meant.contains(digest)).collect()
    }

    /// Adds a read to those that wait; if the flight has landed, answers with what it brought instead.
    pub(super) fn join(&self, pending: &Arc<Pending>) -> Option<Arc<Landed>> {
        match &mut *lock(&self.state) {
            State::Flying(waiting) => {
                waiting.push(Arc::clone(pending));
                None
            }
            State::Landed(landed) => Some(Arc::clone(landed)),
        }
    }

    /// Ends it and answers who has waited.
    pub(super) fn land(&self, landed: &Arc<Landed>) -> Vec<Arc<Pending>> {
        match std::mem::replace(&mut *lock(&self.state), State::Landed(Arc::clone(landed))) {
            State::Flying(waiting) => waiting,
            State::Landed(_) => Vec::new(),
        }
    }
}
