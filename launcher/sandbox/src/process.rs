//! A command that runs in a sandbox.

use crate::cgroup::{self, Groups};
use dsec_sys::child::Child;
use dsec_sys::process::{self as pidfd, Ended};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Its exit status or signal, exactly.
    pub ended: Ended,
    /// Whether it was killed while the kernel killed a process of the sandbox for want of memory.
    pub oom: bool,
}

/// Cgroups of commands whose leader has ended while descendants run on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lingering {
    commands: Arc<Mutex<Vec<cgroup::Command>>>,
}

impl Lingering {
    pub(crate) fn add(&self, command: cgroup::Command) {
        if !command.remove_if_empty() {
            self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        }
    }

    /// Removes those that are empty by now.
    pub(crate) fn tidy(&self) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).retain(|command| !command.remove_if_empty());
    }
}

/// A command: the process that was started (its leader), and its descendants.
///
/// It is a child of this process, so somebody here must [`wait`](Process::wait) for it. Its descriptor ([`AsFd`]) becomes
/// readable when it has ended, for those who wait for many. Dropping this value leaves the command running.
#[derive(Debug)]
pub struct Process {
    groups: Groups,
    lingering: Lingering,
    child: Child,
    oom_kills_before: u64,
    command: Option<cgroup::Command>,
    outcome: Mutex<Option<Outcome>>,
}

/// What a process that starts is handed over with.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) groups: Groups,
    pub(crate) lingering: Lingering,
    pub(crate) child: Child,
    pub(crate) oom_kills_before: u64,
    pub(crate) command: cgroup::Command,
}

impl Process {
    pub(crate) fn new(started: Started) -> Self {
        let Started { groups, lingering, child, oom_kills_before, command } = started;
        Self { groups, lingering, child, oom_kills_before, command: Some(command), outcome: Mutex::default() }
    }

    /// The leader's number on the host.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid
    }

    /// Waits until the leader has ended; how. Descendants may run on. May be called again.
    ///
    /// # Errors
    /// ECHILD when something else in this process has waited for it.
    pub fn wait(&self) -> Result<Outcome, Errno> {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = *outcome {
            return Ok(outcome);
        }
        let ended = pidfd::wait(&self.child.pidfd)?;
        Ok(*outcome.insert(self.conclude(ended)))
    }

    /// How the leader has ended; `None` while it runs.
    ///
    /// # Errors
    /// ECHILD when something else in this process has waited for it.
    pub fn try_wait(&self) -> Result<Option<Outcome>, Errno> {
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

    /// Sends a signal to the leader.
    ///
    /// # Errors
    /// ESRCH when it has ended, EINVAL when there is no such signal.
    pub fn signal(&self, number: i32) -> Result<(), Errno> {
        pidfd::signal(&self.child.pidfd, number)
    }

    /// Kills the leader and all its descendants, those in sessions of their own too; returns when they are gone.
    ///
    /// # Errors
    /// [`cgroup::Error`].
    pub fn kill(&self) -> Result<(), cgroup::Error> {
        self.command.as_ref().map_or(Ok(()), cgroup::Command::kill)
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.child.pidfd.as_fd()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(command) = self.command.take() {
            self.lingering.add(command);
        }
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
