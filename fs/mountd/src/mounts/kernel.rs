//! The mount calls, one error variant a step.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};

/// Why a mount was not made or not removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A mount call failed.
    #[error("{} cannot be mounted: {step} failed", path.display())]
    Mount {
        /// Where it should be.
        path: PathBuf,
        /// The system call.
        step: &'static str,
        /// What it answered.
        #[source]
        source: Errno,
    },
    /// Unmounting failed.
    #[error("{} cannot be unmounted", path.display())]
    Unmount {
        /// Where it is.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: Errno,
    },
    /// The mount point or the list of mounts; the message of the source names the path.
    #[error("mounts cannot be managed")]
    Io(#[source] std::io::Error),
}

/// Makes the directory that a layer is mounted on.
pub(super) fn make_mount_point(path: &Path) -> Result<(), Error> {
    fs_err::create_dir_all(path).map_err(Error::Io)
}

/// What every mount of a layer here is. On the node itself nothing of a tenant's image has an effect: no set-id program,
/// no device node. A sandbox's overlay looks at the flags of its own mount only, so inside they work as it decides.
pub(crate) const LAYER_ATTRIBUTES: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_RDONLY.union(MountAttrFlags::MOUNT_ATTR_NOSUID).union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// Mounts an EROFS image file, its extra device being the file `device`, with [`LAYER_ATTRIBUTES`].
pub(super) fn mount_erofs(image: &Path, device: &Path, target: &Path) -> Result<(), Error> {
    let failed = |step| move |source| Error::Mount { path: target.to_owned(), step, source };
    let context = erofs_context(image, device).map_err(failed("fsconfig"))?;
    fsconfig_create(&context).map_err(failed("fsconfig create"))?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, LAYER_ATTRIBUTES).map_err(failed("fsmount"))?;
    move_mount(&mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(failed("move_mount"))
}

fn erofs_context(image: &Path, device: &Path) -> Result<OwnedFd, Errno> {
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", image)?;
    fsconfig_set_string(&context, "device", device)?;
    fsconfig_set_flag(&context, "ro")?;
    Ok(context)
}

/// Shows the directory `source` at `target` too. The attributes are those of the mount that it lies on.
pub(super) fn bind(source: &Path, target: &Path) -> Result<(), Error> {
    let failed = |step| move |error| Error::Mount { path: target.to_owned(), step, source: error };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, source, flags).map_err(failed("open_tree"))?;
    move_mount(&tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(failed("move_mount"))
}

/// Takes a mount out of the tree. Whoever is inside goes on; the rest is undone when the last one leaves.
pub(super) fn detach(path: &Path) -> Result<(), Error> {
    match unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        // Not mounted (any more).
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(source) => Err(Error::Unmount { path: path.to_owned(), source }),
    }
}

/// The mount points below `root`, in the order they were made.
pub(super) fn mounts_below(root: &Path) -> Result<Vec<PathBuf>, Error> {
    let table = fs_err::read("/proc/self/mountinfo").map_err(Error::Io)?;
    let lines = table.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescape);
    Ok(points.filter(|point| point.starts_with(root) && point != root).collect())
}

/// Undoes the octal escapes of mount tables.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Whether this kernel, with the rights of this process, mounts an EROFS image that is a file, its extra device another
/// file. The error says, for people, what is missing.
///
/// # Errors
/// What stands in the way.
pub fn probe_erofs(image: &Path, device: &Path) -> Result<(), String> {
    let attempt = erofs_context(image, device).and_then(|context| {
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY).map(drop)
    });
    let shown = image.as_os_str().as_bytes().escape_ascii();
    attempt.map_err(|errno| match errno {
        Errno::NODEV => "the kernel has no EROFS".to_owned(),
        Errno::PERM => "this process may not mount (CAP_SYS_ADMIN)".to_owned(),
        Errno::NOSYS => "the kernel lacks the mount API (Linux 5.2)".to_owned(),
        Errno::NOTBLK => {
            "the kernel does not mount EROFS from files (before Linux 6.12) or not from those of this file \
                          system (such as tmpfs)"
                .to_owned()
        }
        other => format!("the kernel does not mount the EROFS image {shown}: {other}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_the_mount_table() {
        assert_eq!(unescape(br"/a\040b\134c"), PathBuf::from(r"/a b\c"));
        assert_eq!(unescape(br"/plain\"), PathBuf::from(r"/plain\"));
    }
}
