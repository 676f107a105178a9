//! The edge: one a node, the truth about its sandboxes.
//!
//! Every request that changes something runs in a task of its own, so that a client that goes away leaves nothing half
//! done. What blocks (the sandbox crate, the journal) runs on a bounded pool of threads. Locks are held for moments and
//! never across a wait, but for two a sandbox that exist to be waited for: its gate (holds) and its removal.
//!
//! Not here: HTTP (`routes`), what a sandbox is made of (`dsec-sandbox`), where layers come from (`mountd`).

mod arguments;
mod config;
mod entry;
mod error;
mod exec;
mod hold;
mod ids;
mod images;
mod journal;
mod life;
mod make;
mod output;
mod pool;
mod pump;
mod recover;
mod routes;
mod run;
mod serve;
mod spares;
mod start;
mod stream;
mod table;

pub use config::Config;
pub use error::{Error, chain};
pub use ids::{Bounds, Error as IdsError, Tag};
pub use journal::Error as JournalError;
pub use output::Caps;
pub use serve::{StartError, serve};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{getpriority_process, setpriority_process};
use tokio::sync::Semaphore;

/// An edge. All its parts, shared by every request.
#[derive(Debug)]
pub(crate) struct Edge {
    config: Config,
    runtime: dsec_sandbox::Runtime,
    journal: journal::Journal,
    images: Arc<images::Images>,
    ranges: ids::Ranges,
    tag: Tag,
    budget: Arc<output::Budget>,
    table: table::Table,
    spares: pool::Pool<spares::Spare>,
    /// Names of commands begin with it: those of a former edge are told apart.
    incarnation: String,
    next_exec: AtomicU64,
    creating: Semaphore,
    removing: Semaphore,
    starting: Semaphore,
    copying: Semaphore,
    /// Places for commands that run, or have left something running.
    commands: Arc<Semaphore>,
}

impl Edge {
    fn next_exec_id(&self) -> String {
        format!("{}-{}", self.incarnation, self.next_exec.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether an id is one that an edge before this one gave to a command.
    fn is_former_exec(&self, id: &str) -> bool {
        let Some((incarnation, number)) = id.split_once('-') else { return false };
        incarnation != self.incarnation && ids::is_letters(incarnation) && number.parse::<u64>().is_ok()
    }

    fn new_output(&self) -> Arc<output::Output> {
        output::Output::new(self.config.caps, Arc::clone(&self.budget))
    }
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// While it lives, its thread gives way to others.
struct LowPriority {
    before: Option<i32>,
}

impl LowPriority {
    /// A tenth of what another thread gets, where both want the same core.
    const NICE: i32 = 10;

    fn take() -> Self {
        // On Linux this is a thread's, and a thread's id is what is asked for. Where it is refused, nothing changes.
        let thread = Some(rustix::thread::gettid());
        let before = getpriority_process(thread).ok();
        let taken = before.is_some_and(|before| before < Self::NICE && setpriority_process(thread, Self::NICE).is_ok());
        Self { before: before.filter(|_| taken) }
    }
}

impl Drop for LowPriority {
    fn drop(&mut self) {
        if let Some(before) = self.before
            && let Err(error) = setpriority_process(Some(rustix::thread::gettid()), before)
        {
            tracing::warn!(%error, "a thread keeps its low priority");
        }
    }
}

/// Runs what blocks on the pool, when the semaphore has a place.
async fn blocking<T, F>(places: &Semaphore, work: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    // Semaphores are closed only when the edge is dropped.
    let _place = places.acquire().await.map_err(|_| Error::Stopping)?;
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_its_priority_back() {
        let nice = || getpriority_process(Some(rustix::thread::gettid())).unwrap();
        let before = nice();
        let low = LowPriority::take();
        assert_eq!(nice(), before.max(LowPriority::NICE));
        drop(low);
        assert!(nice() == before || !rustix::process::geteuid().is_root());
    }
}
