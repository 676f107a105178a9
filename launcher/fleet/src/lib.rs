//! The fleet: edge (one a node, owns its sandboxes).
//!
//! [`edge`] is the daemon: HTTP over a Unix socket, a journal, and the life of every sandbox of the node. [`mountd`] is its
//! client of `dsec-mountd`, where layers come from. [`files`] copies trees as tar streams, into and out of sandboxes and
//! directories.
//!
//! Not here: what a sandbox is made of (`dsec-sandbox`), the command line (`dsec`).

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

pub mod edge;
pub mod files;
pub mod mountd;

pub use dsec_sandbox::{CgroupLayout, Node, probe};
