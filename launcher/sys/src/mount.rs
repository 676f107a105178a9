//! Mounts by descriptor: what rustix lacks (`mount_setattr`), and the few combinations that everyone here needs.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Result;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, open_tree,
};
use std::os::fd::AsRawFd;

/// The kernel's `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_ns: u64,
}

const _: () = assert!(size_of::<MountAttr>() == 32);

fn set_attributes(mount: BorrowedFd<'_>, attributes: &MountAttr, recursive: bool) -> Result<()> {
    let at = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, the structure has the size that is passed.
    let answer = unsafe {
        crate::raw::syscall6(
            libc::SYS_mount_setattr,
            mount.as_raw_fd() as usize,
            c"".as_ptr() as usize,
            at as usize,
            std::ptr::from_ref(attributes) as usize,
            size_of::<MountAttr>(),
            0,
        )
    };
    crate::raw::check(answer).map(|_| ())
}

/// A private, detached copy of the mount that `path` (under `dir`) lies on, rooted there. It is gone when the
/// descriptor is closed, unless it has been attached. A symbolic link as the last step is not followed.
///
/// # Errors
/// What `open_tree` answers.
pub fn clone_at(dir: impl AsFd, path: &std::ffi::CStr) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    open_tree(dir, path, flags)
}

/// Adds attributes to a detached mount.
///
/// # Errors
/// What `mount_setattr` answers.
pub fn add_attributes(mount: impl AsFd, attributes: MountAttrFlags) -> Result<()> {
    let attributes = MountAttr { set: u64::from(attributes.bits()), clear: 0, propagation: 0, user_ns: 0 };
    set_attributes(mount.as_fd(), &attributes, false)
}

/// Maps the ids of a detached mount by a user namespace: what is owned by id n on the file system is owned, through this
/// mount, by whatever n is inside that namespace. `attributes` are set in the same step.
///
/// # Errors
/// EINVAL when the file system cannot be identity-mapped (FUSE without the daemon's consent, overlay, an old kernel), or
/// the mount is attached already.
pub fn map_ids(mount: impl AsFd, user_ns: impl AsFd, attributes: MountAttrFlags) -> Result<()> {
    let attributes = MountAttr {
        set: u64::from((attributes | MountAttrFlags::MOUNT_ATTR_IDMAP).bits()),
        clear: 0,
        propagation: 0,
        user_ns: user_ns.as_fd().as_raw_fd() as u64,
    };
    set_attributes(mount.as_fd(), &attributes, false)
}

/// A new file system of a type, with options, as a detached mount. An option without a value is a flag.
///
/// # Errors
/// What the kernel answers to the first call that fails.
pub fn new_file_system(kind: &str, options: &[(&str, Option<&str>)], attributes: MountAttrFlags) -> Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        match value {
            Some(value) => fsconfig_set_string(&context, *key, *value)?,
            None => fsconfig_set_flag(&context, *key)?,
        }
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}
