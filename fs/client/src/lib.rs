//! The asking side of `dsec-mountd`'s control socket, for every program that asks, and the framing that both sides use.
//!
//! The messages themselves are in [`dsec_format::protocol::mountd`]. Synchronous: one request a connection at a time, every
//! answer within a deadline. A caller that is asynchronous asks from a thread that may wait.
//!
//! Nothing of the daemon is here: who links this links no file system.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

mod client;
pub mod line;

pub use client::{Client, Error};
