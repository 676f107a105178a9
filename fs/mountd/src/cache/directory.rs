//! The cache directory: who owns it, and what lies where.
//!
//! ```text
//! VERSION            `dsec-cache 1`
//! lock               held (flock) by the daemon that uses the directory
//! segments/N.data    plain chunks
//! segments/N.index   which chunk lies where in them
//! layers/HEX/        unpacked metadata of layers (with a budget of their own)
//! images/HEX         image records
//! ```
//!
//! The directory has mode 0700: what is in it is the data of tenants.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::FlockOperation;

use crate::private;

/// Content of the file `VERSION`.
const VERSION: &str = "dsec-cache 1\n";

const LOCK: &str = "lock";
/// Directories that are there from the start.
const PARTS: [&str; 2] = ["segments", "layers"];

/// Why a cache cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has it.
    #[error("cache {} is in use by another daemon", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// It has files and none of them says that it is a cache of this version.
    #[error("{} is not a cache that this program reads: its version file says {found:?}", path.display())]
    Version {
        /// The directory.
        path: PathBuf,
        /// What the version file says; empty without one.
        found: String,
    },
    /// It is somebody else's, who could change what is in it.
    #[error("cache {} belongs to user {owner}", path.display())]
    Owner {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The budget is too small.
    #[error("a cache of {budget_bytes} bytes is too small, at least {} are needed", super::MIN_BUDGET_BYTES)]
    Budget {
        /// What was asked for.
        budget_bytes: u64,
    },
    /// An operation on a path failed; the message of the source names it.
    #[error("cache cannot be used")]
    Io(#[source] std::io::Error),
}

/// A cache directory that this process owns.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Held for as long as the value lives: closing it gives the lock up.
    lock: Mutex<fs_err::File>,
}

impl Directory {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        private::create(path).map_err(Error::Io)?;
        let owner = fs_err::metadata(path).map_err(Error::Io)?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            return Err(Error::Owner { path: path.to_owned(), owner });
        }
        let was_empty = fs_err::read_dir(path)
            .map_err(Error::Io)?
            .all(|entry| entry.is_ok_and(|entry| entry.file_name() == "lock" || entry.file_name() == "lost+found"));
        let directory = Self { path: path.to_owned(), lock: Mutex::new(lock_in(path)?) };
        if was_empty {
            fs_err::write(directory.version_path(), VERSION).map_err(Error::Io)?;
        }
        let found = fs_err::read_to_string(directory.version_path()).unwrap_or_default();
        if found != VERSION {
            return Err(Error::Version { path: path.to_owned(), found: found.chars().take(80).collect() });
        }
        // From here on it is known to be a cache and nothing else.
        private::close(path).map_err(Error::Io)?;
        directory.create_parts()?;
        Ok(directory)
    }

    /// Makes again what was removed by hand. A directory that another daemon has begun to use meanwhile is left to it.
    pub(super) fn restore(&self) -> Result<(), Error> {
        private::create(&self.path).map_err(Error::Io)?;
        private::close(&self.path).map_err(Error::Io)?;
        if !self.has_its_lock() {
            let lock = lock_in(&self.path)?;
            *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = lock;
        }
        if !self.version_path().exists() {
            fs_err::write(self.version_path(), VERSION).map_err(Error::Io)?;
        }
        self.create_parts()
    }

    /// Whether nothing of it was removed.
    pub(super) fn is_whole(&self) -> bool {
        self.has_its_lock() && self.version_path().exists() && PARTS.iter().all(|name| self.path.join(name).is_dir())
    }

    /// Writes a little, as a segment is written, and removes it.
    pub(super) fn try_to_write(&self) -> Result<(), Error> {
        let path = self.path.join("segments/tmp-probe");
        let written = fs_err::write(&path, [0; 65_536]);
        let removed = fs_err::remove_file(&path);
        written.and(removed).map_err(Error::Io)
    }

    fn has_its_lock(&self) -> bool {
        let own = self.lock.lock().unwrap_or_else(PoisonError::into_inner).metadata();
        let named = fs_err::metadata(self.path.join(LOCK));
        let id = |metadata: std::io::Result<std::fs::Metadata>| metadata.ok().map(|file| (file.dev(), file.ino()));
        id(own).is_some_and(|own| Some(own) == id(named))
    }

    fn version_path(&self) -> PathBuf {
        self.path.join("VERSION")
    }

    fn create_parts(&self) -> Result<(), Error> {
        PARTS.iter().try_for_each(|name| fs_err::create_dir_all(self.path.join(name))).map_err(Error::Io)
    }

    /// Where the metadata of layers lies.
    pub fn layers(&self) -> PathBuf {
        self.path.join("layers")
    }

    /// Where image records lie.
    pub fn images(&self) -> PathBuf {
        self.path.join("images")
    }

    pub(super) fn segment(&self, number: u32, extension: &str) -> PathBuf {
        self.path.join("segments").join(format!("{number:08x}.{extension}"))
    }

    /// The numbers of the segments, sorted. Other files are left alone.
    pub(super) fn segment_numbers(&self) -> Result<Vec<u32>, Error> {
        let mut numbers = Vec::new();
        for entry in fs_err::read_dir(self.path.join("segments")).map_err(Error::Io)? {
            let name = entry.map_err(Error::Io)?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".data"));
            numbers.extend(number.and_then(|number| u32::from_str_radix(number, 16).ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// Takes the lock of a cache directory.
fn lock_in(path: &Path) -> Result<fs_err::File, Error> {
    let lock = fs_err::OpenOptions::new().create(true).truncate(false).write(true).open(path.join(LOCK));
    let lock = lock.map_err(Error::Io)?;
    rustix::fs::flock(lock.file().as_fd(), FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| Error::Locked { path: path.to_owned() })?;
    Ok(lock)
}
