//! Tests over the whole tree: architecture, contracts, crash, damage, compatibility.
//!
//! The library holds the tools that several of them share; the scenarios that run the real programs are the Python
//! package `lab` beside it.

pub mod frozen;
pub mod mounts;
pub mod program;
pub mod proxy;
pub mod samples;
