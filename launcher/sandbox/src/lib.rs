//! One sandbox's life: namespaces, mounts, cgroup, seccomp, exec, destroy.
//!
//! Synchronous, and without unsafe code: what must be unsafe is in `dsec-sys`. The road of a sandbox:
//!
//! 1. [`Runtime::open`] looks once at what the node has, and prepares what all sandboxes share.
//! 2. [`Runtime::create`] makes one from a [`Spec`]: a directory, cgroups, a pid 1 in namespaces of its own, one overlay.
//! 3. [`Sandbox::exec`] starts a command from outside; [`Process`] is its life.
//! 4. [`Sandbox::destroy`] removes everything, from any state.
//!
//! A [`State`] describes a running sandbox well enough to find it again ([`Runtime::adopt`]) after the process that made
//! it has ended. [`Runtime::sweep`] removes what a half-made sandbox has left; everything that outlives a process (cgroups,
//! the directory, pid 1) is found by the sandbox's id and directory, so a caller that journals those two before
//! [`Runtime::create`] loses nothing.
//!
//! Nothing inside a sandbox is trusted: no path in it is followed without the kernel holding the root
//! (`RESOLVE_IN_ROOT`), nothing of it is executed for the platform's own ends, no descriptor or memory of ours is in reach.
//!
//! Not here: where layers come from (`dsec-mountd`), who may have a sandbox (`dsec-fleet`), the way out (`dsec-gateway`).

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

mod cgroup;
mod closer;
mod directory;
mod exec;
mod files;
mod init;
mod networks;
mod orphans;
mod policy;
mod probe;
mod process;
mod remove;
mod root;
mod runtime;
mod sandbox;
mod spec;
mod system;
mod template;
mod user;

pub use cgroup::Error as CgroupError;
pub use directory::Error as DirectoryError;
pub use exec::{Error as ExecError, ExecSpec, Starting};
pub use files::{Entries, Entry, Error as FilesError};
pub use init::Step;
pub use networks::Error as NetworkError;
pub use policy::{CAPABILITIES, Capability, Error as PolicyError, MASKS, Mask, SYSCALLS, SyscallGroup};
pub use probe::{CgroupLayout, Node, probe};
pub use process::{Outcome, Process, Reason};
pub use remove::Error as RemoveError;
pub use root::Error as RootError;
pub use runtime::{Config, Error, Runtime};
pub use sandbox::{Sandbox, State, Usage};
pub use spec::{IDS, Id, IdError, Limits, Profile, Spec, SpecError};
pub use system::Error as SystemError;
pub use template::Error as TemplateError;
pub use user::{Error as UserError, User};

pub use dsec_sys::process::Ended;
