//! What every sandbox's `/dev` and `/sys` are copies of.
//!
//! One small tmpfs per process, filled once, then made read-only as a file system, not only as a mount: nothing that a
//! sandbox could do to a mount makes it writable. Each sandbox gets a mount of its subtrees, with ids mapped; so `/dev`
//! costs one mount rather than one for each device, takes no memory of its own, and holds nothing of the host: the device
//! nodes are made here, by number.
//!
//! `/sys` is no sysfs: that shows the host's devices and settings, and has had writable corners; programs mostly look
//! for the CPUs. What is not here is not there.

use rustix::fs::{CWD, FileType, Mode, OFlags, chmodat, makedev, mkdirat, mknodat, openat, symlinkat};
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, MountAttrFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Why the template could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path} of the template for /dev and /sys")]
pub struct Error {
    /// Which step.
    pub what: &'static str,
    /// On what.
    pub path: &'static str,
    /// The kernel's answer.
    #[source]
    pub errno: Errno,
}

/// Character devices: path, major, minor. Numbers: `Documentation/admin-guide/devices.txt`.
const DEVICES: &[(&str, u32, u32)] = &[
    ("dev/null", 1, 3),
    ("dev/zero", 1, 5),
    ("dev/full", 1, 7),
    ("dev/random", 1, 8),
    ("dev/urandom", 1, 9),
    ("dev/tty", 5, 0),
];

const DIRECTORIES: &[&str] = &[
    "dev",
    "dev/pts",
    "dev/shm",
    "dev/mqueue",
    "sys",
    "sys/block",
    "sys/bus",
    "sys/class",
    "sys/class/net",
    "sys/devices",
    "sys/devices/system",
    "sys/devices/system/cpu",
    "sys/fs",
    "sys/fs/cgroup",
    "sys/kernel",
];

/// Name and where it points.
const LINKS: &[(&str, &str)] = &[
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
    ("dev/ptmx", "pts/ptmx"),
];

/// Lists of CPUs, copied from the host: below `/sys`.
const COPIES: &[(&str, &str)] = &[
    ("sys/devices/system/cpu/online", "/sys/devices/system/cpu/online"),
    ("sys/devices/system/cpu/possible", "/sys/devices/system/cpu/possible"),
    ("sys/devices/system/cpu/present", "/sys/devices/system/cpu/present"),
];

/// An empty directory below `/sys`, which covers directories.
pub(crate) const EMPTY: &str = "fs/cgroup";

/// The template: a mount that is attached nowhere.
#[derive(Debug)]
pub(crate) struct Template {
    mount: OwnedFd,
}

impl Template {
    pub(crate) fn new() -> Result<Self, Error> {
        let failed = |what, path| move |errno| Error { what, path, errno };
        let options = [("size", Some("1m")), ("nr_inodes", Some("256")), ("mode", Some("0755"))];
        let mount = dsec_sys::mount::new_file_system("tmpfs", &options, MountAttrFlags::empty())
            .map_err(failed("mount", "tmpfs"))?;
        for path in DIRECTORIES {
            let mode = Mode::from_raw_mode(0o755);
            mkdirat(&mount, *path, mode)
                .and_then(|()| chmodat(&mount, *path, mode, rustix::fs::AtFlags::empty()))
                .map_err(failed("create", path))?;
        }
        for (path, major, minor) in DEVICES {
            let mode = Mode::from_raw_mode(0o666);
            mknodat(&mount, *path, FileType::CharacterDevice, mode, makedev(*major, *minor))
                .and_then(|()| chmodat(&mount, *path, mode, rustix::fs::AtFlags::empty()))
                .map_err(failed("create", path))?;
        }
        for (path, target) in LINKS {
            symlinkat(*target, &mount, *path).map_err(failed("create", path))?;
        }
        for (path, source) in COPIES {
            copy(mount.as_fd(), path, source).map_err(failed("copy", path))?;
        }
        make_read_only(&mount).map_err(failed("make read-only", "tmpfs"))?;
        Ok(Self { mount })
    }

    /// A detached mount of a sandbox's `/dev`.
    pub(crate) fn dev(&self, user_ns: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
        let attributes =
            MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        self.subtree(c"dev", user_ns, attributes)
    }

    /// A detached mount of a sandbox's `/sys`.
    pub(crate) fn sys(&self, user_ns: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        self.subtree(c"sys", user_ns, attributes)
    }

    fn subtree(
        &self,
        path: &std::ffi::CStr,
        user_ns: BorrowedFd<'_>,
        attributes: MountAttrFlags,
    ) -> rustix::io::Result<OwnedFd> {
        let mount = dsec_sys::mount::clone_at(&self.mount, path)?;
        dsec_sys::mount::map_ids(&mount, user_ns, attributes)?;
        Ok(mount)
    }
}

fn copy(mount: BorrowedFd<'_>, path: &str, source: &str) -> rustix::io::Result<()> {
    let from = openat(CWD, source, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = [0; 4096];
    let count = rustix::io::read(&from, &mut bytes)?;
    let mode = Mode::from_raw_mode(0o444);
    let to = openat(mount, path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC, mode)?;
    rustix::io::write(&to, bytes.get(..count).unwrap_or_default())?;
    rustix::fs::fchmod(&to, mode)
}

fn make_read_only(mount: &OwnedFd) -> rustix::io::Result<()> {
    let context = fspick(mount, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
    fsconfig_set_flag(&context, "ro")?;
    fsconfig_reconfigure(&context)
}
