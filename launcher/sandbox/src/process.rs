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
use std::time::Instant;

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
    init: Option<Arc<OwnedFd>>,
    commands: Vec<Arc<Running>>,
    /// Cgroups of commands that are no child's of this process, until they are empty.
    lingering: Vec<cgroup::Command>,
}

impl Family {
    fn is_empty(&self) -> bool {
        self.init.is_none() && self.commands.is_empty() && self.lingering.is_empty()
    }
}

impl Children {
    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Family>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sandbox whose pid 1 is this process's child.
    pub(crate) fn born(&self, id: &Id, init: OwnedFd) {
        self.lock().insert(id.clone(), Family { init: Some(Arc::new(init)), ..Family::default() });
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
        let mut sandboxes = self.lock();
        if let Some(family) = sandboxes.get_mut(id) {
            family.commands.retain(|command| Arc::strong_count(command) > 1 || !command.is_settled());
            family.lingering.retain(|command| !command.remove_if_empty());
            if family.is_empty() {
                sandboxes.remove(id);
            }
        }
    }

    /// Waits for all children of a sandbox that has been killed; whether they ended in time. Commands that another thread
    /// was starting when it was killed are waited for too, and stay known until all have ended.
    ///
    /// # Errors
    /// What `poll` answers.
    pub(crate) fn reap(&self, id: &Id, timeout_ms: u64) -> Result<bool, Errno> {
        let begun = Instant::now();
        let left_ms = || timeout_ms.saturating_sub(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        loop {
            let (init, commands) = match self.lock().get(id) {
                Some(family) => (family.init.clone(), family.commands.clone()),
                None => return Ok(true),
            };
            for command in commands {
                if !pidfd::wait_ended(&command.child.pidfd, left_ms())? {
                    return Ok(false);
                }
                // Another thread may have waited for it; either way it has been.
                let _ = command.collect();
            }
            // A command that was added meanwhile holds pid 1 up until somebody waits for it: so not for long at a time.
            let ended = match &init {
                Some(init) => pidfd::wait_ended(init, left_ms().min(INIT_ROUND_MS))?,
                None => true,
            };
            if ended {
                let _ = init.map(pidfd::try_wait);
                self.forget(id);
                return Ok(true);
            }
            if left_ms() == 0 {
                return Ok(false);
            }
        }
    }

    /// Forgets a sandbox all of whose children have ended.
    fn forget(&self, id: &Id) {
        for command in self.lock().remove(id).into_iter().flat_map(|family| family.commands) {
            // Those who still hold it have the outcome from here.
            let _ = command.collect();
        }
    }
}

/// How long one look at pid 1 lasts while a sandbox ends.
const INIT_ROUND_MS: u64 = 20;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_sandbox_is_kept_until_all_has_ended() {
        let children = Children::default();
        let id: Id = "one".parse().unwrap();
        let mut sleeper = std::process::Command::new("/bin/sleep").arg("100").spawn().unwrap();
        children.born(&id, pidfd::open(sleeper.id()).unwrap());
        assert_eq!(children.reap(&id, 30), Ok(false));
        children.settle(&id);
        assert!(children.lock().contains_key(&id), "a pid 1 that lives is forgotten");
        sleeper.kill().unwrap();
        assert_eq!(children.reap(&id, 10_000), Ok(true));
        assert!(children.lock().is_empty());
        assert_eq!(children.reap(&id, 10_000), Ok(true));
        assert!(sleeper.wait().is_err(), "its status was not taken");
    }
}
