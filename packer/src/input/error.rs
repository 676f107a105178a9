//! Why an input cannot be read, or not be kept.

use std::io;
use std::path::PathBuf;

use dsec_erofs::tree;

use super::{oci, tar};
use crate::cancel::Cancelled;
use crate::paths::Shown;

/// Why an input was refused. Paths of entries are relative to the root of the image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input cannot be opened; the source names its path.
    #[error("cannot open the input")]
    Open(#[source] io::Error),
    /// Neither a directory nor a file nor a pipe.
    #[error("{} is neither a directory, a tar archive nor an OCI layout", path.display())]
    NotAnInput {
        /// The input.
        path: PathBuf,
    },
    /// Only a tar archive can come through standard input.
    #[error("only a tar archive can be read from standard input")]
    NotFromStdin,
    /// Something about an entry cannot be read.
    #[error("cannot {action} `{path}`")]
    Entry {
        /// What was tried.
        action: &'static str,
        /// The entry.
        path: Shown,
        /// What happened.
        #[source]
        source: io::Error,
    },
    /// An entry changed while it was being read.
    #[error("`{path}` changed while it was being read")]
    Changed {
        /// The entry.
        path: Shown,
    },
    /// Another file system is mounted there.
    #[error("`{path}` is on another file system")]
    OtherFileSystem {
        /// The entry.
        path: Shown,
    },
    /// The kernel calls it something that no image has.
    #[error("`{path}` is of a kind that cannot be kept (mode {mode:o})")]
    FileType {
        /// The entry.
        path: Shown,
        /// Its `st_mode`.
        mode: u32,
    },
    /// An entry that an image cannot hold.
    #[error("`{path}` cannot be kept")]
    Keep {
        /// The entry.
        path: Shown,
        /// Why.
        #[source]
        source: tree::Error,
    },
    /// A tar archive.
    #[error(transparent)]
    Tar(#[from] tar::Error),
    /// An OCI layout.
    #[error(transparent)]
    Oci(#[from] oci::Error),
    /// An overlay's upper directory.
    #[error(transparent)]
    Upper(#[from] crate::tree::PathError),
    /// Asked to stop.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl Error {
    /// Whether the reading ended because it was asked to.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        match self {
            Self::Cancelled(_) | Self::Oci(oci::Error::Cancelled(_)) => true,
            Self::Tar(error) => error.is_cancelled(),
            _ => false,
        }
    }

    /// For `map_err`: the entry at `path`, and what was tried with it.
    pub(super) fn entry(action: &'static str, path: &[u8]) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = Shown::new(path);
        move |errno| Self::Entry { action, path, source: errno.into() }
    }

    /// For `map_err`: the entry at `path` that the tree refused.
    pub(super) fn keep(path: &[u8]) -> impl FnOnce(tree::Error) -> Self {
        let path = Shown::new(path);
        move |source| Self::Keep { path, source }
    }
}
