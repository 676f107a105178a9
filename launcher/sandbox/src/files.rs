//! Files of a sandbox, from outside.
//!
//! A path is the tenant's in every step: the kernel resolves it below the sandbox's root (`RESOLVE_IN_ROOT`), as a chroot
//! would, whatever links are swapped meanwhile, and on the root's own file system only (`RESOLVE_NO_XDEV`). What else is
//! mounted inside (`/proc`, `/dev` with `/dev/shm`, `/sys`) is closed to us: we open with the host's privileges, and
//! `/proc` shows such a reader the host's kernel log and memory map. Only regular files are opened for their content: a
//! fifo or device that the tenant has put there must not hold us up.

use crate::sandbox::Sandbox;
use dsec_sys::creds::FileIds;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, statat};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

/// Why a file of a sandbox could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused.
    #[error("cannot {what} {path} in the sandbox")]
    Refused {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: String,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// It is on, or beyond, something that is mounted in the sandbox.
    #[error("{path} leads to a file system other than the root's, such as /proc or /dev")]
    OtherMount {
        /// Which path.
        path: String,
    },
    /// It is not a regular file.
    #[error("{path} in the sandbox is not a regular file")]
    NotRegular {
        /// Which one.
        path: String,
    },
    /// It is longer than what is read of it.
    #[error("{path} in the sandbox is longer than {bytes_max} bytes")]
    TooLong {
        /// Which one.
        path: String,
        /// The most that is read.
        bytes_max: u64,
    },
}

const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);

fn refused(what: &'static str, path: &str) -> impl FnOnce(Errno) -> Error {
    move |errno| match errno {
        // Nothing but NO_XDEV says that here: nothing is renamed or linked.
        Errno::XDEV => Error::OtherMount { path: path.to_owned() },
        errno => Error::Refused { what, path: path.to_owned(), errno },
    }
}

/// The whole of a small file; empty if there is none.
pub(crate) fn read_small(root: &OwnedFd, path: &str, bytes_max: u64) -> Result<Vec<u8>, Error> {
    let file = match open_regular(root, path) {
        Err(Error::Refused { errno: Errno::NOENT, .. }) => return Ok(Vec::new()),
        other => other?,
    };
    let mut bytes = Vec::new();
    let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed).map_err(refused("read", path))?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::TooLong { path: path.to_owned(), bytes_max });
    }
    Ok(bytes)
}

fn open_regular(root: &OwnedFd, path: &str) -> Result<File, Error> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat2(root, path, flags, Mode::empty(), RESOLVE).map_err(refused("open", path))?;
    regular(file, path)
}

fn regular(file: OwnedFd, path: &str) -> Result<File, Error> {
    let stat = fstat(&file).map_err(refused("look at", path))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(File::from(file)),
        _ => Err(Error::NotRegular { path: path.to_owned() }),
    }
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name, as the bytes that it is.
    pub name: Vec<u8>,
    /// What it is.
    pub file_type: FileType,
}

/// A directory that is being listed; `.` and `..` are left out.
#[derive(Debug)]
pub struct Entries {
    directory: Dir,
    path: String,
}

impl Iterator for Entries {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = match self.directory.read()?.map_err(refused("list", &self.path)) {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error)),
            };
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                return Some(Ok(Entry { name: name.to_vec(), file_type: entry.file_type() }));
            }
        }
    }
}

impl Sandbox {
    fn root_for(&self, path: &str) -> Result<OwnedFd, Error> {
        self.root().map_err(refused("reach", path))
    }

    /// Opens a regular file for reading; links are followed, inside.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open_file(&self, path: &str) -> Result<File, Error> {
        open_regular(&self.root_for(path)?, path)
    }

    /// Opens a regular file for writing from its beginning, made if it is missing. One that is made belongs to `uid` and
    /// `gid`, as inside.
    ///
    /// # Errors
    /// [`Error`].
    pub fn create_file(&self, path: &str, mode: u32, uid: u32, gid: u32) -> Result<File, Error> {
        let root = self.root_for(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = {
            let _ids = self.assume(uid, gid).map_err(refused("create", path))?;
            openat2(&root, path, flags, Mode::from_raw_mode(mode & 0o7777), RESOLVE)
        };
        let file = regular(file.map_err(refused("create", path))?, path)?;
        // Not O_TRUNC: that would have cut a file before it was known to be a regular one.
        rustix::fs::ftruncate(&file, 0).map_err(refused("empty", path))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o7777)).map_err(refused("set the mode of", path))?;
        Ok(file)
    }

    /// Makes a directory; one that is there already is left as it is.
    ///
    /// # Errors
    /// [`Error`].
    pub fn create_directory(&self, path: &str, mode: u32, uid: u32, gid: u32) -> Result<(), Error> {
        let (parent, name) = self.open_parent(path)?;
        let made = {
            let _ids = self.assume(uid, gid).map_err(refused("create", path))?;
            rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(mode & 0o7777))
        };
        match made {
            Err(Errno::EXIST) if self.is_directory(path)? => Ok(()),
            other => other.map_err(refused("create", path)),
        }
    }

    /// Whether a path leads to a directory; a mount point counts as one.
    fn is_directory(&self, path: &str) -> Result<bool, Error> {
        let stat = match self.stat(path) {
            Err(Error::OtherMount { .. }) => self.stat_link(path)?,
            other => other?,
        };
        Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// [`Error`].
    pub fn create_link(&self, target: &str, path: &str, uid: u32, gid: u32) -> Result<(), Error> {
        let (parent, name) = self.open_parent(path)?;
        let _ids = self.assume(uid, gid).map_err(refused("create", path))?;
        rustix::fs::symlinkat(target, &parent, &name).map_err(refused("create", path))
    }

    /// What is at a path; links are followed, inside.
    ///
    /// # Errors
    /// [`Error`].
    pub fn stat(&self, path: &str) -> Result<Stat, Error> {
        let root = self.root_for(path)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = openat2(&root, path, flags, Mode::empty(), RESOLVE).map_err(refused("look at", path))?;
        fstat(&file).map_err(refused("look at", path))
    }

    /// What is at a path; a link as its last step is not followed. Of a mount point, the root of what is mounted.
    ///
    /// # Errors
    /// [`Error`].
    pub fn stat_link(&self, path: &str) -> Result<Stat, Error> {
        let (parent, name) = self.open_parent(path)?;
        statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(refused("look at", path))
    }

    /// Where a symbolic link points, as the bytes that it holds.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read_link(&self, path: &str) -> Result<Vec<u8>, Error> {
        let (parent, name) = self.open_parent(path)?;
        let target = rustix::fs::readlinkat(&parent, &name, Vec::new()).map_err(refused("read the link", path))?;
        Ok(target.into_bytes())
    }

    /// The entries of a directory, as the kernel lists them: in no order, without end if the tenant adds faster than one
    /// reads, and never all in memory.
    ///
    /// # Errors
    /// [`Error`].
    pub fn entries(&self, path: &str) -> Result<Entries, Error> {
        let root = self.root_for(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat2(&root, path, flags, Mode::empty(), RESOLVE).map_err(refused("open", path))?;
        let directory = Dir::new(directory).map_err(refused("list", path))?;
        Ok(Entries { directory, path: path.to_owned() })
    }

    /// The directory that a path's last step is in, and that step.
    fn open_parent(&self, path: &str) -> Result<(OwnedFd, String), Error> {
        let trimmed = path.trim_end_matches('/');
        let (parent, name) = trimmed.rsplit_once('/').unwrap_or((".", trimmed));
        if matches!(name, "" | "." | "..") {
            return Err(refused("name", path)(Errno::INVAL));
        }
        let root = self.root_for(path)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = if parent.is_empty() { "/" } else { parent };
        let directory =
            openat2(root.as_fd(), parent, flags, Mode::empty(), RESOLVE).map_err(refused("open", parent))?;
        Ok((directory, name.to_owned()))
    }

    fn assume(&self, uid: u32, gid: u32) -> Result<FileIds, Errno> {
        if uid >= crate::spec::IDS || gid >= crate::spec::IDS {
            return Err(Errno::INVAL);
        }
        FileIds::assume(self.state.id_base + uid, self.state.id_base + gid)
    }
}
