//! Pure types and codecs of the dsec formats.
//!
//! Everything that one dsec program writes and another reads is defined here, and nowhere else: content names
//! ([`digest`]), chunks and frames ([`chunk`], [`frame`]), packs ([`pack`]), layers ([`layer`], [`extents`],
//! [`locations`]), images, refs and environments ([`image`], [`refs`], [`environment`]) and the messages between
//! programs ([`protocol`]). The byte-level documents are in `docs/format/`; a test ties them to the constants.
//!
//! This crate does no I/O and knows no clock. A decoder checks magic, version and size limits before it decodes,
//! bounds every count by the bytes that are really there, and returns an error, never a panic, for any input.

#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

pub mod chunk;
pub mod digest;
pub mod environment;
pub mod extents;
pub mod frame;
pub mod image;
pub mod json;
pub mod layer;
pub mod locations;
pub mod pack;
pub mod preamble;
pub mod protocol;
pub mod refs;

pub use digest::{ChunkDigest, EnvironmentDigest, ImageDigest, LayerDigest, PackDigest};
