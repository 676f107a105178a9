//! Writes a [`Tree`] as an EROFS image.
//!
//! The same tree gives the same bytes, in whatever order it was filled: inodes are placed in the order in which a walk
//! first meets them (a directory's entries side by side, then each of its subdirectories in turn), xattrs by name,
//! shared ones by their first use; there is no time, no random number and no path of the machine in an image.
//!
//! Three passes: `order` walks the tree, `layout` gives every inode, directory block and shared xattr its place,
//! `emit` writes front to back. Beside the tree that needs 16 bytes an inode, never a copy of the image.

mod emit;
mod layout;
mod order;

use std::io::{self, Write};

use self::layout::Layout;
use self::order::Order;
use crate::format::BLOCK_BYTES;
use crate::tree::{self, InodeId, Tree};

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Size of the image, a multiple of 4,096.
    pub bytes: u64,
    /// Inodes in it.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Bytes of its shared xattrs.
    pub shared_xattr_bytes: u64,
}

/// Why a tree could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The size of the data device is not made of blocks, or too large to address.
    #[error("data device of {bytes} bytes is not a multiple of 4096, or is beyond what the format addresses")]
    DeviceSize {
        /// As given.
        bytes: u64,
    },
    /// A file has data beyond the end of the device.
    #[error("data of `{}` ends at {end}, the device at {device_bytes}", path.escape_ascii())]
    OutsideDevice {
        /// Path in the tree.
        path: Vec<u8>,
        /// Where its data ends on the device.
        end: u64,
        /// Size of the device.
        device_bytes: u64,
    },
    /// The xattrs of an inode do not fit into what the format gives one inode.
    #[error("xattrs of `{}` take {bytes} bytes, erofs holds {max}", path.escape_ascii(),
        max = crate::format::XATTR_AREA_MAX_BYTES)]
    XattrsTooLarge {
        /// Path in the tree.
        path: Vec<u8>,
        /// What they would need beside the shared ones.
        bytes: u64,
    },
    /// The image would need larger addresses than the format has.
    #[error("the image would be larger than the format addresses")]
    ImageTooLarge,
    /// The tree contradicts itself.
    #[error("cannot read the tree")]
    Tree(#[from] tree::Error),
    /// Writing failed.
    #[error("cannot write the image")]
    Write(#[source] io::Error),
}

/// Writes the tree as an image whose data device has `device_bytes`.
///
/// The output gets small and large writes in order, without seeking, and is flushed at the end.
pub fn write(tree: &Tree, device_bytes: u64, out: impl Write) -> Result<Summary, Error> {
    let device_blocks =
        u32::try_from(device_bytes / BLOCK_BYTES).ok().filter(|_| device_bytes.is_multiple_of(BLOCK_BYTES));
    let device_blocks = device_blocks.ok_or(Error::DeviceSize { bytes: device_bytes })?;
    let order = Order::of(tree)?;
    let layout = Layout::of(tree, &order)?;
    emit::emit(tree, &order, &layout, device_blocks, out)?;
    Ok(Summary {
        bytes: u64::from(layout.blocks) * BLOCK_BYTES,
        inodes: order.inodes.len() as u64,
        directories: order.directories,
        shared_xattr_bytes: layout.shared_bytes,
    })
}

/// A path of an inode, for an error: the first that a walk meets.
fn path_of(tree: &Tree, inode: InodeId) -> Vec<u8> {
    let mut walk = tree.walk();
    while let Some(step) = walk.advance() {
        if step.inode == inode {
            return step.path.to_vec();
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests;
