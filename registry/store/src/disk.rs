//! Durable changes of a store directory: every change that a store makes goes through here, step by step.
//!
//! Invariants: a file appears under its final name whole and synced, or not at all; when `Disk::publish` has returned,
//! it survives a crash. What is *seen* need not be durable: another process may have been killed between giving a name
//! and syncing its directory. So before anything rests on a file or a directory that somebody else has made, its name
//! is made durable here too (`Disk::settle`, `Disk::make_directories`); what is known to be durable is remembered.
//!
//! A test can stop the disk before any [`Step`], as a crash would.

use std::collections::BTreeSet;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fs_err as fs;
use lru::LruCache;

/// How long a lock of a store is waited for. Locks are held for a few file operations; who holds one longer is stopped
/// or on a dead network file system.
const LOCK_DEADLINE: Duration = Duration::from_secs(30);
const LOCK_POLL: Duration = Duration::from_millis(5);
/// Durable names that are remembered, some 10 MiB; one that is forgotten costs a sync of its directory.
const NAMES_KNOWN: NonZeroUsize = NonZeroUsize::new(1 << 16).expect("not zero");

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

/// Which file a name was given to. A name that was given anew must be made durable anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    /// When its inode was changed, which renaming does too, in seconds and nanoseconds; zero for a directory.
    changed: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(metadata: &std::fs::Metadata) -> Self {
        let changed = if metadata.is_dir() { (0, 0) } else { (metadata.ctime(), metadata.ctime_nsec()) };
        Self { device: metadata.dev(), inode: metadata.ino(), changed }
    }
}

/// The disk under a store.
pub(crate) struct Disk {
    hook: Option<Hook>,
    /// A directory that is durable: nothing above it is looked at.
    base: Option<PathBuf>,
    durable: Mutex<LruCache<PathBuf, Stamp>>,
}

impl Default for Disk {
    fn default() -> Self {
        Self { hook: None, base: None, durable: Mutex::new(LruCache::new(NAMES_KNOWN)) }
    }
}

impl Disk {
    pub(crate) fn with_hook(hook: Hook) -> Self {
        Self { hook: Some(hook), ..Self::default() }
    }

    /// Declares a directory durable.
    pub(crate) fn set_base(&mut self, base: &Path) {
        self.base = Some(base.to_owned());
    }

    fn durable(&self) -> MutexGuard<'_, LruCache<PathBuf, Stamp>> {
        // Every entry stands for itself: a panic elsewhere leaves none that is wrong.
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_durable(&self, path: &Path, stamp: Stamp) -> bool {
        self.durable().get(path) == Some(&stamp)
    }

    fn remember(&self, path: &Path, stamp: Stamp) {
        self.durable().put(path.to_owned(), stamp);
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
        let file = fs::OpenOptions::new().write(true).open(temporary)?;
        file.sync_all()?;
        let directory = parent(path)?;
        self.make_directories(directory)?;
        self.step(Step::Rename, path)?;
        fs::rename(temporary, path)?;
        // Of our own file: the name may be somebody else's by now.
        let stamp = Stamp::of(&file.metadata()?);
        self.sync_directory(directory)?;
        self.remember(path, stamp);
        Ok(())
    }

    /// Makes the names of files durable that others may have given. The first one that is not there is given back, and
    /// then nothing has been made durable.
    pub(crate) fn settle(&self, paths: &[PathBuf]) -> io::Result<Option<PathBuf>> {
        let (mut settled, mut directories) = (Vec::new(), BTreeSet::new());
        for path in paths {
            let stamp = match fs::metadata(path) {
                Ok(metadata) => Stamp::of(&metadata),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(path.clone())),
                Err(error) => return Err(error),
            };
            if !self.is_durable(path, stamp) {
                directories.insert(parent(path)?);
                settled.push((path, stamp));
            }
        }
        for directory in directories {
            self.make_directories(directory)?;
            self.sync_directory(directory)?;
        }
        for (path, stamp) in settled {
            self.remember(path, stamp);
        }
        Ok(None)
    }

    /// Makes durable what a name is now, or that it is none: somebody else may have removed it.
    pub(crate) fn settle_name(&self, path: &Path) -> io::Result<()> {
        match self.sync_directory(parent(path)?) {
            // Nor was it ever there.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(()),
            synced => synced,
        }
    }

    /// Removes a file, durably.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(Step::Remove, path)?;
        fs::remove_file(path)?;
        self.durable().pop(path);
        self.sync_directory(parent(path)?)
    }

    /// Makes a directory and those above it that are missing. All of them are durable then, whoever has made them.
    pub(crate) fn make_directories(&self, path: &Path) -> io::Result<()> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if let Some(metadata) = &metadata {
            let is_base = self.base.as_deref() == Some(path);
            if is_base || self.is_durable(path, Stamp::of(metadata)) || is_top(path, metadata)? {
                return Ok(());
            }
        }
        let above = parent(path)?;
        self.make_directories(above)?;
        if metadata.is_none() {
            self.step(Step::MakeDirectory, path)?;
            match fs::create_dir(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        match self.sync_directory(above) {
            // Above a store there are directories that only others may read: no writer of stores has made what is in
            // them.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && metadata.is_some() => {}
            synced => synced?,
        }
        self.remember(path, Stamp::of(&fs::metadata(path)?));
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.step(Step::SyncDirectory, path)?;
        fs::File::open(path)?.sync_all()
    }
}

/// Whether no entry leads to a directory that could be lost: the root, the working directory, a mount point.
fn is_top(path: &Path, metadata: &std::fs::Metadata) -> io::Result<bool> {
    match path.parent() {
        None => Ok(true),
        Some(_) if path == Path::new(".") => Ok(true),
        Some(_) => Ok(fs::metadata(parent(path)?)?.dev() != metadata.dev()),
    }
}

fn parent(path: &Path) -> io::Result<&Path> {
    match path.parent() {
        Some(above) if above.as_os_str().is_empty() => Ok(Path::new(".")),
        Some(above) => Ok(above),
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} has no parent", path.display()))),
    }
}

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// With all others who share it.
    Shared,
    /// By nobody else.
    Alone,
}

/// A lock that is held until it is dropped, or its process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: fs::File,
}

impl Lock {
    /// Takes a lock, waiting for it up to [`LOCK_DEADLINE`].
    pub(crate) fn take(path: &Path, access: Access) -> io::Result<Self> {
        let deadline = Instant::now() + LOCK_DEADLINE;
        loop {
            if let Some(lock) = Self::try_take(path, access)? {
                return Ok(lock);
            }
            if Instant::now() >= deadline {
                let message = format!("{} was held by another process for {LOCK_DEADLINE:?}", path.display());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            std::thread::sleep(LOCK_POLL);
        }
    }

    /// Takes a lock unless somebody holds it in a way that excludes this one.
    pub(crate) fn try_take(path: &Path, access: Access) -> io::Result<Option<Self>> {
        // Open for writing: on NFS an exclusive lock needs it.
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let taken = match access {
            Access::Shared => file.file().try_lock_shared(),
            Access::Alone => file.file().try_lock(),
        };
        match taken {
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
        let is_free = |access| Lock::try_take(&path, access).unwrap().is_some();
        let held = Lock::take(&path, Access::Alone).unwrap();
        assert!(!is_free(Access::Alone) && !is_free(Access::Shared));
        drop(held);
        assert!(is_free(Access::Alone));
        let shared = Lock::take(&path, Access::Shared).unwrap();
        assert!(!is_free(Access::Alone) && is_free(Access::Shared));
        drop(shared);
    }
}
