//! A process by its descriptor: signals and how it ended.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, Result};
use rustix::process::{PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};

/// How a process ended: what `wait` says, exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It called exit with this status, 0 to 255.
    Exited(u8),
    /// A signal of this number ended it.
    Signalled(i32),
}

/// A descriptor for a process that runs; it stays that process's, whatever happens to the number.
///
/// # Errors
/// ESRCH when there is none of that number.
pub fn open(pid: u32) -> Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).ok_or(Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}

/// Sends a signal.
///
/// # Errors
/// ESRCH when the process has ended and been waited for; INVAL when there is no signal of that number.
pub fn signal(pidfd: impl AsFd, number: i32) -> Result<()> {
    let signal = Signal::from_named_raw(number).ok_or(Errno::INVAL)?;
    pidfd_send_signal(pidfd, signal)
}

/// Kills the process. One that has ended already is no error.
///
/// # Errors
/// EPERM.
pub fn kill(pidfd: impl AsFd) -> Result<()> {
    match pidfd_send_signal(pidfd, Signal::KILL) {
        Err(Errno::SRCH) => Ok(()),
        other => other,
    }
}

/// Waits for a child of this process and takes its status.
///
/// # Errors
/// ECHILD when it is not this process's child, or was waited for before.
pub fn wait(pidfd: impl AsFd) -> Result<Ended> {
    loop {
        match waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => return Ok(ended(&status)),
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The status of a child that has ended, taken; `None` while it runs.
///
/// # Errors
/// ECHILD when it is not this process's child, or was waited for before.
pub fn try_wait(pidfd: impl AsFd) -> Result<Option<Ended>> {
    let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?;
    Ok(status.as_ref().map(ended))
}

/// Waits until the process (a child or not) has ended, or the time is over; whether it has.
///
/// # Errors
/// What `poll` answers, interruption apart.
pub fn wait_ended(pidfd: impl AsFd, timeout_ms: u64) -> Result<bool> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_millis(timeout_ms);
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        let mut wanted = [PollFd::new(&pidfd, PollFlags::IN)];
        match poll(&mut wanted, Some(&timeout)) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error),
        }
    }
}

fn ended(status: &rustix::process::WaitIdStatus) -> Ended {
    if let Some(signal) = status.terminating_signal() {
        return Ended::Signalled(signal);
    }
    // The kernel keeps eight bits of what a process exits with.
    Ended::Exited(status.exit_status().map_or(0, |code| (code & 0xff) as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_exit_from_signal() {
        for (script, expected) in
            [("exit 7", Ended::Exited(7)), ("kill -9 $$", Ended::Signalled(9)), ("exit 255", Ended::Exited(255))]
        {
            #[expect(clippy::zombie_processes, reason = "waited for by its descriptor below")]
            let child = std::process::Command::new("/bin/sh").args(["-c", script]).spawn().unwrap();
            let pidfd = open(child.id()).unwrap();
            assert!(wait_ended(&pidfd, 10_000).unwrap());
            assert_eq!(wait(&pidfd).unwrap(), expected, "{script}");
        }
    }

    #[test]
    fn no_wait_forever_for_one_that_runs() {
        let mut child = std::process::Command::new("/bin/sleep").arg("100").spawn().unwrap();
        let pidfd = open(child.id()).unwrap();
        assert!(!wait_ended(&pidfd, 20).unwrap());
        assert_eq!(try_wait(&pidfd).unwrap(), None);
        kill(&pidfd).unwrap();
        child.wait().unwrap();
    }
}
