//! What a check finds.

use std::path::{Path, PathBuf};

use dsec_format::refs::RefName;
use dsec_format::{ChunkDigest, ImageDigest, LayerDigest, PackDigest};
use serde::Serialize;

use crate::error::Error;
use crate::layout::{Kind, Object};

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "finding", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Finding {
    /// The bytes of an object are wrong.
    #[error("{object} is damaged: {problem} ({})", path.display())]
    Damaged {
        /// Kind and name of the object.
        object: String,
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// An object cannot be read.
    #[error("{object} cannot be read: {problem}")]
    Unreadable {
        /// Kind and name of the object.
        object: String,
        /// Its file.
        path: PathBuf,
        /// What the system says.
        problem: String,
    },
    /// An object that another one needs is not there, or not right.
    #[error("{object} lacks {needs}")]
    Lacks {
        /// What is not whole.
        object: String,
        /// What it needs.
        needs: String,
    },
    /// Chunks of a layer are in no pack, or only in bad ones.
    #[error("layer {layer} lacks {lacking} of its chunks, the first is {chunk}")]
    LacksChunks {
        /// The layer.
        layer: LayerDigest,
        /// How many extents have no sound chunk.
        lacking: u64,
        /// The first such chunk.
        chunk: ChunkDigest,
        /// The bad pack that it is in, if there is one.
        pack: Option<PackDigest>,
    },
    /// Locations lead elsewhere than the packs' own tables.
    #[error("locations of layer {layer} do not lead to chunk {chunk} ({})", path.display())]
    Misplaced {
        /// The layer.
        layer: LayerDigest,
        /// The first chunk that they do not lead to.
        chunk: ChunkDigest,
        /// Their file.
        path: PathBuf,
    },
    /// An image states other totals of a layer than the layer itself.
    #[error("image {image} states wrong totals of layer {layer}")]
    Totals {
        /// The image.
        image: ImageDigest,
        /// The layer.
        layer: LayerDigest,
    },
    /// A file that no store has written.
    #[error("{} is no part of a store", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// An object was damaged and is in the quarantine now: it counts as missing, and whoever has it may bring it again.
    #[error("{object} was set aside ({})", path.display())]
    SetAside {
        /// Kind and name of the object.
        object: String,
        /// Where it is now.
        path: PathBuf,
    },
    /// The locations of a layer were made anew.
    #[error("locations of layer {layer} were made anew")]
    Relocated {
        /// The layer.
        layer: LayerDigest,
    },
    /// What a killed writer left behind. Harmless: nothing is lost, some space is.
    #[error("{} was left behind by a killed writer ({bytes} bytes)", path.display())]
    Leftover {
        /// The file or directory.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
    },
}

impl Finding {
    /// Whether something is lost or wrong. Everything but leftovers, and what was done about other findings.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. }
            | Self::Unreadable { .. }
            | Self::Lacks { .. }
            | Self::LacksChunks { .. }
            | Self::Misplaced { .. }
            | Self::Totals { .. }
            | Self::Foreign { .. } => true,
            Self::SetAside { .. } | Self::Relocated { .. } | Self::Leftover { .. } => false,
        }
    }

    /// The file it is about, where there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Damaged { path, .. }
            | Self::Unreadable { path, .. }
            | Self::Misplaced { path, .. }
            | Self::Foreign { path }
            | Self::SetAside { path, .. }
            | Self::Leftover { path, .. } => Some(path),
            Self::Lacks { .. } | Self::LacksChunks { .. } | Self::Totals { .. } | Self::Relocated { .. } => None,
        }
    }

    pub(super) fn of_object(object: Object, path: PathBuf, error: Error) -> Self {
        Self::of(object.to_string(), path, error)
    }

    pub(super) fn of_ref(name: &RefName, path: PathBuf, error: Error) -> Self {
        Self::of(format!("ref {name}"), path, error)
    }

    fn of(object: String, path: PathBuf, error: Error) -> Self {
        match error {
            Error::Damaged { source, .. } => Self::Damaged { object, path, problem: source.to_string() },
            Error::NotFound { .. } => Self::Unreadable { object, path, problem: "it is not there".to_owned() },
            Error::Io(error) => Self::Unreadable { object, path, problem: error.to_string() },
            Error::NoStore { .. }
            | Error::Conflict { .. }
            | Error::NotAStore { .. }
            | Error::Url { .. }
            | Error::Unreachable { .. }
            | Error::Refused { .. }
            | Error::TooLarge { .. }
            | Error::Interrupted
            | Error::Full { .. }
            | Error::RegistryFull { .. } => Self::Unreadable { object, path, problem: error.to_string() },
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Everything that is not as it should be.
    pub findings: Vec<Finding>,
    /// Refs that were checked.
    pub refs: u64,
    /// Environments that were checked.
    pub environments: u64,
    /// Images that were checked.
    pub images: u64,
    /// Layers that were checked.
    pub layers: u64,
    /// Locations that are there.
    pub locations: u64,
    /// Packs that were checked.
    pub packs: u64,
    /// Layers that no image names: what a push that was cut short has brought.
    pub unreferenced_layers: u64,
    /// Packs that no layer's locations name: brought by a writer that failed, or is still at work.
    pub unnamed_packs: u64,
    /// Bytes of those.
    pub unnamed_bytes: u64,
    /// Objects in the quarantine.
    pub set_aside: u64,
    /// Unfinished uploads. They may still be going on.
    pub uploads: u64,
    /// Bytes of unfinished uploads.
    pub upload_bytes: u64,
}

impl Report {
    /// Whether nothing is lost or wrong. Leftovers do not count.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        !self.findings.iter().any(Finding::is_damage)
    }

    pub(super) fn count_of(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Pack => &mut self.packs,
            Kind::Layer => &mut self.layers,
            Kind::Locations => &mut self.locations,
            Kind::Image => &mut self.images,
            Kind::Environment => &mut self.environments,
        }
    }

    /// Whether an object is among the findings.
    pub(super) fn names(&self, name: &str) -> bool {
        self.findings.iter().any(|finding| match finding {
            Finding::Damaged { object, .. } | Finding::Unreadable { object, .. } | Finding::Lacks { object, .. } => {
                object == name
            }
            Finding::Totals { image, .. } => format!("{} {image}", Kind::Image.noun()) == name,
            Finding::LacksChunks { .. }
            | Finding::Misplaced { .. }
            | Finding::Foreign { .. }
            | Finding::SetAside { .. }
            | Finding::Relocated { .. }
            | Finding::Leftover { .. } => false,
        })
    }
}
