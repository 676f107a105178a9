//! The platform's own layer of a sandbox: mount points, and three files of `/etc`.
//!
//! It is a *lower* layer on top of the image's. So the image's own entries of those names, symbolic links among them, are
//! never followed or written through; nothing appears in the upper, where a diff would find it; and a program that
//! replaces `/etc/hosts` can (over a bind mount, rename fails).
//!
//! All of a process's are directories of one tmpfs that is attached nowhere: making and removing one takes no disk. When
//! the process ends, the tmpfs lives on as long as a sandbox that uses it.

use crate::directory::{make_directory, open_directory};
use crate::spec::{Id, Spec};
use dsec_sys::mount::{clone_at, map_ids, new_file_system};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Statx, StatxFlags, Timespec, Timestamps, Uid};
use rustix::fs::{UTIME_OMIT, chmodat, chownat, openat, openat2, statx, unlinkat, utimensat};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use std::ffi::CString;
use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// A step of making a sandbox's system layer that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the system layer of sandbox {id}")]
pub struct Error {
    /// Which step.
    pub what: &'static str,
    /// Which sandbox's.
    pub id: Id,
    /// The kernel's answer.
    #[source]
    pub errno: Errno,
}

const DIRECTORIES: [&str; 4] = ["proc", "sys", "dev", "etc"];
const FILES: [&str; 3] = ["hosts", "hostname", "resolv.conf"];

/// The tmpfs of all system layers.
#[derive(Debug)]
pub(crate) struct Systems {
    mount: OwnedFd,
}

impl Systems {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        // About 20 KiB a sandbox; the bound is far beyond what a node has.
        let options = [("size", Some("1g")), ("nr_inodes", Some("1m")), ("mode", Some("0700"))];
        Ok(Self { mount: new_file_system("tmpfs", &options, MountAttrFlags::empty())? })
    }

    /// Makes the layer of a sandbox. The caller removes it when this fails half way.
    pub(crate) fn create(&self, spec: &Spec) -> Result<(), Error> {
        let failed = |what| move |errno| Error { what, id: spec.id.clone(), errno };
        let name = spec.id.as_str();
        make_directory(&self.mount, name).map_err(failed("create"))?;
        let layer = open_directory(&self.mount, name).map_err(failed("open"))?;
        for directory in DIRECTORIES {
            make_directory(&layer, directory).map_err(failed("create a directory of"))?;
        }
        let etc = open_directory(&layer, "etc").map_err(failed("open a directory of"))?;
        for (file, text) in FILES.into_iter().zip(contents(spec)) {
            write_file(etc.as_fd(), file, text.as_bytes()).map_err(failed("write a file of"))?;
        }
        match image_etc(&spec.layers) {
            Some(stat) => imitate(&layer, "etc", &stat).map_err(failed("set owner, mode and times of /etc in")),
            None => Ok(()),
        }
    }

    /// A detached mount of the layer, its ids mapped.
    pub(crate) fn mount(&self, id: &Id, user_ns: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
        let failed = |what| move |errno| Error { what, id: id.clone(), errno };
        let name = CString::new(id.as_str()).map_err(|_| failed("name")(Errno::INVAL))?;
        let mount = clone_at(&self.mount, &name).map_err(failed("clone the mount of"))?;
        map_ids(&mount, user_ns, MountAttrFlags::MOUNT_ATTR_RDONLY).map_err(failed("map the ids of"))?;
        Ok(mount)
    }

    /// Removes the layer of a sandbox that runs no more. One that is not there is no error.
    pub(crate) fn remove(&self, id: &Id) -> Result<(), Error> {
        let layer = id.as_str();
        let files = FILES.iter().map(|name| (format!("{layer}/etc/{name}"), AtFlags::empty()));
        let directories = DIRECTORIES.iter().map(|name| (format!("{layer}/{name}"), AtFlags::REMOVEDIR));
        for (path, flags) in files.chain(directories).chain([(layer.to_owned(), AtFlags::REMOVEDIR)]) {
            match unlinkat(&self.mount, path, flags) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(Error { what: "remove", id: id.clone(), errno }),
            }
        }
        Ok(())
    }
}

/// The contents of [`FILES`].
fn contents(spec: &Spec) -> [String; 3] {
    let name = &spec.hostname;
    let hosts = format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{name}\n");
    let mut resolv = String::new();
    for server in &spec.nameservers {
        writeln!(resolv, "nameserver {server}").expect("writing to a string cannot fail");
    }
    [hosts, format!("{name}\n"), resolv]
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
fn image_etc(layers: &[PathBuf]) -> Option<Statx> {
    layers.iter().rev().find_map(|layer| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, layer, flags, Mode::empty()).ok()?;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let etc = openat2(&root, "etc", flags | OFlags::NOFOLLOW, Mode::empty(), resolve).ok()?;
        statx(&etc, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok()
    })
}

fn imitate(dir: &OwnedFd, name: &str, stat: &Statx) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(stat.stx_uid), Gid::from_raw(stat.stx_gid));
    chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    chmodat(dir, name, Mode::from_raw_mode(u32::from(stat.stx_mode) & 0o7777), AtFlags::empty())?;
    let modified = Timespec { tv_sec: stat.stx_mtime.tv_sec, tv_nsec: i64::from(stat.stx_mtime.tv_nsec) };
    let times = Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: modified };
    utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
}
