//! Temporary files of a store's writers.
//!
//! Each process that writes has a directory below `tmp`, with a file that it holds locked for as long as it lives. So
//! whatever a killed process left behind can be told from what a live one needs: its lock is free. The next process
//! that opens the store removes it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_err as fs;

use crate::disk::{Access, Disk, Lock};
use crate::layout::{LOCKS, OWNER_LOCK, TMP};

/// Guards making a directory and its lock against a sweeper that sees the one without the other.
const SWEEP_LOCK: &str = "tmp";

/// The directory of one process below `tmp`. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Owned {
    directory: tempfile::TempDir,
    _lock: Lock,
}

impl Owned {
    /// Makes the directory in the store at `root`.
    pub(crate) fn create(disk: &Disk, root: &Path) -> io::Result<Self> {
        let (locks, tmp) = (root.join(LOCKS), root.join(TMP));
        disk.make_directories(&locks)?;
        disk.make_directories(&tmp)?;
        let _sweep = Lock::take(&locks.join(SWEEP_LOCK), Access::Alone)?;
        let directory = tempfile::Builder::new().prefix(&format!("{}-", std::process::id())).tempdir_in(&tmp)?;
        let lock = Lock::take(&directory.path().join(OWNER_LOCK), Access::Alone)?;
        Ok(Self { directory, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// A directory for temporary files inside a store, on its file system. Removed with all that is in it when dropped; by
/// the next opener of the store when the process is killed.
#[derive(Debug)]
pub struct Scratch {
    directory: tempfile::TempDir,
    // Outlives every scratch directory inside it.
    _owned: Arc<Owned>,
}

impl Scratch {
    pub(crate) fn new(owned: &Arc<Owned>) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("scratch-").tempdir_in(owned.path())?;
        Ok(Self { directory, _owned: Arc::clone(owned) })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// What a killed writer left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Its directory below `tmp`.
    pub path: PathBuf,
    /// Bytes of the files in it.
    pub bytes: u64,
}

/// The directories below `tmp` whose owners are dead. With `remove`, they are removed.
///
/// # Errors
/// An I/O error; a store that may only be read cannot be swept.
pub(crate) fn sweep(root: &Path, remove: bool) -> io::Result<Vec<Leftover>> {
    let tmp = root.join(TMP);
    let mut leftovers = Vec::new();
    let entries = match fs::read_dir(&tmp) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(leftovers),
        entries => entries?.collect::<io::Result<Vec<_>>>()?,
    };
    if entries.is_empty() {
        return Ok(leftovers);
    }
    let _sweep = Lock::take(&root.join(LOCKS).join(SWEEP_LOCK), Access::Alone)?;
    for entry in entries {
        match sweep_one(&entry.path(), remove) {
            // Its owner ended meanwhile and removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            leftover => leftovers.extend(leftover?),
        }
    }
    Ok(leftovers)
}

fn sweep_one(path: &Path, remove: bool) -> io::Result<Option<Leftover>> {
    if owner_lives(path)? {
        return Ok(None);
    }
    let leftover = Leftover { bytes: tree_bytes(path)?, path: path.to_owned() };
    match (remove, path.is_dir()) {
        (false, _) => {}
        (true, true) => fs::remove_dir_all(path)?,
        (true, false) => fs::remove_file(path)?,
    }
    Ok(Some(leftover))
}

fn owner_lives(path: &Path) -> io::Result<bool> {
    let lock = path.join(OWNER_LOCK);
    // Without a lock file: its maker died between the two, since we hold the sweep lock.
    Ok(lock.exists() && Lock::try_take(&lock, Access::Alone)?.is_none())
}

fn tree_bytes(path: &Path) -> io::Result<u64> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return Ok(metadata.len());
    }
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        bytes += tree_bytes(&entry?.path())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_dead_are_swept() {
        let root = tempfile::tempdir().unwrap();
        let alive = Arc::new(Owned::create(&Disk::default(), root.path()).unwrap());
        let scratch = Scratch::new(&alive).unwrap();
        let dead = root.path().join(TMP).join("1-dead");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("half"), b"12345").unwrap();
        fs::write(dead.join(OWNER_LOCK), b"").unwrap();

        assert_eq!(sweep(root.path(), false).unwrap(), [Leftover { path: dead.clone(), bytes: 5 }]);
        sweep(root.path(), true).unwrap();
        assert!(!dead.exists() && scratch.path().exists());

        drop(alive);
        assert!(scratch.path().exists(), "a scratch directory keeps its owner alive");
        drop(scratch);
        assert_eq!(fs::read_dir(root.path().join(TMP)).unwrap().count(), 0);
    }
}
