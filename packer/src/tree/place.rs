//! Directories on the way down a tree, with a bound on how many are open, however deep it is.
//!
//! A [`Place`] knows the one above it and its name in that. Of a way down only the last levels stay open, and a few far
//! above; one that was closed is opened again, when it is wanted, from the nearest above it that is open: by name, beneath
//! that, through no symbolic link, and only if it is the directory that it was. Else the answer is `ESTALE`: somebody
//! has moved or replaced it meanwhile.
//!
//! It is not a cache: each place is one directory that somebody is at work in, and closes with it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::{Errno, Result};

/// Levels that stay open, at least; at most three times as many do.
const WINDOW: usize = 32;
/// Of so many levels one stays open for good, so that opening again does not begin at the root.
const KEPT_EVERY: usize = 1024;
/// So many of those, the root among them. Below the last one, opening again takes longer with depth.
const KEPT_MOST: usize = 16;
/// What is opened in one go is a path of fewer bytes; the kernel takes 4095.
const PATH_BYTES: usize = 4000;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Place(Arc<Step>);

#[derive(Debug)]
struct Step {
    above: Option<Above>,
    depth: usize,
    identity: Identity,
    slot: Mutex<Slot>,
}

#[derive(Debug)]
struct Above {
    step: Arc<Step>,
    name: Vec<u8>,
}

#[derive(Debug)]
enum Slot {
    Open(Arc<OwnedFd>),
    Closed,
    /// Nobody is at work in it: not to be kept open.
    Gone,
}

/// Device, inode and mount of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity(u32, u32, u64, u64);

impl Identity {
    fn of(stat: &Statx) -> Self {
        Self(stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino, stat.stx_mnt_id)
    }
}

/// What the kernel says of what a descriptor refers to.
pub(crate) fn stat(fd: impl AsFd) -> Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(fd, c"", flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}

impl Place {
    /// Where a way down begins.
    pub(crate) fn root(fd: OwnedFd, stat: &Statx) -> Self {
        Self::new(None, 0, fd, stat)
    }

    /// A directory that was opened as `name` in this one.
    pub(crate) fn below(&self, name: &[u8], fd: OwnedFd, stat: &Statx) -> Self {
        let above = Above { step: Arc::clone(&self.0), name: name.to_vec() };
        let place = Self::new(Some(above), self.0.depth + 1, fd, stat);
        if place.0.depth.is_multiple_of(WINDOW) {
            place.0.close_far_above();
        }
        place
    }

    fn new(above: Option<Above>, depth: usize, fd: OwnedFd, stat: &Statx) -> Self {
        let slot = Mutex::new(Slot::Open(Arc::new(fd)));
        Self(Arc::new(Step { above, depth, identity: Identity::of(stat), slot }))
    }

    /// The directory, opened again if it was closed.
    ///
    /// # Errors
    /// `ESTALE` when another is there now, or none; else the kernel's.
    pub(crate) fn fd(&self) -> Result<Arc<OwnedFd>> {
        match self.0.open() {
            Some(fd) => Ok(fd),
            None => self.0.reopen(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.0.is_kept() {
            *self.0.slot() = Slot::Gone;
        }
    }
}

impl Step {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Option<Arc<OwnedFd>> {
        match &*self.slot() {
            Slot::Open(fd) => Some(Arc::clone(fd)),
            Slot::Closed | Slot::Gone => None,
        }
    }

    fn is_kept(&self) -> bool {
        self.depth.is_multiple_of(KEPT_EVERY) && self.depth / KEPT_EVERY < KEPT_MOST
    }

    /// What lies a window above, and was not closed when the level a window above came.
    fn close_far_above(&self) {
        let steps = std::iter::successors(self.above.as_ref(), |above| above.step.above.as_ref());
        for Above { step, .. } in steps.skip(WINDOW).take(2 * WINDOW).filter(|above| !above.step.is_kept()) {
            let mut slot = step.slot();
            if matches!(*slot, Slot::Open(_)) {
                *slot = Slot::Closed;
            }
        }
    }

    /// Opens it again, and with it the levels just above: the way leads up from here.
    fn reopen(self: &Arc<Self>) -> Result<Arc<OwnedFd>> {
        let mut closed = Vec::new();
        let mut step = self;
        let mut fd = loop {
            let above = step.above.as_ref().ok_or(Errno::STALE)?;
            closed.push((step, above.name.as_slice()));
            match above.step.open() {
                Some(fd) => break fd,
                None => step = &above.step,
            }
        };
        closed.reverse();
        let (far, near) = closed.split_at(closed.len().saturating_sub(WINDOW));
        if let Some((last, _)) = far.last() {
            fd = last.arrive(open_along(fd.as_fd(), far.iter().map(|(_, name)| *name)))?;
        }
        for (step, name) in near {
            fd = step.arrive(open_along(fd.as_fd(), [*name]))?;
            let mut slot = step.slot();
            if matches!(*slot, Slot::Closed) {
                *slot = Slot::Open(Arc::clone(&fd));
            }
        }
        Ok(fd)
    }

    /// Whether what was opened is this directory.
    fn arrive(&self, opened: Result<OwnedFd>) -> Result<Arc<OwnedFd>> {
        let fd = match opened {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Err(Errno::STALE),
            opened => opened?,
        };
        if Identity::of(&stat(&fd)?) == self.identity { Ok(Arc::new(fd)) } else { Err(Errno::STALE) }
    }
}

impl Drop for Step {
    /// Not recursive: depth costs no stack.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(Above { step, .. }) = above {
            above = Arc::into_inner(step).and_then(|mut step| step.above.take());
        }
    }
}

/// The directory that `names` lead to from `from`, one below the other: beneath it and through no symbolic link.
pub(crate) fn open_along<'a>(from: BorrowedFd<'_>, names: impl IntoIterator<Item = &'a [u8]>) -> Result<OwnedFd> {
    let mut path: Vec<u8> = b".".to_vec();
    let mut reached: Option<OwnedFd> = None;
    for name in names {
        if path.len() + 1 + name.len() > PATH_BYTES {
            reached = Some(open_beneath(reached.as_ref().map_or(from, AsFd::as_fd), &path)?);
            path.truncate(1);
        }
        path.push(b'/');
        path.extend_from_slice(name);
    }
    open_beneath(reached.as_ref().map_or(from, AsFd::as_fd), &path)
}

fn open_beneath(from: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(from, path, flags, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, openat};

    const NAME: &[u8] = b"a-directory";

    /// The way down from a new directory, `depth` levels.
    fn way(root: &std::path::Path, depth: usize) -> Vec<Place> {
        let open = |at: BorrowedFd<'_>, name: &[u8]| {
            let fd = openat(at, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
            let stat = stat(&fd).unwrap();
            (fd, stat)
        };
        let (fd, stat) = open(CWD, root.as_os_str().as_encoded_bytes());
        let mut places = vec![Place::root(fd, &stat)];
        for _ in 0..depth {
            let last = &places[places.len() - 1];
            let at = last.fd().unwrap();
            rustix::fs::mkdirat(&at, NAME, Mode::RWXU).unwrap();
            let (fd, stat) = open(at.as_fd(), NAME);
            let below = last.below(NAME, fd, &stat);
            places.push(below);
        }
        places
    }

    fn open_count(places: &[Place]) -> usize {
        places.iter().filter(|place| place.0.open().is_some()).count()
    }

    #[test]
    fn few_are_open_and_all_are_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut places = way(directory.path(), 3000);
        let most = 3 * WINDOW + KEPT_MOST;
        assert!(open_count(&places) <= most, "{}", open_count(&places));
        // Down again from far above, as a walk of many branches goes.
        for depth in (0..3000).step_by(7) {
            let fd = places[depth].fd().unwrap();
            assert_eq!(Identity::of(&stat(&fd).unwrap()), places[depth].0.identity);
        }
        while let Some(place) = places.pop() {
            let fd = place.fd().unwrap();
            assert_eq!(Identity::of(&stat(&fd).unwrap()), place.0.identity);
            drop(place);
            remove_below(&places);
        }
    }

    #[test]
    fn the_way_up_leaves_few_open() {
        let directory = tempfile::tempdir().unwrap();
        let mut places = way(directory.path(), 2500);
        while places.len() > 1 {
            places.last().unwrap().fd().unwrap();
            assert!(open_count(&places) <= 3 * WINDOW + KEPT_MOST, "{} at {}", open_count(&places), places.len());
            places.pop();
            remove_below(&places);
        }
    }

    /// What is too deep for the drop of a temporary directory.
    fn remove_below(places: &[Place]) {
        if let Some(above) = places.last() {
            rustix::fs::unlinkat(above.fd().unwrap(), NAME, AtFlags::REMOVEDIR).unwrap();
        }
    }

    #[test]
    fn another_directory_in_its_place_is_not_taken_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let places = way(directory.path(), 200);
        let (above, aside) = (places[19].fd().unwrap(), directory.path().join("aside"));
        assert!(places[20].0.open().is_none());
        rustix::fs::renameat(&above, NAME, CWD, &aside).unwrap();
        assert_eq!(places[40].fd().unwrap_err(), Errno::STALE, "it is not there");
        std::os::unix::fs::symlink(&aside, directory.path().join("link")).unwrap();
        rustix::fs::renameat(CWD, directory.path().join("link"), &above, NAME).unwrap();
        assert_eq!(places[40].fd().unwrap_err(), Errno::STALE, "a symlink leads to it");
        rustix::fs::unlinkat(&above, NAME, AtFlags::empty()).unwrap();
        rustix::fs::mkdirat(&above, NAME, Mode::RWXU).unwrap();
        assert_eq!(places[20].fd().unwrap_err(), Errno::STALE, "another is there");
        rustix::fs::unlinkat(&above, NAME, AtFlags::REMOVEDIR).unwrap();
        rustix::fs::renameat(CWD, &aside, &above, NAME).unwrap();
        places[40].fd().unwrap();
    }
}
