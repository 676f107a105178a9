//! Why an image cannot be read.

use super::Nid;
use crate::format;

/// Why an image, or an inode of it, cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Shorter than the first block.
    #[error("image of {bytes} bytes has no superblock")]
    TooShort {
        /// Size of the image.
        bytes: u64,
    },
    /// Another magic: this is no EROFS image.
    #[error("superblock starts with {found:08x}, not with {magic:08x}", magic = format::MAGIC)]
    Magic {
        /// As found.
        found: u32,
    },
    /// Feature bits other than ours.
    #[error("features are {compat:x} and {incompat:x}, only {} and {} are known",
        format_args!("{:x}", format::FEATURES_COMPAT), format_args!("{:x}", format::FEATURES_INCOMPAT))]
    Features {
        /// As found.
        compat: u32,
        /// As found.
        incompat: u32,
    },
    /// The checksum of the superblock's block is wrong.
    #[error("superblock checksum is {stated:08x}, its bytes give {computed:08x}")]
    Checksum {
        /// In the superblock.
        stated: u32,
        /// Of its bytes.
        computed: u32,
    },
    /// A field of the superblock has a value that we never write.
    #[error("superblock field `{field}` is {found}")]
    Field {
        /// Which.
        field: &'static str,
        /// As found.
        found: u64,
    },
    /// Bytes that are always zero are not.
    #[error("superblock field `{field}` is not zero")]
    NotZero {
        /// Which.
        field: &'static str,
    },
    /// The image is longer or shorter than it says.
    #[error("image states {stated_bytes} bytes and has {bytes}")]
    Size {
        /// By the superblock.
        stated_bytes: u64,
        /// Its size.
        bytes: u64,
    },
    /// A structure of an inode lies outside the image.
    #[error("{what} of {nid} lies outside the image")]
    Outside {
        /// Which.
        what: &'static str,
        /// Of which inode.
        nid: Nid,
    },
    /// A structure of an inode is not one that we write.
    #[error("{what} of {nid} is invalid")]
    Invalid {
        /// Which.
        what: &'static str,
        /// Of which inode.
        nid: Nid,
    },
    /// Entries were asked of something that is no directory.
    #[error("{nid} is not a directory")]
    NotADirectory {
        /// Of which inode.
        nid: Nid,
    },
    /// A target was asked of something that is no symlink.
    #[error("{nid} is not a symlink")]
    NotASymlink {
        /// Of which inode.
        nid: Nid,
    },
    /// Data was asked of something that is no regular file.
    #[error("{nid} is not a regular file")]
    NotAFile {
        /// Of which inode.
        nid: Nid,
    },
}
