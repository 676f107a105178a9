//! A request to stop, seen by every thread of an operation.
//!
//! Whoever is asked to stop leaves the store as a crash would: with objects that nothing names, never with a ref to
//! something that is not whole. Temporary files are removed by the guards that own them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Shared by whoever may ask (a signal handler) and whoever has to stop.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    flag: Arc<AtomicBool>,
}

/// The operation was asked to stop and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Cancelled;

impl Cancel {
    /// Nobody has asked yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks. There is no way back.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Release);
    }

    /// Whether somebody has asked.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// For loops: goes on, or leaves with an error.
    ///
    /// # Errors
    /// [`Cancelled`] once somebody has asked.
    pub fn check(&self) -> Result<(), Cancelled> {
        if self.is_cancelled() { Err(Cancelled) } else { Ok(()) }
    }

    /// The flag itself, for what sets it without knowing this type (signal handlers).
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }
}
