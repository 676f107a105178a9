//! Waiting for the network on ordinary threads. Every wait has a bound, and ends soon when the caller wants that.
//!
//! Requests run on a runtime of the client's own; the thread that has asked waits for the outcome, for the end of its
//! time, or for [`super::Options::interrupt`], whichever comes first. What was being waited for is dropped then, and
//! its connection with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::sleep;

/// How often the flag is looked at. It may be set by a signal handler, which can wake nobody.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Why a wait ended without an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Its time was over.
    Late,
    /// The caller wants everything to end.
    Interrupted,
}

/// Waits of one client.
pub(super) struct Waits {
    handle: Handle,
    /// Until it is dropped.
    runtime: Option<Runtime>,
    interrupt: Option<Arc<AtomicBool>>,
}

impl Waits {
    pub(super) fn new(interrupt: Option<Arc<AtomicBool>>) -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("dsec-http").enable_all().build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime), interrupt })
    }

    /// Waits for `work`, at most for `limit`.
    pub(super) fn wait<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Result<T, Ended> {
        if self.is_interrupted() {
            return Err(Ended::Interrupted);
        }
        self.handle.block_on(async {
            tokio::select! {
                done = work => Ok(done),
                () = self.interrupted() => Err(Ended::Interrupted),
                () = sleep(limit) => Err(Ended::Late),
            }
        })
    }

    /// Lets time pass.
    pub(super) fn pause(&self, pause: Duration) -> Result<(), Ended> {
        match self.wait(pause, std::future::pending::<()>()) {
            Err(Ended::Interrupted) => Err(Ended::Interrupted),
            Ok(()) | Err(Ended::Late) => Ok(()),
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.as_ref().is_some_and(|flag| flag.load(Ordering::Acquire))
    }

    async fn interrupted(&self) {
        if self.interrupt.is_none() {
            std::future::pending::<()>().await;
        }
        while !self.is_interrupted() {
            sleep(LOOK_EVERY).await;
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        // Without waiting: looking up a name may take longer than anybody wants to.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_wait_has_an_outcome_or_ends() {
        let waits = Waits::new(None).unwrap();
        assert_eq!(waits.wait(LONG, async { 7 }), Ok(7));
        assert_eq!(waits.wait(Duration::from_millis(20), std::future::pending::<()>()), Err(Ended::Late));
        assert_eq!(waits.pause(Duration::from_millis(20)), Ok(()));
    }

    #[test]
    fn whoever_waits_is_interrupted() {
        let flag = Arc::new(AtomicBool::new(false));
        let waits = Waits::new(Some(Arc::clone(&flag))).unwrap();
        let start = Instant::now();
        std::thread::scope(|scope| {
            let waiting = [scope.spawn(|| waits.pause(LONG)), scope.spawn(|| waits.wait(LONG, std::future::pending()))];
            std::thread::sleep(Duration::from_millis(100));
            flag.store(true, Ordering::Release);
            for thread in waiting {
                assert_eq!(thread.join().unwrap(), Err(Ended::Interrupted));
            }
        });
        assert_eq!(waits.wait(LONG, async { 7 }), Err(Ended::Interrupted), "nothing new begins");
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
