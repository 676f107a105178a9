//! The node's lazy file system: cache, fetch, FUSE adapter, EROFS mounts, control socket.
//!
//! From the kernel inwards: [`fuse`] is the thin adapter, the one place that replies to the kernel; [`device`] reads the
//! data devices of layers and [`tree`] whole trees, knowing nothing of FUSE; [`cache`] holds chunks, [`fetch`] brings
//! them from the sources; [`layer`] is the unpacked metadata of a layer on this node. [`mounts`] puts layers in place,
//! [`node`] is the daemon as a whole, [`control`] its socket, `cli` the command line.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]
#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

pub mod cache;
mod chain;
pub mod control;
pub mod counters;
pub mod device;
pub mod fetch;
pub mod fuse;
pub mod layer;
pub mod mounts;
pub mod node;
mod private;
pub mod road;
pub mod served;
pub mod tree;
