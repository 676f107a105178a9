//! The starter's own side: set up once, then one request after the other.
//!
//! It runs in a copy of the daemon's memory that was made while other threads of it ran: whatever they held stays held
//! for ever. So nothing here allocates, locks, panics or touches a thread-local variable; only system calls and what was
//! handed over, as in [`crate::steps`].

use super::Step;
use super::command::command;
use super::memory::{Memory, NEUTRAL_NAME};
use super::wire::{self, CGROUP, FAILED, JOINS, READY, Received, SANDBOX, STATUS, Status, say};
use crate::raw::{self, CLONE_CLEAR_SIGHAND, CLONE_INTO_CGROUP, CloneArgs, call};
use crate::steps::{close, close_all_but, done, exit, new_session};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::CString;

type Result<T> = core::result::Result<T, Errno>;
type Stepped = core::result::Result<(), (Step, Errno)>;

/// Namespaces that the starter enters and leaves again, by their names in `/proc/PID/ns`. Those of users and cgroups are
/// entered by the command alone: with the one it gives up the host's rights, with the other the right to be born in a
/// cgroup beside its parent's (`nsdelegate`).
pub(super) const ENTERED: &[(&str, i32)] = &[
    ("mnt", libc::CLONE_NEWNS),
    ("net", libc::CLONE_NEWNET),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("pid", libc::CLONE_NEWPID),
];
const ENTERED_FLAGS: i32 =
    libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWPID;

/// What the starter is born with.
pub(super) struct Birth<'a> {
    joins: &'a [CString],
    socket: i32,
    null: i32,
    own: [(i32, i32); ENTERED.len()],
    /// All that it keeps, ascending.
    kept: [i32; ENTERED.len() + 1],
    memory: &'a Memory,
    stack: [usize; 2],
}

impl<'a> Birth<'a> {
    pub(super) fn new(
        config: &'a super::Config,
        socket: &OwnedFd,
        null: &OwnedFd,
        own: &[(OwnedFd, i32)],
        memory: &'a Memory,
        stack: &[u128],
    ) -> Self {
        let mut own_raw = [(-1, 0); ENTERED.len()];
        for (raw, (fd, flag)) in own_raw.iter_mut().zip(own) {
            *raw = (fd.as_raw_fd(), *flag);
        }
        let mut kept = [socket.as_raw_fd(); ENTERED.len() + 1];
        for (kept, (fd, _)) in kept.iter_mut().skip(1).zip(own_raw) {
            *kept = fd;
        }
        kept.sort_unstable();
        let begin = stack.as_ptr() as usize;
        Self {
            joins: &config.joins,
            socket: socket.as_raw_fd(),
            null: null.as_raw_fd(),
            own: own_raw,
            kept,
            memory,
            stack: [begin, begin + size_of_val(stack)],
        }
    }
}

/// Where the starter begins.
///
/// # Safety
/// `argument` is a `Birth` in this process's own memory.
pub(super) unsafe extern "C" fn starter(argument: *const u8) -> ! {
    // SAFETY: by this function's contract.
    let birth = unsafe { &*argument.cast::<Birth<'_>>() };
    if let Err(errno) = set_up(birth) {
        say(birth.socket, Status { kind: FAILED, value: 0, errno: errno.raw_os_error() });
        exit(1);
    }
    say(birth.socket, Status { kind: READY, value: 0, errno: 0 });
    loop {
        serve(birth);
    }
}

fn set_up(birth: &Birth<'_>) -> Result<()> {
    for path in birth.joins {
        write(path, b"0")?;
    }
    // The daemon may be shielded from the kernel's choice of whom to kill for want of memory; commands must not be.
    write(c"/proc/self/oom_score_adj", b"0")?;
    // Commands inherit this, and it is all that keeps a tenant, who has every right in its user namespace, from them.
    // SAFETY: strings and integers.
    unsafe {
        call!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0)?;
        call!(libc::SYS_chdir, c"/".as_ptr())?;
        call!(libc::SYS_prctl, libc::PR_SET_NAME, NEUTRAL_NAME.as_ptr())?;
    }
    new_session()?;
    for number in 0..3 {
        // SAFETY: integers.
        unsafe { call!(libc::SYS_dup3, birth.null, number, 0) }?;
    }
    close_all_but(&birth.kept)?;
    birth.memory.become_neutral()?;
    birth.memory.forget(birth.stack);
    Ok(())
}

fn write(path: &std::ffi::CStr, bytes: &[u8]) -> Result<()> {
    // SAFETY: a C string.
    let fd = unsafe { call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC, 0) }?;
    // SAFETY: a slice and its length.
    let answer = unsafe { call!(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) };
    close(fd as i32);
    done(answer)
}

/// Takes one request and does it. Ends the process when the daemon is gone.
fn serve(birth: &Birth<'_>) {
    let received = wire::receive(birth.socket);
    let status = received.fd(STATUS);
    if let Err((step, errno)) = start(birth, &received) {
        say(status, Status { kind: FAILED, value: step as u32, errno: errno.raw_os_error() });
    }
    for index in 0..received.count {
        close(received.fd(index));
    }
}

fn start(birth: &Birth<'_>, received: &Received) -> Stepped {
    if received.count != JOINS + received.message.joins as usize {
        return Err((Step::Request, Errno::INVAL));
    }
    let namespaces = received.message.namespaces.cast_signed() & ENTERED_FLAGS;
    enter(received.fd(SANDBOX), namespaces).map_err(|errno| (Step::Enter, errno))?;
    let born = clone(received);
    for (fd, flag) in birth.own {
        // A starter that cannot go back must not stay.
        if enter(fd, flag).is_err() {
            exit(1);
        }
    }
    born.map_err(|errno| (Step::Clone, errno))
}

pub(super) fn enter(fd: i32, namespaces: i32) -> Result<()> {
    // SAFETY: integers.
    done(unsafe { call!(libc::SYS_setns, fd, namespaces) })
}

/// Makes the command: a child of the daemon, with a copy of this memory. Tells the daemon.
fn clone(received: &Received) -> Result<()> {
    let mut pidfd: i32 = -1;
    let args = CloneArgs {
        flags: u64::from((libc::CLONE_PIDFD | libc::CLONE_PARENT).cast_unsigned())
            | CLONE_CLEAR_SIGHAND
            | CLONE_INTO_CGROUP,
        pidfd: (&raw mut pidfd) as u64,
        cgroup: received.fd(CGROUP).cast_unsigned().into(),
        ..CloneArgs::default()
    };
    // SAFETY: without a stack of its own and without CLONE_VM the child goes on with a copy of this one, `received` in it;
    // `command` never returns.
    let answer = unsafe { raw::clone3(&args, command, std::ptr::from_ref(received).cast()) };
    let pid = raw::check(answer)?;
    wire::say_born(received.fd(STATUS), pid as u32, pidfd);
    close(pidfd);
    Ok(())
}
