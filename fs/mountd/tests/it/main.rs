//! Tests of `dsec-mountd` on real stores, with injected faults, and (`privileged_*`) on real mounts.

#![allow(clippy::disallowed_methods, clippy::cast_possible_truncation)]

mod busy;
mod daemon;
mod failures;
mod faults;
mod fixture;
mod oddities;
mod rig;
mod roads;
mod tmpfs;
