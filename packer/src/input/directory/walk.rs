//! From a directory to a tree: all that is not file data.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dsec_erofs::{Attributes, Device, FileType, InodeId, Kind, Timestamp, Tree};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, Statx, StatxFlags};

use crate::input::xattr::Reader;
use crate::input::{Error, Surroundings};
use crate::monitor::Stage;
use crate::paths::Shown;

/// Which inode something is, over all file systems.
type Identity = (u32, u32, u64);

struct Walker<'a> {
    tree: Tree,
    /// Inodes with more than one link, so that the others are found again.
    links: HashMap<Identity, InodeId>,
    xattrs: Reader,
    /// Of the directory that is being read; at its end the entry in hand.
    path: Vec<u8>,
    /// What everything has to be on, unless mounts are crossed.
    root_mount: Option<u64>,
    surroundings: Surroundings<'a>,
}

/// A directory that is being read.
struct Level {
    dir: Dir,
    inode: InodeId,
    path_bytes: usize,
    before: Statx,
    entries: u64,
}

/// Walks everything below `root`.
pub(super) fn walk(root: &OwnedFd, cross_mounts: bool, surroundings: Surroundings<'_>) -> Result<Tree, Error> {
    surroundings.monitor.begin(Stage::Walk, None);
    let status = stat(root.as_fd(), b"").map_err(Error::entry("stat", b""))?;
    let mut walker = Walker {
        tree: Tree::new(attributes(&status)).map_err(Error::keep(b""))?,
        links: HashMap::new(),
        xattrs: Reader::default(),
        path: Vec::new(),
        root_mount: (!cross_mounts).then_some(status.stx_mnt_id),
        surroundings,
    };
    let mut levels = vec![walker.enter(root.as_fd(), b".", Tree::ROOT, &status)?];
    while let Some(level) = levels.last_mut() {
        walker.path.truncate(level.path_bytes);
        match walker.step(level)? {
            Step::Entry => {}
            Step::Down(below) => levels.push(*below),
            Step::Up => {
                levels.pop();
            }
        }
    }
    Ok(walker.tree)
}

enum Step {
    Entry,
    Down(Box<Level>),
    Up,
}

impl Walker<'_> {
    /// Opens the directory `name` in `parent`, which is the root itself for `.`.
    fn enter(&mut self, parent: BorrowedFd<'_>, name: &[u8], inode: InodeId, seen: &Statx) -> Result<Level, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(Error::entry("open", &self.path))?;
        let before = stat(fd.as_fd(), b"").map_err(Error::entry("stat", &self.path))?;
        if identity(&before) != identity(seen) || changed(&before, seen) {
            return Err(Error::Changed { path: Shown::new(&self.path) });
        }
        let xattrs = self.xattrs.of_open(&fd, &self.path)?;
        self.tree.set_xattrs(inode, &xattrs.pairs()).map_err(Error::keep(&self.path))?;
        let dir = Dir::new(fd).map_err(Error::entry("read", &self.path))?;
        Ok(Level { dir, inode, path_bytes: self.path.len(), before, entries: 0 })
    }

    fn step(&mut self, level: &mut Level) -> Result<Step, Error> {
        let entry = match level.dir.read() {
            Some(entry) => entry.map_err(Error::entry("read", &self.path))?,
            None => return self.leave(level),
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            return Ok(Step::Entry);
        }
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        level.entries += 1;
        let fd = level.dir.fd().map_err(Error::entry("read", &self.path))?;
        self.entry(fd, level.inode, name)
    }

    fn leave(&mut self, level: &Level) -> Result<Step, Error> {
        self.surroundings.cancel.check()?;
        let fd = level.dir.fd().map_err(Error::entry("read", &self.path))?;
        let after = stat(fd, b"").map_err(Error::entry("stat", &self.path))?;
        if changed(&after, &level.before) {
            return Err(Error::Changed { path: Shown::new(&self.path) });
        }
        self.surroundings.monitor.advance(level.entries);
        Ok(Step::Up)
    }

    fn entry(&mut self, fd: BorrowedFd<'_>, parent: InodeId, name: &[u8]) -> Result<Step, Error> {
        let status = stat(fd, name).map_err(Error::entry("stat", &self.path))?;
        if self.root_mount.is_some_and(|root| root != status.stx_mnt_id) {
            return Err(Error::OtherFileSystem { path: Shown::new(&self.path) });
        }
        let file_type = FileType::from_mode(status.stx_mode)
            .ok_or_else(|| Error::FileType { path: Shown::new(&self.path), mode: status.stx_mode.into() })?;
        let has_links = file_type != FileType::Directory && status.stx_nlink > 1;
        let known = if has_links { self.links.get(&identity(&status)).copied() } else { None };
        let inode = match known {
            Some(inode) => inode,
            None => self.add(fd, name, file_type, &status)?,
        };
        self.tree.link(parent, name, inode).map_err(Error::keep(&self.path))?;
        if file_type == FileType::Directory {
            return Ok(Step::Down(Box::new(self.enter(fd, name, inode, &status)?)));
        }
        if known.is_none() {
            let xattrs = self.xattrs.of_entry(fd, name, &self.path)?;
            self.tree.set_xattrs(inode, &xattrs.pairs()).map_err(Error::keep(&self.path))?;
        }
        if has_links {
            self.links.insert(identity(&status), inode);
        }
        Ok(Step::Entry)
    }

    fn add(&mut self, fd: BorrowedFd<'_>, name: &[u8], file_type: FileType, status: &Statx) -> Result<InodeId, Error> {
        let device = Device { major: status.stx_rdev_major, minor: status.stx_rdev_minor };
        let target;
        let kind = match file_type {
            FileType::Directory => Kind::Directory,
            FileType::Regular => Kind::Regular { bytes: status.stx_size },
            FileType::Symlink => {
                target = rustix::fs::readlinkat(fd, name, Vec::new()).map_err(Error::entry("read", &self.path))?;
                Kind::Symlink(target.to_bytes())
            }
            FileType::CharDevice => Kind::CharDevice(device),
            FileType::BlockDevice => Kind::BlockDevice(device),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
        };
        self.tree.add(attributes(status), kind).map_err(Error::keep(&self.path))
    }
}

/// The status of `name` in `fd`, or of `fd` itself when there is no name.
///
/// What is mounted where is told by the mount id, not by the device number: an overlay gives its files the device
/// numbers of its layers, and btrfs gives each subvolume one.
pub(super) fn stat(fd: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let flags = if name.is_empty() { flags | AtFlags::EMPTY_PATH } else { flags };
    rustix::fs::statx(fd, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}

pub(super) fn attributes(status: &Statx) -> Attributes {
    Attributes {
        mode: status.stx_mode & 0o7777,
        uid: status.stx_uid,
        gid: status.stx_gid,
        mtime: Timestamp { secs: status.stx_mtime.tv_sec, nanos: status.stx_mtime.tv_nsec },
    }
}

fn identity(status: &Statx) -> Identity {
    (status.stx_dev_major, status.stx_dev_minor, status.stx_ino)
}

/// Whether content or metadata changed from one status to the other.
pub(super) fn changed(left: &Statx, right: &Statx) -> bool {
    let key = |status: &Statx| {
        let (mtime, ctime) = (status.stx_mtime, status.stx_ctime);
        (status.stx_mode, status.stx_size, mtime.tv_sec, mtime.tv_nsec, ctime.tv_sec, ctime.tv_nsec)
    };
    key(left) != key(right)
}
