//! What the four programs do alike on the command line: exit codes, error reports, results as text or JSON, the log,
//! completion scripts, manual pages, quantities, where a user's store is.
//!
//! The conventions themselves are in `docs/command-line.md`; its tables are tied to this crate by tests. It is a part of
//! the programs, so it may print; it reads no environment, handles no signal and ends no process. It knows nothing of
//! images, stores or sandboxes: what an error means is decided in the program that has it.

pub mod exit;
pub mod help;
pub mod log;
pub mod output;
pub mod pages;
pub mod quantity;
pub mod reference;
pub mod report;
pub mod store;
pub mod suggest;
pub mod token;
pub mod usage;

pub use exit::Exit;
pub use output::Output;
pub use report::Report;
