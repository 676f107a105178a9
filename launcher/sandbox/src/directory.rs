//! A sandbox's directory on local disk.
//!
//! ```text
//! DIRECTORY/        0700, so that no other user of the host comes near the files of a tenant
//!   upper/          what the sandbox has written: overlay's upper; ids are as inside
//!   work/           overlay's scratch
//! ```

use crate::spec::Spec;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, chmodat, chownat, fstat, mkdirat, openat};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

pub(crate) const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";

/// A step of making a sandbox's directory that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}", path.display())]
pub struct Error {
    /// Which step.
    pub what: &'static str,
    /// On what.
    pub path: PathBuf,
    /// The kernel's answer.
    #[source]
    pub errno: Errno,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(Errno) -> Error {
    move |errno| Error { what, path: path.to_owned(), errno }
}

/// Makes the directory itself: from here on it is this sandbox's. Fails with EEXIST when something is there already.
pub(crate) fn claim(spec: &Spec) -> Result<(), Error> {
    mkdirat(CWD, &spec.directory, Mode::RWXU).map_err(failed("create", &spec.directory))
}

/// Makes what is in the directory. The caller removes it when this fails half way.
pub(crate) fn fill(spec: &Spec) -> Result<(), Error> {
    let path = &spec.directory;
    let directory = open_directory(CWD, path).map_err(failed("open", path))?;
    for name in [UPPER, WORK] {
        make_directory(&directory, name).map_err(failed("create", &path.join(name)))?;
    }
    match spec.layers.last() {
        Some(top) => {
            copy_owner(&directory, top).map_err(failed("give the upper the owner and mode of the topmost layer", top))
        }
        None => Ok(()),
    }
}

pub(crate) fn open_directory(dir: impl AsFd, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    openat(dir, path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY, Mode::empty())
}

/// A directory of mode 0755, whatever the caller's umask.
pub(crate) fn make_directory(dir: impl AsFd, name: &str) -> rustix::io::Result<()> {
    mkdirat(&dir, name, Mode::from_raw_mode(0o755))?;
    chmodat(&dir, name, Mode::from_raw_mode(0o755), AtFlags::empty())
}

/// The root of a sandbox belongs to whom the topmost layer says: overlay takes that from the upper.
fn copy_owner(directory: &OwnedFd, top: &Path) -> rustix::io::Result<()> {
    let stat = fstat(open_directory(CWD, top)?)?;
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    chownat(directory, UPPER, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    chmodat(directory, UPPER, Mode::from_raw_mode(stat.st_mode & 0o7777), AtFlags::empty())
}
