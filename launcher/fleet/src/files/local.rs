//! A directory of this machine, for copies into and out of sandboxes.
//!
//! No path below it goes through a symbolic link: what a sandbox sends cannot place a link and then write through it.
//! Owners are not set: what arrives belongs to whom the copy is made by.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{Error, Info, Names, Tree};

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// A directory of this machine.
#[derive(Debug)]
pub struct Local {
    directory: OwnedFd,
    path: PathBuf,
}

impl Local {
    /// The directory at `path`; links on the way to it are followed.
    ///
    /// # Errors
    /// [`Error::Local`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| Error::Local {
            what: "open",
            path: path.to_owned(),
            errno,
        })?;
        Ok(Self { directory, path: path.to_owned() })
    }

    fn refused(&self, what: &'static str, path: &str) -> impl FnOnce(Errno) -> Error {
        let path = self.path.join(path);
        move |errno| Error::Local { what, path, errno }
    }

    fn at(&self, path: &str, flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { "." } else { path };
        rustix::fs::openat2(&self.directory, path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode), RESOLVE)
    }

    fn parent_of(&self, path: &str) -> Result<(OwnedFd, String), Error> {
        let name = super::last_step(path).ok_or(Errno::INVAL).map_err(self.refused("name", path))?;
        let parent = super::parent(path);
        let directory = self.at(parent, OFlags::PATH | OFlags::DIRECTORY, 0).map_err(self.refused("open", parent))?;
        Ok((directory, name.to_owned()))
    }

    fn regular(&self, file: OwnedFd, path: &str) -> Result<(File, Info), Error> {
        let stat = rustix::fs::fstat(&file).map_err(self.refused("look at", path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::NotRegular { path: self.path.join(path) });
        }
        Ok((File::from(file), Info::of(&stat, 0)))
    }
}

impl Tree for Local {
    fn look(&self, path: &str) -> Result<Info, Error> {
        if super::last_step(path).is_none() {
            return self.look_through(path);
        }
        let (parent, name) = self.parent_of(path)?;
        let stat = rustix::fs::statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW);
        Ok(Info::of(&stat.map_err(self.refused("look at", path))?, 0))
    }

    fn look_through(&self, path: &str) -> Result<Info, Error> {
        let file = self.at(path, OFlags::PATH, 0).map_err(self.refused("look at", path))?;
        let stat = rustix::fs::fstat(&file).map_err(self.refused("look at", path))?;
        Ok(Info::of(&stat, 0))
    }

    fn names(&self, path: &str) -> Result<Names, Error> {
        let directory = self.at(path, OFlags::RDONLY | OFlags::DIRECTORY, 0).map_err(self.refused("open", path))?;
        let mut directory = Dir::new(directory).map_err(self.refused("list", path))?;
        let path = self.path.join(path);
        let names = std::iter::from_fn(move || directory.read());
        Ok(Box::new(names.filter_map(move |entry| match entry {
            Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => None,
            Ok(entry) => Some(Ok(entry.file_name().to_bytes().to_vec())),
            Err(errno) => Some(Err(Error::Local { what: "list", path: path.clone(), errno })),
        })))
    }

    fn read_link(&self, path: &str) -> Result<Vec<u8>, Error> {
        let (parent, name) = self.parent_of(path)?;
        let target = rustix::fs::readlinkat(&parent, &name, Vec::new()).map_err(self.refused("read the link", path))?;
        Ok(target.into_bytes())
    }

    fn open(&self, path: &str) -> Result<(impl Read, Info), Error> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.regular(self.at(path, flags, 0).map_err(self.refused("open", path))?, path)
    }

    fn create(&self, path: &str, mode: u32, _owner: (u32, u32)) -> Result<impl Write, Error> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.at(path, flags, mode & 0o777).map_err(self.refused("create", path))?;
        let (file, _) = self.regular(file, path)?;
        rustix::fs::ftruncate(file.as_fd(), 0).map_err(self.refused("empty", path))?;
        rustix::fs::fchmod(file.as_fd(), Mode::from_raw_mode(mode & 0o777))
            .map_err(self.refused("set the mode of", path))?;
        Ok(file)
    }

    fn create_directory(&self, path: &str, mode: u32, _owner: (u32, u32)) -> Result<(), Error> {
        let (parent, name) = self.parent_of(path)?;
        match rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(mode & 0o777)) {
            Err(Errno::EXIST) if self.look(path)?.kind == super::Kind::Directory => Ok(()),
            other => other.map_err(self.refused("create", path)),
        }
    }

    fn create_link(&self, target: &str, path: &str, _owner: (u32, u32)) -> Result<(), Error> {
        let (parent, name) = self.parent_of(path)?;
        rustix::fs::symlinkat(target, &parent, &name).map_err(self.refused("create", path))
    }
}
