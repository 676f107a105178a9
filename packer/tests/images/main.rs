//! Views, comparison, verification, unpacking, pack-diff and reports over real stores and directories.
#![allow(clippy::cast_possible_truncation, missing_docs)]

mod cli;
mod deep;
mod help;
mod interrupt;
mod marks;
mod mount;
mod pack_diff;
mod report;
mod support;
mod unpack;
mod uppers;
mod verify;
mod view;
