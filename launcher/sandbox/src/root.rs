//! A sandbox's root: one overlay over its layers.
//!
//! Layers and upper are mounted with the sandbox's ids mapped, so the numbers on disk are those that programs inside see,
//! and whatever is packed from the upper needs no translation. The overlay is mounted from outside, by real root, with
//! file system ids of the sandbox: the kernel does overlay's own work (its scratch directory, whiteouts, copy-up) as the
//! mounter, whose ids must exist under the map.

use crate::directory::{UPPER, WORK};
use crate::spec::Spec;
use dsec_sys::creds::FileIds;
use dsec_sys::mount::{clone_at, map_ids};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_fd, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why there is no root.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A layer, or the directory of the upper, could not be copied as a mount.
    #[error("cannot clone the mount of {}", path.display())]
    Clone {
        /// Which one.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// Its file system does not take identity maps: an old kernel, or a FUSE daemon that has not allowed it.
    #[error("the file system of {} cannot be identity-mapped", path.display())]
    Map {
        /// Which one.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// Part of the sandbox's directory could not be opened.
    #[error("cannot open {name} in {}", directory.display())]
    Open {
        /// Which part.
        name: &'static str,
        /// The sandbox's directory.
        directory: PathBuf,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// The overlay refused an option or a layer.
    #[error("the overlay of {} does not take {option}", directory.display())]
    Option {
        /// Which one; for a layer, its path.
        option: String,
        /// The sandbox's directory.
        directory: PathBuf,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// The overlay could not be mounted.
    #[error("cannot mount the overlay of {} (kernel: {kernel:?})", directory.display())]
    Mount {
        /// The sandbox's directory.
        directory: PathBuf,
        /// What the kernel's mount log says.
        kernel: String,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
}

/// Options of the overlay beside its layers.
///
/// - `volatile`: no sync reaches the disk. A sandbox does not outlive a crash of its node, so a sync has nobody to serve;
///   a diff is read from the upper's file system, which is synced then. Without it, unmounting would sync all of that.
/// - `redirect_dir=on`: a directory of a layer can be renamed, as programs expect (without, rename answers EXDEV). The mark
///   that it leaves in the upper is a `trusted` attribute, out of a tenant's reach, and a diff resolves it.
/// - `metacopy=off`, `index=off`: the upper holds whole files, which a diff can read without the lowers.
/// - `xino=auto`: inode numbers that stay when a file is copied up, where the file systems leave room.
const OPTIONS: &[(&str, &str)] =
    &[("redirect_dir", "on"), ("metacopy", "off"), ("index", "off"), ("xino", "auto"), ("source", "sandbox")];

/// A root that is mounted, attached nowhere.
pub(crate) struct Root {
    /// The mount.
    pub(crate) mount: OwnedFd,
    /// Copies of mounts that it was made from, and needs no longer.
    pub(crate) spent: Vec<OwnedFd>,
}

/// Mounts the overlay: the layers, `system` (the platform's own) on top of them, the upper.
///
/// # Errors
/// [`Error`].
pub(crate) fn mount(spec: &Spec, system: OwnedFd, user_ns: BorrowedFd<'_>) -> Result<Root, Error> {
    let directory = &spec.directory;
    let own = mapped(directory, user_ns, MountAttrFlags::empty())?;
    let part = |name| {
        openat(&own, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| Error::Open { name, directory: directory.clone(), errno })
    };
    let refused = |option: String| {
        let directory = directory.clone();
        move |errno| Error::Option { option, directory, errno }
    };
    let failed = |errno| Error::Mount { directory: directory.clone(), kernel: String::new(), errno };
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed)?;
    fsconfig_set_fd(&context, "lowerdir+", system.as_fd()).map_err(refused("the system layer".into()))?;
    // A detached mount lasts as long as its descriptor, so all are held until the overlay has copied them.
    let mut spent = vec![system];
    for layer in spec.layers.iter().rev() {
        let mount = mapped(layer, user_ns, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        fsconfig_set_fd(&context, "lowerdir+", mount.as_fd()).map_err(refused(layer.display().to_string()))?;
        spent.push(mount);
    }
    fsconfig_set_fd(&context, "upperdir", part(UPPER)?).map_err(refused(UPPER.into()))?;
    fsconfig_set_fd(&context, "workdir", part(WORK)?).map_err(refused(WORK.into()))?;
    for (key, value) in OPTIONS {
        fsconfig_set_string(&context, *key, *value).map_err(refused(format!("{key}={value}")))?;
    }
    fsconfig_set_flag(&context, "volatile").map_err(refused("volatile".into()))?;
    {
        let _ids = FileIds::assume(spec.id_base, spec.id_base).map_err(failed)?;
        let logged = |errno| Error::Mount { directory: directory.clone(), kernel: log(&context), errno };
        fsconfig_create(&context).map_err(logged)?;
    }
    // An image may hold device nodes; they must not lead to the host's devices.
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV).map_err(failed)?;
    spent.push(own);
    Ok(Root { mount, spent })
}

/// What the kernel has noted about a mount that failed.
fn log(context: &OwnedFd) -> String {
    let mut text = Vec::new();
    let mut line = [0; 1024];
    while let Ok(count @ 1..) = rustix::io::read(context, &mut line) {
        text.extend_from_slice(line.get(..count).unwrap_or_default());
    }
    String::from_utf8_lossy(&text).trim().replace('\n', "; ")
}

fn mapped(path: &Path, user_ns: BorrowedFd<'_>, attributes: MountAttrFlags) -> Result<OwnedFd, Error> {
    let failed = |errno| Error::Clone { path: path.to_owned(), errno };
    let c_path = CString::new(path.as_os_str().as_bytes()).map_err(|_| failed(Errno::INVAL))?;
    let mount = clone_at(CWD, &c_path).map_err(failed)?;
    map_ids(&mount, user_ns, attributes).map_err(|errno| Error::Map { path: path.to_owned(), errno })?;
    Ok(mount)
}
