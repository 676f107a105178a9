//! The sources, in the order they are asked, and which of them are given a rest.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dsec_store::{Error, Source};

use crate::chain::chain;

/// The rest of a source after its first failure in a row; it doubles with each one.
const FIRST_REST: Duration = Duration::from_millis(100);
/// The longest rest.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// One source.
pub struct Remote {
    source: Box<dyn Source>,
    failures: AtomicU32,
    resting_until: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Remote").field(&self.source.describe()).finish()
    }
}

impl Remote {
    /// A source that is well until it fails.
    pub fn new(source: Box<dyn Source>) -> Self {
        Self { source, failures: AtomicU32::new(0), resting_until: Mutex::new(None) }
    }

    /// What to ask.
    pub fn source(&self) -> &dyn Source {
        &*self.source
    }

    fn rests(&self, now: Instant) -> bool {
        self.resting_until.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| now < until)
    }

    /// Notes how a request went. Only what says that the source itself is ill counts against it.
    pub fn note<T>(&self, result: &Result<T, Error>) {
        match result {
            Err(error) if is_transient(error) => {
                let failures = self.failures.fetch_add(1, Ordering::Relaxed);
                if failures == 0 {
                    tracing::warn!(source = self.source.describe(), error = chain(error), "a source does not answer");
                }
                let rest = FIRST_REST.saturating_mul(1 << failures.min(10)).min(LONGEST_REST);
                *self.resting_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + rest);
            }
            _ => {
                if self.failures.swap(0, Ordering::Relaxed) > 0 {
                    tracing::info!(source = self.source.describe(), "a source answers again");
                }
                *self.resting_until.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
        }
    }
}

/// Whether the same request may go well a little later.
pub(super) fn is_transient(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } | Error::Io(_) => true,
        Error::Refused { status, .. } => *status >= 500 || matches!(status, 401 | 403 | 408 | 425 | 429),
        _ => false,
    }
}

/// All sources of a daemon.
#[derive(Debug)]
pub struct Sources {
    remotes: Vec<Remote>,
}

impl Sources {
    /// Sources, the first one preferred.
    pub fn new(sources: Vec<Box<dyn Source>>) -> Self {
        Self { remotes: sources.into_iter().map(Remote::new).collect() }
    }

    /// All of them with their index: those that do not rest first, each group in the order given.
    pub fn in_order(&self) -> impl Iterator<Item = (usize, &Remote)> {
        let now = Instant::now();
        let all = self.remotes.iter().enumerate();
        // Sorted out now: one that fails while this goes on is not asked a second time.
        let (ill, well): (Vec<_>, Vec<_>) = all.partition(|(_, remote)| remote.rests(now));
        well.into_iter().chain(ill)
    }

    /// Asks one source after the other until one answers.
    ///
    /// # Errors
    /// The failure that says most: what a source that was reached said, else that of the last one.
    pub fn ask<T>(&self, mut request: impl FnMut(&dyn Source) -> Result<T, Error>) -> Result<T, Error> {
        let mut failure: Option<Error> = None;
        for (_, remote) in self.in_order() {
            let result = request(remote.source());
            remote.note(&result);
            match result {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    let keep = failure.as_ref().is_some_and(|kept| !is_transient(kept));
                    if !keep || matches!(error, Error::Damaged { .. }) {
                        failure = Some(error);
                    }
                }
            }
        }
        Err(failure.unwrap_or_else(|| Error::NotFound {
            object: "anything".to_owned(),
            store: "a daemon without sources".to_owned(),
        }))
    }
}
