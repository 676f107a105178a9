//! Why a build failed. The store's refs are then as they were.

use std::io;

use dsec_erofs::{tree, writer};
use dsec_format::frame;

use crate::cancel::Cancelled;
use crate::compare;
use crate::input;
use crate::paths::Shown;
use crate::verify;

/// Why an image was not built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input cannot be read, or not be kept.
    #[error(transparent)]
    Input(#[from] input::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] dsec_store::Error),
    /// Temporary files failed.
    #[error("cannot write temporary files in the store")]
    Scratch(#[source] io::Error),
    /// A file whose holes are so placed that the format cannot state them.
    #[error("`{path}` cannot be kept")]
    File {
        /// Its path.
        path: Shown,
        /// Why.
        #[source]
        source: tree::Error,
    },
    /// The metadata image cannot be written.
    #[error("cannot write the metadata of a layer")]
    Metadata(#[from] writer::Error),
    /// A frame cannot be encoded.
    #[error("cannot compress file data")]
    Frame(#[from] frame::Error),
    /// More layers than an overlay can have.
    #[error("the input has {layers} layers, an image has at most {}", dsec_format::image::MAX_LAYERS)]
    Layers {
        /// Its layers.
        layers: usize,
    },
    /// Reading back failed.
    #[error("cannot verify the image")]
    Verify(#[from] verify::Error),
    /// What was stored is not what its names say.
    #[error("the stored image has {findings} faults, the first: {first}")]
    NotWhole {
        /// How many.
        findings: u64,
        /// The first of them.
        first: String,
    },
    /// What was stored is not what the input has.
    #[error("the image differs from its source in {differences} ways, the first: {first}")]
    Differs {
        /// How many.
        differences: u64,
        /// The first of them.
        first: String,
    },
    /// Asked to stop.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl Error {
    /// Whether it ended because it was asked to.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        match self {
            Self::Cancelled(_)
            | Self::Verify(verify::Error::Cancelled(_) | verify::Error::Compare(compare::Error::Cancelled(_))) => true,
            Self::Input(error) => error.is_cancelled(),
            _ => false,
        }
    }
}
