//! Where a tree is made, and how it gets its name.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::Error;
use crate::tree::directory::magic_link;
use crate::tree::place::{self, Place, open_along};

/// A directory beside the place that was asked for; removed again unless it is published.
#[derive(Debug)]
pub(super) struct Staging {
    /// For messages.
    path: PathBuf,
    parent: OwnedFd,
    name: OsString,
    temporary: OsString,
    /// Locked, so that two processes do not take each other's tree for a leftover.
    root: OwnedFd,
    published: bool,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Staging {
    /// Checks that `path` is free and makes the temporary directory.
    pub(super) fn prepare(path: &Path) -> Result<Self, Error> {
        // The parent's own path may lead through symlinks, the last name must not be one.
        let error = |what: &'static str| {
            let path = path.to_owned();
            move |errno: Errno| Error::Place { what, path, source: errno.into() }
        };
        let name = path.file_name().ok_or(Errno::INVAL).map_err(error("unpack to"))?.to_owned();
        let above = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = rustix::fs::open(above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(error("open the directory above"))?;
        check_free(&parent, &name, path)?;

        let temporary = temporary_name(&name);
        let root = claim(&parent, &temporary, path)?;
        Ok(Self { path: path.to_owned(), parent, name, temporary, root, published: false })
    }

    /// The directory to fill.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Gives the tree its name.
    pub(super) fn publish(mut self) -> Result<(), Error> {
        // Replaces an empty directory, which is all that may be there.
        let renamed =
            rustix::fs::renameat_with(&self.parent, &self.temporary, &self.parent, &self.name, RenameFlags::empty());
        match renamed {
            Ok(()) => self.published = true,
            Err(Errno::BUSY) => return Err(Error::MountPoint { path: self.path.clone() }),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {
                return Err(Error::NotEmpty { path: self.path.clone() });
            }
            Err(errno) => {
                let (what, path) = ("move the tree to", self.path.clone());
                return Err(Error::Place { what, path, source: errno.into() });
            }
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published {
            // What cannot be removed is found and removed by the next try.
            let _ = remove(&self.parent, &self.temporary);
        }
    }
}

/// `.NAME.dsec-unpack`, with NAME cut so that the whole is a valid name.
fn temporary_name(name: &OsStr) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    const SUFFIX: &[u8] = b".dsec-unpack";
    let kept = &name.as_bytes()[..name.len().min(255 - SUFFIX.len() - 1)];
    OsString::from_vec([b".", kept, SUFFIX].concat())
}

fn check_free(parent: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), Error> {
    let there = match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
        Ok(there) => there,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(Error::NotEmpty { path: path.to_owned() }),
        Err(errno) => return Err(Error::Place { what: "open", path: path.to_owned(), source: errno.into() }),
    };
    let error = |errno: Errno| Error::Place { what: "list", path: path.to_owned(), source: errno.into() };
    for entry in Dir::new(there).map_err(error)? {
        if !matches!(entry.map_err(error)?.file_name().to_bytes(), b"." | b"..") {
            return Err(Error::NotEmpty { path: path.to_owned() });
        }
    }
    Ok(())
}

/// Makes and locks the temporary directory, after removing what a killed process left there.
fn claim(parent: &OwnedFd, temporary: &OsStr, path: &Path) -> Result<OwnedFd, Error> {
    let error = |what: &'static str| {
        let path = path.with_file_name(temporary);
        move |errno: Errno| Error::Place { what, path, source: errno.into() }
    };
    loop {
        match rustix::fs::mkdirat(parent, temporary, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(error("make")(errno)),
        }
        let root = match rustix::fs::openat(parent, temporary, DIRECTORY, Mode::empty()) {
            Ok(root) => root,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(error("open")(errno)),
        };
        match rustix::fs::flock(&root, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Error::Busy { path: path.to_owned() }),
            Err(errno) => return Err(error("lock")(errno)),
        }
        check_own(&root, path.with_file_name(temporary))?;
        // Whoever had the lock before may have renamed or removed it meanwhile.
        if !is_at(parent, temporary, &root).map_err(error("look at"))? {
            continue;
        }
        // A tree that was nearly finished has its own mode.
        rustix::fs::fchmod(&root, Mode::RWXU).map_err(error("close to others"))?;
        empty(&root).map_err(error("remove the leftovers in"))?;
        return Ok(root);
    }
}

/// Whoever owns a directory, or may write to it, can exchange what is made in it. In a directory like `/tmp` anybody can
/// make the temporary one beforehand.
fn check_own(root: &OwnedFd, path: PathBuf) -> Result<(), Error> {
    let stat = match rustix::fs::fstat(root) {
        Ok(stat) => stat,
        Err(errno) => return Err(Error::Place { what: "look at", path, source: errno.into() }),
    };
    let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
    if is_own && stat.st_mode & 0o022 == 0 { Ok(()) } else { Err(Error::Foreign { path }) }
}

fn is_at(parent: &OwnedFd, name: &OsStr, fd: &OwnedFd) -> Result<bool, Errno> {
    let here = rustix::fs::fstat(fd)?;
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn remove(parent: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    let directory = rustix::fs::openat(&parent, name, DIRECTORY, Mode::empty())?;
    empty(&directory)?;
    rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)
}

/// Removes everything in a directory, without recursion and without following anything.
fn empty(directory: &OwnedFd) -> Result<(), Errno> {
    let root = open_along(directory.as_fd(), [])?;
    let stat = place::stat(&root)?;
    let mut levels: Vec<(Place, Option<CString>)> = vec![(Place::root(root, &stat), None)];
    while let Some((level, _)) = levels.last() {
        let fd = level.fd()?;
        if let Some(name) = remove_files(&fd)? {
            let below = open_along(fd.as_fd(), [name.to_bytes()])?;
            let stat = place::stat(&below)?;
            let below = level.below(name.to_bytes(), below, &stat);
            levels.push((below, Some(name)));
            continue;
        }
        let Some((_, name)) = levels.pop() else { break };
        if let (Some((above, _)), Some(name)) = (levels.last(), name) {
            rustix::fs::unlinkat(above.fd()?, &name, AtFlags::REMOVEDIR)?;
        }
    }
    Ok(())
}

/// Removes what is in a directory up to the first directory in it, and gives the name of that.
fn remove_files(directory: &OwnedFd) -> Result<Option<CString>, Errno> {
    // A directory of an unprivileged user may be read-only by now, or must not be read.
    let _ = rustix::fs::chmod(magic_link(directory), Mode::RWXU);
    let list = rustix::fs::open(magic_link(directory), DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty())?;
    for entry in Dir::new(list)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            return Ok(Some(name.to_owned()));
        }
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) => {}
            Err(Errno::ISDIR) => return Ok(Some(name.to_owned())),
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}
