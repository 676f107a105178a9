//! Sizes of chunks: the unit of dedup, of transfer accounting and of trust.
//!
//! A chunk is a run of plain bytes of one file, named by their BLAKE3. A file is cut into chunks as follows (this is
//! part of what a layer digest covers, so it never changes within a format version):
//!
//! * a run of data (what lies between two holes) of at most [`CDC_MIN_BYTES`] bytes is one chunk;
//! * a longer run is cut by FastCDC (Xia et al., USENIX ATC 2016, normalised chunking level 1, the gear table of the
//!   `fastcdc` crate's `v2020` module) with the minimum, average and maximum below.
//!
//! An empty run has no chunk; a hole has no chunk.

/// Shortest chunk that content-defined chunking cuts, except the last one of a run.
pub const CDC_MIN_BYTES: u32 = 32 * 1024;
/// Average that content-defined chunking aims at.
pub const CDC_AVERAGE_BYTES: u32 = 128 * 1024;
/// Longest chunk that content-defined chunking cuts.
pub const CDC_MAX_BYTES: u32 = 512 * 1024;
/// No chunk of any origin is longer. It bounds what one read can cost.
pub const MAX_CHUNK_BYTES: u32 = 1024 * 1024;
/// Alignment of a run of data on a layer's data device: the block of the metadata image.
pub const BLOCK_BYTES: u32 = 4096;

const _: () = assert!(CDC_MIN_BYTES < CDC_AVERAGE_BYTES && CDC_AVERAGE_BYTES < CDC_MAX_BYTES);
const _: () = assert!(CDC_MAX_BYTES <= MAX_CHUNK_BYTES);
