//! The choice of the road: EROFS mounted by the kernel where that works, a whole tree through FUSE elsewhere.
//!
//! The probe does what will be done later: it mounts a small EROFS image from a file, in the directory where the layers'
//! images are. What it finds is a fact with a reason, shown in `status`.

use std::path::{Path, PathBuf};

use dsec_erofs::{Attributes, Tree};
use dsec_format::protocol::mountd::Road;

use crate::mounts::probe_erofs;

/// What the user asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Wish {
    /// EROFS if the probe finds that it works, else FUSE.
    Auto,
    /// EROFS or nothing.
    Erofs,
    /// FUSE.
    Fuse,
}

/// The road taken, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The road.
    pub road: Road,
    /// For people.
    pub reason: String,
}

/// Why there is no road.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The road that was asked for does not work here.
    #[error("the erofs road does not work here: {reason}")]
    Unavailable {
        /// What the probe found.
        reason: String,
    },
    /// The image of the probe cannot be written.
    #[error("the probe image {} cannot be written", path.display())]
    Image {
        /// Its path.
        path: PathBuf,
        /// What happened.
        #[source]
        source: std::io::Error,
    },
}

/// Decides; `scratch` is a directory on the file system that will hold the layers' images.
///
/// # Errors
/// The wish cannot be fulfilled, or the probe cannot be made.
pub fn choose(wish: Wish, scratch: &Path) -> Result<Choice, Error> {
    if wish == Wish::Fuse {
        return Ok(Choice { road: Road::Fuse, reason: "asked for".to_owned() });
    }
    match (probe(scratch)?, wish) {
        (Ok(()), Wish::Erofs) => Ok(Choice { road: Road::Erofs, reason: "asked for, and works".to_owned() }),
        (Ok(()), _) => Ok(Choice { road: Road::Erofs, reason: "the kernel mounts EROFS from files".to_owned() }),
        (Err(reason), Wish::Erofs) => Err(Error::Unavailable { reason }),
        (Err(reason), _) => Ok(Choice { road: Road::Fuse, reason }),
    }
}

/// Tries an EROFS mount from a file. The inner error is what the kernel had against it.
///
/// # Errors
/// The image cannot be written.
pub fn probe(scratch: &Path) -> Result<Result<(), String>, Error> {
    let name = |what| scratch.join(format!("tmp-probe-{}.{what}", std::process::id()));
    let (path, device) = (name("erofs"), name("device"));
    let attempt = || {
        fs_err::write(&path, image()?)?;
        fs_err::write(&device, [])?;
        let found = probe_erofs(&path, &device);
        fs_err::remove_file(&device)?;
        fs_err::remove_file(&path)?;
        Ok(found)
    };
    attempt().map_err(|source| Error::Image { path: path.clone(), source })
}

/// An empty directory as an image, its data device empty too.
fn image() -> std::io::Result<Vec<u8>> {
    let root = Attributes { mode: 0o755, uid: 0, gid: 0, mtime: dsec_erofs::Timestamp { secs: 0, nanos: 0 } };
    let mut bytes = Vec::new();
    let tree = Tree::new(root).map_err(std::io::Error::other)?;
    dsec_erofs::write(&tree, 0, &mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}
