//! What a child does: a list of system calls with everything they need prepared.
//!
//! Building one allocates; walking through it does not. Descriptors are borrowed, so none can be closed under the child.

use rustix::fd::BorrowedFd;
use std::ffi::{CString, c_char};

/// The caller's name for a step, which comes back when it fails.
pub type Label = u16;

/// How many descriptors a program can pass from step to step.
pub const SLOTS: usize = 16;

/// A place for a descriptor that is opened while the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u8);

impl Slot {
    /// The slot of this index.
    ///
    /// # Panics
    /// When `index` is not below [`SLOTS`]; in a constant that is an error at compile time.
    #[must_use]
    pub const fn new(index: u8) -> Self {
        assert!((index as usize) < SLOTS, "no such slot");
        Self(index)
    }

    pub(crate) const fn index(self) -> u8 {
        self.0
    }
}

/// A descriptor that a step uses.
#[derive(Debug, Clone, Copy)]
pub enum Fd {
    /// The working directory.
    Cwd,
    /// What an earlier step, or the parent, has put there.
    Slot(Slot),
}

/// C strings in the form `execve` takes.
#[derive(Debug)]
pub struct Strings {
    // Kept for the pointers below.
    _strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Strings {
    /// These strings, in order.
    #[must_use]
    pub fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect();
        Self { _strings: strings, pointers }
    }

    pub(crate) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// One step.
#[derive(Debug)]
pub enum Op<'a> {
    /// Sleep until the parent has opened this gate.
    Gate(u32),
    /// Have an own copy of the descriptor table from here on (for a child that shares it).
    OwnFiles,
    /// `unshare`, with `CLONE_NEW*` flags.
    Unshare(i32),
    /// `sethostname`.
    HostName(CString),
    /// Write to a file that is there.
    Write {
        /// Its absolute path.
        path: CString,
        /// What is written, in one call.
        bytes: &'static [u8],
    },
    /// Mount a new file system, detached.
    NewMount {
        /// Its type.
        kind: CString,
        /// Options: key and value.
        options: Vec<(CString, CString)>,
        /// `MOUNT_ATTR_*`.
        attributes: u32,
        /// Where the mount goes.
        into: Slot,
    },
    /// Attach a detached mount. Its descriptor stays, and names what is mounted.
    Attach {
        /// The mount.
        mount: Fd,
        /// Where it goes: below this.
        dir: Fd,
        /// The path from there; no symbolic link is followed as its last step. Empty: `dir` itself.
        path: CString,
    },
    /// Put a copy of `source` over `path`; nothing if there is no such path.
    Cover {
        /// Where the copy comes from: below this.
        source: Fd,
        /// The path from there.
        source_path: CString,
        /// What is covered: below this.
        dir: Fd,
        /// The path from there.
        path: CString,
        /// `MOUNT_ATTR_*` of the copy.
        attributes: u32,
    },
    /// Find a directory, to attach something to later.
    OpenDirectory {
        /// Its absolute path.
        path: CString,
        /// Where its descriptor goes.
        into: Slot,
    },
    /// What is mounted there becomes the root, and the old root is gone.
    PivotRoot(Fd),
    /// Supplementary groups, group and user: real, effective, saved and file system.
    Ids {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// Supplementary groups.
        groups: Vec<u32>,
    },
    /// No capability in any set of the process.
    NoCapabilities,
    /// `no_new_privs`.
    NoNewPrivileges,
    /// Ignore SIGCHLD, so that the kernel reaps children.
    IgnoreChildren,
    /// Every signal to its default, none blocked. Handlers are gone already (`CLONE_CLEAR_SIGHAND`); what the parent ignores
    /// is inherited, and must be named.
    DefaultSignals {
        /// Bit n - 1 for signal n.
        ignored: u64,
    },
    /// `setsid`.
    NewSession,
    /// All descriptors from this number on are closed at exec; in an own copy of the table.
    CloseOnExecFrom(u32),
    /// Run a file by descriptor. Does not come back.
    ExecFd {
        /// The file.
        fd: BorrowedFd<'a>,
        /// Arguments.
        argv: Strings,
        /// Environment.
        env: Strings,
    },
}

/// A list of steps.
#[derive(Debug, Default)]
pub struct Program<'a> {
    ops: Vec<(Label, Op<'a>)>,
}

impl<'a> Program<'a> {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a step.
    pub fn push(&mut self, label: impl Into<Label>, op: Op<'a>) {
        self.ops.push((label.into(), op));
    }

    pub(crate) fn ops(&self) -> &[(Label, Op<'a>)] {
        &self.ops
    }
}
