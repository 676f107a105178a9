//! A sandbox's directory on local disk.
//!
//!     DIRECTORY/        0700, so that no other user of the host comes near the files of a tenant
//!       upper/          what the sandbox has written: overlay's upper; ids are as inside
//!       work/           overlay's scratch
//!       system/         the platform's own layer, on top of the image's: mount points and three files of /etc
//!
//! The platform's files are a *lower* layer on top of the image's. So the image's own entries of those names, symbolic
//! links among them, are never followed or written through; nothing appears in the upper, where a diff would find it;
//! and a program that replaces `/etc/hosts` can (over a bind mount, rename fails).

use crate::spec::Spec;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, StatxFlags, Timestamps, UTIME_OMIT};
use rustix::fs::{chmodat, chownat, fstat, mkdirat, openat, openat2, statx, utimensat};
use rustix::io::Errno;
use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

pub(crate) const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";
pub(crate) const SYSTEM: &str = "system";

/// Why the directory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A step on a path failed.
    #[error("cannot {what} {}", path.display())]
    Step {
        /// Which step.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::Step { what, path: path.to_owned(), errno }
}

/// Makes the directory of a sandbox. The caller removes it when this fails half way.
///
/// # Errors
/// [`Error`]; among others EEXIST when it is there already.
pub(crate) fn create(spec: &Spec) -> Result<(), Error> {
    let path = &spec.directory;
    mkdirat(CWD, path, Mode::RWXU).map_err(failed("create", path))?;
    let directory = open_directory(CWD, path).map_err(failed("open", path))?;
    for name in [UPPER, WORK, SYSTEM] {
        make_directory(&directory, name).map_err(failed("create", &path.join(name)))?;
    }
    let top = spec.layers.last().map(PathBuf::as_path).unwrap_or(path);
    copy_owner(&directory, top)
        .map_err(failed("give the owner and mode of the topmost layer to the upper of", path))?;
    let system = open_directory(&directory, SYSTEM).map_err(failed("open", &path.join(SYSTEM)))?;
    write_system(&system, spec)
}

fn open_directory(dir: impl AsFd, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    openat(dir, path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY, Mode::empty())
}

/// A directory of mode 0755, whatever the caller's umask.
fn make_directory(dir: impl AsFd, name: &str) -> rustix::io::Result<()> {
    mkdirat(&dir, name, Mode::from_raw_mode(0o755))?;
    chmodat(&dir, name, Mode::from_raw_mode(0o755), AtFlags::empty())
}

/// The root of a sandbox belongs to whom the topmost layer says: overlay takes that from the upper.
fn copy_owner(directory: &OwnedFd, top: &Path) -> rustix::io::Result<()> {
    let layer = open_directory(CWD, top)?;
    let stat = fstat(&layer)?;
    apply(directory, UPPER, &stat)
}

fn apply(dir: &OwnedFd, name: &str, stat: &Stat) -> rustix::io::Result<()> {
    let (uid, gid) = (rustix::fs::Uid::from_raw(stat.st_uid), rustix::fs::Gid::from_raw(stat.st_gid));
    chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    chmodat(dir, name, Mode::from_raw_mode(stat.st_mode & 0o7777), AtFlags::empty())
}

fn write_system(system: &OwnedFd, spec: &Spec) -> Result<(), Error> {
    let path = spec.directory.join(SYSTEM);
    for name in ["proc", "sys", "dev", "etc"] {
        make_directory(system, name).map_err(failed("create", &path.join(name)))?;
    }
    let etc_path = path.join("etc");
    let etc = open_directory(system, "etc").map_err(failed("open", &etc_path))?;
    let name = &spec.hostname;
    let hosts = format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{name}\n");
    let mut resolv = String::new();
    for server in &spec.nameservers {
        writeln!(resolv, "nameserver {server}").expect("writing to a string cannot fail");
    }
    for (file, text) in [("hosts", hosts), ("hostname", format!("{name}\n")), ("resolv.conf", resolv)] {
        write_file(etc.as_fd(), file, text.as_bytes()).map_err(failed("write", &etc_path.join(file)))?;
    }
    match image_etc(&spec.layers) {
        Some(stat) => imitate(system, "etc", &stat).map_err(failed("set the owner, mode and times of", &etc_path)),
        None => Ok(()),
    }
}

fn write_file(dir: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(0o644);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, mode)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = rustix::io::write(&file, rest)?;
        rest = rest.get(count..).unwrap_or_default();
    }
    rustix::fs::fchmod(&file, mode)
}

/// The image's own `/etc`, in the topmost layer that has one: the merged directory shows the attributes of ours, so ours
/// takes them over.
fn image_etc(layers: &[PathBuf]) -> Option<rustix::fs::Statx> {
    layers.iter().rev().find_map(|layer| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, layer, flags, Mode::empty()).ok()?;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let etc = openat2(&root, "etc", flags | OFlags::NOFOLLOW, Mode::empty(), resolve).ok()?;
        statx(&etc, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok()
    })
}

fn imitate(dir: &OwnedFd, name: &str, stat: &rustix::fs::Statx) -> rustix::io::Result<()> {
    let (uid, gid) = (rustix::fs::Uid::from_raw(stat.stx_uid), rustix::fs::Gid::from_raw(stat.stx_gid));
    chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    chmodat(dir, name, Mode::from_raw_mode(u32::from(stat.stx_mode) & 0o7777), AtFlags::empty())?;
    let times = Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: rustix::fs::Timespec {
            tv_sec: stat.stx_mtime.tv_sec,
            tv_nsec: i64::from(stat.stx_mtime.tv_nsec),
        },
    };
    utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
}
