//! A directory of this machine as a [`FileTree`].
//!
//! Everything is reached from descriptors, one name at a time, and no symbolic link is ever followed. Nothing is opened
//! for reading but directories and regular files: a fifo does not block and a device is not touched. How deep a tree is
//! does not matter to the limit of open files (see `place`).

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use dsec_erofs::{Attributes, Device, Timestamp};
use rustix::fs::{FileType, Mode, OFlags, Statx};
use rustix::io::Errno;

use super::place::{self, Place};
use super::xattrs::xattrs_of;
use super::{Content, Error, FileTree, Kind, Node, sparse};

/// An inode reached by descriptor (`O_PATH`), with what the kernel says of it.
#[derive(Debug)]
pub struct Handle {
    at: At,
    stat: Statx,
}

#[derive(Debug)]
enum At {
    Directory(Place),
    Other(Arc<OwnedFd>),
}

impl Handle {
    /// What the kernel says of it.
    #[must_use]
    pub fn stat(&self) -> &Statx {
        &self.stat
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        file_type(&self.stat) == FileType::Directory
    }

    /// Whether it is as it was.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_unchanged(&self) -> Result<bool, Error> {
        Ok(is_same_state(&stat(self.fd()?)?, &self.stat))
    }

    /// Opens it for reading.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        // Through the descriptor, so that what is opened is what was looked at.
        rustix::fs::open(magic_link(self.reach()?), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
    }

    /// The descriptor.
    ///
    /// # Errors
    /// It is a directory far up that was closed meanwhile, and is not where it was, or cannot be opened again.
    pub fn fd(&self) -> Result<Arc<OwnedFd>, Error> {
        self.reach().map_err(failed("open it again"))
    }

    fn reach(&self) -> Result<Arc<OwnedFd>, Errno> {
        match &self.at {
            At::Directory(place) => place.fd(),
            At::Other(fd) => Ok(Arc::clone(fd)),
        }
    }
}

/// For what may have been reached again: by then it may be gone.
fn failed(what: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| match errno {
        Errno::STALE => Error::Changed,
        errno => Error::io(what)(errno),
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Directory {
    root: OwnedFd,
    /// The mount that everything has to be on.
    mount: Option<u64>,
}

impl Directory {
    /// The directory at `path`; the path itself may lead through symbolic links.
    ///
    /// # Errors
    /// It cannot be opened, or is none.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(Error::io("open the directory"))?;
        Ok(Self::from_fd(root))
    }

    /// The directory of a descriptor.
    #[must_use]
    pub fn from_fd(root: OwnedFd) -> Self {
        Self { root, mount: None }
    }

    /// The same, where what another file system is mounted on is an error.
    ///
    /// What is mounted where is told by the mount id, not by the device number: an overlay gives its files the device
    /// numbers of its layers, and btrfs gives each subvolume one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn within_mount(self) -> Result<Self, Error> {
        let mount = Some(stat(&self.root)?.stx_mnt_id);
        Ok(Self { mount, ..self })
    }
}

/// A path to what a descriptor refers to.
pub(crate) fn magic_link(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Looks at a name in a directory without following it.
pub(crate) fn look(directory: &Handle, name: &[u8]) -> Result<Handle, Error> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(directory.fd()?, name, flags, Mode::empty()).map_err(Error::io("open it"))?;
    let stat = stat(&fd)?;
    let at = match &directory.at {
        At::Directory(place) if file_type(&stat) == FileType::Directory => At::Directory(place.below(name, fd, &stat)),
        At::Directory(_) | At::Other(_) => At::Other(Arc::new(fd)),
    };
    Ok(Handle { at, stat })
}

/// What the kernel says of what a descriptor refers to.
pub(crate) fn stat(fd: impl AsFd) -> Result<Statx, Error> {
    place::stat(fd).map_err(Error::io("stat it"))
}

/// Whether neither content nor attributes changed from one to the other.
pub(crate) fn is_same_state(left: &Statx, right: &Statx) -> bool {
    let key = |status: &Statx| {
        let (mtime, ctime) = (status.stx_mtime, status.stx_ctime);
        (status.stx_mode, status.stx_size, mtime.tv_sec, mtime.tv_nsec, ctime.tv_sec, ctime.tv_nsec)
    };
    key(left) == key(right)
}

/// What the kernel's answer means.
pub(crate) fn attributes_of(stat: &Statx) -> Attributes {
    Attributes {
        mode: stat.stx_mode & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        mtime: Timestamp { secs: stat.stx_mtime.tv_sec, nanos: stat.stx_mtime.tv_nsec },
    }
}

fn file_type(stat: &Statx) -> FileType {
    FileType::from_raw_mode(u32::from(stat.stx_mode))
}

fn kind_of(handle: &Handle) -> Result<Kind, Error> {
    let stat = &handle.stat;
    let device = Device { major: stat.stx_rdev_major, minor: stat.stx_rdev_minor };
    Ok(match file_type(stat) {
        FileType::Directory => Kind::Directory,
        FileType::RegularFile => Kind::Regular { bytes: stat.stx_size },
        FileType::Symlink => {
            let target =
                rustix::fs::readlinkat(handle.fd()?, c"", Vec::new()).map_err(Error::io("read the symlink"))?;
            Kind::Symlink(target.into_bytes())
        }
        FileType::CharacterDevice => Kind::CharDevice(device),
        FileType::BlockDevice => Kind::BlockDevice(device),
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::Unknown => {
            return Err(Error::FileType { mode: stat.stx_mode.into() });
        }
    })
}

/// Names in a directory, sorted.
pub(crate) fn names_in(handle: &Handle) -> Result<Vec<Vec<u8>>, Error> {
    let what = "list the directory";
    let fd = handle.open(OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed(what))?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(fd).map_err(Error::io(what))? {
        let entry = entry.map_err(Error::io(what))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// All that is kept of an inode, as it is on disk.
pub(crate) fn node_of(handle: &Handle) -> Result<Node, Error> {
    let stat = &handle.stat;
    let kind = kind_of(handle)?;
    let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    let linked = kind != Kind::Directory && stat.stx_nlink > 1;
    Ok(Node {
        attributes: attributes_of(stat),
        xattrs: xattrs_of(handle.fd()?)?,
        links: linked.then_some((0, device, stat.stx_ino)),
        kind,
    })
}

/// Opens a regular file and finds its data: without touching its access time where that is allowed.
pub(crate) fn content_of(handle: &Handle) -> Result<Content<'static>, Error> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let fd = match handle.open(flags | OFlags::NOATIME) {
        Err(Errno::PERM) => handle.open(flags),
        opened => opened,
    };
    let fd = fd.map_err(Error::io("open it for reading"))?;
    let data = sparse::data_ranges(&fd, handle.stat.stx_size).map_err(Error::io("find its holes"))?;
    Ok(Content::File { file: File::from(fd), data })
}

impl FileTree for Directory {
    type Handle = Handle;

    fn root(&self) -> Result<Handle, Error> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.root, 3).map_err(Error::io("duplicate a descriptor"))?;
        let stat = stat(&fd)?;
        Ok(Handle { at: At::Directory(Place::root(fd, &stat)), stat })
    }

    fn names(&self, directory: &Handle) -> Result<Vec<Vec<u8>>, Error> {
        names_in(directory)
    }

    fn child(&self, directory: &Handle, name: &[u8]) -> Result<Handle, Error> {
        let handle = look(directory, name)?;
        if self.mount.is_some_and(|mount| mount != handle.stat.stx_mnt_id) {
            return Err(Error::OtherFileSystem);
        }
        Ok(handle)
    }

    fn is_directory(&self, handle: &Handle) -> Result<bool, Error> {
        Ok(handle.is_directory())
    }

    fn node(&self, handle: &Handle) -> Result<Node, Error> {
        node_of(handle)
    }

    fn attributes(&self, handle: &Handle) -> Result<Attributes, Error> {
        Ok(attributes_of(&handle.stat))
    }

    fn is_unchanged(&self, directory: &Handle) -> Result<bool, Error> {
        directory.is_unchanged()
    }

    fn content(&self, handle: &Handle) -> Result<Content<'_>, Error> {
        content_of(handle)
    }
}
