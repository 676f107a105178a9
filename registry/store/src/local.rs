//! A store in a local directory: on a disk, or on a file system that several machines share.
//!
//! Invariants: an object appears whole and durable, or not at all; a layer is there only when its chunks were there, an
//! image only when its layers were, a ref only when its target was. Any number of processes may use one directory at a
//! time. There is no database: the directory is all there is, and the chunk index is derived from it.

mod quarantine;
mod read;
mod refs;
pub mod unnamed;
pub mod upload;
mod write;
mod writers;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fs_err as fs;

use crate::disk::{Disk, Hook};
use crate::error::{Damage, Error, Result, is_full};
use crate::index::Index;
use crate::layout::{FORMAT_FILE, FORMAT_LINE, Object};
use crate::scratch::{self, Leftover, Owned, Scratch};

/// Longest part of a foreign `format` file that an error shows.
const SHOWN_FORMAT_BYTES: usize = 40;

/// A store in a local directory.
pub struct LocalStore {
    root: PathBuf,
    disk: Disk,
    index: Index,
    owned: OnceLock<Arc<Owned>>,
    making_owned: Mutex<()>,
    writers: writers::Writers,
}

impl LocalStore {
    /// Makes a store of an empty or missing directory and opens it; opens it when it is a store already.
    ///
    /// # Errors
    /// [`Error::NotAStore`] when something else is in the directory, or an unknown version; an I/O error.
    pub fn create(path: &Path) -> Result<Self> {
        Self::create_on(path, Disk::default())
    }

    /// As [`LocalStore::create`], with a hook before each change of the disk: for tests that simulate a crash.
    ///
    /// # Errors
    /// As [`LocalStore::create`].
    pub fn create_with_hook(path: &Path, hook: Hook) -> Result<Self> {
        Self::create_on(path, Disk::with_hook(hook))
    }

    fn create_on(path: &Path, disk: Disk) -> Result<Self> {
        let format = path.join(FORMAT_FILE);
        // Whoever writes the format has made the directory durable before, so a store that has one is there for good.
        if disk.settle(std::slice::from_ref(&format))?.is_some() {
            disk.make_directories(path)?;
            // A name of its own: two may create one store at a time.
            let temporary = path.join(format!("{FORMAT_FILE}.{}", std::process::id()));
            refuse_foreign_files(path)?;
            disk.write(&temporary, FORMAT_LINE.as_bytes())?;
            disk.publish(&temporary, &format)?;
        }
        Self::open_on(path, disk)
    }

    /// Opens a store and removes what killed writers have left in it.
    ///
    /// # Errors
    /// [`Error::NoStore`] when nothing is there, [`Error::NotAStore`] when the directory is none, or one of an unknown
    /// version; an I/O error.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_on(path, Disk::default())
    }

    fn open_on(path: &Path, mut disk: Disk) -> Result<Self> {
        check_format(path)?;
        disk.set_base(path);
        let store = Self {
            root: path.to_owned(),
            disk,
            index: Index::new(path),
            owned: OnceLock::new(),
            making_owned: Mutex::new(()),
            writers: writers::Writers::default(),
        };
        match scratch::sweep(path, true) {
            Ok(swept) => {
                for leftover in swept {
                    tracing::info!(path = %leftover.path.display(), bytes = leftover.bytes, "removed temporary files of a dead process");
                }
            }
            // Whoever may only read a store leaves sweeping to those who write.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(store)
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// A directory for temporary files, on the store's file system.
    ///
    /// # Errors
    /// An I/O error.
    pub fn scratch(&self) -> Result<Scratch> {
        Scratch::new(self.owned()?).map_err(|error| self.io(error))
    }

    fn owned(&self) -> Result<&Arc<Owned>> {
        if let Some(owned) = self.owned.get() {
            return Ok(owned);
        }
        let _guard = self.making_owned.lock().unwrap_or_else(PoisonError::into_inner);
        if self.owned.get().is_none() {
            let owned = Owned::create(&self.disk, &self.root).map_err(|error| self.io(error))?;
            // Nobody else sets it: `making_owned` is held.
            let _ = self.owned.set(Arc::new(owned));
        }
        Ok(self.owned.get().expect("set above"))
    }

    /// Temporary files of writers that were killed since the store was opened. They are left where they are.
    ///
    /// # Errors
    /// An I/O error.
    pub fn leftovers(&self) -> Result<Vec<Leftover>> {
        scratch::sweep(&self.root, false).map_err(|error| self.io(error))
    }

    fn object_path(&self, object: Object) -> PathBuf {
        object.path(&self.root)
    }

    /// Whether the store has the file of an object. For "whole", see [`crate::Store::has_layer`] and its like.
    ///
    /// # Errors
    /// An I/O error.
    pub fn exists(&self, object: Object) -> Result<bool> {
        match fs::metadata(self.object_path(object)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.io(error)),
        }
    }

    /// Whether the store has the file of an object. If so it will have it after a crash as well, whoever wrote it.
    fn settled(&self, object: Object) -> Result<bool> {
        Ok(self.disk.settle(&[self.object_path(object)]).map_err(|error| self.io(error))?.is_none())
    }

    /// The error for an operation on a file of this store that failed: [`Error::Full`] when that is why.
    fn io(&self, error: io::Error) -> Error {
        if is_full(&error) { Error::Full { store: self.root.display().to_string() } } else { Error::Io(error) }
    }

    fn read_error(&self, object: Object, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::NotFound { self.not_found(object) } else { self.io(error) }
    }

    fn not_found(&self, object: Object) -> Error {
        Error::NotFound { object: object.to_string(), store: self.root.display().to_string() }
    }

    fn damaged(&self, object: Object, damage: impl Into<Damage>) -> Error {
        Error::Damaged {
            object: object.to_string(),
            store: self.object_path(object).display().to_string(),
            source: damage.into(),
        }
    }
}

impl std::fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalStore").field("root", &self.root).finish_non_exhaustive()
    }
}

fn check_format(path: &Path) -> Result<()> {
    let refuse = |reason: String| Err(Error::NotAStore { path: path.to_owned(), reason });
    let bytes = match fs::read(path.join(FORMAT_FILE)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.exists() => {
            return Err(Error::NoStore { path: path.to_owned() });
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return refuse(format!("it has no file {FORMAT_FILE:?}"));
        }
        Err(error) => return Err(error.into()),
    };
    if bytes == FORMAT_LINE.as_bytes() {
        return Ok(());
    }
    let shown = &bytes[..bytes.len().min(SHOWN_FORMAT_BYTES)];
    refuse(format!(
        "its format is {:?}, this program reads {:?}",
        String::from_utf8_lossy(shown).trim_end(),
        FORMAT_LINE.trim_end()
    ))
}

/// A directory that becomes a store holds nothing but what an interrupted `create` left.
fn refuse_foreign_files(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if !name.to_string_lossy().starts_with(FORMAT_FILE) {
            let reason = format!("it is not empty, and has no file {FORMAT_FILE:?}");
            return Err(Error::NotAStore { path: path.to_owned(), reason });
        }
    }
    Ok(())
}
