//! An image of what a sandbox has changed: its parent's layers and one more, made of its upper directory.
//!
//! The cost follows the diff: the upper directory is read, the image below it is not (but for what a redirect or a
//! metacopy refers to). Chunks are deduplicated against everything in the store.
//!
//! What is read is read while the sandbox is frozen: every file is hashed and what is new of it stored before the thaw.
//! A copy to read after the thaw would shorten the freeze only where the file system shares extents, and would cost a
//! second copy of everything elsewhere; `docs/pack-diff.md` has the reasons. Still frozen, the new layer is compared with
//! the upper directory: only a layer without a difference becomes part of an image, and the ref is set last.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use dsec_format::image::{Image, MAX_LAYERS, Provenance};
use dsec_format::protocol::registry::Expected;
use dsec_format::refs::{RefName, Target};
use dsec_format::{ImageDigest, LayerDigest};
use dsec_store::{LocalStore, Source, Store};

use crate::build::{self, BuiltLayer, Options};
use crate::chunks::ChunkReader;
use crate::compare::{self, Difference};
use crate::hold;
use crate::input::Part;
use crate::monitor::{Monitor, Stage};
use crate::tree::Error as TreeError;
use crate::tree::contents::TreeContents;
use crate::tree::fill::{Marks, fill};
use crate::upper::{IdRange, Lowers, Namespace, Upper};
use crate::view::{Layers, View};
use crate::{Cancel, Cancelled};

/// Why there is no image of a diff. No ref has changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed, or lacks the parent.
    #[error(transparent)]
    Store(#[from] dsec_store::Error),
    /// The upper directory does not belong to the parent.
    #[error("the sandbox's layers are not those of image {parent}")]
    OtherLayers {
        /// The parent.
        parent: ImageDigest,
    },
    /// There is no room for another layer.
    #[error("image {parent} has {MAX_LAYERS} layers already")]
    Full {
        /// The parent.
        parent: ImageDigest,
    },
    /// Not everything of it has reached the file system.
    #[error("cannot sync the upper directory")]
    Sync(#[source] std::io::Error),
    /// The layer cannot be made: the upper directory cannot be read, or holds what cannot be kept.
    #[error(transparent)]
    Build(#[from] build::Error),
    /// The new layer cannot be looked at.
    #[error("cannot read the new layer back")]
    Layer(#[source] Box<TreeError>),
    /// The comparison of layer and upper directory.
    #[error("cannot verify the new layer")]
    Compare(#[source] compare::Error),
    /// The new layer is not what the upper directory is.
    #[error("the new layer differs from the upper directory in {count} places, first: {first}")]
    Different {
        /// The first difference.
        first: Box<Difference>,
        /// All of them.
        count: u64,
    },
    /// The sandbox did not stay frozen.
    #[error(transparent)]
    Hold(#[from] hold::Error),
    /// Asked to stop.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// What to pack.
#[derive(Debug)]
pub struct Request {
    /// The upper directory.
    pub upper: OwnedFd,
    /// Ids of the sandbox in it.
    pub ids: IdRange,
    /// Where overlay's marks are in it.
    pub namespace: Namespace,
    /// The image below it.
    pub parent: ImageDigest,
    /// The layers below it, when the caller knows them: they must be those of the parent.
    pub layers: Option<Vec<LayerDigest>>,
    /// Set last.
    pub name: Option<RefName>,
    /// Where the new image comes from; its parent is filled in.
    pub provenance: Provenance,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The new image.
    pub image: ImageDigest,
    /// Its new layer.
    pub layer: BuiltLayer,
    /// How long the upper directory had to stand still.
    pub held: Duration,
}

/// Packs an upper directory. `hold` keeps it still, and is dropped as soon as everything has been read and compared;
/// without one the caller sees to it that nobody writes.
///
/// # Errors
/// As [`Error`]. What was stored is removed again then, unless others write to the store: they may rely on it.
pub fn pack_diff(
    store: &LocalStore,
    request: Request,
    hold: Option<hold::Hold>,
    options: Options,
    monitor: &dyn Monitor,
    cancel: &Cancel,
) -> Result<Packed, Error> {
    let mut session = store.session().map_err(build::Error::from)?;
    pack(store, request, hold, options, monitor, cancel).inspect_err(|_| build::give_up(&mut *session))
}

fn pack(
    store: &LocalStore,
    request: Request,
    hold: Option<hold::Hold>,
    options: Options,
    monitor: &dyn Monitor,
    cancel: &Cancel,
) -> Result<Packed, Error> {
    let start = Instant::now();
    let parent = read_parent(store, &request)?;
    rustix::fs::syncfs(&request.upper).map_err(|errno| Error::Sync(errno.into()))?;
    let lowers = Lowers::new(store, parent.layers.iter().map(|layer| layer.digest).collect());
    let upper = Upper::new(request.upper, request.ids, request.namespace, &lowers);

    let tree = fill(&upper, Marks::OfTheLayer, monitor, cancel).map_err(build::Error::from)?;
    let part = Part { tree, contents: Box::new(TreeContents::new(&upper, Some(lowers.chunks()))) };
    let layer = build::layer(part, store, options, monitor, cancel)?;
    compare_with(store, layer.record.digest, &upper, monitor, cancel)?;
    hold.as_ref().map_or(Ok(()), hold::Hold::check)?;
    drop(hold);
    let held = start.elapsed();

    monitor.begin(Stage::Publish, None);
    let mut image = Image { annotations: Default::default(), ..parent };
    image.layers.push(layer.record.clone());
    image.provenance = Some(Provenance { parent: Some(request.parent), ..request.provenance });
    // Nobody is asked from here on whether to stop: an image stays, with or without a ref.
    cancel.check()?;
    let image = store.put_image(&image)?;
    if let Some(name) = &request.name {
        store.set_ref(name, Target::Image(image), Expected::Anything)?;
    }
    Ok(Packed { image, layer, held })
}

fn read_parent(store: &LocalStore, request: &Request) -> Result<Image, Error> {
    let parent = store.read_image(&request.parent)?;
    let layers = || parent.layers.iter().map(|layer| &layer.digest);
    if request.layers.as_ref().is_some_and(|below| !below.iter().eq(layers())) {
        return Err(Error::OtherLayers { parent: request.parent });
    }
    if parent.layers.len() >= MAX_LAYERS {
        return Err(Error::Full { parent: request.parent });
    }
    Ok(parent)
}

/// The new layer, read back from the store, must be what the upper directory is.
fn compare_with(
    store: &LocalStore,
    layer: LayerDigest,
    upper: &Upper<'_>,
    monitor: &dyn Monitor,
    cancel: &Cancel,
) -> Result<(), Error> {
    let layers = Layers::load(store, [layer]).map_err(Box::new).map_err(Error::Layer)?;
    let changeset = View::changeset(&layers);
    let chunks = ChunkReader::new(store, [layer]);
    monitor.begin(Stage::Verify, None);
    let options = compare::Options { chunks: &chunks, monitor, cancel, ignore: &[] };
    let mut first = None;
    let mut tell = |difference: Difference| {
        first.get_or_insert(Box::new(difference));
    };
    let totals = compare::compare(&changeset, upper, &options, &mut tell).map_err(Error::Compare)?;
    match first {
        Some(first) => Err(Error::Different { first, count: totals.differences }),
        None => Ok(()),
    }
}
