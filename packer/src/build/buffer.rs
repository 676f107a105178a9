//! Memory for file data: buffers that are used again, and a count of those in use, which bounds the pipeline.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of one buffer. More than twice the longest chunk, so that a window of a long run always brings some.
pub(super) const BUFFER_BYTES: usize = 2 << 20;

/// Gives out buffers.
#[derive(Debug, Default)]
pub(super) struct Pool {
    free: Mutex<Vec<Vec<u8>>>,
    in_use: AtomicUsize,
}

impl Pool {
    /// An empty buffer with room for [`BUFFER_BYTES`].
    pub(super) fn take(self: &Arc<Self>) -> Buffer {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = free.unwrap_or_else(|| vec![0; BUFFER_BYTES]);
        Buffer { bytes, used: 0, pool: Arc::clone(self) }
    }

    /// Buffers that were given out and not given back.
    pub(super) fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }
}

/// Goes back into its pool when dropped.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Always of full length: it is not cleared between uses.
    bytes: Vec<u8>,
    used: usize,
    pool: Arc<Pool>,
}

impl Buffer {
    /// Room that is left.
    pub(super) fn room(&self) -> usize {
        self.bytes.len() - self.used
    }

    /// Takes `bytes` more bytes of the room into use; what is in them is the caller's to overwrite.
    pub(super) fn extend(&mut self, bytes: usize) -> &mut [u8] {
        let start = self.used;
        self.used += bytes;
        &mut self.bytes[start..start + bytes]
    }

    /// Keeps only the first `bytes` bytes in use.
    pub(super) fn truncate(&mut self, bytes: usize) {
        self.used = self.used.min(bytes);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        self.pool.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}
