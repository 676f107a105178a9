//! Credentials of one thread: the ids it creates files as, and whether others may look into this process.

use rustix::io::Result;
use rustix::thread::{CapabilitySets, capabilities, set_capabilities};

/// While this value lives, the calling thread makes and checks files as another user and group, with the capabilities it
/// had before (the kernel would drop those over files when the id stops being 0). Dropping it goes back.
#[derive(Debug)]
pub struct FileIds {
    uid: u32,
    gid: u32,
    sets: CapabilitySets,
    // Credentials belong to the thread: the guard must not travel.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl FileIds {
    /// The calling thread's file system ids become `uid` and `gid`.
    ///
    /// # Errors
    /// EPERM without CAP_SETUID and CAP_SETGID.
    pub fn assume(uid: u32, gid: u32) -> Result<Self> {
        let sets = capabilities(None)?;
        let old = Self { uid: set_fsuid(uid), gid: set_fsgid(gid), sets, _not_send: std::marker::PhantomData };
        // setfsuid reports failure only by not changing anything; asking again (with an id that is no id) tells.
        if set_fsuid(u32::MAX) != uid || set_fsgid(u32::MAX) != gid {
            return Err(rustix::io::Errno::PERM);
        }
        set_capabilities(None, sets)?;
        Ok(old)
    }
}

impl Drop for FileIds {
    fn drop(&mut self) {
        set_fsgid(self.gid);
        set_fsuid(self.uid);
        // Giving back what the thread held a moment ago cannot be refused.
        set_capabilities(None, self.sets).expect("a thread may set the capabilities that it holds");
    }
}

fn set_fsuid(id: u32) -> u32 {
    // SAFETY: one integer; raw, so that only this thread changes.
    let old = unsafe { crate::raw::syscall6(libc::SYS_setfsuid, id as usize, 0, 0, 0, 0, 0) };
    old as u32
}

fn set_fsgid(id: u32) -> u32 {
    // SAFETY: one integer; raw, so that only this thread changes.
    let old = unsafe { crate::raw::syscall6(libc::SYS_setfsgid, id as usize, 0, 0, 0, 0, 0) };
    old as u32
}

/// Makes this process undumpable: nobody without CAP_SYS_PTRACE over the initial user namespace can attach to it, read
/// its memory or follow its `/proc/PID/exe`. A child of [`crate::child`] shares the process's memory until it runs its
/// program, and is visible inside a sandbox by then, so this must be on before the first one.
///
/// # Errors
/// None in practice; the kernel's answer is passed on.
pub fn set_undumpable() -> Result<()> {
    // SAFETY: prctl with integers only.
    let answer = unsafe { crate::raw::syscall6(libc::SYS_prctl, libc::PR_SET_DUMPABLE as usize, 0, 0, 0, 0, 0) };
    crate::raw::check(answer).map(|_| ())
}

/// Makes this process the one that orphans below it are handed to (`PR_SET_CHILD_SUBREAPER`).
///
/// # Errors
/// None in practice; the kernel's answer is passed on.
pub fn set_subreaper() -> Result<()> {
    // SAFETY: prctl with integers only.
    let answer = unsafe { crate::raw::syscall6(libc::SYS_prctl, libc::PR_SET_CHILD_SUBREAPER as usize, 1, 0, 0, 0, 0) };
    crate::raw::check(answer).map(|_| ())
}
