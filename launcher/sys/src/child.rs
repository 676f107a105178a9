//! Children that share this process's memory until they run their program.
//!
//! A plain fork copies page tables, which costs a daemon of some hundred MiB more than everything else here together; a
//! child with `CLONE_VM` costs the same whatever the size. In return it may touch nothing that a thread of the parent
//! could hold: no allocator, no lock, no thread-local variable, no libc. So what it does is a [`Program`]: a list of
//! system calls, prepared by safe code, that the child only walks through ([`run`](self)).
//!
//! Errors travel back as data: the label of the call that failed, and the kernel's errno. They lie in the shared memory,
//! which both sides have anyway, so no pipe is needed; the parent learns that the child has left (for its program or for
//! good) from the kernel's own wake-up (`CLONE_CHILD_CLEARTID`).
//!
//! Invariants: the parent's function does not return, nor unwind, while the child runs in its memory; all signals are
//! blocked in the child until the program unblocks them, so that no handler of the parent runs there. No child of this kind
//! enters a place where something untrusted runs already: that is what [`crate::starter`] is for.

mod program;
mod run;

pub use program::{Fd, Label, Op, Program, SLOTS, Slot, Strings};

use crate::process;
use crate::raw::{self, CLONE_CLEAR_SIGHAND, CLONE_INTO_CGROUP, CloneArgs, SignalsBlocked, call};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Why there is no child.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel made none.
    #[error("cannot clone a child")]
    Clone(#[source] Errno),
    /// A step of its program failed.
    #[error("step {label} of the child failed")]
    Step {
        /// Which one: the label that it was pushed with.
        label: Label,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// Something killed it before its program began.
    #[error("the child was killed before its program began")]
    Killed,
}

/// A child that has begun its program.
#[derive(Debug)]
pub struct Child {
    /// Its number in this process's pid namespace.
    pub pid: u32,
    /// Its descriptor.
    pub pidfd: OwnedFd,
}

/// How a child is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'a> {
    /// `CLONE_NEW*` flags.
    pub namespaces: u64,
    /// The cgroup (version 2) that it is born in.
    pub cgroup: Option<BorrowedFd<'a>>,
}

/// What the two sides share.
struct Shared<'a> {
    ops: &'a [(Label, Op<'a>)],
    /// 1 until the child has left this memory; cleared by the kernel.
    present: AtomicU32,
    gate: AtomicU32,
    label: AtomicI32,
    errno: AtomicI32,
    reached_exec: AtomicU32,
    own_files: AtomicU32,
    /// This process, for the child to see whether it still lives; -1 when it cannot be had.
    parent: i32,
    slots: [SlotState; SLOTS],
}

/// A descriptor of this process.
fn own_pidfd() -> i32 {
    static OWN: std::sync::OnceLock<Option<OwnedFd>> = std::sync::OnceLock::new();
    OWN.get_or_init(|| process::open(std::process::id()).ok()).as_ref().map_or(-1, AsRawFd::as_raw_fd)
}

#[derive(Default)]
struct SlotState {
    /// The descriptor plus one; 0 for none.
    fd: AtomicI32,
    /// Who opened it: 0 for the parent, or the child in the shared table of descriptors or in its own.
    opener: AtomicU32,
}

const CHILD_IN_SHARED_TABLE: u32 = 1;
const CHILD_IN_OWN_TABLE: u32 = 2;

impl<'a> Shared<'a> {
    fn new(program: &'a Program<'a>) -> Box<Self> {
        Box::new(Self {
            ops: program.ops(),
            present: AtomicU32::new(1),
            gate: AtomicU32::new(0),
            label: AtomicI32::new(-1),
            errno: AtomicI32::new(0),
            reached_exec: AtomicU32::new(0),
            own_files: AtomicU32::new(0),
            parent: own_pidfd(),
            slots: Default::default(),
        })
    }

    /// After the child has left this memory: what became of it.
    fn outcome(&self) -> Result<(), Error> {
        match self.errno.load(Ordering::Acquire) {
            0 if self.reached_exec.load(Ordering::Acquire) == 1 => Ok(()),
            0 => Err(Error::Killed),
            errno => {
                let label = u16::try_from(self.label.load(Ordering::Acquire)).unwrap_or(Label::MAX);
                Err(Error::Step { label, errno: Errno::from_raw_os_error(errno) })
            }
        }
    }
}

/// 64 KiB from the heap; the child's calls nest a few deep and hold no buffers.
fn stack() -> Box<[MaybeUninit<u128>]> {
    Box::new_uninit_slice(4096)
}

fn top(stack: &mut [MaybeUninit<u128>]) -> (u64, u64) {
    (stack.as_mut_ptr() as u64, size_of_val(stack) as u64)
}

/// Makes the child, which shares this process's memory and descriptor table.
///
/// # Safety
/// `shared` and `stack` must stay where they are until `shared.present` is 0.
unsafe fn clone(shared: &Shared<'_>, stack: &mut [MaybeUninit<u128>], options: Options<'_>) -> Result<Child, Error> {
    let mut pidfd: i32 = -1;
    let (stack, stack_bytes) = top(stack);
    let args = CloneArgs {
        flags: options.namespaces
            | u64::from(
                (libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_PIDFD | libc::CLONE_CHILD_CLEARTID).cast_unsigned(),
            )
            | CLONE_CLEAR_SIGHAND
            | if options.cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 },
        pidfd: (&raw mut pidfd) as u64,
        child_tid: shared.present.as_ptr() as u64,
        exit_signal: u64::from(libc::SIGCHLD.cast_unsigned()),
        stack,
        stack_bytes,
        cgroup: options.cgroup.map_or(0, |fd| fd.as_raw_fd() as u64),
        ..CloneArgs::default()
    };
    let blocked = SignalsBlocked::new();
    // SAFETY: the stack is the child's own; `run::child` never returns; `shared` outlives it by this function's contract.
    let answer = unsafe { raw::clone3(&args, run::child, std::ptr::from_ref(shared).cast()) };
    drop(blocked);
    let pid = raw::check(answer).map_err(Error::Clone)?;
    // SAFETY: the kernel has just made this descriptor for us.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Child { pid: u32::try_from(pid).expect("a pid fits 32 bits"), pidfd })
}

/// Takes the status of a child that failed, so that no zombie stays. It may be gone already if this process ignores
/// SIGCHLD; either way nothing is left.
fn reap(child: &Child) {
    let _ = process::wait(&child.pidfd);
}

/// The parent's hold on a child that stops at gates.
pub struct Staged<'a> {
    shared: &'a Shared<'a>,
    child: &'a Child,
    /// Kept open until the child has left this memory.
    provided: std::cell::RefCell<Vec<OwnedFd>>,
}

impl Staged<'_> {
    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid
    }

    /// Its descriptor.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        rustix::fd::AsFd::as_fd(&self.child.pidfd)
    }

    /// Hands it a descriptor, to be used after a gate that is opened later.
    pub fn provide(&self, slot: Slot, fd: OwnedFd) {
        self.shared.slot(slot).fd.store(fd.as_raw_fd() + 1, Ordering::Release);
        self.provided.borrow_mut().push(fd);
    }

    /// Lets it pass all gates up to this number.
    pub fn open_gate(&self, gate: u32) {
        self.shared.gate.store(gate, Ordering::Release);
        futex_wake(&self.shared.gate);
    }
}

impl Shared<'_> {
    fn slot(&self, slot: Slot) -> &SlotState {
        // A Slot is below SLOTS by construction.
        &self.slots[usize::from(slot.index())]
    }
}

/// Makes a child that shares this process's descriptor table too, and works beside the calling thread: `parent` runs
/// while the child walks through `program` up to its gates. When `parent` is done, all gates are open, and this returns
/// once the child runs what the program ends with.
///
/// # Errors
/// What `parent` answered, or [`Error`] of the child (which has the say if both failed, as it is usually the cause). The
/// child is gone then, and waited for.
pub fn stage<'a, T, E: From<Error>>(
    program: &'a Program<'a>,
    options: Options<'_>,
    parent: impl FnOnce(&Staged<'_>) -> Result<T, E>,
) -> Result<(Child, T), E> {
    let shared = Shared::new(program);
    let mut stack = stack();
    // SAFETY: `Presence` waits, on every way out of this function, until the child has left this memory.
    let child = unsafe { clone(&shared, &mut stack, options)? };
    let staged = Staged { shared: &shared, child: &child, provided: std::cell::RefCell::default() };
    let presence = Presence { shared: &shared, child: &child };
    let answer = parent(&staged);
    if answer.is_ok() {
        shared.gate.store(u32::MAX, Ordering::Release);
        futex_wake(&shared.gate);
        presence.wait();
    }
    drop(presence);
    drop(staged);
    match (shared.outcome(), answer) {
        (Ok(()), Ok(value)) => Ok((child, value)),
        (Err(error @ Error::Step { .. }), _) => {
            reap(&child);
            Err(error.into())
        }
        (_, Err(error)) => {
            reap(&child);
            Err(error)
        }
        (Err(error), Ok(_)) => {
            reap(&child);
            Err(error.into())
        }
    }
}

/// As long as it lives the child may be in this memory; dropping it kills a child that still is, and waits.
struct Presence<'a> {
    shared: &'a Shared<'a>,
    child: &'a Child,
}

impl Presence<'_> {
    fn wait(&self) {
        while self.shared.present.load(Ordering::Acquire) != 0 {
            futex_wait(&self.shared.present, 1);
        }
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        if self.shared.present.load(Ordering::Acquire) != 0 {
            process::kill(&self.child.pidfd).expect("a process may kill its own child");
            self.wait();
        }
        self.shared.close_leftovers();
    }
}

impl Shared<'_> {
    /// Closes what the child opened while it shared the descriptor table: a copy of its own does not take them out of ours.
    fn close_leftovers(&self) {
        for slot in &self.slots {
            let fd = slot.fd.swap(0, Ordering::AcqRel) - 1;
            if fd >= 0 && slot.opener.load(Ordering::Acquire) == CHILD_IN_SHARED_TABLE {
                // SAFETY: the child opened it in this table, nobody else knows it, and the child is gone from here.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
}

fn futex_wait(word: &AtomicU32, value: u32) {
    // SAFETY: the word lives in this frame's borrow; no time-out. Interruption and a changed word both just return, and
    // every caller looks again.
    let _ = unsafe { call!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, 0) };
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: the kernel only uses the address as a key.
    let _ = unsafe { call!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
