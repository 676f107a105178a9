//! Who is writing, so that nothing is removed that a writer relies on.
//!
//! A writer is told that the store has a chunk, does not bring it, and later names it by a layer. Two things keep what it
//! was told true meanwhile: every process that writes holds a lock that all of them share, and what a writer was told is
//! there counts as new from then on ([`LocalStore::rely_on`]). A client of a registry holds no lock, so the second is
//! for it. And should it come back after days: a layer whose chunks are gone is refused, never taken.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use dsec_format::PackDigest;
use fs_err as fs;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};

use super::LocalStore;
use super::unnamed::{self, Unnamed};
use crate::disk::{Access, Lock};
use crate::error::Result;
use crate::layout::{LOCKS, Object};
use crate::scratch::Scratch;
use crate::source::Session;

/// Shared by all processes that write; whoever has it alone knows that nobody does.
const WRITERS_LOCK: &str = "writers";
/// Shared for as long as it takes to name something, or to say that it is there; held alone for removing.
const NAMES_LOCK: &str = "names";
/// What is newer needs not be made newer.
const FRESH: Duration = Duration::from_secs(1);

/// This process among the writers of a store.
#[derive(Debug, Default)]
pub(crate) struct Writers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lock: Option<Lock>,
    /// Sessions that go on.
    sessions: usize,
    /// When something was written, or asked for, last.
    used: Option<Instant>,
}

impl Writers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session with a local store.
pub(super) struct LocalSession<'a> {
    store: &'a LocalStore,
    /// Its time is that of the store's file system, which need not be ours.
    since: SystemTime,
    _scratch: Scratch,
}

impl Session for LocalSession<'_> {
    fn give_up(&mut self) -> Result<Unnamed> {
        if self.store.writers.state().sessions > 1 {
            return Ok(Unnamed::in_use());
        }
        let rule = unnamed::Rule { older_than: Some(Duration::ZERO), since: Some(self.since), alone: true };
        self.store.leave_writers();
        self.store.remove_unnamed(&rule, true)
    }
}

impl Drop for LocalSession<'_> {
    fn drop(&mut self) {
        self.store.writers.state().sessions -= 1;
    }
}

impl LocalStore {
    pub(super) fn begin_session(&self) -> Result<LocalSession<'_>> {
        self.join_writers()?;
        let scratch = self.scratch()?;
        let since = fs::metadata(scratch.path())?.modified()?;
        self.writers.state().sessions += 1;
        Ok(LocalSession { store: self, since, _scratch: scratch })
    }

    /// Takes the lock of those who write, unless this process has it.
    pub(super) fn join_writers(&self) -> Result<()> {
        let mut state = self.writers.state();
        if state.lock.is_none() {
            state.lock = Some(self.lock(WRITERS_LOCK, Access::Shared)?);
        }
        state.used = Some(Instant::now());
        Ok(())
    }

    fn leave_writers(&self) {
        self.writers.state().lock = None;
    }

    /// For processes that live long: lets go of the lock of those who write when nothing was written for `idle`.
    pub fn rest(&self, idle: Duration) {
        let mut state = self.writers.state();
        if state.sessions == 0 && state.used.is_none_or(|used| used.elapsed() >= idle) {
            state.lock = None;
        }
    }

    /// The lock of those who write, when nobody else does. This process itself must not be writing.
    pub(super) fn writers_lock_alone(&self) -> Result<Option<Lock>> {
        if self.writers.state().lock.is_some() {
            return Ok(None);
        }
        let path = self.lock_path(WRITERS_LOCK)?;
        Lock::try_take(&path, Access::Alone).map_err(|error| self.io(error))
    }

    /// Held while something is named, or promised to be there.
    pub(super) fn naming(&self) -> Result<Lock> {
        self.lock(NAMES_LOCK, Access::Shared)
    }

    /// Held while things that nothing names are removed.
    pub(super) fn names_lock_alone(&self) -> Result<Lock> {
        self.lock(NAMES_LOCK, Access::Alone)
    }

    fn lock_path(&self, name: &str) -> Result<std::path::PathBuf> {
        let locks = self.root.join(LOCKS);
        self.disk.make_directories(&locks).map_err(|error| self.io(error))?;
        Ok(locks.join(name))
    }

    fn lock(&self, name: &str, access: Access) -> Result<Lock> {
        Lock::take(&self.lock_path(name)?, access).map_err(|error| self.io(error))
    }

    /// A writer is going to rely on packs: they count as new from now on. Gives those that are gone.
    pub(super) fn rely_on(&self, packs: &BTreeSet<PackDigest>) -> Result<Vec<PackDigest>> {
        let mut gone = Vec::new();
        if packs.is_empty() {
            return Ok(gone);
        }
        let _naming = self.naming()?;
        for pack in packs {
            if !renew(&self.object_path(Object::pack(pack))).map_err(|error| self.io(error))? {
                gone.push(*pack);
            }
        }
        Ok(gone)
    }

    /// As [`LocalStore::rely_on`], for one object of any kind; whether it is there.
    pub(super) fn rely_on_object(&self, object: Object) -> Result<bool> {
        let _naming = self.naming()?;
        renew(&self.object_path(object)).map_err(|error| self.io(error))
    }
}

/// Makes a file count as new; whether it is there.
fn renew(path: &Path) -> io::Result<bool> {
    let modified = match fs::metadata(path) {
        Ok(metadata) => metadata.modified()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if SystemTime::now().duration_since(modified).is_ok_and(|age| age < FRESH) {
        return Ok(true);
    }
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    match utimensat(CWD, path, &times, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        // Whoever may not write there brings nothing either.
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM | rustix::io::Errno::ROFS) => Ok(true),
        Err(error) => {
            let error = io::Error::from(error);
            Err(io::Error::new(error.kind(), format!("setting the time of {} failed: {error}", path.display())))
        }
    }
}
