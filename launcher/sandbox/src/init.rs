//! Pid 1 of a sandbox: what it does between its birth and its program.
//!
//! It works beside the process that makes the sandbox. By itself: its cgroups, the host name. Once its ids
//! are mapped: `/proc`, `/dev` and `/sys` with what is mounted in them. Once the root is there: put them into it,
//! leave the host's mounts behind, give up every privilege, become the reaper.

use crate::cgroup::Groups;
use crate::policy::{Cover, Mask};
use crate::runtime::Shared;
use crate::spec::Spec;
use crate::template::EMPTY;
use dsec_sys::child::{Fd, Label, Op, Program, Slot, Strings};
use std::ffi::CString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

pub(crate) const ROOT: Slot = Slot::new(1);
pub(crate) const DEV: Slot = Slot::new(2);
pub(crate) const SYS: Slot = Slot::new(3);
const PROC: Slot = Slot::new(4);
const PTS: Slot = Slot::new(5);
const SHM: Slot = Slot::new(6);
const QUEUES: Slot = Slot::new(7);
const DIRECTORY: Slot = Slot::new(8);

/// Open from here on: the ids are mapped; `/dev` and `/sys` are in their slots.
pub(crate) const GATE_IDS: u32 = 1;
/// Open from here on: the root is in its slot.
pub(crate) const GATE_ROOT: u32 = 2;

/// How many terminals a sandbox may have open: the kernel's own bound (`kernel.pty.max`) is shared by the whole node.
const TERMINALS_MAX: &str = "128";

/// The namespaces of a sandbox. That of the network was made before; the others are pid 1's own.
pub(crate) const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// What pid 1 is born with.
pub(crate) const NEW_NAMESPACES: i32 = NAMESPACES & !libc::CLONE_NEWNET;

// include/uapi/linux/mount.h
const RDONLY: u32 = 0x1;
const NOSUID: u32 = 0x2;
const NODEV: u32 = 0x4;
const NOEXEC: u32 = 0x8;

/// Generates the enumeration of steps with their numbers and names from one list.
macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// A step of a child on its way to its program.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Step {
            $($(#[$doc])* $name,)*
        }

        impl Step {
            /// Every step.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

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
    /// Its cgroups of version 1.
    JoinCgroups => "join the sandbox's cgroups",
    /// A cgroup namespace.
    CgroupNamespace => "make a cgroup namespace",
    /// The host name.
    HostName => "set the host name",
    /// Waiting for the ids.
    Ids => "wait for the mapped ids",
    /// `/proc`.
    Proc => "mount /proc",
    /// `/dev/pts`.
    Terminals => "mount /dev/pts",
    /// `/dev/shm`.
    SharedMemory => "mount /dev/shm",
    /// `/dev/mqueue`.
    Queues => "mount /dev/mqueue",
    /// Waiting for the root.
    Root => "wait for the root",
    /// A descriptor table of its own.
    Descriptors => "have descriptors of its own",
    /// The root and what is mounted in it.
    Attach => "put the mounts together",
    /// Covers in `/proc`.
    Masks => "cover paths of /proc",
    /// The new root.
    Pivot => "leave the host's mounts",
    /// Privileges, signals, session.
    Privileges => "give up privileges",
    /// The program.
    Exec => "run the program",
}

impl Step {
    /// The step of a label that a child's error carries.
    pub(crate) fn of(label: Label) -> Self {
        Self::ALL.get(usize::from(label)).copied().unwrap_or(Self::Exec)
    }
}

impl From<Step> for Label {
    fn from(step: Step) -> Self {
        step as Self
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// The steps of pid 1.
pub(crate) fn program<'a>(spec: &Spec, groups: &Groups, shared: &'a Shared) -> Program<'a> {
    let mut program = Program::new();
    join(&mut program, groups);
    program.push(Step::CgroupNamespace, Op::Unshare(libc::CLONE_NEWCGROUP));
    program.push(Step::HostName, Op::HostName(text(&spec.hostname)));
    // Before the host's /dev is covered: the directory may be below it.
    program.push(Step::Attach, Op::OpenDirectory { path: path(&spec.directory), into: DIRECTORY });
    program.push(Step::Ids, Op::Gate(GATE_IDS));
    file_systems(&mut program, spec);
    masks(&mut program, &shared.masks);
    program.push(Step::Root, Op::Gate(GATE_ROOT));
    program.push(Step::Descriptors, Op::OwnFiles);
    for (mount, dir, path) in [
        (ROOT, Fd::Slot(DIRECTORY), text("")),
        (DEV, Fd::Slot(ROOT), text("dev")),
        (SYS, Fd::Slot(ROOT), text("sys")),
        (PROC, Fd::Slot(ROOT), text("proc")),
    ] {
        program.push(Step::Attach, Op::Attach { mount: Fd::Slot(mount), dir, path });
    }
    program.push(Step::Pivot, Op::PivotRoot(Fd::Slot(ROOT)));
    give_up_privileges(&mut program, shared.ignored_signals);
    let argv = Strings::new(vec![c"init".into()]);
    program.push(Step::Exec, Op::ExecFd { fd: shared.reaper.as_fd(), argv, env: Strings::new(Vec::new()) });
    program
}

fn give_up_privileges(program: &mut Program<'_>, ignored_signals: u64) {
    for op in [
        Op::NewSession,
        Op::Ids { uid: 0, gid: 0, groups: Vec::new() },
        Op::NoNewPrivileges,
        Op::NoCapabilities,
        Op::DefaultSignals { ignored: ignored_signals },
        Op::IgnoreChildren,
        Op::CloseOnExecFrom(0),
    ] {
        program.push(Step::Privileges, op);
    }
}

/// Joins the cgroups of version 1, by the host's paths: before anything else.
fn join(program: &mut Program<'_>, groups: &Groups) {
    for file in groups.joins() {
        program.push(Step::JoinCgroups, Op::Write { path: path(&file), bytes: b"0" });
    }
}

/// `/proc`, `/dev` and `/sys` are put together over the host's, in this mount namespace, while the root is still being
/// made; they move into it as they are.
fn file_systems(program: &mut Program<'_>, spec: &Spec) {
    let mut mount = |step, kind: &str, options: &[(&str, &str)], attributes, into| {
        let options = options.iter().map(|(key, value)| (text(key), text(value))).collect();
        program.push(step, Op::NewMount { kind: text(kind), options, attributes, into });
    };
    mount(Step::Proc, "proc", &[], NOSUID | NODEV | NOEXEC, PROC);
    // A new instance is what the kernel always makes; group 5 is tty in every distribution.
    let options = [("gid", "5"), ("mode", "620"), ("ptmxmode", "666"), ("max", TERMINALS_MAX)];
    mount(Step::Terminals, "devpts", &options, NOSUID | NOEXEC, PTS);
    // Its pages are charged to the sandbox's memory, so the limit is that.
    let size = spec.limits.memory_bytes.to_string();
    mount(Step::SharedMemory, "tmpfs", &[("size", &size), ("mode", "1777")], NOSUID | NODEV, SHM);
    mount(Step::Queues, "mqueue", &[], NOSUID | NODEV | NOEXEC, QUEUES);
    for (mount, dir, path) in [
        (PROC, Fd::Cwd, text("/proc")),
        (DEV, Fd::Cwd, text("/dev")),
        (SYS, Fd::Cwd, text("/sys")),
        (PTS, Fd::Slot(DEV), text("pts")),
        (SHM, Fd::Slot(DEV), text("shm")),
        (QUEUES, Fd::Slot(DEV), text("mqueue")),
    ] {
        program.push(Step::Attach, Op::Attach { mount: Fd::Slot(mount), dir, path });
    }
}

fn masks(program: &mut Program<'_>, masks: &[Mask]) {
    for mask in masks {
        let (source, source_path, attributes) = match mask.cover {
            Cover::Null => (Fd::Slot(DEV), "null", 0),
            Cover::Empty => (Fd::Slot(SYS), EMPTY, 0),
            Cover::ReadOnly => (Fd::Slot(PROC), mask.path, RDONLY | NOSUID | NODEV | NOEXEC),
        };
        let source_path = text(source_path);
        let op = Op::Cover { source, source_path, dir: Fd::Slot(PROC), path: text(mask.path), attributes };
        program.push(Step::Masks, op);
    }
}

/// A constant or checked string, which holds no null byte.
pub(crate) fn text(text: &str) -> CString {
    CString::new(text).expect("checked: no null byte")
}

/// A path that the kernel has already taken, which holds no null byte.
pub(crate) fn path(path: &std::path::Path) -> CString {
    CString::new(PathBuf::from(path).into_os_string().into_vec()).expect("a path that exists holds no null byte")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_back_as_their_steps() {
        for step in Step::ALL {
            assert_eq!(Step::of(Label::from(*step)), *step);
        }
    }
}
