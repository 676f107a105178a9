//! The pid namespace that this thread's next child is born in.
//!
//! A process cannot change its own pid namespace, only that of its children; so to start a command inside a sandbox the
//! calling thread points "namespace for children" at the sandbox's, clones, and points it back.

use rustix::io::Result;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// While this value lives, children of the calling thread are born in another pid namespace. Dropping it goes back.
#[derive(Debug)]
pub struct ChildrenIn<'a> {
    own: BorrowedFd<'a>,
    // A thread's namespaces are its own: the guard must not travel.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl<'a> ChildrenIn<'a> {
    /// Children are born in the pid namespace of the process behind `pidfd`; `own` is this process's own pid namespace
    /// (from [`own_pid_ns`]), to go back to.
    ///
    /// # Errors
    /// ESRCH when that process has ended, EPERM without CAP_SYS_ADMIN over its user namespace.
    pub fn enter(pidfd: BorrowedFd<'_>, own: BorrowedFd<'a>) -> Result<Self> {
        set_children_ns(pidfd)?;
        Ok(Self { own, _not_send: std::marker::PhantomData })
    }
}

impl Drop for ChildrenIn<'_> {
    fn drop(&mut self) {
        // Going back to an ancestor that this process lives in needs nothing that it did not have when it left.
        set_children_ns(self.own).expect("a thread can always return to its own pid namespace");
    }
}

/// This process's own pid namespace.
///
/// # Errors
/// When `/proc` is missing.
pub fn own_pid_ns() -> std::io::Result<File> {
    #[expect(clippy::disallowed_methods, reason = "the path is in the message of no one but the caller")]
    File::open("/proc/self/ns/pid")
}

fn set_children_ns(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: setns takes two integers.
    let answer = unsafe {
        crate::raw::syscall6(libc::SYS_setns, fd.as_fd().as_raw_fd() as usize, libc::CLONE_NEWPID as usize, 0, 0, 0, 0)
    };
    crate::raw::check(answer).map(|_| ())
}
