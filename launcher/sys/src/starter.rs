//! A process that starts commands in sandboxes, so that none is ever seen half-way.
//!
//! Whatever is born in a sandbox's pid namespace is in the tenant's `/proc` at once, and much of what `/proc` says of a
//! process needs no right over it: the mounts, the network and the cgroups of where it is, and the arguments of the
//! program whose memory it has. A child that is cloned by a daemon and then walks into the sandbox shows all of these of
//! the host. So the walking is done before the birth, by a process that the tenant cannot see:
//!
//! ```text
//! daemon ──request──► starter (host's pid namespace)        enters mount, network, ipc, uts namespaces of the sandbox
//!    ▲                   │ clone, born in its pid namespace  goes back to its own
//!    │                   ▼
//!    └──born, ready── the command: cgroups, limits, user namespace, user, filter, exec
//! ```
//!
//! The starter is forked off early, keeps nothing open that it does not need, names itself neutrally, is undumpable and runs
//! from a copy of its program that only the host's root may open; a command has no heap of the daemon's before its own
//! program, and what it has nobody inside can read. Before the first path of the tenant's is looked at, it has no
//! descriptor left that could lead out of the sandbox. The command is the
//! *daemon's* child (`CLONE_PARENT`), to be waited for there. Until it enters the user namespace, its last step but for its
//! own privileges, the tenant has no right over it; from there on a tenant can stop or slow down its own command only:
//! nobody waits for it in a system call, and whoever has the [`Starting`] kills it when its time is up.
//!
//! Starting takes the starter some 0.1 ms, whatever the sandbox does: it touches no file of it. It ends with the daemon
//! (its socket is closed then); one that was killed is replaced at the next start.

mod command;
mod memory;
mod request;
mod serve;
mod wire;

pub use request::{Request, WorkingDirectory};

use crate::child::Child;
use crate::process;
use crate::raw::{self, CLONE_CLEAR_SIGHAND, CloneArgs, SignalsBlocked};
use crate::scm;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Generates the enumeration of steps with their numbers and names from one list.
macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// A step between the starter and the command's program.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Step {
            $($(#[$doc])* $name,)*
        }

        impl Step {
            const ALL: &'static [Self] = &[$(Self::$name),*];

            /// What it does, to follow "cannot".
            #[must_use]
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

steps! {
    /// The sandbox's namespaces.
    Enter => "enter the sandbox's namespaces",
    /// The process.
    Clone => "make a process",
    /// What was asked for.
    Request => "read what is to be started",
    /// Its cgroups of version 1.
    JoinCgroups => "join the sandbox's cgroups",
    /// Descriptors 0 to 2.
    Stdio => "set up standard input and output",
    /// Resource limits.
    Limits => "set resource limits",
    /// Session and umask.
    Session => "begin a session",
    /// The user namespace, and that of cgroups.
    UserNamespace => "enter the sandbox's user namespace",
    /// Signals, capabilities, `no_new_privs`.
    Privileges => "give up privileges",
    /// User and groups.
    User => "become the user",
    /// The working directory.
    WorkingDirectory => "change to the working directory",
    /// The seccomp filter.
    Seccomp => "install the seccomp filter",
    /// The program.
    Exec => "run the program",
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// Why a command was not started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no starter.
    #[error("cannot make the process that starts commands: {what}")]
    Starter {
        /// What failed.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// What is to be started could not be handed over.
    #[error("cannot hand over what is to be started")]
    Send(#[source] Errno),
    /// The starter's answer could not be read.
    #[error("cannot read how a start went")]
    Receive(#[source] Errno),
    /// A step failed.
    #[error("step {step:?} of a start failed")]
    Step {
        /// Which one.
        step: Step,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// Something killed it before its program began.
    #[error("the command was killed before its program began")]
    Killed,
    /// The starter was killed half-way.
    #[error("the process that starts commands was killed")]
    Lost,
}

/// How a starter is set up.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Files of version 1 cgroups (`cgroup.procs`) that it joins. A command shows as being in these, relative to its
    /// sandbox's own, until it has joined those.
    pub joins: Vec<CString>,
}

/// The process that starts commands, from the daemon's side.
#[derive(Debug)]
pub struct Starter {
    config: Config,
    process: Mutex<Process>,
}

impl Starter {
    /// Forks it off. The earlier in a daemon's life the better: it has a copy of what the daemon's memory is now.
    ///
    /// # Errors
    /// [`Error::Starter`].
    pub fn new(config: Config) -> Result<Self, Error> {
        let process = Mutex::new(Process::fork(&config)?);
        Ok(Self { config, process })
    }

    /// Begins to start a command. Never waits for anything that the sandbox does.
    ///
    /// # Errors
    /// [`Error`] when it cannot be handed over. What goes wrong later is the [`Starting`]'s to tell.
    pub fn start(&self, request: &Request<'_>) -> Result<Starting, Error> {
        let payload = request.payload().map_err(Error::Send)?;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .and_then(|(ours, theirs)| rustix::io::ioctl_fionbio(&ours, true).map(|()| (ours, theirs)))
            .map_err(Error::Send)?;
        let mut descriptors = vec![theirs.as_fd(), payload.file.as_fd()];
        descriptors.extend(request.descriptors());
        let message = wire::Message {
            namespaces: request.namespaces.cast_unsigned(),
            joins: u32::try_from(request.joins.len()).map_err(|_| Error::Send(Errno::INVAL))?,
            payload_bytes: payload.bytes,
        };
        self.send(&message, &descriptors)?;
        Ok(Starting { status: ours, born: None, ready: false, failed: None, settled: false })
    }

    /// Sends; to a new starter if the old one is gone.
    fn send(&self, message: &wire::Message, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = scm::send(process.socket.as_fd(), message.as_bytes(), descriptors);
        let sent = match sent {
            Err(Errno::PIPE | Errno::CONNRESET) => {
                // The old one is waited for when it is dropped.
                *process = Process::fork(&self.config)?;
                scm::send(process.socket.as_fd(), message.as_bytes(), descriptors)
            }
            other => other,
        };
        sent.map(|_| ()).map_err(Error::Send)
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).pid
    }
}

#[derive(Debug)]
struct Process {
    socket: OwnedFd,
    pidfd: OwnedFd,
    pid: u32,
}

/// How long a new starter may take to be ready. It makes some twenty system calls.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one that is not needed any more may take to end.
const END_TIMEOUT_MS: u64 = 1_000;
/// 256 KiB: its calls nest a few deep.
const STACK_BYTES: usize = 256 << 10;

impl Process {
    fn fork(config: &Config) -> Result<Self, Error> {
        let failed = |what| move |errno| Error::Starter { what, errno };
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(failed("no sockets"))?;
        let open = |path: &str, flags| openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty());
        let null = open("/dev/null", OFlags::RDWR).map_err(failed("no /dev/null"))?;
        let mut own = Vec::new();
        for (name, flag) in serve::ENTERED {
            // A thread may be elsewhere for a moment; the process's own is what is wanted.
            let path = format!("/proc/self/task/{}/ns/{name}", std::process::id());
            own.push((open(&path, OFlags::RDONLY).map_err(failed("no namespaces in /proc"))?, *flag));
        }
        let memory = memory::Memory::read().map_err(failed("no /proc/self/maps"))?;
        let mut stack: Vec<u128> = vec![0; STACK_BYTES / size_of::<u128>()];
        let birth = serve::Birth::new(config, &theirs, &null, &own, &memory, &stack);
        let child = clone(&birth, &mut stack).map_err(failed("no process"))?;
        drop(theirs);
        let process = Self { socket: ours, pidfd: child.pidfd, pid: child.pid };
        process.wait_ready()?;
        Ok(process)
    }

    fn wait_ready(&self) -> Result<(), Error> {
        let failed = |what, errno| Error::Starter { what, errno };
        wait_readable(self.socket.as_fd(), READY_TIMEOUT).map_err(|errno| failed("it is not ready", errno))?;
        let mut bytes = [0; size_of::<wire::Status>()];
        let (count, _) = scm::receive(self.socket.as_fd(), &mut bytes).map_err(|errno| failed("it is gone", errno))?;
        match wire::Status::from_bytes(&bytes, count) {
            Some(wire::Status { kind: wire::READY, .. }) => Ok(()),
            Some(wire::Status { kind: wire::FAILED, errno, .. }) => {
                Err(failed("it cannot set itself up", Errno::from_raw_os_error(errno)))
            }
            _ => Err(failed("it is gone", Errno::CONNRESET)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It does what it was asked for before, and ends; what it has started are this process's children.
        let _ = shutdown(&self.socket, Shutdown::Both);
        if !process::wait_ended(&self.pidfd, END_TIMEOUT_MS).unwrap_or(false) {
            let _ = process::kill(&self.pidfd);
        }
        let _ = process::wait(&self.pidfd);
    }
}

/// A fork that begins in [`serve::starter`].
fn clone(birth: &serve::Birth<'_>, stack: &mut [u128]) -> Result<Child, Errno> {
    let mut pidfd: i32 = -1;
    let args = CloneArgs {
        flags: u64::from(libc::CLONE_PIDFD.cast_unsigned()) | CLONE_CLEAR_SIGHAND,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: u64::from(libc::SIGCHLD.cast_unsigned()),
        stack: stack.as_mut_ptr() as u64,
        stack_bytes: size_of_val(stack) as u64,
        ..CloneArgs::default()
    };
    let blocked = SignalsBlocked::new();
    // SAFETY: the child has a copy of this memory, with the stack, `birth` and all that it borrows; `starter` never returns.
    let answer = unsafe { raw::clone3(&args, serve::starter, std::ptr::from_ref(birth).cast()) };
    drop(blocked);
    let pid = raw::check(answer)?;
    // SAFETY: the kernel has just made this descriptor for us.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Child { pid: u32::try_from(pid).expect("a pid fits 32 bits"), pidfd })
}

/// A command on its way to its program. Its descriptor ([`AsFd`]) is readable whenever [`Starting::poll`] may know more.
/// Dropping it before [`Starting::poll`] has told of the command kills it.
#[derive(Debug)]
pub struct Starting {
    status: OwnedFd,
    born: Option<Child>,
    ready: bool,
    failed: Option<(Step, Errno)>,
    settled: bool,
}

impl Starting {
    /// Whether it is decided: `None` while the command is on its way. Never blocks.
    ///
    /// # Errors
    /// [`Error`]; the command is gone then, and waited for. Once decided, it is not to be called again.
    pub fn poll(&mut self) -> Result<Option<Child>, Error> {
        loop {
            let mut bytes = [0; size_of::<wire::Status>()];
            match scm::receive(self.status.as_fd(), &mut bytes) {
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                // No place for the descriptor that the message carried; the number is in the message.
                Err(Errno::MSGSIZE) => {
                    self.settled = true;
                    if let Some(born) = wire::Status::from_bytes(&bytes, bytes.len()).filter(|it| it.kind == wire::BORN)
                    {
                        end_by_number(born.value);
                    }
                    return Err(Error::Receive(Errno::MFILE));
                }
                Err(errno) => return Err(Error::Receive(errno)),
                Ok((0, _)) => return self.conclude().map(Some),
                Ok((count, descriptors)) => self.take(wire::Status::from_bytes(&bytes, count), descriptors),
            }
        }
    }

    fn take(&mut self, status: Option<wire::Status>, descriptors: Vec<OwnedFd>) {
        let Some(status) = status else { return };
        match status.kind {
            wire::READY => self.ready = true,
            wire::FAILED => {
                let step = Step::ALL.get(status.value as usize).copied().unwrap_or(Step::Exec);
                self.failed = Some((step, Errno::from_raw_os_error(status.errno)));
            }
            wire::BORN => {
                self.born = descriptors.into_iter().next().map(|pidfd| Child { pid: status.value, pidfd });
            }
            _ => {}
        }
    }

    /// Every end of the socket is closed: the command runs its program, or has ended.
    fn conclude(&mut self) -> Result<Child, Error> {
        self.settled = true;
        let child = self.born.take();
        match (self.failed, self.ready) {
            (None, true) => child.ok_or(Error::Lost),
            (failed, _) => {
                let lost = child.is_none();
                child.inspect(reap);
                Err(match failed {
                    Some((step, errno)) => Error::Step { step, errno },
                    None if lost => Error::Lost,
                    None => Error::Killed,
                })
            }
        }
    }

    /// Waits until it is decided; the command is killed when the time is up.
    ///
    /// # Errors
    /// As [`Starting::poll`]; [`Error::Killed`] after the time.
    pub fn wait(mut self, timeout: Duration) -> Result<Child, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(child) = self.poll()? {
                return Ok(child);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match wait_readable(self.status.as_fd(), left) {
                Ok(()) => {}
                Err(Errno::TIMEDOUT) => return Err(Error::Killed),
                Err(errno) => return Err(Error::Receive(errno)),
            }
        }
    }
}

impl AsFd for Starting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.status.as_fd()
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        while !self.settled {
            match self.poll() {
                // It has just become its program.
                Ok(Some(child)) => return end(&child),
                Ok(None) => {}
                // Decided, or the socket is of no use any more.
                Err(_) => return self.born.take().iter().for_each(end),
            }
            if let Some(child) = self.born.take() {
                return end(&child);
            }
            // Until the starter has answered, which it does at once, nobody knows whom to kill.
            if wait_readable(self.status.as_fd(), READY_TIMEOUT).is_err() {
                return;
            }
        }
    }
}

fn end(child: &Child) {
    // Neither fails for a child of this process that nobody else has waited for.
    let _ = process::kill(&child.pidfd);
    reap(child);
}

/// The same without a descriptor. The number is the command's as long as it is not waited for, and only this process does.
fn end_by_number(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _ = kill_process(pid, Signal::KILL);
        while matches!(waitid(WaitId::Pid(pid), WaitIdOptions::EXITED), Err(Errno::INTR)) {}
    }
}

/// Takes the status of a command that ends, so that no zombie stays. It may be gone already if this process ignores SIGCHLD.
fn reap(child: &Child) {
    let _ = process::wait(&child.pidfd);
}

/// Waits until there is something to read, or an end.
fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> Result<(), Errno> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left_spec = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left_spec)) {
            Ok(0) if left.is_zero() => return Err(Errno::TIMEDOUT),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests;
