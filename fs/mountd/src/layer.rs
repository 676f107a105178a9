//! Layers on this node: unpacked and mapped metadata, the extent map, and where each source has the chunks.
//!
//! Invariants:
//! - What is mapped here is what the layer digest names: checked when it was unpacked, and again each time it is opened.
//!   The metadata's *structure* is checked before it is put in its place, so the kernel never sees an unchecked image.
//! - The files of a layer are written once, under a temporary name, and never changed.
//! - The slot of a layer is a small number that stays with the layer for as long as its directory exists; inode numbers
//!   are made of it.
//! - Layers that nobody uses go when those on the disk are more than their budget, the longest unused first.
//! - Locations are hints. A wrong one leads to a chunk that fails its digest.

mod kept;
mod locations;
mod owner;
mod pace;
mod unpack;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dsec_format::LayerDigest;
use dsec_format::digest::BlobDigest;
use dsec_format::extents::{self, Extent, Map};
use dsec_format::layer::{self, Header, Identity};
use dsec_sys::mapped::Mapped;

use crate::counters::Counter;

pub use self::kept::Layers;
pub(crate) use self::kept::touch;
pub use self::locations::{Chunk, FrameKey, Located};
pub use self::pace::Paced;
pub use self::unpack::unpack;

/// Name of the unpacked metadata image in a layer's directory.
pub const METADATA_FILE: &str = "metadata.erofs";
const EXTENTS_FILE: &str = "extents.map";
const HEADER_FILE: &str = "header";
const SLOT_FILE: &str = "slot";
/// Slots are below this: inode numbers have so many bits for them.
pub const MAX_SLOTS: u32 = 1 << 20;

/// Why a layer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No source gave it.
    #[error(transparent)]
    Store(#[from] dsec_store::Error),
    /// The stream from a source broke off.
    #[error("layer {layer} cannot be read from its source")]
    Stream {
        /// Which layer.
        layer: LayerDigest,
        /// What happened.
        #[source]
        source: std::io::Error,
    },
    /// It is not what its name says, or malformed.
    #[error("layer {layer} is malformed")]
    Layer {
        /// Which layer.
        layer: LayerDigest,
        /// What is wrong.
        #[source]
        source: layer::Error,
    },
    /// Its extent map is malformed.
    #[error("layer {layer} has a malformed extent map")]
    Extents {
        /// Which layer.
        layer: LayerDigest,
        /// What is wrong.
        #[source]
        source: extents::Error,
    },
    /// Its metadata is no EROFS image that this program lets the kernel see.
    #[error("layer {layer} has malformed metadata")]
    Metadata {
        /// Which layer.
        layer: LayerDigest,
        /// What is wrong.
        #[source]
        source: dsec_erofs::check::Error,
    },
    /// A local file of it is not what it was.
    #[error("layer {layer} is damaged in {}: its {blob} does not match its digest", directory.display())]
    Damaged {
        /// Which layer.
        layer: LayerDigest,
        /// Its directory.
        directory: PathBuf,
        /// `metadata`, `extent map`, `header` or `slot`.
        blob: &'static str,
    },
    /// All numbers are given out; those of layers that are gone come back with the next start of the daemon.
    #[error("layer {layer} finds no free slot of {MAX_SLOTS}")]
    Slots {
        /// Which layer.
        layer: LayerDigest,
    },
    /// A local file failed; the message of the source names the path.
    #[error("layer {layer} cannot be kept on this node")]
    Io {
        /// Which layer.
        layer: LayerDigest,
        /// What happened.
        #[source]
        source: std::io::Error,
    },
}

/// An opened layer.
#[derive(Debug)]
pub struct Layer {
    digest: LayerDigest,
    slot: u32,
    identity: Identity,
    directory: PathBuf,
    image: dsec_erofs::Image<Mapped>,
    extents: Mapped,
    /// Keeps its directory while the value lives.
    in_use: OnceLock<Arc<()>>,
    /// By the index of the source.
    located: Mutex<Vec<Option<Arc<Located>>>>,
    /// The images that it is mounted for, by the names they were asked for.
    image_names: Mutex<BTreeSet<String>>,
    /// What went wrong last when something of it was fetched.
    trouble: Mutex<Option<String>>,
    /// Bytes fetched for it.
    pub fetched_bytes: Counter,
    /// Reads of it that failed.
    pub errors: Counter,
}

impl Layer {
    /// Opens the unpacked layer in `directory` and checks every byte of it against the digest.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Io`]: either way the directory is of no use, and unpacking again is.
    pub fn open(digest: &LayerDigest, directory: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { layer: *digest, source };
        let damaged = |blob| Error::Damaged { layer: *digest, directory: directory.to_owned(), blob };
        let map = |name: &str| {
            let file = fs_err::File::open(directory.join(name)).map_err(io)?;
            Mapped::open(file.file()).map_err(io)
        };
        let header = fs_err::read(directory.join(HEADER_FILE)).map_err(io)?;
        let identity = Header::decode(&header, digest).map_err(|_| damaged("header"))?.identity;
        let slot = fs_err::read_to_string(directory.join(SLOT_FILE)).map_err(io)?;
        let slot = parse_slot(&slot).ok_or_else(|| damaged("slot"))?;
        let (metadata, extents) = (map(METADATA_FILE)?, map(EXTENTS_FILE)?);
        if BlobDigest::of(&metadata) != identity.metadata_digest {
            return Err(damaged("metadata"));
        }
        if BlobDigest::of(&extents) != identity.extents_digest || Map::decode(&extents).is_err() {
            return Err(damaged("extent map"));
        }
        let image = dsec_erofs::Image::open(metadata).map_err(|_| damaged("metadata"))?;
        Ok(Self {
            digest: *digest,
            slot,
            identity,
            directory: directory.to_owned(),
            image,
            extents,
            in_use: OnceLock::new(),
            located: Mutex::default(),
            image_names: Mutex::default(),
            trouble: Mutex::default(),
            fetched_bytes: Counter::default(),
            errors: Counter::default(),
        })
    }

    /// Its name.
    pub fn digest(&self) -> &LayerDigest {
        &self.digest
    }

    /// A number from 1, below [`MAX_SLOTS`], that no other layer of this node has.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Sizes and totals.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its metadata.
    pub fn image(&self) -> &dsec_erofs::Image<Mapped> {
        &self.image
    }

    /// Where the EROFS image lies.
    pub fn metadata_path(&self) -> PathBuf {
        self.directory.join(METADATA_FILE)
    }

    /// Size of its data device.
    pub fn device_bytes(&self) -> u64 {
        self.identity.device_bytes.get()
    }

    /// Which chunk holds which range of its data device.
    pub fn map(&self) -> Map<'_> {
        Map::decode_trusted(&self.extents).expect("the extent map was decoded when the layer was opened")
    }

    /// One entry of the extent map.
    pub fn extent(&self, index: u32) -> Option<Extent> {
        self.map().extents().get(index as usize).copied()
    }

    /// Where a source has the chunks, if that was asked before.
    pub fn located(&self, source: usize) -> Option<Arc<Located>> {
        lock(&self.located).get(source).cloned().flatten()
    }

    /// The first source whose locations are known.
    pub fn any_located(&self) -> Option<Arc<Located>> {
        lock(&self.located).iter().flatten().next().cloned()
    }

    /// Sets or forgets where a source has the chunks.
    pub fn set_located(&self, source: usize, located: Option<Arc<Located>>) {
        let mut all = lock(&self.located);
        if all.len() <= source {
            all.resize(source + 1, None);
        }
        if let Some(entry) = all.get_mut(source) {
            *entry = located;
        }
    }

    /// A file whose data lies at an offset of the device. Walks through the metadata: for messages.
    pub fn file_at(&self, device_offset: u64) -> Option<String> {
        owner::file_at(&self.image, device_offset)
    }

    /// The images that it is mounted for, by the names they were asked for.
    pub fn image_names(&self) -> Vec<String> {
        lock(&self.image_names).iter().cloned().collect()
    }

    /// It is, or is no more, mounted for an image of this name.
    pub fn set_image_name(&self, name: String, mounted: bool) {
        let mut names = lock(&self.image_names);
        if mounted {
            names.insert(name)
        } else {
            names.remove(&name)
        };
    }

    /// What went wrong last when something of it was fetched.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    /// Notes what went wrong.
    pub fn set_trouble(&self, trouble: String) {
        *lock(&self.trouble) = Some(trouble);
    }

    /// Its directory on this node.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parse_slot(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|slot| (1..MAX_SLOTS).contains(slot))
}
