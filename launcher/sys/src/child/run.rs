//! The child's side: one system call after the other.
//!
//! Everything here runs in memory that it shares with a process of many threads. Rules: no allocation, no lock, no
//! thread-local variable, no panic, no libc call; only [`crate::raw`], atomics and what the program holds. Paths and
//! arrays belong to the program, which the parent keeps alive.

use super::program::{Fd, Label, Op, Slot};
use super::{CHILD_IN_OWN_TABLE, CHILD_IN_SHARED_TABLE, Shared, SlotState};
use crate::raw::call;
use crate::steps::{
    close, close_on_exec_from, default_signals, done, ids, new_session, no_new_privileges, signal_action,
};
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::ffi::CString;
use std::sync::atomic::Ordering;

type Result<T> = core::result::Result<T, Errno>;

const MOUNT_ATTR_SET_BYTES: usize = 32;
const FSCONFIG_SET_STRING: usize = 1;
const FSCONFIG_CMD_CREATE: usize = 6;
const CLOEXEC_FLAG: usize = 1;
const OPEN_TREE_CLONE: usize = 1;
const MOVE_MOUNT_F_EMPTY_PATH: usize = 0x4;
const MOVE_MOUNT_T_EMPTY_PATH: usize = 0x40;
/// How long a child waits at a gate before it looks whether its parent lives. The parent mounts meanwhile, which takes
/// a millisecond.
const GATE_LOOK_NANOS: i64 = 100_000_000;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// Where the child begins.
///
/// # Safety
/// `argument` is the parent's `Shared`, alive until the child has left this memory.
pub(super) unsafe extern "C" fn child(argument: *const u8) -> ! {
    // SAFETY: by this function's contract.
    let shared = unsafe { &*argument.cast::<Shared<'_>>() };
    // A parent that dies now leaves nobody to open a gate, and this child holds copies of its descriptors: its locks and
    // sockets would live on.
    die_with_parent(true);
    for (label, op) in shared.ops {
        if let Err(errno) = step(shared, op) {
            fail(shared, *label, errno);
        }
    }
    // A program that ends without running anything is a program without a purpose.
    fail(shared, Label::MAX, Errno::NOEXEC)
}

fn fail(shared: &Shared<'_>, label: Label, errno: Errno) -> ! {
    shared.label.store(i32::from(label), Ordering::Release);
    shared.errno.store(errno.raw_os_error(), Ordering::Release);
    loop {
        // SAFETY: ends this process, which has one thread.
        let _ = unsafe { call!(libc::SYS_exit_group, 125) };
    }
}

/// Whether SIGKILL comes when the thread that made this child ends; it waits for the child, so it ends only with its
/// process. The program that the child becomes is to outlive it.
fn die_with_parent(die: bool) {
    let signal = if die { libc::SIGKILL } else { 0 };
    // SAFETY: integers. It fails for no signal number that exists.
    let _ = unsafe { call!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, signal) };
}

fn step(shared: &Shared<'_>, op: &Op<'_>) -> Result<()> {
    match op {
        Op::Gate(gate) => wait_for_gate(shared, *gate),
        Op::OwnFiles => own_files(shared),
        // SAFETY: an integer.
        Op::Unshare(flags) => done(unsafe { call!(libc::SYS_unshare, *flags) }),
        // SAFETY: a string and its length.
        Op::HostName(name) => done(unsafe { call!(libc::SYS_sethostname, name.as_ptr(), name.count_bytes()) }),
        Op::Write { path, bytes } => write(path, bytes),
        Op::NewMount { kind, options, attributes, into } => new_mount(shared, kind, options, *attributes, *into),
        Op::Attach { mount, dir, path } => attach(shared, *mount, *dir, path),
        Op::Cover { source, source_path, dir, path, attributes } => {
            let target = (shared.raw(*dir), path);
            cover((shared.raw(*source), source_path), target, *attributes)
        }
        Op::OpenDirectory { path, into } => {
            shared.keep(*into, open(path, libc::O_PATH | libc::O_DIRECTORY)?);
            Ok(())
        }
        Op::PivotRoot(root) => pivot_root(shared.raw(*root)),
        Op::Ids { uid, gid, groups } => ids(*uid, *gid, groups),
        Op::NoCapabilities => no_capabilities(),
        Op::NoNewPrivileges => no_new_privileges(),
        Op::IgnoreChildren => signal_action(libc::SIGCHLD, libc::SIG_IGN),
        Op::DefaultSignals { ignored } => default_signals(*ignored),
        Op::NewSession => new_session(),
        Op::CloseOnExecFrom(first) => close_on_exec_from(*first),
        Op::ExecFd { fd, argv, env } => {
            die_with_parent(false);
            shared.reached_exec.store(1, Ordering::Release);
            let empty = c"".as_ptr();
            // SAFETY: arrays of C strings that end with a null pointer.
            done(unsafe {
                call!(libc::SYS_execveat, fd.as_raw_fd(), empty, argv.as_ptr(), env.as_ptr(), libc::AT_EMPTY_PATH)
            })
        }
    }
}

impl Shared<'_> {
    fn raw(&self, fd: Fd) -> i32 {
        match fd {
            Fd::Cwd => libc::AT_FDCWD,
            Fd::Slot(slot) => self.state(slot).map_or(-1, |state| state.fd.load(Ordering::Acquire) - 1),
        }
    }

    fn state(&self, slot: Slot) -> Option<&SlotState> {
        self.slots.get(usize::from(slot.index()))
    }

    fn keep(&self, slot: Slot, fd: usize) {
        if let Some(state) = self.state(slot) {
            let own = self.own_files.load(Ordering::Acquire) == 1;
            state.opener.store(if own { CHILD_IN_OWN_TABLE } else { CHILD_IN_SHARED_TABLE }, Ordering::Release);
            state.fd.store((fd as i32).wrapping_add(1), Ordering::Release);
        }
    }
}

fn wait_for_gate(shared: &Shared<'_>, gate: u32) -> Result<()> {
    loop {
        let open = shared.gate.load(Ordering::Acquire);
        if open >= gate {
            return Ok(());
        }
        // A parent that died before this child could ask to die with it opens no gate.
        let look_again = [0i64, GATE_LOOK_NANOS];
        let word = shared.gate.as_ptr();
        // SAFETY: the word is shared memory, the time two 64-bit numbers; a spurious return only looks again.
        let answer = unsafe { call!(libc::SYS_futex, word, libc::FUTEX_WAIT, open, &raw const look_again) };
        if answer == Err(Errno::TIMEDOUT) && has_ended(shared.parent) {
            return Err(Errno::OWNERDEAD);
        }
    }
}

/// Whether the process behind a descriptor has ended.
fn has_ended(pidfd: i32) -> bool {
    let mut wanted = libc::pollfd { fd: pidfd, events: libc::POLLIN, revents: 0 };
    let at_once = [0i64, 0];
    // SAFETY: one structure of the kernel's form, and a time.
    let answer = unsafe { call!(libc::SYS_ppoll, &raw mut wanted, 1, &raw const at_once, 0, 0) };
    answer.is_ok_and(|count| count > 0)
}

fn own_files(shared: &Shared<'_>) -> Result<()> {
    // SAFETY: an integer.
    done(unsafe { call!(libc::SYS_unshare, libc::CLONE_FILES) })?;
    shared.own_files.store(1, Ordering::Release);
    Ok(())
}

fn open(path: &CString, flags: i32) -> Result<usize> {
    // SAFETY: a C string.
    unsafe { call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC, 0) }
}

fn write(path: &CString, bytes: &[u8]) -> Result<()> {
    let fd = open(path, libc::O_WRONLY)?;
    // SAFETY: a slice and its length.
    let answer = unsafe { call!(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) };
    close(fd as i32);
    done(answer)
}

fn new_mount(
    shared: &Shared<'_>,
    kind: &CString,
    options: &[(CString, CString)],
    attributes: u32,
    into: Slot,
) -> Result<()> {
    // SAFETY: C strings and integers throughout.
    let context = unsafe { call!(libc::SYS_fsopen, kind.as_ptr(), CLOEXEC_FLAG) }?;
    let mount = configured(context, options).and_then(|()| {
        // SAFETY: integers.
        unsafe { call!(libc::SYS_fsmount, context, CLOEXEC_FLAG, attributes) }
    });
    close(context as i32);
    shared.keep(into, mount?);
    Ok(())
}

fn configured(context: usize, options: &[(CString, CString)]) -> Result<()> {
    for (key, value) in options {
        // SAFETY: two C strings.
        unsafe { call!(libc::SYS_fsconfig, context, FSCONFIG_SET_STRING, key.as_ptr(), value.as_ptr(), 0) }?;
    }
    // SAFETY: no pointer.
    done(unsafe { call!(libc::SYS_fsconfig, context, FSCONFIG_CMD_CREATE, 0, 0, 0) })
}

fn attach(shared: &Shared<'_>, mount: Fd, dir: Fd, path: &CString) -> Result<()> {
    move_mount(shared.raw(mount), shared.raw(dir), path)
}

fn move_mount(mount: i32, dir: i32, path: &CString) -> Result<()> {
    let flags = MOVE_MOUNT_F_EMPTY_PATH | if path.is_empty() { MOVE_MOUNT_T_EMPTY_PATH } else { 0 };
    // SAFETY: two C strings.
    done(unsafe { call!(libc::SYS_move_mount, mount, c"".as_ptr(), dir, path.as_ptr(), flags) })
}

fn cover(source: (i32, &CString), target: (i32, &CString), attributes: u32) -> Result<()> {
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as usize | (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW) as usize;
    // SAFETY: a C string.
    let copy = match unsafe { call!(libc::SYS_open_tree, source.0, source.1.as_ptr(), flags) } {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let answer = set_attributes(copy, attributes).and_then(|()| move_mount(copy as i32, target.0, target.1));
    close(copy as i32);
    match answer {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn set_attributes(mount: usize, attributes: u32) -> Result<()> {
    if attributes == 0 {
        return Ok(());
    }
    let wanted = [u64::from(attributes), 0, 0, 0];
    // SAFETY: a structure of four 64-bit numbers, whose size is passed.
    done(unsafe {
        call!(
            libc::SYS_mount_setattr,
            mount,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const wanted,
            MOUNT_ATTR_SET_BYTES
        )
    })
}

fn pivot_root(root: i32) -> Result<()> {
    let here = c".".as_ptr();
    // SAFETY: C strings throughout. Root and working directory of this process are its own (no CLONE_FS).
    unsafe {
        call!(libc::SYS_fchdir, root)?;
        call!(libc::SYS_pivot_root, here, here)?;
        call!(libc::SYS_umount2, here, libc::MNT_DETACH)?;
        done(call!(libc::SYS_chdir, c"/".as_ptr()))
    }
}

fn no_capabilities() -> Result<()> {
    let header = [CAPABILITY_VERSION_3, 0];
    let sets = [0u32; 6];
    // SAFETY: the header and the two sets of version 3.
    done(unsafe { call!(libc::SYS_capset, &raw const header, &raw const sets) })
}
