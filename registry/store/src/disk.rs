//! Durable changes of a store directory: every change that a store makes goes through here, step by step.
//!
//! Invariant: a file appears under its final name whole and synced, or not at all; when `Disk::publish` has returned,
//! it survives a crash. A test can stop the disk before any [`Step`], as a crash would.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fs_err as fs;

/// How long a lock of a store is waited for. Locks are held for a few file operations; who holds one longer is stopped
/// or on a dead network file system.
const LOCK_DEADLINE: Duration = Duration::from_secs(30);
const LOCK_POLL: Duration = Duration::from_millis(5);

/// One change of the disk, for fault injection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A directory is made.
    MakeDirectory,
    /// A temporary file is written.
    Write,
    /// A file's bytes are made durable.
    SyncFile,
    /// A file gets its final name.
    Rename,
    /// A directory's entries are made durable.
    SyncDirectory,
    /// A file is removed.
    Remove,
}

/// Called before each step; an error stands for the crash.
pub type Hook = Arc<dyn Fn(Step, &Path) -> io::Result<()> + Send + Sync>;

/// The disk under a store.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    hook: Option<Hook>,
}

impl Disk {
    pub(crate) fn with_hook(hook: Hook) -> Self {
        Self { hook: Some(hook) }
    }

    fn step(&self, step: Step, path: &Path) -> io::Result<()> {
        self.hook.as_ref().map_or(Ok(()), |hook| hook(step, path))
    }

    /// Writes a new temporary file. Not durable.
    pub(crate) fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.step(Step::Write, path)?;
        fs::write(path, bytes)
    }

    /// Copies a file to a new temporary file. Not durable.
    pub(crate) fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(Step::Write, to)?;
        let mut source = fs::File::open(from)?;
        let mut target = fs::File::create(to)?;
        // The files themselves, so that the kernel copies; and not `fs::copy`, which copies the mode as well.
        io::copy(source.file_mut(), target.file_mut()).map(|_| ()).map_err(|error| {
            io::Error::new(error.kind(), format!("copying {} to {} failed: {error}", from.display(), to.display()))
        })
    }

    /// Makes the file `temporary` durable and gives it its final name, replacing what is there.
    pub(crate) fn publish(&self, temporary: &Path, path: &Path) -> io::Result<()> {
        self.step(Step::SyncFile, temporary)?;
        fs::OpenOptions::new().write(true).open(temporary)?.sync_all()?;
        let directory = parent(path)?;
        self.make_directories(directory)?;
        self.step(Step::Rename, path)?;
        fs::rename(temporary, path)?;
        self.sync_directory(directory)
    }

    /// Removes a file, durably.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(Step::Remove, path)?;
        fs::remove_file(path)?;
        self.sync_directory(parent(path)?)
    }

    /// Makes a directory and those above it that are missing, durably.
    pub(crate) fn make_directories(&self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        let above = parent(path)?;
        self.make_directories(above)?;
        self.step(Step::MakeDirectory, path)?;
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        self.sync_directory(above)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.step(Step::SyncDirectory, path)?;
        fs::File::open(path)?.sync_all()
    }
}

fn parent(path: &Path) -> io::Result<&Path> {
    path.parent()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{} has no parent", path.display())))
}

/// A lock that is held until it is dropped, or its process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: fs::File,
}

impl Lock {
    /// Takes a lock, waiting for it up to [`LOCK_DEADLINE`].
    pub(crate) fn take(path: &Path) -> io::Result<Self> {
        let deadline = Instant::now() + LOCK_DEADLINE;
        loop {
            if let Some(lock) = Self::try_take(path)? {
                return Ok(lock);
            }
            if Instant::now() >= deadline {
                let message = format!("{} was held by another process for {LOCK_DEADLINE:?}", path.display());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            std::thread::sleep(LOCK_POLL);
        }
    }

    /// Takes a lock unless somebody holds it.
    pub(crate) fn try_take(path: &Path) -> io::Result<Option<Self>> {
        // Open for writing: on NFS an exclusive lock needs it.
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.file().try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(std::fs::TryLockError::WouldBlock) => Ok(None),
            Err(std::fs::TryLockError::Error(error)) => {
                Err(io::Error::new(error.kind(), format!("locking {} failed: {error}", path.display())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_file_is_whole_and_replaces() {
        let directory = tempfile::tempdir().unwrap();
        let (temporary, path) = (directory.path().join("t"), directory.path().join("a/b/c"));
        let disk = Disk::default();
        for text in [b"one", b"two"] {
            disk.write(&temporary, text).unwrap();
            disk.publish(&temporary, &path).unwrap();
            assert_eq!(fs::read(&path).unwrap(), text);
        }
        disk.remove(&path).unwrap();
        assert!(!path.exists() && !temporary.exists());
    }

    #[test]
    fn a_lock_excludes_until_it_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = Lock::take(&path).unwrap();
        assert!(Lock::try_take(&path).unwrap().is_none());
        drop(held);
        assert!(Lock::try_take(&path).unwrap().is_some());
    }
}
