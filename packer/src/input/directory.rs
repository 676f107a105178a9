//! A directory as input: its entries become the root of the image.
//!
//! Everything is reached from open directories, never by a path from the top, and no symlink is followed. What changes
//! between the walk and the end of the reading of a file or directory is noticed by size, mtime and ctime, and is an
//! error: an image is never a mixture of two states of one file.

mod data;
mod walk;

use std::path::Path;
use std::sync::Arc;

use fs_err as fs;

use self::data::Data;
use super::{Error, Part, Surroundings};

/// Walks the directory at `path`.
pub(super) fn open(path: &Path, cross_mounts: bool, surroundings: Surroundings<'_>) -> Result<Part<'static>, Error> {
    let root = fs::File::open(path).map_err(Error::Open)?;
    let root = Arc::new(std::os::fd::OwnedFd::from(root.into_file()));
    let tree = walk::walk(&root, cross_mounts, surroundings)?;
    Ok(Part { tree, contents: Box::new(Data::new(root)) })
}
