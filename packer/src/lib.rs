//! Images: build, import, pack-diff, verify, unpack, report.
//!
//! The library behind the `dsec-pack` program. It never prints, exits or reads the environment: what it has to say goes
//! through [`Monitor`], what it is told to stop by is a [`Cancel`], and where things are is a parameter.

pub mod build;
pub mod cancel;
mod chunker;
pub mod chunks;
pub mod compare;
mod content;
pub mod hold;
pub mod images;
pub mod input;
pub mod monitor;
pub mod mount;
pub mod pack_diff;
pub mod paths;
pub mod report;
pub mod transfer;
pub mod tree;
pub mod unpack;
pub mod upper;
pub mod verify;
pub mod view;

pub use build::{Built, build};
pub use cancel::{Cancel, Cancelled};
pub use monitor::{Monitor, Silent, Stage};
