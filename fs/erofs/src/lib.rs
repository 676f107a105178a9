//! EROFS metadata images: writer, and a reader over mapped memory.
//!
//! A layer is an EROFS image without file data: every regular file is chunk-based and lies on one extra device, the
//! layer's *virtual data device*. Linux mounts the image as it is; the device is a file that someone else serves.
//!
//! - [`Tree`] holds a file tree in memory, made for millions of inodes.
//! - [`write()`] turns it into an image: the same tree gives the same bytes.
//! - [`Image`] reads one from memory, with no heap object per inode and no panic for any input.
//! - [`check()`] says whether an image from a stranger is sound, before the kernel is given it.
//!
//! `docs/format/erofs.md` is the byte-level description of what is written.
//!
//! Not here: file data, chunks, extent maps, mounting.

mod attributes;
pub mod check;
mod crc32c;
pub mod format;
mod grain;
pub mod image;
mod overlay;
pub mod tree;
pub mod writer;

pub use attributes::{Attributes, Device, FileType, Kind, Segment, Timestamp};
pub use check::{Checked, check};
pub use grain::{device_bytes, grain_bytes};
pub use image::{Image, Inode, Nid};
pub use tree::{InodeId, Tree, Xattr};
pub use writer::{Summary, write};
