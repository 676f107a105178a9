//! A sandbox's directory on local disk.
//!
//! ```text
//! DIRECTORY/        0700, so that no other user of the host comes near the files of a tenant
//!   upper/          what the sandbox has written: overlay's upper; ids are as inside
//!   work/           overlay's scratch
//! ```

use crate::spec::Spec;
use rustix::buffer::spare_capacity;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmodat, fchmod, fchown,
    fgetxattr, flistxattr, fsetxattr, fstat, futimens, mkdirat, openat,
};
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
            copy_root(&directory, top).map_err(failed("give the upper the attributes of the topmost layer", top))
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

/// The root of a sandbox is what the topmost layer says: overlay takes it from the upper, and a diff of a sandbox in which
/// nothing was changed says nothing of it.
fn copy_root(directory: &OwnedFd, top: &Path) -> rustix::io::Result<()> {
    let (top, upper) = (open_directory(CWD, top)?, open_directory(directory, UPPER)?);
    let stat = fstat(&top)?;
    fchown(&upper, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    copy_xattrs(&top, &upper)?;
    fchmod(&upper, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    // Below a second, whatever type the kernel's header gives it on this machine.
    let nanos = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
    let last_modification = Timespec { tv_sec: stat.st_mtime, tv_nsec: nanos };
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    futimens(&upper, &Timestamps { last_access, last_modification })
}

/// All but overlay's own. What the upper's file system does not take is left out, as overlay does when it copies a file.
fn copy_xattrs(from: &OwnedFd, to: &OwnedFd) -> rustix::io::Result<()> {
    const MOST_BYTES: usize = 64 << 10;
    let mut names = Vec::with_capacity(MOST_BYTES);
    match flistxattr(from, spare_capacity(&mut names)) {
        Err(Errno::NOTSUP) => return Ok(()),
        listed => listed?,
    };
    let is_own = |name: &[u8]| name.starts_with(b"trusted.overlay.") && !name.starts_with(b"trusted.overlay.overlay.");
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && !is_own(name)) {
        let mut value = Vec::with_capacity(MOST_BYTES);
        fgetxattr(from, name, spare_capacity(&mut value))?;
        match fsetxattr(to, name, &value, XattrFlags::empty()) {
            Err(Errno::NOTSUP) => {}
            set => set?,
        }
    }
    Ok(())
}
