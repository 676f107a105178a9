//! Makes the entries of a tree below a directory.
//!
//! Order within an entry: bytes, owner, xattrs, mode, time. A change of owner clears set-id bits and capabilities, a write
//! clears capabilities and moves the time, an ACL changes the mode. Order within a directory: itself last, because its
//! entries move its time, its ACL would be inherited, and its mode may forbid them.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use dsec_erofs::{Attributes, Device};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::{Error, Owners, Stats, entry_error, is_device, is_privileged};
use crate::Cancel;
use crate::chunks::ChunkReader;
use crate::monitor::Monitor;
use crate::tree::directory::magic_link;
use crate::tree::place::{self, Place, open_along};
use crate::tree::{FileTree, Identity, Kind, Node, PathError, show};
use crate::view::{Handle, View};

/// Fills a directory with what a view shows.
pub(super) struct Writer<'a, 's> {
    view: &'a View<'a>,
    chunks: &'a ChunkReader<'s>,
    owners: Owners,
    monitor: &'a dyn Monitor,
    cancel: &'a Cancel,
    /// First paths of inodes that may have several names.
    linked: HashMap<Identity, Vec<u8>>,
    stats: Stats,
    path: Vec<u8>,
}

/// A directory that is being filled.
struct Level {
    handle: Handle,
    node: Node,
    place: Place,
    path_bytes: usize,
    names: std::vec::IntoIter<Vec<u8>>,
}

impl<'a, 's> Writer<'a, 's> {
    pub(super) fn new(
        view: &'a View<'a>,
        chunks: &'a ChunkReader<'s>,
        owners: Owners,
        monitor: &'a dyn Monitor,
        cancel: &'a Cancel,
    ) -> Self {
        let (linked, stats, path) = (HashMap::new(), Stats::default(), Vec::new());
        Self { view, chunks, owners, monitor, cancel, linked, stats, path }
    }

    pub(super) fn stats(&self) -> Stats {
        self.stats
    }

    /// Makes everything below `root`, and gives `root` itself its attributes.
    pub(super) fn run(&mut self, root: BorrowedFd<'_>) -> Result<(), Error> {
        let handle = self.of_image(self.view.root())?;
        let node = self.of_image(self.view.node(&handle))?;
        let fd = rustix::io::fcntl_dupfd_cloexec(root, 3).map_err(entry_error("open", &self.path))?;
        let stat = place::stat(&fd).map_err(entry_error("stat", &self.path))?;
        let mut levels = vec![self.enter(handle, node, Place::root(fd, &stat))?];
        while let Some(level) = levels.last_mut() {
            self.cancel.check()?;
            self.path.truncate(level.path_bytes);
            let Some(name) = level.names.next() else {
                self.finish(self.reach(&level.place)?, &level.node)?;
                levels.pop();
                continue;
            };
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            let handle = self.of_image(self.view.child(&level.handle, &name))?;
            let node = self.of_image(self.view.node(&handle))?;
            if node.kind == Kind::Directory {
                let place = self.make_directory(&level.place, &name)?;
                levels.push(self.enter(handle, node, place)?);
            } else {
                let parent = self.reach(&level.place)?;
                self.make(root, &parent, &name, &handle, &node)?;
            }
        }
        Ok(())
    }

    fn of_image<T>(&self, result: Result<T, crate::tree::Error>) -> Result<T, Error> {
        Ok(result.map_err(PathError::at(&self.path))?)
    }

    fn enter(&mut self, handle: Handle, node: Node, place: Place) -> Result<Level, Error> {
        self.stats.entries += 1;
        let names = self.of_image(self.view.names(&handle))?.into_iter();
        Ok(Level { handle, node, place, path_bytes: self.path.len(), names })
    }

    fn reach(&self, place: &Place) -> Result<Arc<OwnedFd>, Error> {
        place.fd().map_err(entry_error("reach", &self.path))
    }

    fn make_directory(&self, parent: &Place, name: &[u8]) -> Result<Place, Error> {
        let above = self.reach(parent)?;
        rustix::fs::mkdirat(&above, name, Mode::RWXU).map_err(entry_error("make", &self.path))?;
        let fd = open_along(above.as_fd(), [name]).map_err(entry_error("open", &self.path))?;
        let stat = place::stat(&fd).map_err(entry_error("stat", &self.path))?;
        Ok(parent.below(name, fd, &stat))
    }

    /// Makes an entry that is no directory.
    fn make(
        &mut self,
        root: BorrowedFd<'_>,
        parent: &OwnedFd,
        name: &[u8],
        handle: &Handle,
        node: &Node,
    ) -> Result<(), Error> {
        if is_device(&node.kind) && self.owners == Owners::Own {
            return Ok(());
        }
        self.stats.entries += 1;
        if let Some(identity) = node.links {
            if let Some(first) = self.linked.get(&identity) {
                return link(root, first, parent, name).map_err(entry_error("link", &self.path));
            }
            self.linked.insert(identity, self.path.clone());
        }
        match &node.kind {
            Kind::Regular { bytes } => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let fd = rustix::fs::openat2(parent, name, flags, Mode::RUSR | Mode::WUSR, BENEATH)
                    .map_err(entry_error("make", &self.path))?;
                let file = File::from(fd);
                self.write(&file, handle, *bytes)?;
                self.finish(&file, node)
            }
            Kind::Symlink(target) => {
                rustix::fs::symlinkat(target.as_slice(), parent, name).map_err(entry_error("make", &self.path))?;
                self.finish(&self.look(parent, name)?, node)
            }
            Kind::CharDevice(device) => self.make_special(parent, name, node, FileType::CharacterDevice, *device),
            Kind::BlockDevice(device) => self.make_special(parent, name, node, FileType::BlockDevice, *device),
            Kind::Fifo => self.make_special(parent, name, node, FileType::Fifo, Device::default()),
            Kind::Socket => self.make_special(parent, name, node, FileType::Socket, Device::default()),
            // Its caller makes it, fills it and finishes it.
            Kind::Directory => Ok(()),
        }
    }

    fn make_special(
        &self,
        parent: &OwnedFd,
        name: &[u8],
        node: &Node,
        file_type: FileType,
        device: Device,
    ) -> Result<(), Error> {
        let number = rustix::fs::makedev(device.major, device.minor);
        rustix::fs::mknodat(parent, name, file_type, Mode::RUSR | Mode::WUSR, number)
            .map_err(entry_error("make", &self.path))?;
        self.finish(&self.look(parent, name)?, node)
    }

    fn look(&self, parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Error> {
        // O_PATH of a symlink is the symlink; RESOLVE_NO_SYMLINKS would refuse it.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat2(parent, name, flags, Mode::empty(), ResolveFlags::BENEATH)
            .map_err(entry_error("open", &self.path))
    }

    fn write(&mut self, file: &File, handle: &Handle, bytes: u64) -> Result<(), Error> {
        let mut end = 0;
        for piece in self.of_image(self.view.pieces(handle))? {
            self.cancel.check()?;
            let piece = self.of_image(piece)?;
            let content = self.chunks.piece(&piece);
            let content =
                content.map_err(|source| Error::Content { path: show(&self.path), source: Box::new(source) })?;
            file.write_all_at(&content, piece.file_offset).map_err(|source| Error::Entry {
                what: "write",
                path: show(&self.path),
                source,
            })?;
            end = piece.file_end();
            self.stats.bytes += u64::from(piece.bytes);
            self.monitor.advance(u64::from(piece.bytes));
        }
        if end != bytes {
            rustix::fs::ftruncate(file, bytes).map_err(entry_error("set the size of", &self.path))?;
        }
        Ok(())
    }

    /// Owner, xattrs, mode and time of what a descriptor refers to.
    fn finish(&self, fd: impl AsFd, node: &Node) -> Result<(), Error> {
        // By the descriptor's link in /proc, which works for what cannot be opened (symlinks, devices) too.
        let path = magic_link(&fd);
        let Attributes { mode, uid, gid, mtime } = node.attributes;
        if self.owners == Owners::Same {
            let ids = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chown(path.as_str(), ids.0, ids.1).map_err(entry_error("set the owner of", &self.path))?;
        }
        for (name, value) in &node.xattrs {
            if self.owners == Owners::Own && is_privileged(name) {
                continue;
            }
            rustix::fs::setxattr(path.as_str(), name.as_slice(), value, XattrFlags::empty())
                .map_err(entry_error("set an xattr of", &self.path))?;
        }
        if !matches!(node.kind, Kind::Symlink(_)) {
            rustix::fs::chmod(path.as_str(), Mode::from_raw_mode(u32::from(mode)))
                .map_err(entry_error("set the mode of", &self.path))?;
        }
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() },
        };
        rustix::fs::utimensat(rustix::fs::CWD, path.as_str(), &times, AtFlags::empty())
            .map_err(entry_error("set the time of", &self.path))
    }
}

/// Never above the directory, never through a symlink.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// Another name for what was made at path `first` below `root`.
fn link(root: BorrowedFd<'_>, first: &[u8], parent: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    let mut names: Vec<&[u8]> = first.split(|byte| *byte == b'/').collect();
    let last = names.pop().unwrap_or_default();
    rustix::fs::linkat(&open_along(root, names)?, last, parent, name, AtFlags::empty())
}
