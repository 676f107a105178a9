//! What is allowed inside a sandbox, as data, each with its reason.

mod capabilities;
mod filter;
mod masks;
mod rlimits;
mod syscalls;

pub use capabilities::{CAPABILITIES, Capability};
pub use filter::Error;
pub use masks::{MASKS, Mask};
pub use syscalls::{SYSCALLS, SyscallGroup};

pub(crate) use capabilities::bounding_set;
pub(crate) use filter::build;
pub(crate) use masks::Cover;
pub(crate) use rlimits::rlimits;
