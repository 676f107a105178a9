//! Steps that every child takes, whoever has made it, as bare system calls.
//!
//! A child here runs in memory that it shares with a process of many threads, or in a copy of it. Rules: no allocation, no
//! lock, no thread-local variable, no panic, no libc call; only [`crate::raw`] and what it was handed.

use crate::raw::call;
use rustix::io::Errno;

type Result<T> = core::result::Result<T, Errno>;

const CLOSE_RANGE_UNSHARE: usize = 2;
const CLOSE_RANGE_CLOEXEC: usize = 4;

pub(crate) fn done(answer: Result<usize>) -> Result<()> {
    answer.map(|_| ())
}

/// Closes a descriptor that the child has opened or was handed.
pub(crate) fn close(fd: i32) {
    // SAFETY: only called with descriptors that nobody else uses.
    let _ = unsafe { call!(libc::SYS_close, fd) };
}

/// Supplementary groups, group and user: real, effective, saved and file system.
pub(crate) fn ids(uid: u32, gid: u32, groups: &[u32]) -> Result<()> {
    // SAFETY: a slice with its length, and integers; raw, so that no other thread of the parent changes.
    unsafe {
        call!(libc::SYS_setgroups, groups.len(), groups.as_ptr())?;
        call!(libc::SYS_setresgid, gid, gid, gid)?;
        done(call!(libc::SYS_setresuid, uid, uid, uid))
    }
}

pub(crate) fn signal_action(signal: i32, handler: usize) -> Result<()> {
    // The kernel's structure on both architectures: handler, flags, restorer, mask.
    let action = [handler as u64, 0, 0, 0];
    // SAFETY: the structure above; the mask has eight bytes.
    done(unsafe { call!(libc::SYS_rt_sigaction, signal, &raw const action, 0, 8) })
}

/// The named signals (bit n - 1 for signal n) to their defaults, and none blocked.
pub(crate) fn default_signals(ignored: u64) -> Result<()> {
    for signal in 1..=64 {
        if ignored & (1u64 << (signal - 1)) != 0 {
            signal_action(signal, libc::SIG_DFL)?;
        }
    }
    let none = 0u64;
    // SAFETY: a mask of eight bytes.
    done(unsafe { call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, 0, 8) })
}

pub(crate) fn no_new_privileges() -> Result<()> {
    // SAFETY: integers.
    done(unsafe { call!(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

pub(crate) fn new_session() -> Result<()> {
    // SAFETY: no argument.
    done(unsafe { call!(libc::SYS_setsid) })
}

/// All descriptors from this number on are closed at exec; in an own copy of the table.
pub(crate) fn close_on_exec_from(first: u32) -> Result<()> {
    let flags = CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC;
    // SAFETY: integers.
    done(unsafe { call!(libc::SYS_close_range, first, u32::MAX, flags) })
}

/// Closes all descriptors from 3 on but those kept, which are ascending. The caller has a table of its own.
pub(crate) fn close_all_but(kept: &[i32]) -> Result<()> {
    let mut first = 3u32;
    for fd in kept {
        let fd = fd.cast_unsigned();
        if fd > first {
            // SAFETY: integers; no process but this one has this table, and nothing in it uses what is closed.
            unsafe { call!(libc::SYS_close_range, first, fd - 1, 0) }?;
        }
        first = fd + 1;
    }
    // SAFETY: as above.
    done(unsafe { call!(libc::SYS_close_range, first, u32::MAX, 0) })
}

/// Ends this process.
pub(crate) fn exit(status: i32) -> ! {
    loop {
        // SAFETY: an integer.
        let _ = unsafe { call!(libc::SYS_exit_group, status) };
    }
}
