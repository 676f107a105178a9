//! One command in a sandbox: its pipes, its end, its outcome.
//!
//! A command has two tasks of the edge at most: one that supervises it (output, time-out, end), and one that feeds a
//! client. The outcome is published once, after all output of the command's leader is in the [`Output`]s.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dsec_format::protocol::edge::{self as wire, Outcome, Reason};
use dsec_sandbox::{Ended, Process};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::unix::pipe::Sender;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard, OwnedSemaphorePermit, watch};

use super::error::Error;
use super::output::Output;
use super::pump::Pump;
use super::stream::Readers;

/// One command.
#[derive(Debug)]
pub(crate) struct Exec {
    /// Its id.
    pub id: String,
    started_ms: u64,
    started: Instant,
    /// What it writes to standard output.
    pub stdout: Arc<Output>,
    /// What it writes to standard error.
    pub stderr: Arc<Output>,
    outcome: watch::Sender<Option<Outcome>>,
    process: Mutex<Option<Arc<Process>>>,
    stdin: AsyncMutex<Option<Sender>>,
    timed_out: AtomicBool,
}

/// What the edge keeps of a started command's pipes.
#[derive(Debug)]
pub(crate) struct Pipes {
    /// To its standard input, if that was asked for.
    pub stdin: Option<OwnedFd>,
    /// From its standard output.
    pub stdout: OwnedFd,
    /// From its standard error.
    pub stderr: OwnedFd,
}

/// A command's place among those that run. It is kept until the last descriptor of the command is closed.
#[derive(Debug)]
pub(crate) struct Place {
    pub(super) _of_sandbox: OwnedSemaphorePermit,
    pub(super) _of_edge: OwnedSemaphorePermit,
}

impl Exec {
    /// A command that is about to be started.
    #[must_use]
    pub(crate) fn new(id: String, started_ms: u64, stdout: Arc<Output>, stderr: Arc<Output>) -> Arc<Self> {
        Arc::new(Self {
            id,
            started_ms,
            started: Instant::now(),
            stdout,
            stderr,
            outcome: watch::Sender::new(None),
            process: Mutex::new(None),
            stdin: AsyncMutex::new(None),
            timed_out: AtomicBool::new(false),
        })
    }

    /// A command of a former edge: all that is known is that it is lost.
    #[must_use]
    pub(crate) fn lost(id: String, stdout: Arc<Output>, stderr: Arc<Output>) -> Arc<Self> {
        let exec = Self::new(id, 0, stdout, stderr);
        exec.stdout.end();
        exec.stderr.end();
        exec.publish(lost().reason);
        exec
    }

    /// As callers see it.
    #[must_use]
    pub(crate) fn show(&self) -> wire::Exec {
        wire::Exec { id: self.id.clone(), started_ms: self.started_ms, outcome: self.outcome() }
    }

    /// How it ended, if it has.
    #[must_use]
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.outcome.borrow().clone()
    }

    /// Waits for its end.
    pub(crate) async fn wait(&self) -> Outcome {
        let mut outcome = self.outcome.subscribe();
        match outcome.wait_for(Option::is_some).await {
            Ok(found) => found.clone(),
            Err(_) => None,
        }
        .unwrap_or_else(lost)
    }

    /// Readers of its output.
    #[must_use]
    pub(crate) fn readers(&self, stdout_from: u64, stderr_from: u64) -> Readers {
        Readers { stdout: self.stdout.reader(stdout_from), stderr: self.stderr.reader(stderr_from) }
    }

    /// It did not start; why, as its outcome.
    pub(crate) fn not_started(&self, reason: Reason) {
        self.stdout.end();
        self.stderr.end();
        self.publish(reason);
    }

    fn publish(&self, reason: Reason) {
        let (stdout, stderr) = (self.stdout.totals(), self.stderr.totals());
        let outcome = Outcome {
            reason,
            duration_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            stdout_bytes: stdout.bytes,
            stderr_bytes: stderr.bytes,
            truncated: stdout.truncated || stderr.truncated,
        };
        self.outcome.send_if_modified(|present| {
            let first = present.is_none();
            if first {
                *present = Some(outcome);
            }
            first
        });
    }

    fn process(&self) -> Option<Arc<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Kills it, with everything it started. Its outcome follows. Blocks for a moment.
    ///
    /// # Errors
    /// When the kernel does not kill.
    pub(crate) fn kill(&self) -> Result<(), dsec_sandbox::CgroupError> {
        match self.process() {
            Some(process) => process.kill(),
            None => Ok(()),
        }
    }

    /// Takes over a started process: from here until its end, and that of its output.
    ///
    /// # Errors
    /// When its descriptors cannot be watched; it is killed then.
    pub(crate) fn supervise(
        self: &Arc<Self>,
        process: Process,
        pipes: Pipes,
        timeout: Option<Duration>,
        drain: Duration,
        place: Place,
    ) -> Result<impl Future<Output = Arc<Process>> + Send + use<>, Error> {
        let process = Arc::new(process);
        let watched = Watched::new(self, &process, pipes).inspect_err(|error| {
            // The caller tells of the error; a process that nobody watches must not stay.
            let process = Arc::clone(&process);
            drop(tokio::task::spawn_blocking(move || process.kill()));
            self.stdout.end();
            self.stderr.end();
            self.publish(Reason::InfraLost { message: format!("the command cannot be watched: {error}") });
        });
        let watched = watched.map_err(|source| Error::Watch { exec: self.id.clone(), source })?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&process));
        Ok(watched.until_end(Arc::clone(self), process, timeout, drain, place))
    }

    /// Its standard input, for one writer at a time.
    ///
    /// # Errors
    /// [`Error::Stdin`].
    pub(crate) fn stdin(&self) -> Result<Stdin<'_>, Error> {
        let error = |why| Error::Stdin { exec: self.id.clone(), why };
        let guard = self.stdin.try_lock().map_err(|_| error("another request writes to it"))?;
        if guard.is_none() {
            return Err(error("it is closed"));
        }
        Ok(Stdin { exec: self, pipe: guard })
    }
}

/// A command's standard input, while one request writes to it.
#[derive(Debug)]
pub(crate) struct Stdin<'a> {
    exec: &'a Exec,
    pipe: MutexGuard<'a, Option<Sender>>,
}

impl Stdin<'_> {
    /// Writes all of it.
    ///
    /// # Errors
    /// [`Error::Stdin`] when the command has closed it, or has ended.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let error = |why| Error::Stdin { exec: self.exec.id.clone(), why };
        let Some(pipe) = self.pipe.as_mut() else { return Err(error("it is closed")) };
        tokio::select! {
            written = pipe.write_all(bytes) => written.map_err(|_| error("the command reads no more of it")),
            _ = self.exec.wait() => Err(error("the command has ended")),
        }
    }

    /// Ends it: the command reads to its end.
    pub(crate) fn close(mut self) {
        *self.pipe = None;
    }
}

/// A started process's descriptors, registered with the runtime.
struct Watched {
    leader: AsyncFd<OwnedFd>,
    stdout: Pump,
    stderr: Pump,
}

impl Watched {
    fn new(exec: &Exec, process: &Process, pipes: Pipes) -> std::io::Result<Self> {
        let leader = process.as_fd().try_clone_to_owned()?;
        let stdin = pipes.stdin.map(Sender::from_owned_fd).transpose()?;
        if let Ok(mut place) = exec.stdin.try_lock() {
            *place = stdin;
        }
        Ok(Self {
            leader: watch_fd(leader)?,
            stdout: Pump::new(pipes.stdout, Arc::clone(&exec.stdout))?,
            stderr: Pump::new(pipes.stderr, Arc::clone(&exec.stderr))?,
        })
    }

    async fn until_end(
        self,
        exec: Arc<Exec>,
        process: Arc<Process>,
        timeout: Option<Duration>,
        drain: Duration,
        place: Place,
    ) -> Arc<Process> {
        let (ended, leader_ended) = watch::channel(false);
        let leader = async {
            wait_leader(&self.leader, &exec, &process, timeout).await;
            let outcome = process.wait();
            ended.send_replace(true);
            outcome
        };
        let (outcome, stdout, stderr) = tokio::join!(
            leader,
            self.stdout.run(leader_ended.clone(), drain),
            self.stderr.run(leader_ended.clone(), drain)
        );
        let reason = match outcome {
            Ok(_) if exec.timed_out.load(Ordering::Acquire) => Reason::Timeout,
            Ok(outcome) => reason(outcome),
            Err(error) => {
                tracing::error!(exec = %exec.id, %error, "the end of a command cannot be told");
                Reason::InfraLost { message: format!("the end of the command cannot be told: {error}") }
            }
        };
        exec.publish(reason);
        if let Ok(mut stdin) = exec.stdin.try_lock() {
            *stdin = None;
        }
        *exec.process.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let place = Arc::new(place);
        for left in [stdout, stderr].into_iter().flatten() {
            let place = Arc::clone(&place);
            tokio::spawn(async move {
                left.discard().await;
                drop(place);
            });
        }
        process
    }
}

#[expect(deprecated, reason = "deprecated for what is no owner of its descriptor; an OwnedFd is one")]
pub(super) fn watch_fd(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Waits until the leader has ended, killing it (and all that it started) when its time is up.
async fn wait_leader(leader: &AsyncFd<OwnedFd>, exec: &Exec, process: &Arc<Process>, timeout: Option<Duration>) {
    if let Some(timeout) = timeout {
        if tokio::time::timeout(timeout, leader.readable()).await.is_ok() {
            return;
        }
        exec.timed_out.store(true, Ordering::Release);
        let killed = {
            let process = Arc::clone(process);
            tokio::task::spawn_blocking(move || process.kill()).await
        };
        if !matches!(killed, Ok(Ok(()))) {
            tracing::error!(exec = %exec.id, ?killed, "a command whose time is up cannot be killed");
        }
    }
    // A pidfd stays readable once its process has ended; an error would mean that the runtime is going down.
    let _ = leader.readable().await;
}

fn reason(outcome: dsec_sandbox::Outcome) -> Reason {
    match outcome.ended {
        Ended::Exited(code) => Reason::Exited { code },
        Ended::Signalled(signal) => {
            let signal = signal.unsigned_abs();
            if outcome.oom { Reason::Oom { signal } } else { Reason::Signalled { signal } }
        }
    }
}

/// The outcome of a command that this edge knows nothing of.
#[must_use]
pub(super) fn lost() -> Outcome {
    let message = "the edge was restarted meanwhile: how the command ended is not known".to_owned();
    Outcome {
        reason: Reason::InfraLost { message },
        duration_ms: 0,
        stdout_bytes: 0,
        stderr_bytes: 0,
        truncated: false,
    }
}
