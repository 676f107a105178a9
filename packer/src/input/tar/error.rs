//! What is wrong with an archive.

use std::io;

use crate::cancel::Cancelled;
use crate::input::interruptible;
use crate::paths::Shown;

/// Why a tar archive was refused. Offsets are in bytes of the uncompressed archive.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading or decompressing failed.
    #[error("cannot read the archive")]
    Read(#[source] io::Error),
    /// The temporary file failed.
    #[error("cannot write the archive's data to a temporary file")]
    Spool(#[source] io::Error),
    /// A compression that is not supported.
    #[error("the archive is compressed with {name}; supported are gzip, zstd and xz")]
    Compression {
        /// Its name.
        name: &'static str,
    },
    /// The first block is no tar header.
    #[error("the input is not a tar archive")]
    NotATar,
    /// The archive ends too early.
    #[error("the archive is cut off at byte {offset}")]
    Truncated {
        /// Where it ends.
        offset: u64,
    },
    /// Something follows the end-of-archive marker.
    #[error("the archive goes on after its end marker at byte {offset}")]
    Trailing {
        /// Where the marker is.
        offset: u64,
    },
    /// The archive changed between its reading and the reading of its data.
    #[error("the archive changed while it was being read")]
    Changed,
    /// A header whose checksum is wrong.
    #[error("header at byte {offset} has a wrong checksum")]
    Checksum {
        /// Where the header is.
        offset: u64,
    },
    /// A malformed field.
    #[error("header at byte {offset} has a malformed {field}")]
    Field {
        /// Where the header is.
        offset: u64,
        /// Which field.
        field: &'static str,
    },
    /// A malformed extended header.
    #[error("extended header at byte {offset} is malformed: {reason}")]
    Extended {
        /// Where the header is.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A value in an extended header that means nothing.
    #[error("`{path}` has a malformed extended header {key}")]
    Record {
        /// The entry.
        path: Shown,
        /// The key.
        key: String,
    },
    /// A path that leads out of the root.
    #[error("`{path}` {how}, which leads out of the image")]
    Escapes {
        /// The entry, or the target of a hard link.
        path: Shown,
        /// What leads out.
        how: &'static str,
    },
    /// An entry without a name.
    #[error("header at byte {offset} has no name")]
    NoName {
        /// Where the header is.
        offset: u64,
    },
    /// A type that is not supported.
    #[error("`{path}` is {what}, which cannot be kept")]
    Unsupported {
        /// The entry.
        path: Shown,
        /// What it is.
        what: String,
    },
    /// A sparse map that contradicts itself or the file.
    #[error("the sparse map of `{path}` is malformed")]
    SparseMap {
        /// The entry.
        path: Shown,
    },
    /// An ACL that cannot be understood.
    #[error("the ACL of `{path}` is malformed: {text:?}")]
    Acl {
        /// The entry.
        path: Shown,
        /// The offending part.
        text: String,
    },
    /// An ACL that names a user or group without giving the number.
    #[error(
        "the ACL of `{path}` names {name:?} without its number; `tar --xattrs --xattrs-include='*'` writes numbers"
    )]
    AclName {
        /// The entry.
        path: Shown,
        /// The user or group.
        name: String,
    },
    /// The root is something else than a directory.
    #[error("the root of the archive is not a directory")]
    Root,
    /// An entry below something that is not a directory.
    #[error("`{path}` lies below `{parent}`, which is not a directory")]
    Parent {
        /// The entry.
        path: Shown,
        /// What it lies below.
        parent: Shown,
    },
    /// A directory with entries, and a later entry that is none, of one path.
    #[error("`{path}` is a directory with entries and something else as well")]
    TwoThings {
        /// The path.
        path: Shown,
    },
    /// A hard link to something that is not there.
    #[error("`{path}` is a hard link to `{target}`, which is not in the archive")]
    LinkTarget {
        /// The link.
        path: Shown,
        /// Its target.
        target: Shown,
    },
    /// A hard link to a directory, or to itself.
    #[error("`{path}` is a hard link to the directory `{target}`")]
    LinkToDirectory {
        /// The link.
        path: Shown,
        /// Its target.
        target: Shown,
    },
    /// A whiteout that names nothing, or a name that whiteouts reserve.
    #[error("`{path}` is not a whiteout that means anything")]
    Whiteout {
        /// The entry.
        path: Shown,
    },
    /// Asked to stop.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl Error {
    /// For `map_err` of a read, which may also have been asked to stop.
    pub(in crate::input) fn read(error: io::Error) -> Self {
        if interruptible::is_cancelled(&error) { Self::Cancelled(Cancelled) } else { Self::Read(error) }
    }

    /// Whether the reading ended because it was asked to.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled(_))
    }
}
