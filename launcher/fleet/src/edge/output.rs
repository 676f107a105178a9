//! What a command wrote: head and tail kept within caps, every byte counted, readers by offset.
//!
//! Invariants:
//! - Memory: no more than the caps per output, and no more than the [`Budget`] for all outputs of an edge.
//! - Offsets are exact: a reader gets every byte from where it asked, or is told which ones are gone ([`Piece::Skipped`]).
//! - The writer waits for a reader only while that reader makes progress: one that stands still for the stall time, or
//!   left and did not come back within it, is not waited for. Without a reader the writer never waits.
//!
//! Not here: pipes (see `exec`), framing (see `dsec_format::protocol::stream`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

/// Largest piece that a reader gets at once.
const PIECE_BYTES: usize = 64 << 10;

/// How much of one output is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// From its beginning.
    pub head_bytes: usize,
    /// From its end. Half of it is also what a client whose connection broke can ask for again; that must be more than
    /// what lies in sockets and buffers between the two, which is below 2 MiB.
    pub tail_bytes: usize,
    /// How long a reader may stand still before the writer goes on without it.
    pub stall: Duration,
}

impl Default for Caps {
    fn default() -> Self {
        Self { head_bytes: 1 << 20, tail_bytes: 4 << 20, stall: Duration::from_secs(30) }
    }
}

/// Memory for the outputs of one edge together.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: u64,
    used_bytes: AtomicU64,
}

impl Budget {
    /// A budget.
    #[must_use]
    pub(crate) fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, used_bytes: AtomicU64::new(0) })
    }

    /// What is in use.
    #[cfg(test)]
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> bool {
        let update = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit_bytes);
        self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// One output of one command.
#[derive(Debug)]
pub(crate) struct Output {
    caps: Caps,
    budget: Arc<Budget>,
    kept: Mutex<Kept>,
    written: Notify,
    read: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    head: Vec<u8>,
    /// Once a byte went to the tail or was dropped, the head does not grow: it is one piece from offset 0.
    head_ended: bool,
    tail: VecDeque<u8>,
    total: u64,
    /// Bytes below this offset were handed to a reader that began at or below them.
    delivered: u64,
    truncated: bool,
    ended: bool,
    charged_bytes: u64,
    readers: Vec<Position>,
    next_reader: u64,
}

/// Where a reader is.
#[derive(Debug)]
struct Position {
    reader: u64,
    offset: u64,
    /// Its connection broke; it may come back.
    left: bool,
    /// It stood still for too long; the writer does not wait for it until it moves again.
    stalled: bool,
}

/// What a reader gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The next bytes.
    Bytes(Bytes),
    /// The next bytes are gone.
    Skipped {
        /// Offset of the first one.
        from: u64,
        /// How many.
        bytes: u64,
    },
}

/// How much was written, at the end or so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Bytes written, kept or not.
    pub bytes: u64,
    /// Whether bytes were dropped that no reader had got.
    pub truncated: bool,
}

impl Output {
    /// An empty output.
    #[must_use]
    pub(crate) fn new(caps: Caps, budget: Arc<Budget>) -> Arc<Self> {
        Arc::new(Self { caps, budget, kept: Mutex::new(Kept::default()), written: Notify::new(), read: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing in here leaves the state half-changed when it panics.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends what the command wrote. Waits for readers, each for the stall time at most.
    pub(crate) async fn push(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let read = self.read.notified();
            tokio::pin!(read);
            read.as_mut().enable();
            let taken = self.push_some(bytes);
            bytes = bytes.get(taken..).unwrap_or_default();
            if taken > 0 {
                self.written.notify_waiters();
            } else if tokio::time::timeout(self.caps.stall, read).await.is_err() {
                self.give_up_on_readers();
            }
        }
    }

    /// Appends as much as may be appended now without dropping what a reader waits for.
    fn push_some(&self, bytes: &[u8]) -> usize {
        let mut kept = self.lock();
        if !kept.head_ended {
            let room = self.caps.head_bytes.saturating_sub(kept.head.len());
            let part = bytes.get(..room.min(bytes.len())).unwrap_or(bytes);
            if part.is_empty() || !kept.grow_head(part, self.caps.head_bytes, &self.budget) {
                kept.head_ended = true;
            } else {
                return part.len();
            }
        }
        let count = bytes.len().min(kept.room(&self.caps));
        kept.push_tail(bytes.get(..count).unwrap_or(bytes), &self.caps, &self.budget);
        count
    }

    fn give_up_on_readers(&self) {
        let mut kept = self.lock();
        kept.readers.retain(|position| !position.left);
        for position in &mut kept.readers {
            position.stalled = true;
        }
    }

    /// No more will be written. What is kept is trimmed to its size.
    pub(crate) fn end(&self) {
        let mut kept = self.lock();
        kept.ended = true;
        kept.head.shrink_to_fit();
        kept.tail.shrink_to_fit();
        kept.charge(&self.budget);
        drop(kept);
        self.written.notify_waiters();
    }

    /// How much was written.
    #[must_use]
    pub(crate) fn totals(&self) -> Totals {
        let kept = self.lock();
        Totals { bytes: kept.total, truncated: kept.truncated }
    }

    /// Bytes of memory in use.
    #[must_use]
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.lock().charged_bytes
    }

    /// A reader from an offset. It takes the place of those that left.
    #[must_use]
    pub(crate) fn reader(self: &Arc<Self>, from: u64) -> Reader {
        let mut kept = self.lock();
        kept.readers.retain(|position| !position.left);
        let reader = kept.next_reader;
        kept.next_reader += 1;
        kept.readers.push(Position { reader, offset: from, left: false, stalled: false });
        Reader { output: Arc::clone(self), reader }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let charged = self.lock().charged_bytes;
        self.budget.give_back(charged);
    }
}

impl Kept {
    fn tail_start(&self) -> u64 {
        self.total - self.tail.len() as u64
    }

    /// How many bytes the tail takes without dropping what a reader still waits for.
    fn room(&self, caps: &Caps) -> usize {
        let waiting = self.readers.iter().filter(|position| !position.stalled);
        let Some(slowest) = waiting.map(|position| position.offset).min() else { return usize::MAX };
        // Bytes that were handed to a reader may be on their way still when its connection breaks: half of the tail is
        // kept behind it, so that it can ask for them again.
        let needed_from = slowest.saturating_sub(caps.tail_bytes as u64 / 2);
        let droppable = needed_from.saturating_sub(self.tail_start());
        let room = caps.tail_bytes.saturating_sub(self.tail.len()) as u64 + droppable;
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    fn grow_head(&mut self, bytes: &[u8], cap: usize, budget: &Budget) -> bool {
        let len = self.head.len() + bytes.len();
        if len > self.head.capacity() {
            let wanted = len.next_power_of_two().min(cap.max(len));
            if !budget.take((wanted - self.head.capacity()) as u64) {
                return false;
            }
            self.charged_bytes += (wanted - self.head.capacity()) as u64;
            self.head.reserve_exact(wanted - self.head.len());
        }
        self.head.extend_from_slice(bytes);
        self.total += bytes.len() as u64;
        true
    }

    fn push_tail(&mut self, bytes: &[u8], caps: &Caps, budget: &Budget) {
        let wanted = (self.tail.len() + bytes.len()).min(caps.tail_bytes);
        if wanted > self.tail.capacity() {
            let wanted = wanted.next_power_of_two().min(caps.tail_bytes);
            let more = wanted - self.tail.capacity();
            if budget.take(more as u64) {
                self.charged_bytes += more as u64;
                self.tail.reserve_exact(wanted - self.tail.len());
            }
        }
        let cap = self.tail.capacity().min(caps.tail_bytes);
        let kept = bytes.get(bytes.len().saturating_sub(cap)..).unwrap_or_default();
        let dropped_old = (self.tail.len() + kept.len()).saturating_sub(cap);
        let start = self.tail_start();
        self.tail.drain(..dropped_old);
        self.tail.extend(kept);
        self.total += bytes.len() as u64;
        if self.tail_start() > start.max(self.delivered) {
            self.truncated = true;
        }
    }

    /// Makes the budget agree with what the memory really is.
    fn charge(&mut self, budget: &Budget) {
        let real = (self.head.capacity() + self.tail.capacity()) as u64;
        if real < self.charged_bytes {
            budget.give_back(self.charged_bytes - real);
            self.charged_bytes = real;
        }
    }

    /// What is next from an offset; `None` when nothing is there yet.
    fn piece(&self, offset: u64) -> Option<Piece> {
        if offset >= self.total {
            return None;
        }
        if let Some(part) =
            usize::try_from(offset).ok().and_then(|at| self.head.get(at..)).filter(|part| !part.is_empty())
        {
            return Some(Piece::Bytes(Bytes::copy_from_slice(part.get(..PIECE_BYTES).unwrap_or(part))));
        }
        let start = self.tail_start();
        if offset < start {
            return Some(Piece::Skipped { from: offset, bytes: start - offset });
        }
        let at = usize::try_from(offset - start).ok()?;
        let (front, back) = self.tail.as_slices();
        let part = front.get(at..).filter(|part| !part.is_empty()).or_else(|| back.get(at - front.len()..))?;
        Some(Piece::Bytes(Bytes::copy_from_slice(part.get(..PIECE_BYTES).unwrap_or(part))))
    }
}

/// Reads one output from an offset on. Dropping it leaves its place for one that comes back.
#[derive(Debug)]
pub(crate) struct Reader {
    output: Arc<Output>,
    reader: u64,
}

impl Reader {
    /// What is next; waits for it. `None` after the last byte of an output that has ended.
    pub(crate) async fn next(&self) -> Option<Piece> {
        loop {
            let written = self.output.written.notified();
            tokio::pin!(written);
            written.as_mut().enable();
            match self.take() {
                Taken::Piece(piece) => {
                    self.output.read.notify_waiters();
                    return Some(piece);
                }
                Taken::End => return None,
                Taken::Nothing => written.await,
            }
        }
    }

    fn take(&self) -> Taken {
        let mut kept = self.output.lock();
        let reader = self.reader;
        let Some(offset) = kept.readers.iter().find(|position| position.reader == reader).map(|found| found.offset)
        else {
            return Taken::End;
        };
        let Some(piece) = kept.piece(offset) else {
            return if kept.ended { Taken::End } else { Taken::Nothing };
        };
        let next = match &piece {
            Piece::Bytes(bytes) => {
                let next = offset + bytes.len() as u64;
                if offset <= kept.delivered {
                    kept.delivered = kept.delivered.max(next);
                }
                next
            }
            Piece::Skipped { from, bytes } => from + bytes,
        };
        for position in kept.readers.iter_mut().filter(|position| position.reader == reader) {
            position.offset = next;
            position.stalled = false;
        }
        Taken::Piece(piece)
    }
}

enum Taken {
    Piece(Piece),
    End,
    Nothing,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut kept = self.output.lock();
        let ended = kept.ended;
        let reader = self.reader;
        kept.readers.retain_mut(|position| {
            position.left |= position.reader == reader;
            // One that had given it time already, or nothing more to come: no one to wait for.
            !(position.left && (position.stalled || ended))
        });
    }
}

#[cfg(test)]
mod tests;
