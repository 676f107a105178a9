//! Layer mounts: each layer once on this node, shared by everyone who holds it.
//!
//! Invariants:
//! - A layer is mounted at `RUN/layers/HEX` while anyone holds it, and for a while after (it may come back: what the
//!   kernel has cached of it stays warm).
//! - Two who ask for one layer at once wait for one mount. No lock is held across a layer's download but the layer's own.
//! - Unmounting never fails a reader that is still inside: the mount is detached, and the layer stays served until the
//!   kernel has let go of it ([`crate::served`]).
//! - The run directory has one owner; what an earlier one left mounted is detached at the start. No other user reaches
//!   into it, and nothing below it is a set-id program or a device to anyone.

mod kernel;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dsec_format::LayerDigest;
use dsec_format::protocol::mountd::Road;
use rustix::fs::FlockOperation;

pub(crate) use self::kernel::LAYER_ATTRIBUTES;
pub use self::kernel::{Error, probe_erofs};
use crate::layer::{self, Layer};
use crate::served::Served;

/// The directory below which everything is mounted, owned by this process.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    _lock: fs_err::File,
}

/// Why the run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Another daemon has it.
    #[error("run directory {} is in use by another daemon", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// Others could reach into it, or own it.
    #[error("run directory {} belongs to user {owner} with mode {mode:o}, not to this one alone", path.display())]
    Shared {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// It cannot be made, read or locked; the message of the source names the path.
    #[error("run directory cannot be used")]
    Io(#[source] std::io::Error),
    /// What an earlier daemon left mounted cannot be unmounted.
    #[error(transparent)]
    Mount(#[from] Error),
}

impl RunDirectory {
    /// Takes the directory and detaches what is mounted below it.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn open(path: &Path) -> Result<Self, RunError> {
        crate::private::create(path).map_err(RunError::Io)?;
        let path = fs_err::canonicalize(path).map_err(RunError::Io)?;
        if let Some((owner, mode)) = crate::private::shared(&path).map_err(RunError::Io)? {
            return Err(RunError::Shared { path, owner, mode });
        }
        let lock_path = path.join("lock");
        let lock = fs_err::OpenOptions::new().create(true).truncate(false).write(true).open(lock_path);
        let lock = lock.map_err(RunError::Io)?;
        rustix::fs::flock(lock.file(), FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| RunError::Locked { path: path.clone() })?;
        let directory = Self { path, _lock: lock };
        let left = directory.unmount_all()?;
        if left > 0 {
            tracing::warn!(mounts = left, "detached what an earlier daemon left mounted");
        }
        for name in ["layers", "fuse"] {
            fs_err::create_dir_all(directory.path.join(name)).map_err(RunError::Io)?;
        }
        Ok(directory)
    }

    /// Where the FUSE session is mounted.
    pub fn fuse(&self) -> PathBuf {
        self.path.join("fuse")
    }

    /// Where a layer is mounted.
    pub fn layer(&self, layer: &LayerDigest) -> PathBuf {
        self.path.join("layers").join(layer.hex())
    }

    /// Detaches everything below the directory, the latest first. Answers how many mounts there were.
    ///
    /// # Errors
    /// The list cannot be read, or the kernel refuses.
    pub fn unmount_all(&self) -> Result<usize, Error> {
        let mut mounts = kernel::mounts_below(&self.path)?;
        mounts.reverse();
        for mount in &mounts {
            kernel::detach(mount)?;
        }
        Ok(mounts.len())
    }
}

/// A layer's place: what is mounted there, if anything is.
#[derive(Debug, Default)]
struct Place {
    layer: Mutex<Option<Arc<Layer>>>,
}

#[derive(Debug)]
struct Entry {
    place: Arc<Place>,
    holds: usize,
    idle_since: Instant,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Mounts {
    run: RunDirectory,
    road: Road,
    served: Arc<Served>,
    entries: Mutex<HashMap<LayerDigest, Entry>>,
}

/// Why a layer cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// It cannot be had.
    #[error(transparent)]
    Layer(#[from] layer::Error),
    /// It cannot be mounted.
    #[error(transparent)]
    Mount(#[from] Error),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mounts {
    /// No mounts yet.
    pub fn new(run: RunDirectory, road: Road, served: Arc<Served>) -> Self {
        Self { run, road, served, entries: Mutex::default() }
    }

    /// Where a layer is mounted while it is held.
    pub fn path(&self, layer: &LayerDigest) -> PathBuf {
        self.run.layer(layer)
    }

    /// Holds a layer, mounting it first if it is not; `open` brings it when it has to be opened.
    ///
    /// # Errors
    /// The layer is then not held.
    pub fn hold(
        &self,
        digest: &LayerDigest,
        open: impl FnOnce() -> Result<Layer, layer::Error>,
    ) -> Result<Arc<Layer>, HoldError> {
        let place = {
            let mut entries = lock(&self.entries);
            let new = || Entry { place: Arc::default(), holds: 0, idle_since: Instant::now() };
            let entry = entries.entry(*digest).or_insert_with(new);
            entry.holds += 1;
            Arc::clone(&entry.place)
        };
        let mut mounted = lock(&place.layer);
        if let Some(layer) = &*mounted {
            return Ok(Arc::clone(layer));
        }
        let result = open().map_err(HoldError::from).and_then(|layer| self.mount(layer));
        match result {
            Ok(layer) => {
                *mounted = Some(Arc::clone(&layer));
                Ok(layer)
            }
            Err(error) => {
                drop(mounted);
                self.release(digest);
                Err(error)
            }
        }
    }

    /// Gives one hold of a layer up.
    pub fn release(&self, digest: &LayerDigest) {
        if let Some(entry) = lock(&self.entries).get_mut(digest) {
            entry.holds = entry.holds.saturating_sub(1);
            entry.idle_since = Instant::now();
        }
    }

    /// Unmounts the layers that nobody has held for `linger`, and answers which.
    pub fn sweep(&self, linger: Duration) -> Vec<LayerDigest> {
        let mut unmounted = Vec::new();
        let mut entries = lock(&self.entries);
        entries.retain(|digest, entry| {
            if entry.holds > 0 || entry.idle_since.elapsed() < linger {
                return true;
            }
            let mounted = lock(&entry.place.layer).take();
            let Some(layer) = mounted else { return false };
            match self.unmount(&layer) {
                Ok(()) => {
                    unmounted.push(*digest);
                    false
                }
                Err(error) => {
                    tracing::error!(layer = %digest, %error, "a layer cannot be unmounted");
                    *lock(&entry.place.layer) = Some(layer);
                    true
                }
            }
        });
        unmounted
    }

    /// Unmounts everything, held or not, the FUSE session too.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn unmount_all(&self) -> Result<(), Error> {
        let mut entries = lock(&self.entries);
        self.run.unmount_all()?;
        for (digest, entry) in entries.drain() {
            if let Some(layer) = lock(&entry.place.layer).take() {
                self.served.withdraw(layer.slot());
            }
            self.remove_mount_point(&digest);
        }
        Ok(())
    }

    /// The number of layers that are mounted, held or not.
    pub fn mounted(&self) -> usize {
        lock(&self.entries).len()
    }

    fn mount(&self, layer: Layer) -> Result<Arc<Layer>, HoldError> {
        // If the kernel has not let go of it since the last time, it goes on with the layer that it knows.
        let layer = self.served.known(layer.slot()).unwrap_or_else(|| Arc::new(layer));
        self.served.offer(&layer);
        let target = self.run.layer(layer.digest());
        let hex = layer.digest().hex();
        let result = kernel::make_mount_point(&target).and_then(|()| match self.road {
            Road::Erofs => kernel::mount_erofs(&layer.metadata_path(), &self.run.fuse().join(hex), &target),
            Road::Fuse => kernel::bind(&self.run.fuse().join(hex), &target),
        });
        if let Err(error) = result {
            self.served.withdraw(layer.slot());
            return Err(error.into());
        }
        tracing::info!(layer = %layer.digest(), path = %target.display(), "mounted a layer");
        Ok(layer)
    }

    fn unmount(&self, layer: &Layer) -> Result<(), Error> {
        kernel::detach(&self.run.layer(layer.digest()))?;
        self.served.withdraw(layer.slot());
        self.remove_mount_point(layer.digest());
        tracing::info!(layer = %layer.digest(), "unmounted a layer");
        Ok(())
    }

    fn remove_mount_point(&self, digest: &LayerDigest) {
        if let Err(error) = fs_err::remove_dir(self.run.layer(digest)) {
            tracing::debug!(%error, "a mount point stays");
        }
    }
}
