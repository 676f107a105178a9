//! System calls: the only crate with unsafe code.
//!
//! Everything above says what it wants in safe terms; the reasoning about memory, signals and descriptors is here.
//! Where rustix already has a safe call (the mount API but for `mount_setattr`, pidfds, `openat2`, capabilities) the
//! other crates use rustix directly, and this crate adds only what is missing:
//!
//! - [`child`]: processes made by `clone3` that share the parent's memory and run a prepared list of system calls;
//! - [`mount`]: identity-mapped mounts, and mount helpers of one call each;
//! - [`reaper`]: the program that is pid 1 of a sandbox, in a sealed memfd;
//! - [`seccomp`]: filters as bytes;
//! - [`creds`]: file system ids of one thread, dumpability;
//! - [`node`]: what the kernel says about its security modules;
//! - [`ns`]: the network namespace that the next child is born in;
//! - [`starter`]: the process that starts commands in sandboxes;
//! - [`mapped`]: read-only maps of files;
//! - [`scm`]: descriptors over a Unix socket;
//! - [`limits`]: resource limits.
//!
//! Not here: any policy. What a sandbox may do is data in `dsec-sandbox`.

pub mod child;
pub mod creds;
pub mod limits;
pub mod mapped;
pub mod mount;
pub mod node;
pub mod ns;
pub mod process;
mod raw;
pub mod reaper;
pub mod scm;
pub mod seccomp;
pub mod starter;
mod steps;

pub use rustix::io::{Errno, Result};
