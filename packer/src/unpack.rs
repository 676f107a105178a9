//! An image onto a file system, exactly.
//!
//! The tree is made beside the place that was asked for and renamed to it when it is whole: a kill leaves nothing under
//! that name, and what it leaves beside it is removed by the next try. Every step is one name in a directory whose
//! descriptor is held, so no symbolic link of the image leads anywhere.
//!
//! As root everything is as in the image: kind, mode, ids, times, xattrs, devices, link groups, holes. Without root some
//! of that is refused by the kernel; then either nothing is unpacked and [`Error::Privileges`] says what it would
//! take, or ([`Owners::Own`]) that part is left out and counted.

mod staging;
mod write;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::chunks::ChunkReader;
use crate::monitor::{Monitor, Stage};
use crate::tree::{FileTree, Kind, Node, PathError, show};
use crate::view::View;
use crate::{Cancel, Cancelled};
use staging::Staging;
use write::Writer;

/// What to do with owners, devices and privileged xattrs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// As in the image.
    Same,
    /// Everything belongs to who unpacks; what needs privileges is left out.
    Own,
}

/// What was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Names.
    pub entries: u64,
    /// Bytes of file data written, holes not counted.
    pub bytes: u64,
    /// What was left out because of [`Owners::Own`].
    pub left_out: LeftOut,
}

/// What takes privileges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Inodes that belong to somebody else.
    pub owners: u64,
    /// Devices.
    pub devices: u64,
    /// Xattrs in `trusted.` and `security.`.
    pub xattrs: u64,
}

/// Why an image was not unpacked. Nothing is left under the name that was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image cannot be read.
    #[error("cannot read the image")]
    Image(#[from] PathError),
    /// A chunk cannot be read.
    #[error("cannot read the content of {path}")]
    Content {
        /// The file.
        path: String,
        /// What happened.
        #[source]
        source: Box<dsec_store::Error>,
    },
    /// The place is taken.
    #[error("{} is not an empty directory", path.display())]
    NotEmpty {
        /// The place.
        path: PathBuf,
    },
    /// The place cannot be replaced.
    #[error("{} is a mount point; name a directory below it", path.display())]
    MountPoint {
        /// The place.
        path: PathBuf,
    },
    /// Another process unpacks to the same place.
    #[error("another process unpacks to {}", path.display())]
    Busy {
        /// The place.
        path: PathBuf,
    },
    /// Somebody else made the directory in which the tree would be made.
    #[error("{} is not a directory of this user alone; remove it first", path.display())]
    Foreign {
        /// That directory.
        path: PathBuf,
    },
    /// The place cannot be prepared.
    #[error("cannot {what} {}", path.display())]
    Place {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
    /// An entry cannot be made.
    #[error("cannot {what} {path}")]
    Entry {
        /// What was tried.
        what: &'static str,
        /// Path in the image.
        path: String,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
    /// Root is needed for an exact copy.
    #[error(
        "an exact copy takes root: {} entries belong to others, {} are devices, {} xattrs are privileged",
        needed.owners,
        needed.devices,
        needed.xattrs
    )]
    Privileges {
        /// What it is needed for.
        needed: LeftOut,
    },
    /// Asked to stop.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// Unpacks what `view` shows to `directory`, which is absent or an empty directory.
///
/// # Errors
/// As [`Error`].
pub fn unpack(
    view: &View<'_>,
    chunks: &ChunkReader<'_>,
    directory: &Path,
    owners: Owners,
    monitor: &dyn Monitor,
    cancel: &Cancel,
) -> Result<Stats, Error> {
    let privileged = rustix::process::geteuid().is_root();
    let left_out = if privileged && owners == Owners::Same { LeftOut::default() } else { needs(view, cancel)? };
    if owners == Owners::Same && left_out != LeftOut::default() {
        return Err(Error::Privileges { needed: left_out });
    }
    let staging = Staging::prepare(directory)?;
    monitor.begin(Stage::Unpack, None);
    let mut writer = Writer::new(view, chunks, owners, monitor, cancel);
    writer.run(staging.root())?;
    let stats = Stats { left_out, ..writer.stats() };
    staging.publish()?;
    Ok(stats)
}

/// What of the image takes privileges that an ordinary user lacks.
fn needs(view: &View<'_>, cancel: &Cancel) -> Result<LeftOut, Error> {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut needed = LeftOut::default();
    crate::tree::walk(view, &mut |path, handle| {
        cancel.check()?;
        let node = view.node(handle).map_err(PathError::at(path))?;
        count_needs(&node, own, &mut needed);
        Ok::<(), Error>(())
    })?;
    Ok(needed)
}

fn count_needs(node: &Node, own: (u32, u32), needed: &mut LeftOut) {
    needed.owners += u64::from((node.attributes.uid, node.attributes.gid) != own);
    needed.devices += u64::from(is_device(&node.kind));
    needed.xattrs += node.xattrs.iter().filter(|(name, _)| is_privileged(name)).count() as u64;
}

fn is_device(kind: &Kind) -> bool {
    matches!(kind, Kind::CharDevice(_) | Kind::BlockDevice(_))
}

fn is_privileged(xattr: &[u8]) -> bool {
    xattr.starts_with(b"trusted.") || xattr.starts_with(b"security.")
}

fn entry_error(what: &'static str, path: &[u8]) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |errno| Error::Entry { what, path: show(path), source: errno.into() }
}
