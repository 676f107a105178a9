//! A command that runs in a sandbox.

use crate::cgroup::{self, Groups};
use crate::runtime::Shared;
use crate::spec::Id;
use dsec_sys::child::Child;
use dsec_sys::process::{self as pidfd, Ended};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Its exit status or signal, exactly.
    pub ended: Ended,
    /// Whether it was killed while the kernel killed a process of the sandbox for want of memory.
    pub oom: bool,
}

/// A command with its leader's status once it is known.
#[derive(Debug)]
pub(crate) struct Running {
    groups: Groups,
    child: Child,
    oom_kills_before: u64,
    command: cgroup::Command,
    outcome: Mutex<Option<Outcome>>,
}

impl Running {
    pub(crate) fn new(groups: Groups, child: Child, oom_kills_before: u64, command: cgroup::Command) -> Arc<Self> {
        Arc::new(Self { groups, child, oom_kills_before, command, outcome: Mutex::default() })
    }

    /// The outcome, taken from the kernel if it is there by now. Never blocks.
    fn collect(&self) -> Result<Option<Outcome>, Errno> {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if outcome.is_none() {
            *outcome = pidfd::try_wait(&self.child.pidfd)?.map(|ended| self.conclude(ended));
        }
        Ok(*outcome)
    }

    fn conclude(&self, ended: Ended) -> Outcome {
        let killed = ended == Ended::Signalled(libc::SIGKILL);
        // The counter is gone if the sandbox is being destroyed; that is then why the command was killed.
        let kills = || self.groups.oom_kills().unwrap_or(self.oom_kills_before);
        Outcome { ended, oom: killed && kills() > self.oom_kills_before }
    }

    /// Whether nothing is left of it: the leader waited for, descendants gone, its cgroup removed.
    fn is_settled(&self) -> bool {
        !matches!(self.collect(), Ok(None)) && self.command.remove_if_empty()
    }
}

/// The children that sandboxes have in this process.
///
/// Pid 1 of a sandbox ends only when every process of its namespace has been waited for, and commands are this process's
/// children. So whoever ends a sandbox must be able to wait for commands that others have started.
#[derive(Debug, Default)]
pub(crate) struct Children {
    sandboxes: Mutex<HashMap<Id, Family>>,
}

#[derive(Debug, Default)]
struct Family {
    init: Option<OwnedFd>,
    commands: Vec<Arc<Running>>,
    /// Cgroups of commands that are no child's of this process, until they are empty.
    lingering: Vec<cgroup::Command>,
}

impl Children {
    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Family>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sandbox whose pid 1 is this process's child.
    pub(crate) fn born(&self, id: &Id, init: OwnedFd) {
        self.lock().insert(id.clone(), Family { init: Some(init), ..Family::default() });
    }

    pub(crate) fn add(&self, id: &Id, command: Arc<Running>) {
        self.lock().entry(id.clone()).or_default().commands.push(command);
    }

    /// A cgroup of a command that is no child's of this process, to be removed when it is empty.
    pub(crate) fn linger(&self, id: &Id, command: cgroup::Command) {
        if !command.remove_if_empty() {
            self.lock().entry(id.clone()).or_default().lingering.push(command);
        }
    }

    /// Forgets commands that nobody holds any more and of which nothing is left.
    pub(crate) fn settle(&self, id: &Id) {
        if let Some(family) = self.lock().get_mut(id) {
            family.commands.retain(|command| Arc::strong_count(command) > 1 || !command.is_settled());
            family.lingering.retain(|command| !command.remove_if_empty());
        }
    }

    /// Waits for all children of a sandbox that has been killed; whether they ended in time.
    ///
    /// # Errors
    /// What `poll` answers.
    pub(crate) fn reap(&self, id: &Id, timeout_ms: u64) -> Result<bool, Errno> {
        let family = self.lock().remove(id).unwrap_or_default();
        for command in &family.commands {
            if !pidfd::wait_ended(&command.child.pidfd, timeout_ms)? {
                self.lock().insert(id.clone(), family);
                return Ok(false);
            }
            // Another thread may have waited for it; either way it has been.
            let _ = command.collect();
        }
        let Some(init) = family.init else { return Ok(true) };
        let ended = pidfd::wait_ended(&init, timeout_ms)?;
        if ended {
            let _ = pidfd::try_wait(&init);
        } else {
            self.born(id, init);
        }
        Ok(ended)
    }
}

/// A command: the process that was started (its leader), and its descendants.
///
/// It is a child of this process, so somebody here must [`wait`](Process::wait) for it; what nobody waits for is collected
/// when the sandbox runs its next command or ends. Its descriptor ([`AsFd`]) becomes readable when it has ended, for those
/// who wait for many. Dropping this value leaves the command running.
#[derive(Debug)]
pub struct Process {
    shared: Arc<Shared>,
    id: Id,
    running: Option<Arc<Running>>,
}

impl Process {
    pub(crate) fn new(shared: Arc<Shared>, id: Id, running: Arc<Running>) -> Self {
        shared.children.add(&id, running.clone());
        Self { shared, id, running: Some(running) }
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("taken only when this value is dropped")
    }

    /// The leader's number on the host.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running().child.pid
    }

    /// Waits until the leader has ended; how. Descendants may run on. May be called again.
    ///
    /// # Errors
    /// ECHILD when something else in this process has waited for it.
    pub fn wait(&self) -> Result<Outcome, Errno> {
        loop {
            if let Some(outcome) = self.running().collect()? {
                return Ok(outcome);
            }
            pidfd::wait_ended(&self.running().child.pidfd, WAIT_ROUND_MS)?;
        }
    }

    /// How the leader has ended; `None` while it runs.
    ///
    /// # Errors
    /// ECHILD when something else in this process has waited for it.
    pub fn try_wait(&self) -> Result<Option<Outcome>, Errno> {
        self.running().collect()
    }

    /// Sends a signal to the leader.
    ///
    /// # Errors
    /// ESRCH when it has ended, EINVAL when there is no such signal.
    pub fn signal(&self, number: i32) -> Result<(), Errno> {
        pidfd::signal(&self.running().child.pidfd, number)
    }

    /// Kills the leader and all its descendants, those in sessions of their own too; returns when they are gone.
    ///
    /// # Errors
    /// [`cgroup::Error`].
    pub fn kill(&self) -> Result<(), cgroup::Error> {
        self.running().command.kill()
    }
}

/// How long one look at a command lasts. It is woken when the command ends; the round only bounds a single system call.
const WAIT_ROUND_MS: u64 = 60_000;

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.running().child.pidfd.as_fd()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.running = None;
        self.shared.children.settle(&self.id);
    }
}

/// How a command ended, as text that users and clients see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It called exit.
    Exited,
    /// A signal ended it.
    Signalled,
    /// The kernel killed it for want of memory.
    Oom,
}

impl Outcome {
    /// Why it ended.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self.ended {
            _ if self.oom => Reason::Oom,
            Ended::Exited(_) => Reason::Exited,
            Ended::Signalled(_) => Reason::Signalled,
        }
    }

    /// The status as a shell tells it: the exit status, or 128 and the signal.
    #[must_use]
    pub fn shell_status(&self) -> i32 {
        match self.ended {
            Ended::Exited(status) => status.into(),
            Ended::Signalled(signal) => 128 + signal,
        }
    }
}
