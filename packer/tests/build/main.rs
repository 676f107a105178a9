//! Building images from directories, archives and OCI layouts, made by the programs that people make them with.
#![allow(clippy::cast_possible_truncation, missing_docs)]

mod archive;
mod directory;
mod hostile;
mod interrupt;
mod nested;
mod oci;
mod support;
mod tar;
