//! An image at a directory of this machine, read-only: the layers are `dsec-mountd`'s, the union is one overlay mount.
//!
//! The daemon keeps the layers mounted for the holder `directory/PATH` until it is released. Whatever fails, nothing is
//! held and nothing is mounted; asking again after a crash in between gives the same holder.
//!
//! An image is a stranger's: its set-id programs have no power here, and its device nodes open nothing.

mod table;

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dsec_format::protocol::mountd::Mounted;
use dsec_format::refs::Spec;
use dsec_mountd_client::Client;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_remount, move_mount, open_tree, unmount,
};

use crate::tree::directory::magic_link;
use table::Entry;

/// How long the daemon may take for one request. A mount may wait for a registry.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(120);
/// The source that mount tables show.
const SOURCE: &str = "dsec-pack";

/// Why a mount or its end failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory is not one.
    #[error("cannot use {} as a mount point", path.display())]
    Directory {
        /// It.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Its path cannot be a holder's name.
    #[error("the path of {} is not UTF-8", path.display())]
    Name {
        /// It.
        path: PathBuf,
    },
    /// The daemon does not answer, or refuses.
    #[error(transparent)]
    Daemon(#[from] dsec_mountd_client::Error),
    /// The kernel refused.
    #[error("cannot {what} at {}", path.display())]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// The mount point.
        path: PathBuf,
        /// Its answer.
        #[source]
        source: io::Error,
    },
    /// The kernel's table of mounts.
    #[error("cannot read what is mounted")]
    Table {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What is mounted there is somebody else's.
    #[error("{} holds a mount that dsec-pack did not make", path.display())]
    NotOurs {
        /// The mount point.
        path: PathBuf,
    },
    /// Nothing is mounted there, and nothing is held for it.
    #[error("{} is not mounted", path.display())]
    NotMounted {
        /// The mount point.
        path: PathBuf,
    },
    /// Something is mounted there already.
    #[error("{} has something mounted on it", path.display())]
    Occupied {
        /// The mount point.
        path: PathBuf,
    },
}

/// A client of the daemon at `socket`.
#[must_use]
pub fn daemon_at(socket: &Path) -> Client {
    Client::new(socket, DAEMON_TIMEOUT)
}

fn holds(daemon: &Client, holder: &str) -> Result<bool, Error> {
    let status = daemon.status()?;
    Ok(status.images.iter().any(|image| image.holders.iter().any(|other| other == holder)))
}

/// A mount point and the name of its holder.
struct Point {
    path: PathBuf,
    holder: String,
}

impl Point {
    fn of(directory: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Directory { path: directory.to_owned(), source };
        let path = match fs_err::canonicalize(directory) {
            Ok(path) if path.is_dir() => path,
            Ok(_) => return Err(failed(io::ErrorKind::NotADirectory.into())),
            // The daemon of what is mounted there has been killed: only the directory above can be asked.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => above(directory).map_err(failed)?,
            Err(error) => return Err(failed(error)),
        };
        let text = path.to_str().ok_or_else(|| Error::Name { path: path.clone() })?;
        let holder = format!("directory{text}");
        Ok(Self { path, holder })
    }

    fn kernel(&self, what: &'static str) -> impl FnOnce(Errno) -> Error {
        let path = self.path.clone();
        move |errno| Error::Kernel { what, path, source: errno.into() }
    }

    fn mounted(&self) -> Result<Option<Entry>, Error> {
        Entry::at(&self.path).map_err(|source| Error::Table { source })
    }
}

/// The path of a directory by the one that it is in.
fn above(directory: &Path) -> io::Result<PathBuf> {
    let name = directory.file_name().ok_or(io::ErrorKind::NotConnected)?;
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(fs_err::canonicalize(parent)?.join(name))
}

/// Mounts an image at a directory, over what is in it.
///
/// # Errors
/// As [`Error`]; nothing is mounted and nothing held then.
pub fn mount(daemon: &Client, image: &Spec, directory: &Path) -> Result<Mounted, Error> {
    let point = Point::of(directory)?;
    if point.mounted()?.is_some() {
        return Err(Error::Occupied { path: point.path });
    }
    let mounted = daemon.mount(image, &point.holder)?;
    if let Err(error) = union_of(&point, &mounted).and_then(|tree| attach(&point, &tree)) {
        // The first error is the one to tell.
        let _ = daemon.release(&point.holder);
        return Err(error);
    }
    Ok(mounted)
}

/// Puts a mount in its place, with what keeps a stranger's files from acting.
fn attach(point: &Point, tree: &OwnedFd) -> Result<(), Error> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(tree, "", CWD, &point.path, flags).map_err(point.kernel("attach the mount"))?;
    // A bound layer comes with the flags of the daemon's own mount; these do not depend on them. Only a mount that is
    // attached can be changed this way.
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    mount_remount(magic_link(tree), flags, "").map_err(|errno| {
        // The first error is the one to tell.
        let _ = unmount(&point.path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
        point.kernel("protect the mount")(errno)
    })
}

/// A mount of all layers that is nowhere yet.
fn union_of(point: &Point, mounted: &Mounted) -> Result<OwnedFd, Error> {
    if let [layer] = mounted.layers.as_slice() {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        return open_tree(CWD, layer.path.as_str(), flags).map_err(point.kernel("bind the layer"));
    }
    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).map_err(point.kernel("make an overlay"))?;
    let set = |key: &str, value: &OsStr| {
        fsconfig_set_string(&overlay, key, value.as_bytes()).map_err(point.kernel("set up the overlay"))
    };
    set("source", OsStr::new(SOURCE))?;
    // No layer carries either: `dsec_erofs::check` refuses it, at the daemon too. (A sandbox's overlay has redirects on
    // for the marks of its own upper directory.) Saying so here costs nothing.
    set("redirect_dir", OsStr::new("nofollow"))?;
    set("metacopy", OsStr::new("off"))?;
    for layer in mounted.layers.iter().rev() {
        set("lowerdir+", OsStr::new(&layer.path))?;
    }
    fsconfig_create(&overlay).map_err(point.kernel("create the overlay"))?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&overlay, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(point.kernel("mount the overlay"))
}

/// Ends what [`mount`] began.
///
/// # Errors
/// As [`Error`]. When the mount is in use nothing changes.
pub fn umount(daemon: &Client, directory: &Path) -> Result<(), Error> {
    let point = Point::of(directory)?;
    match point.mounted()? {
        // A daemon that was started again does not know what was held before.
        Some(entry) if entry.is_an_image() || holds(daemon, &point.holder)? => {
            unmount(&point.path, UnmountFlags::NOFOLLOW).map_err(point.kernel("unmount"))?;
        }
        Some(_) => return Err(Error::NotOurs { path: point.path }),
        // A kill between the two steps of either operation leaves this.
        None if holds(daemon, &point.holder)? => {}
        None => return Err(Error::NotMounted { path: point.path }),
    }
    Ok(daemon.release(&point.holder)?)
}
