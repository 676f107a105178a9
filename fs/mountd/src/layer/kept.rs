//! The layers that are unpacked on this node: their directories, their slots, and which of them go.
//!
//! The modification time of a layer's slot file says when the layer was opened last.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use dsec_format::{LayerDigest, image};

use super::{Error, Layer, MAX_SLOTS, SLOT_FILE, parse_slot, unpack};

/// The unpacked layers of a node, within a budget; what nobody uses goes first.
#[derive(Debug)]
pub struct Layers {
    root: PathBuf,
    budget_bytes: u64,
    /// Every slot that a layer has had in the life of this process, or had before it: none is given twice while the kernel
    /// may know what had it.
    slots: Mutex<BTreeSet<u32>>,
    /// By the name of the directory. Who uses one holds the strong side.
    in_use: Mutex<HashMap<String, Weak<()>>>,
}

/// A directory that may go.
#[derive(Debug)]
struct Kept {
    path: PathBuf,
    name: String,
    used: SystemTime,
    bytes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Layers {
    /// The layers below `root`, which are to use `budget_bytes` on the disk, more only while more are in use. What an
    /// interrupted unpacking left is removed, and a layer without a slot of its own.
    ///
    /// # Errors
    /// The directory cannot be read or cleaned.
    pub fn open(root: &Path, budget_bytes: u64) -> std::io::Result<Self> {
        let mut slots = BTreeSet::new();
        for entry in fs_err::read_dir(root)? {
            let entry = entry?;
            let path = entry.path();
            if !entry.file_type()?.is_dir() {
                fs_err::remove_file(path)?;
                continue;
            }
            let slot = fs_err::read_to_string(path.join(SLOT_FILE)).ok().and_then(|text| parse_slot(&text));
            let unfinished = entry.file_name().to_string_lossy().starts_with("tmp-");
            if unfinished || !slot.is_some_and(|slot| slots.insert(slot)) {
                fs_err::remove_dir_all(path)?;
            }
        }
        let layers = Self { root: root.to_owned(), budget_bytes, slots: Mutex::new(slots), in_use: Mutex::default() };
        layers.make_room();
        Ok(layers)
    }

    /// Bytes on the disk and number of the layers.
    pub fn used(&self) -> (u64, u64) {
        let kept = self.kept().unwrap_or_default();
        (kept.iter().map(|layer| layer.bytes).sum(), kept.len() as u64)
    }

    /// Where a layer is, or would be.
    pub fn directory(&self, layer: &LayerDigest) -> PathBuf {
        self.root.join(layer.hex())
    }

    /// Opens a layer, unpacking it with `stream` when it is not there or is damaged. Its directory stays for as long as
    /// the value lives.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open_or_unpack(
        &self,
        record: &image::LayerRecord,
        stream: impl FnOnce() -> Result<Box<dyn std::io::Read + Send>, dsec_store::Error>,
    ) -> Result<Layer, Error> {
        let in_use = self.use_of(&record.digest);
        let layer = self.open_or_unpack_used(record, stream)?;
        // A fresh value: nobody has set it.
        layer.in_use.get_or_init(|| in_use);
        Ok(layer)
    }

    fn open_or_unpack_used(
        &self,
        record: &image::LayerRecord,
        stream: impl FnOnce() -> Result<Box<dyn std::io::Read + Send>, dsec_store::Error>,
    ) -> Result<Layer, Error> {
        let io = |source| Error::Io { layer: record.digest, source };
        let directory = self.directory(&record.digest);
        if directory.exists() {
            match Layer::open(&record.digest, &directory) {
                Ok(layer) => {
                    touch(&directory.join(SLOT_FILE)).map_err(io)?;
                    return Ok(layer);
                }
                Err(error) => tracing::warn!(layer = %record.digest, %error, "a local layer is unpacked again"),
            }
        }
        let temporary = self.root.join(format!("tmp-{}", record.digest.hex()));
        remove_directory(&temporary).map_err(io)?;
        // What is above it may have been removed by hand.
        fs_err::create_dir_all(&temporary).map_err(io)?;
        let unpacked = stream().map_err(Error::from).and_then(|stream| unpack(&record.digest, stream, &temporary));
        if let Err(error) = unpacked.and_then(|()| self.settle(&record.digest, &temporary, &directory)) {
            remove_directory(&temporary).map_err(io)?;
            return Err(error);
        }
        self.make_room();
        Layer::open(&record.digest, &directory)
    }

    fn use_of(&self, layer: &LayerDigest) -> Arc<()> {
        let mut in_use = lock(&self.in_use);
        in_use.retain(|_, user| user.strong_count() > 0);
        let known = in_use.get(&layer.hex()).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let user = Arc::new(());
            in_use.insert(layer.hex(), Arc::downgrade(&user));
            user
        })
    }

    /// Gives the layer in `temporary` a slot and its place.
    fn settle(&self, layer: &LayerDigest, temporary: &Path, directory: &Path) -> Result<(), Error> {
        let io = |source| Error::Io { layer: *layer, source };
        let slot = {
            let mut slots = lock(&self.slots);
            let before = fs_err::read_to_string(directory.join(SLOT_FILE)).ok().and_then(|text| parse_slot(&text));
            let free = || (1..MAX_SLOTS).find(|slot| !slots.contains(slot));
            let slot = before.or_else(free).ok_or(Error::Slots { layer: *layer })?;
            slots.insert(slot);
            slot
        };
        fs_err::write(temporary.join(SLOT_FILE), slot.to_string()).map_err(io)?;
        remove_directory(directory).map_err(io)?;
        fs_err::rename(temporary, directory).map_err(io)
    }

    /// Removes layers that nobody uses, the longest unused first, until the rest fit the budget. What goes wrong is logged:
    /// it costs disk space and no read.
    fn make_room(&self) {
        if let Err(error) = self.remove_unused() {
            tracing::warn!(%error, "unused layers stay on the disk");
        }
    }

    fn remove_unused(&self) -> std::io::Result<()> {
        let mut kept = self.kept()?;
        kept.sort_by_key(|layer| layer.used);
        let mut bytes: u64 = kept.iter().map(|layer| layer.bytes).sum();
        for layer in kept {
            if bytes <= self.budget_bytes {
                break;
            }
            let gone = self.root.join(format!("tmp-gone-{}", layer.name));
            {
                // Under the lock nobody begins to use it; renamed, nobody finds it.
                let in_use = lock(&self.in_use);
                if in_use.get(&layer.name).is_some_and(|user| user.strong_count() > 0) {
                    continue;
                }
                remove_directory(&gone)?;
                fs_err::rename(&layer.path, &gone)?;
            }
            remove_directory(&gone)?;
            bytes -= layer.bytes;
            tracing::info!(layer = layer.name, bytes = layer.bytes, "removed the metadata of an unused layer");
        }
        Ok(())
    }

    /// All settled layers. One that goes meanwhile is left out.
    fn kept(&self) -> std::io::Result<Vec<Kept>> {
        let mut kept = Vec::new();
        for entry in fs_err::read_dir(&self.root)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with("tmp-") {
                continue;
            }
            let path = entry.path();
            let used = fs_err::metadata(path.join(SLOT_FILE)).and_then(|metadata| metadata.modified());
            if let (Ok(used), Ok(bytes)) = (used, disk_bytes(&path)) {
                kept.push(Kept { path, name, used, bytes });
            }
        }
        Ok(kept)
    }
}

fn disk_bytes(directory: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in fs_err::read_dir(directory)? {
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}

/// Notes that a file was used just now, by its modification time.
pub(crate) fn touch(path: &Path) -> std::io::Result<()> {
    fs_err::OpenOptions::new().write(true).open(path)?.file().set_modified(SystemTime::now())
}

fn remove_directory(path: &Path) -> std::io::Result<()> {
    match fs_err::remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
