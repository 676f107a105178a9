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
    /// An entry changed while it was being read.
    #[error("`{path}` changed while it was being read")]
    Changed {
        /// The entry.
        path: Shown,
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
    /// What overlay would take for "nothing is here".
    #[error("`{path}` cannot be kept: a character device 0:0 says in an image that a name is gone")]
    WhiteoutDevice {
        /// The entry.
        path: Shown,
    },
    /// More addresses than the data device of a layer has.
    #[error(
        "`{path}` cannot be kept: with it the file data of the layer takes more than the 16 TiB that a layer addresses"
    )]
    NoRoom {
        /// The file that is too much.
        path: Shown,
    },
    /// A tar archive.
    #[error(transparent)]
    Tar(#[from] tar::Error),
    /// An OCI layout.
    #[error(transparent)]
    Oci(#[from] oci::Error),
    /// A directory, or an overlay's upper directory.
    #[error(transparent)]
    Tree(#[from] crate::tree::PathError),
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

    /// For `map_err`: the entry at `path` that the tree refused.
    pub(crate) fn keep(path: &[u8]) -> impl FnOnce(tree::Error) -> Self {
        move |source| Self::Keep { path: Shown::new(path), source }
    }
}
