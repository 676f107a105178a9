//! A directory as input: its entries become the root of the image.
//!
//! What changes between the walk and the end of the reading of a file or directory is noticed by size, mtime and ctime,
//! and is an error: an image is never a mixture of two states of one file.

use std::path::Path;

use super::{Error, Part, Surroundings};
use crate::tree::contents::TreeContents;
use crate::tree::fill::{Marks, fill};
use crate::tree::{Directory, PathError};

/// Walks the directory at `path`.
pub(super) fn open(path: &Path, cross_mounts: bool, surroundings: Surroundings<'_>) -> Result<Part<'static>, Error> {
    let root = fs_err::File::open(path).map_err(Error::Open)?.into_file();
    let directory = Directory::from_fd(root.into());
    let directory = if cross_mounts { directory } else { directory.within_mount().map_err(PathError::at(b""))? };
    let tree = fill(&directory, Marks::Content, surroundings.monitor, surroundings.cancel)?;
    Ok(Part { tree, contents: Box::new(TreeContents::new(directory, None)) })
}
