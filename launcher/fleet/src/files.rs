//! Copies of files and trees as tar, between a tree and a stream.
//!
//! A [`Tree`] is a place where every path is resolved by the kernel below a root, whatever its inhabitants swap meanwhile:
//! a sandbox's root, or a directory of this machine ([`Local`]). [`pack()`] writes what is at a path as a tar archive;
//! [`unpack()`] puts an archive below a path, or as that path, as `cp -r` would.
//!
//! What a copy keeps: contents, the nine permission bits, directories, symbolic links as such. What it does not: times,
//! extended attributes, link groups (each link becomes a file of its own), set-id bits. Sockets are left out, as tar does, and
//! what is mounted in a sandbox (`/proc`, `/dev`, `/sys`) but for the mount points.

mod local;
mod pack;
mod sandbox;
mod unpack;

use std::io::{Read, Write};
use std::path::PathBuf;

use dsec_format::protocol::edge::ErrorKind;
use rustix::io::Errno;

pub use local::Local;
pub use pack::pack;
pub use unpack::{Owner, unpack};

/// Why a copy fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The sandbox's files say no.
    #[error(transparent)]
    Sandbox(#[from] dsec_sandbox::FilesError),
    /// The files of this machine say no.
    #[error("cannot {what} {}", path.display())]
    Local {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// It is no regular file.
    #[error("{} is not a regular file", path.display())]
    NotRegular {
        /// What.
        path: PathBuf,
    },
    /// Its bytes cannot be read or written.
    #[error("cannot copy the contents of {path}")]
    Contents {
        /// Whose.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The archive is malformed or breaks off.
    #[error("the archive cannot be read")]
    Archive(#[source] std::io::Error),
    /// A name that leads out of where it is unpacked.
    #[error("entry {name:?} of the archive has an absolute name or one with ..")]
    Escapes {
        /// The name.
        name: String,
    },
    /// Names here are text.
    #[error("name {name} at {place} is not UTF-8, and such names cannot be copied")]
    Name {
        /// The name, with its bytes escaped.
        name: String,
        /// The directory that it is in, or the link that holds it.
        place: String,
    },
    /// Something that is no file, directory or link.
    #[error("entry {name:?} of the archive is a {what}, which cannot be copied")]
    Special {
        /// Its name.
        name: String,
        /// What it is.
        what: &'static str,
    },
    /// More directories one in the other than are held open.
    #[error("{name} is more than {directories_max} directories deep")]
    Deep {
        /// Its name in the archive.
        name: String,
        /// How many may be.
        directories_max: usize,
    },
    /// A tree cannot take a file's place, nor the other way round.
    #[error("{path} is there, and is no directory")]
    NotADirectory {
        /// The path.
        path: String,
    },
}

impl Error {
    /// What kind of failure it is for the caller.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Sandbox(dsec_sandbox::FilesError::Refused { errno, .. }) | Self::Local { errno, .. } => {
                if *errno == Errno::NOENT { ErrorKind::NotFound } else { ErrorKind::Refused }
            }
            Self::Sandbox(_) | Self::NotRegular { .. } | Self::Contents { .. } | Self::Deep { .. } => {
                ErrorKind::Refused
            }
            Self::Archive(_)
            | Self::Escapes { .. }
            | Self::Name { .. }
            | Self::Special { .. }
            | Self::NotADirectory { .. } => ErrorKind::BadRequest,
        }
    }

    /// Whether a path leads to what is mounted in a sandbox.
    fn is_other_mount(&self) -> bool {
        matches!(self, Self::Sandbox(dsec_sandbox::FilesError::OtherMount { .. }))
    }

    /// Whether there is nothing at a path.
    fn is_absent(&self) -> bool {
        self.kind() == ErrorKind::NotFound
    }
}

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A fifo, socket or device.
    Special(&'static str),
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// What it is.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Owner, as the tree's inhabitants see it.
    pub uid: u32,
    /// Group, as the tree's inhabitants see it.
    pub gid: u32,
    /// Its size.
    pub bytes: u64,
    /// Seconds since 1970 of its last change.
    pub mtime_secs: u64,
}

impl Info {
    /// From a stat; ids from `id_base` on are shown as from 0 on, others as nobody's.
    fn of(stat: &rustix::fs::Stat, id_base: u32) -> Self {
        use rustix::fs::FileType;
        let id = |id: u32| match id.checked_sub(id_base) {
            Some(inside) if id_base == 0 || inside < dsec_sandbox::IDS => inside,
            _ => 65_534,
        };
        Self {
            kind: match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Kind::File,
                FileType::Directory => Kind::Directory,
                FileType::Symlink => Kind::Link,
                FileType::Fifo => Kind::Special("fifo"),
                FileType::Socket => Kind::Special("socket"),
                FileType::CharacterDevice | FileType::BlockDevice => Kind::Special("device"),
                FileType::Unknown => Kind::Special("file of unknown kind"),
            },
            mode: stat.st_mode & 0o777,
            uid: id(stat.st_uid),
            gid: id(stat.st_gid),
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            mtime_secs: u64::try_from(stat.st_mtime).unwrap_or(0),
        }
    }
}

/// Names in a directory, one after the other: a tenant may have made more than fit into memory.
pub type Names = Box<dyn Iterator<Item = Result<Vec<u8>, Error>>>;

/// A place of files. Paths begin at its root; links in the middle of a path are the implementation's to follow (inside
/// the root) or to refuse.
pub trait Tree {
    /// What is at a path, a link as its last step not followed.
    ///
    /// # Errors
    /// As [`Error`].
    fn look(&self, path: &str) -> Result<Info, Error>;

    /// What a path leads to.
    ///
    /// # Errors
    /// As [`Error`].
    fn look_through(&self, path: &str) -> Result<Info, Error>;

    /// Names in a directory, in whatever order they come.
    ///
    /// # Errors
    /// As [`Error`].
    fn names(&self, path: &str) -> Result<Names, Error>;

    /// Where a link points.
    ///
    /// # Errors
    /// As [`Error`].
    fn read_link(&self, path: &str) -> Result<Vec<u8>, Error>;

    /// A regular file, to read, and what it is.
    ///
    /// # Errors
    /// As [`Error`].
    fn open(&self, path: &str) -> Result<(impl Read, Info), Error>;

    /// A regular file, made or emptied, to write. `owner` is set on one that is made, where the tree can.
    ///
    /// # Errors
    /// As [`Error`].
    fn create(&self, path: &str, mode: u32, owner: (u32, u32)) -> Result<impl Write, Error>;

    /// A directory; one that is there stays as it is.
    ///
    /// # Errors
    /// As [`Error`].
    fn create_directory(&self, path: &str, mode: u32, owner: (u32, u32)) -> Result<(), Error>;

    /// A symbolic link.
    ///
    /// # Errors
    /// As [`Error`]; EEXIST when something is there.
    fn create_link(&self, target: &str, path: &str, owner: (u32, u32)) -> Result<(), Error>;
}

/// A name at a place, as text.
fn text(name: Vec<u8>, place: &str) -> Result<String, Error> {
    String::from_utf8(name)
        .map_err(|error| Error::Name { name: error.as_bytes().escape_ascii().to_string(), place: place.to_owned() })
}

/// `directory/name`.
fn join(directory: &str, name: &str) -> String {
    match directory.trim_end_matches('/') {
        "" if directory.is_empty() => name.to_owned(),
        trimmed => format!("{trimmed}/{name}"),
    }
}

/// The last step of a path, unless it is none that names something.
fn last_step(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/').rsplit('/').next()?;
    (!matches!(name, "" | "." | "..")).then_some(name)
}

/// The path without its last step.
fn parent(path: &str) -> &str {
    match path.trim_end_matches('/').rsplit_once('/') {
        Some(("", _)) => "/",
        Some((parent, _)) => parent,
        None => ".",
    }
}
