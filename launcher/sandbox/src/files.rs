//! Files of a sandbox, from outside.
//!
//! A path is the tenant's in every step: the kernel resolves it below the sandbox's root (`RESOLVE_IN_ROOT`), as a chroot
//! would, whatever links are swapped meanwhile. Only regular files are opened for their content: a fifo or device that
//! the tenant has put there must not hold us up.

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

const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

fn refused(what: &'static str, path: &str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::Refused { what, path: path.to_owned(), errno }
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
            Err(Errno::EXIST) if self.stat(path)?.st_mode & libc::S_IFMT == libc::S_IFDIR => Ok(()),
            other => other.map_err(refused("create", path)),
        }
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

    /// What is at a path; a link as its last step is not followed.
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

    /// The entries of a directory, in the order of their names.
    ///
    /// # Errors
    /// [`Error`].
    pub fn list(&self, path: &str) -> Result<Vec<Entry>, Error> {
        let root = self.root_for(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat2(&root, path, flags, Mode::empty(), RESOLVE).map_err(refused("open", path))?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&directory).map_err(refused("list", path))? {
            let entry = entry.map_err(refused("list", path))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                entries.push(Entry { name: name.to_vec(), file_type: entry.file_type() });
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
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
