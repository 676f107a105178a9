//! Views, comparison, verification, unpacking, pack-diff and reports over real stores and directories.
#![allow(clippy::cast_possible_truncation, missing_docs)]

mod support;
mod unpack;
mod verify;
mod view;
