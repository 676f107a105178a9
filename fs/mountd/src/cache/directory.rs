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

use rustix::fs::FlockOperation;

use crate::private;

/// Content of the file `VERSION`.
const VERSION: &str = "dsec-cache 1\n";

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
    _lock: fs_err::File,
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
        let lock_path = path.join("lock");
        let lock = fs_err::OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(Error::Io)?;
        rustix::fs::flock(lock.file().as_fd(), FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Error::Locked { path: path.to_owned() })?;
        let version_path = path.join("VERSION");
        if was_empty {
            fs_err::write(&version_path, VERSION).map_err(Error::Io)?;
        }
        let found = fs_err::read_to_string(&version_path).unwrap_or_default();
        if found != VERSION {
            return Err(Error::Version { path: path.to_owned(), found: found.chars().take(80).collect() });
        }
        // From here on it is known to be a cache and nothing else.
        private::close(path).map_err(Error::Io)?;
        for name in ["segments", "layers"] {
            fs_err::create_dir_all(path.join(name)).map_err(Error::Io)?;
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
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
