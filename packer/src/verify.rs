//! Whether an image is whole in a store, and whether it is the same as a directory.
//!
//! [`verify_image`] reads everything that the image reaches: layers, their metadata (`dsec_erofs::check`), extent maps,
//! and every chunk against its digest. It does not stop at the first thing that is wrong. [`verify_against`] compares
//! what the image shows with a directory (see [`crate::compare`]).

mod frames;

use std::path::{Path, PathBuf};

use dsec_format::LayerDigest;
use dsec_format::extents::Map;
use dsec_format::image::{Image, LayerRecord};
use dsec_format::layer::Layer;
use dsec_store::Source;
use serde::Serialize;

use crate::chunks::ChunkReader;
use crate::compare::{self, Aspect, Difference, Options, Totals};
use crate::monitor::{Monitor, Stage};
use crate::tree::{Directory, Error as TreeError, FileTree, Kind, PathError, walk};
use crate::view::{Layers, View};
use crate::{Cancel, Cancelled};
use frames::Frames;

/// Something that is wrong with an image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// Kind and name of the object.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
}

/// How much was verified.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Layers.
    pub layers: u64,
    /// Inodes in them.
    pub inodes: u64,
    /// Chunks, each once.
    pub chunks: u64,
    /// Plain bytes of these.
    pub bytes: u64,
    /// Findings.
    pub findings: u64,
}

/// Why something could not be verified.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] dsec_store::Error),
    /// The directory cannot be opened.
    #[error("cannot compare with {}", path.display())]
    Directory {
        /// It.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<TreeError>,
    },
    /// The image cannot be looked at.
    #[error("cannot look at the image")]
    Image(#[source] Box<TreeError>),
    /// The comparison.
    #[error(transparent)]
    Compare(#[from] compare::Error),
    /// Asked to stop.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// Verifies everything that `image` reaches in a store; tells each thing that is wrong to `found`.
///
/// # Errors
/// The store cannot be read at all, or somebody asked to stop. What is missing or damaged is no error here.
pub fn verify_image(
    source: &dyn Source,
    image: &Image,
    monitor: &dyn Monitor,
    cancel: &Cancel,
    found: &mut dyn FnMut(Finding),
) -> Result<Verified, Error> {
    let mut verification =
        Verification { source, cancel, found, verified: Verified::default(), frames: Frames::default() };
    for record in &image.layers {
        cancel.check()?;
        verification.layer(record)?;
    }
    let frames = std::mem::take(&mut verification.frames);
    monitor.begin(Stage::Check, Some(frames.plain_bytes()));
    let checked = frames.check(source, monitor, cancel)?;
    verification.verified.chunks = checked.chunks;
    verification.verified.bytes = checked.bytes;
    for finding in checked.findings {
        verification.report(finding);
    }
    Ok(verification.verified)
}

struct Verification<'a> {
    source: &'a dyn Source,
    cancel: &'a Cancel,
    found: &'a mut dyn FnMut(Finding),
    verified: Verified,
    frames: Frames,
}

/// The causes of an error in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What is wrong with the store, rather than with an object in it, ends a verification.
pub(crate) fn about_object(error: dsec_store::Error) -> Result<String, dsec_store::Error> {
    use dsec_store::Error::{Damaged, NotFound};
    match &error {
        NotFound { .. } | Damaged { .. } => Ok(chain(&error)),
        _ => Err(error),
    }
}

impl Verification<'_> {
    fn report(&mut self, finding: Finding) {
        self.verified.findings += 1;
        (self.found)(finding);
    }

    fn wrong(&mut self, digest: &LayerDigest, what: impl Into<String>) {
        self.report(Finding { object: format!("layer {digest}"), what: what.into() });
    }

    fn layer(&mut self, record: &LayerRecord) -> Result<(), Error> {
        let digest = record.digest;
        self.verified.layers += 1;
        let layer = match self.source.read_layer(&digest) {
            Ok(layer) => layer,
            Err(error) => {
                let what = about_object(error)?;
                self.wrong(&digest, what);
                return Ok(());
            }
        };
        self.totals(record, &layer);
        let checked = match dsec_erofs::check(&layer.metadata) {
            Ok(checked) => checked,
            Err(error) => {
                self.wrong(&digest, chain(&error));
                return Ok(());
            }
        };
        self.verified.inodes += checked.inodes;
        let map = match Map::decode(&layer.extents) {
            Ok(map) => map,
            Err(error) => {
                self.wrong(&digest, chain(&error));
                return Ok(());
            }
        };
        let identity = &layer.identity;
        let data_bytes: u64 = map.extents().iter().map(|extent| u64::from(extent.bytes.get())).sum();
        for (what, stated, is) in [
            ("inodes", identity.inodes.get(), checked.inodes),
            ("logical bytes", identity.logical_bytes.get(), checked.file_bytes),
            ("device bytes by its metadata", identity.device_bytes.get(), checked.device_bytes),
            ("device bytes by its extent map", identity.device_bytes.get(), map.device_bytes()),
            ("data bytes", identity.data_bytes.get(), data_bytes),
        ] {
            if stated != is {
                self.wrong(&digest, format!("states {stated} {what}, has {is}"));
            }
        }
        match self.source.read_locations(&digest, map.extents().len() as u64) {
            Ok(locations) if locations.records.len() == map.extents().len() => self.frames.add(map, &locations),
            Ok(locations) => {
                let (records, extents) = (locations.records.len(), map.extents().len());
                self.wrong(&digest, format!("has locations of {records} chunks, but {extents} chunks"));
            }
            Err(error) => {
                let what = about_object(error)?;
                self.wrong(&digest, what);
            }
        }
        self.data(&digest, layer)
    }

    /// The totals that the image repeats of its layers.
    fn totals(&mut self, record: &LayerRecord, layer: &Layer) {
        let identity = &layer.identity;
        for (what, stated, is) in [
            ("metadata bytes", record.metadata_bytes, identity.metadata_bytes.get()),
            ("data bytes", record.data_bytes, identity.data_bytes.get()),
            ("logical bytes", record.logical_bytes, identity.logical_bytes.get()),
            ("inodes", record.inodes, identity.inodes.get()),
        ] {
            if stated != is {
                self.wrong(&record.digest, format!("has {is} {what}, the image states {stated}"));
            }
        }
    }

    /// Every byte of every file is in a chunk, and every piece is a whole one.
    fn data(&mut self, digest: &LayerDigest, layer: Layer) -> Result<(), Error> {
        let layers = Layers::of(layer).map_err(Box::new).map_err(Error::Image)?;
        let view = View::changeset(&layers);
        let mut wrong = Vec::new();
        let cancel = self.cancel;
        walk(&view, &mut |path, handle| {
            cancel.check()?;
            let node = view.node(handle).map_err(PathError::at(path)).map_err(Stop::Path)?;
            if !matches!(node.kind, Kind::Regular { .. }) {
                return Ok(());
            }
            for piece in view.pieces(handle).map_err(PathError::at(path)).map_err(Stop::Path)? {
                match piece {
                    Ok(piece) if piece.is_whole() => {}
                    Ok(piece) => wrong.push((path.to_vec(), format!("has a part of chunk {}", piece.chunk))),
                    Err(error) => wrong.push((path.to_vec(), chain(&error))),
                }
            }
            Ok::<(), Stop>(())
        })
        .or_else(|stop| match stop {
            Stop::Cancelled(cancelled) => Err(cancelled),
            Stop::Path(error) => {
                wrong.push((error.path.clone(), chain(&error.source)));
                Ok(())
            }
        })?;
        for (path, what) in wrong {
            self.wrong(digest, format!("{}: {what}", crate::tree::show(&path)));
        }
        Ok(())
    }
}

/// Why a walk ended early.
enum Stop {
    Path(PathError),
    Cancelled(Cancelled),
}

impl From<PathError> for Stop {
    fn from(error: PathError) -> Self {
        Self::Path(error)
    }
}

impl From<Cancelled> for Stop {
    fn from(cancelled: Cancelled) -> Self {
        Self::Cancelled(cancelled)
    }
}

/// Compares what `image` shows with `directory`, but for what `ignore` has; tells each difference to `found`.
///
/// File content is compared by the digests of its chunks: that the store has the chunks is [`verify_image`]'s to say.
///
/// # Errors
/// Either side cannot be read, or somebody asked to stop.
pub fn verify_against(
    source: &dyn Source,
    image: &Image,
    directory: &Path,
    ignore: &[Aspect],
    monitor: &dyn Monitor,
    cancel: &Cancel,
    found: &mut dyn FnMut(Difference),
) -> Result<Totals, Error> {
    let digests = || image.layers.iter().map(|layer| layer.digest);
    let layers = Layers::load(source, digests()).map_err(Box::new).map_err(Error::Image)?;
    let view = View::merged(&layers);
    let failed = |source| Error::Directory { path: directory.to_owned(), source: Box::new(source) };
    let directory = Directory::open(directory).map_err(failed)?;
    let chunks = ChunkReader::new(source, digests());
    monitor.begin(Stage::Verify, Some(image.layers.iter().map(|layer| layer.inodes).sum()));
    let options = Options { chunks: &chunks, monitor, cancel, ignore };
    Ok(compare::compare(&view, &directory, &options, found)?)
}
