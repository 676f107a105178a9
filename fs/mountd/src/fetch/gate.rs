//! A bound on bytes in flight.

use std::sync::{Condvar, Mutex, PoisonError};

#[derive(Debug)]
pub(super) struct Gate {
    limit_bytes: u64,
    used_bytes: Mutex<u64>,
    changed: Condvar,
}

/// Gives its bytes back when it is dropped.
pub(super) struct Pass<'a> {
    gate: &'a Gate,
    bytes: u64,
}

impl Gate {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, used_bytes: Mutex::new(0), changed: Condvar::new() }
    }

    /// Waits until `bytes` more fit. More than the limit counts as the limit, so it passes alone.
    pub(super) fn enter(&self, bytes: u64) -> Pass<'_> {
        let bytes = bytes.min(self.limit_bytes);
        let used = self.used_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |used: &mut u64| *used + bytes > self.limit_bytes;
        let mut used = self.changed.wait_while(used, full).unwrap_or_else(PoisonError::into_inner);
        *used += bytes;
        Pass { gate: self, bytes }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        *self.gate.used_bytes.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_limit_passes_alone() {
        let gate = Gate::new(10);
        drop(gate.enter(1000));
        let (small, other) = (gate.enter(4), gate.enter(6));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(gate.enter(1000)));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waiting.is_finished());
            drop((small, other));
        });
    }
}
