//! The daemon as a whole: what it is made of, and what the control socket can ask of it.
//!
//! A holder holds images; an image holds its layers; a layer is mounted while it is held. Holders are names that callers
//! choose, and live in this process alone: after a crash callers ask again for what they still need.

mod images;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dsec_format::image::Image;
use dsec_format::protocol::mountd::{ErrorKind, ImageStatus, MetadataStatus, Mounted, MountedLayer, Road, Status};
use dsec_format::refs::{Spec, Target};
use dsec_format::{EnvironmentDigest, ImageDigest, LayerDigest};
use dsec_store::Source;

use crate::cache::{self, Cache};
use crate::device::Reader;
use crate::fetch::{self, Fetcher, Sources};
use crate::fuse::{self, devices::Devices};
use crate::layer::{self, Layer, Layers};
use crate::mounts::{self, HoldError, Mounts, RunDirectory, RunError};
use crate::road::{self, Choice, Wish};
use crate::served::Served;
use crate::tree::Trees;

use self::images::Images;

/// Longest name of a holder.
const MAX_HOLDER_BYTES: usize = 4096;
/// The records of images have this share of the budget of metadata, the layers the rest.
const IMAGES_SHARE: u64 = 64;
/// Layers of one image that are made ready at once.
const MOUNT_THREADS: usize = 8;

/// How a daemon is set up.
pub struct Options {
    /// Where images come from, the preferred one first.
    pub sources: Vec<Box<dyn Source>>,
    /// The cache directory.
    pub cache: PathBuf,
    /// Bounds of the cache.
    pub cache_options: cache::Options,
    /// Bytes that the metadata of layers and the records of images may use on the disk; more only while those in use have
    /// more.
    pub metadata_bytes: u64,
    /// Bounds of fetching.
    pub fetch: fetch::Options,
    /// The directory below which layers are mounted.
    pub run: PathBuf,
    /// Which road to take.
    pub road: Wish,
    /// Threads that answer the kernel.
    pub fuse_threads: usize,
    /// How long a layer stays mounted after the last holder has gone.
    pub linger: Duration,
}

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The cache.
    #[error(transparent)]
    Cache(#[from] cache::Error),
    /// The run directory.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The road.
    #[error(transparent)]
    Road(#[from] road::Error),
    /// FUSE.
    #[error(transparent)]
    Fuse(#[from] fuse::Error),
    /// A directory, or threads.
    #[error("daemon cannot be set up")]
    Io(#[source] std::io::Error),
}

/// Why a mount was not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name of the holder is empty, too long, or has control characters.
    #[error("a holder's name is 1 to {MAX_HOLDER_BYTES} bytes without control characters")]
    Holder,
    /// The ref names an environment.
    #[error("{spec} names environment {environment}, not an image: mount its images")]
    Environment {
        /// What was asked for.
        spec: Box<Spec>,
        /// What it names.
        environment: EnvironmentDigest,
    },
    /// The image cannot be had.
    #[error("image {spec} cannot be mounted")]
    Image {
        /// What was asked for.
        spec: Box<Spec>,
        /// Why.
        #[source]
        source: dsec_store::Error,
    },
    /// A layer cannot be had or mounted.
    #[error("layer {layer} of image {spec} cannot be mounted")]
    Layer {
        /// What was asked for.
        spec: Box<Spec>,
        /// Which layer.
        layer: LayerDigest,
        /// Why.
        #[source]
        source: Box<HoldError>,
    },
}

/// What `status` says of an image, taken under the lock; what takes long is counted after that.
type Seen = (ImageDigest, Spec, Vec<String>, Vec<Arc<Layer>>);

struct Held {
    spec: Spec,
    holders: Vec<String>,
    image: Image,
    layers: Vec<Arc<Layer>>,
}

/// See the [module](self).
pub struct Node {
    sources: Arc<Sources>,
    reader: Arc<Reader>,
    layers: Layers,
    images: Images,
    mounts: Mounts,
    metadata_budget_bytes: u64,
    session: fuse::Mounted,
    held: Mutex<BTreeMap<ImageDigest, Held>>,
    choice: Choice,
    linger: Duration,
    started: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// Opens cache and run directory, chooses the road and mounts the FUSE session. No source is asked for anything.
    ///
    /// # Errors
    /// See [`StartError`]; nothing stays mounted then.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let run = RunDirectory::open(&options.run)?;
        let cache = Arc::new(Cache::open(&options.cache, options.cache_options)?);
        let image_bytes = options.metadata_bytes / IMAGES_SHARE;
        let layer_bytes = options.metadata_bytes - image_bytes;
        let layers = Layers::open(&cache.directory().layers(), layer_bytes).map_err(StartError::Io)?;
        let images = Images::open(&cache.directory().images(), image_bytes).map_err(StartError::Io)?;
        let choice = road::choose(options.road, &cache.directory().layers())?;
        let sources = Arc::new(Sources::new(options.sources));
        let fetcher =
            Fetcher::start(Arc::clone(&cache), Arc::clone(&sources), options.fetch).map_err(StartError::Io)?;
        let reader = Arc::new(Reader::new(cache, fetcher));
        let served = Arc::new(Served::default());
        let (shared, threads) = ((Arc::clone(&served), Arc::clone(&reader)), options.fuse_threads);
        let session = match choice.road {
            Road::Erofs => fuse::Mounted::start(Devices::new(shared.0, shared.1), &run.fuse(), threads)?,
            Road::Fuse => fuse::Mounted::start(Trees::new(shared.0, shared.1), &run.fuse(), threads)?,
        };
        tracing::info!(road = ?choice.road, reason = choice.reason, "ready");
        Ok(Self {
            sources,
            reader,
            layers,
            images,
            mounts: Mounts::new(run, choice.road, served),
            metadata_budget_bytes: options.metadata_bytes,
            session,
            held: Mutex::default(),
            choice,
            linger: options.linger,
            started: Instant::now(),
        })
    }

    /// Mounts an image for a holder.
    ///
    /// # Errors
    /// See [`Error`]; the holder holds no more than before.
    pub fn mount(&self, spec: &Spec, holder: &str) -> Result<Mounted, Error> {
        if holder.is_empty() || holder.len() > MAX_HOLDER_BYTES || holder.chars().any(char::is_control) {
            return Err(Error::Holder);
        }
        let digest = self.resolve(spec)?;
        if let Some(mounted) = self.join(&digest, holder) {
            return Ok(mounted);
        }
        let failed = |source| Error::Image { spec: Box::new(spec.clone()), source };
        let mounted = lock(&self.held).keys().map(ImageDigest::hex).collect();
        let image = self.images.read(&digest, &self.sources, mounted).map_err(failed)?;
        let layers = self.hold_layers(spec, &image)?;
        let mut held = lock(&self.held);
        if let Some(present) = held.get_mut(&digest) {
            // Somebody else was faster: his holds are enough.
            if !present.holders.iter().any(|known| known == holder) {
                present.holders.push(holder.to_owned());
            }
            layers.iter().for_each(|layer| self.mounts.release(layer.digest()));
        } else {
            layers.iter().for_each(|layer| layer.set_image_name(spec.to_string(), true));
            let entry = Held { spec: spec.clone(), holders: vec![holder.to_owned()], image, layers };
            held.insert(digest, entry);
        }
        drop(held);
        tracing::info!(image = %digest, holder, "mounted");
        self.join(&digest, holder).ok_or_else(|| {
            failed(dsec_store::Error::NotFound {
                object: format!("image {digest}"),
                store: "the images held, it was released meanwhile".to_owned(),
            })
        })
    }

    /// Gives up all that a holder holds.
    pub fn release(&self, holder: &str) {
        let mut held = lock(&self.held);
        held.retain(|digest, entry| {
            let before = entry.holders.len();
            entry.holders.retain(|known| known != holder);
            if entry.holders.len() < before {
                tracing::info!(image = %digest, holder, "released");
            }
            if entry.holders.is_empty() {
                for layer in &entry.layers {
                    layer.set_image_name(entry.spec.to_string(), false);
                    self.mounts.release(layer.digest());
                }
            }
            !entry.holders.is_empty()
        });
        drop(held);
        self.tick();
    }

    /// What is due from time to time: unmounts what nobody has held for long enough, looks after the cache.
    pub fn tick(&self) {
        self.reader.cache().tick();
        for layer in self.mounts.sweep(self.linger) {
            self.session.forget(&layer.hex());
        }
    }

    /// How the daemon is.
    pub fn status(&self) -> Status {
        let seen = |(digest, held): (&ImageDigest, &Held)| {
            (*digest, held.spec.clone(), held.holders.clone(), held.layers.clone())
        };
        let images: Vec<Seen> = lock(&self.held).iter().map(seen).collect();
        let images = images.into_iter().map(|image| self.image_status(image)).collect();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_secs: self.started.elapsed().as_secs(),
            road: self.choice.road,
            road_reason: self.choice.reason.clone(),
            cache: self.reader.cache().status(),
            metadata: self.metadata_status(),
            fetch: self.reader.fetcher().status(),
            images,
        }
    }

    /// Unmounts everything, held or not. What was inside keeps what the kernel has cached; the rest of it fails.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn stop(&self) -> Result<(), mounts::Error> {
        lock(&self.held).clear();
        self.mounts.unmount_all()
    }

    /// Whether the FUSE session has ended without being asked to.
    pub fn is_broken(&self) -> bool {
        self.session.is_over()
    }

    fn metadata_status(&self) -> MetadataStatus {
        let ((layer_bytes, layers), (image_bytes, images)) = (self.layers.used(), self.images.used());
        MetadataStatus { budget_bytes: self.metadata_budget_bytes, layer_bytes, layers, image_bytes, images }
    }

    fn image_status(&self, (image, spec, holders, layers): Seen) -> ImageStatus {
        ImageStatus {
            image,
            spec,
            road: self.choice.road,
            holders,
            data_bytes: layers.iter().map(|layer| layer.identity().data_bytes.get()).sum(),
            local_bytes: layers.iter().map(|layer| self.reader.local_bytes(layer)).sum(),
            fetched_bytes: layers.iter().map(|layer| layer.fetched_bytes.value()).sum(),
            errors: layers.iter().map(|layer| layer.errors.value()).sum(),
        }
    }

    fn resolve(&self, spec: &Spec) -> Result<ImageDigest, Error> {
        let name = match spec {
            Spec::Digest(digest) => return Ok(*digest),
            Spec::Name(name) => name,
        };
        let record = self.sources.ask(|source| source.read_ref(name));
        match record.map_err(|source| Error::Image { spec: Box::new(spec.clone()), source })?.target {
            Target::Image(digest) => Ok(digest),
            Target::Environment(environment) => Err(Error::Environment { spec: Box::new(spec.clone()), environment }),
        }
    }

    /// Adds a holder to an image that is held.
    fn join(&self, digest: &ImageDigest, holder: &str) -> Option<Mounted> {
        let mut held = lock(&self.held);
        let entry = held.get_mut(digest)?;
        if !entry.holders.iter().any(|known| known == holder) {
            entry.holders.push(holder.to_owned());
        }
        let layers = entry.image.layers.iter().map(|record| MountedLayer {
            digest: record.digest,
            path: self.mounts.path(&record.digest).to_string_lossy().into_owned(),
        });
        Some(Mounted {
            image: *digest,
            config: entry.image.config.clone(),
            road: self.choice.road,
            layers: layers.collect(),
        })
    }

    /// Holds every layer of an image, or none.
    fn hold_layers(&self, spec: &Spec, image: &Image) -> Result<Vec<Arc<Layer>>, Error> {
        let records: Vec<_> = image.layers.iter().collect();
        let mut held = Vec::with_capacity(records.len());
        let mut failure = None;
        for group in records.chunks(MOUNT_THREADS) {
            let results: Vec<_> = std::thread::scope(|scope| {
                let hold = |record| scope.spawn(move || self.hold_layer(record));
                let threads: Vec<_> = group.iter().map(|record| (record.digest, hold(*record))).collect();
                threads.into_iter().map(|(digest, thread)| (digest, thread.join())).collect()
            });
            for (layer, result) in results {
                match result {
                    Ok(Ok(layer)) => held.push(layer),
                    Ok(Err(source)) => {
                        failure = Some(Error::Layer { spec: Box::new(spec.clone()), layer, source: Box::new(source) })
                    }
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            if let Some(failure) = failure {
                held.iter().for_each(|layer| self.mounts.release(layer.digest()));
                return Err(failure);
            }
        }
        Ok(held)
    }

    fn hold_layer(&self, record: &dsec_format::image::LayerRecord) -> Result<Arc<Layer>, HoldError> {
        self.mounts.hold(&record.digest, || fetch::bring(&self.layers, &self.sources, record))
    }
}

impl Error {
    /// What a caller may want to tell apart.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Holder | Self::Environment { .. } => ErrorKind::BadRequest,
            Self::Image { source, .. } => store_kind(source),
            Self::Layer { source, .. } => match &**source {
                HoldError::Mount(_) => ErrorKind::Node,
                HoldError::Layer(error) => layer_kind(error),
            },
        }
    }
}

fn layer_kind(error: &layer::Error) -> ErrorKind {
    match error {
        layer::Error::Store(error) => store_kind(error),
        layer::Error::Stream { .. } => ErrorKind::Unreachable,
        layer::Error::Layer { .. } | layer::Error::Extents { .. } | layer::Error::Metadata { .. } => ErrorKind::Corrupt,
        layer::Error::Damaged { .. } | layer::Error::Slots { .. } | layer::Error::Io { .. } => ErrorKind::Node,
    }
}

fn store_kind(error: &dsec_store::Error) -> ErrorKind {
    use dsec_store::Error;
    match error {
        Error::NotFound { .. } => ErrorKind::NotFound,
        Error::Damaged { .. } => ErrorKind::Corrupt,
        Error::Unreachable { .. } | Error::Refused { .. } => ErrorKind::Unreachable,
        _ => ErrorKind::Node,
    }
}
