//! What a tree refuses.

use super::InodeId;
use crate::format;

/// Why a tree refused a change. The tree is as it was before.
///
/// It knows inodes, not paths: the caller, who knows the path, adds it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Permission bits beyond `0o7777`.
    #[error("mode {mode:o} has bits beyond 7777")]
    Mode {
        /// As given.
        mode: u16,
    },
    /// The id that Linux keeps for "no id", 2^32 - 1.
    #[error("{id} is no user or group id")]
    Id {
        /// As given.
        id: u32,
    },
    /// A nanosecond part of a second or more.
    #[error("{nanos} nanoseconds are no part of a second")]
    Nanoseconds {
        /// As given.
        nanos: u32,
    },
    /// A file larger than `off_t` holds.
    #[error("file of {bytes} bytes is larger than 2^63 - 1")]
    FileTooLarge {
        /// As given.
        bytes: u64,
    },
    /// A symlink target that is empty.
    #[error("symlink target is empty")]
    EmptyTarget,
    /// A symlink target with a NUL byte.
    #[error("symlink target has a NUL byte")]
    NulInTarget,
    /// A symlink target over [`format::SYMLINK_MAX_BYTES`].
    #[error("symlink target of {bytes} bytes is longer than {max}", max = format::SYMLINK_MAX_BYTES)]
    TargetTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A device number that the format does not hold.
    #[error("device {major}:{minor} is beyond {}:{}", format::MAJOR_MAX, format::MINOR_MAX)]
    DeviceNumber {
        /// As given.
        major: u32,
        /// As given.
        minor: u32,
    },
    /// An empty name.
    #[error("name is empty")]
    EmptyName,
    /// `.` or `..`.
    #[error("`{name}` cannot be the name of an entry")]
    DotName {
        /// As given.
        name: &'static str,
    },
    /// A name with a slash or a NUL byte.
    #[error("name `{}` has a slash or a NUL byte", name.escape_ascii())]
    IllegalName {
        /// As given.
        name: Vec<u8>,
    },
    /// A name over [`format::NAME_MAX_BYTES`].
    #[error("name of {bytes} bytes is longer than {max}", max = format::NAME_MAX_BYTES)]
    NameTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A link with a name that the directory already has.
    #[error("directory {dir} already has an entry `{}`", name.escape_ascii())]
    Exists {
        /// The directory.
        dir: InodeId,
        /// The name.
        name: Vec<u8>,
    },
    /// An operation on entries of something that is no directory.
    #[error("{inode} is not a directory")]
    NotADirectory {
        /// The inode.
        inode: InodeId,
    },
    /// Segments for something that is no regular file.
    #[error("{inode} is not a regular file")]
    NotAFile {
        /// The inode.
        inode: InodeId,
    },
    /// A second link to a directory, or one to the root.
    #[error("directory {inode} already has a parent")]
    SecondParent {
        /// The directory.
        inode: InodeId,
    },
    /// A directory below itself.
    #[error("directory {inode} would be below itself")]
    Cycle {
        /// The directory.
        inode: InodeId,
    },
    /// A segment that is empty or not made of whole blocks.
    #[error("segment at {file_offset} of {bytes} bytes on the device at {device_offset} is not made of blocks")]
    Unaligned {
        /// As given.
        file_offset: u64,
        /// As given.
        bytes: u64,
        /// As given.
        device_offset: u64,
    },
    /// A segment before the end of the one before it, or beyond the end of the file.
    #[error("segment at {file_offset} overlaps the one before it or leaves the file")]
    SegmentOrder {
        /// As given.
        file_offset: u64,
    },
    /// A segment beyond 16 TiB - 4 KiB, the last address of a device.
    #[error("device offset {device_offset} is beyond what the format addresses")]
    DeviceOffset {
        /// As given.
        device_offset: u64,
    },
    /// Holes so placed that exact chunks would need more than [`format::CHUNK_INDEXES_MAX`] indexes.
    #[error("{indexes} chunk indexes are needed for the holes of one file, at most {max} are allowed",
        max = format::CHUNK_INDEXES_MAX)]
    TooScattered {
        /// How many would be needed.
        indexes: u64,
    },
    /// An xattr in a namespace that EROFS does not have.
    #[error("xattr `{}` is in no namespace that erofs can hold", name.escape_ascii())]
    XattrNamespace {
        /// The full name.
        name: Vec<u8>,
    },
    /// An xattr name that is empty behind its prefix, has a NUL byte or is over
    /// [`format::XATTR_NAME_MAX_BYTES`].
    #[error("xattr name `{}` is empty, too long or has a NUL byte", name.escape_ascii())]
    XattrName {
        /// The full name.
        name: Vec<u8>,
    },
    /// An xattr value over [`format::XATTR_VALUE_MAX_BYTES`].
    #[error("value of xattr `{}` has {bytes} bytes, erofs holds {max}", name.escape_ascii(),
        max = format::XATTR_VALUE_MAX_BYTES)]
    XattrValue {
        /// The full name.
        name: Vec<u8>,
        /// Length of the value.
        bytes: usize,
    },
    /// An xattr by which overlay mounts are told more than that a directory is opaque.
    #[error("xattr `{}` would be an order to overlay mounts", name.escape_ascii())]
    XattrOverlay {
        /// The full name.
        name: Vec<u8>,
    },
    /// The same xattr twice in one set.
    #[error("xattr `{}` is given twice", name.escape_ascii())]
    XattrTwice {
        /// The full name.
        name: Vec<u8>,
    },
    /// More of something than an index of 32 bits reaches.
    #[error("the tree holds no more {what}")]
    Full {
        /// What.
        what: &'static str,
    },
}

/// Checks the name of an entry.
pub(super) fn check_name(name: &[u8]) -> Result<(), Error> {
    match name {
        b"" => Err(Error::EmptyName),
        b"." => Err(Error::DotName { name: "." }),
        b".." => Err(Error::DotName { name: ".." }),
        _ if name.len() > format::NAME_MAX_BYTES => Err(Error::NameTooLong { bytes: name.len() }),
        _ if name.iter().any(|byte| matches!(byte, 0 | b'/')) => Err(Error::IllegalName { name: name.to_vec() }),
        _ => Ok(()),
    }
}
