//! A file tree as something to read: what an image, a directory and an overlay's upper directory have in common.
//!
//! A [`FileTree`] is read from its root down, by handles. A [`Node`] is all that an image keeps of an inode; two trees
//! are equal when their nodes, the names of these and their link groups are (see [`crate::compare`]).
//!
//! Invariant: names come sorted by their bytes and each once, so two trees are walked side by side without holding
//! either in memory.

pub(crate) mod contents;
pub mod directory;
pub(crate) mod fill;
pub(crate) mod place;
pub mod sparse;
pub(crate) mod xattrs;

use std::fs::File;
use std::io;
use std::ops::Range;

use dsec_erofs::{Attributes, Device};

pub use directory::Directory;

use crate::paths::Shown;
use crate::view::Pieces;

/// Full name and value of extended attributes, sorted by name.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Tells inodes apart within one tree: where it comes from, its file system or layer, its number.
pub type Identity = (u8, u64, u64);

/// What an inode is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file of this many bytes.
    Regular {
        /// Its size.
        bytes: u64,
    },
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// A character device.
    CharDevice(Device),
    /// A block device.
    BlockDevice(Device),
    /// A named pipe.
    Fifo,
    /// A Unix domain socket.
    Socket,
}

impl Kind {
    /// What overlay takes for "nothing is here, whatever the layers below have".
    pub const WHITEOUT: Self = Self::CharDevice(Device { major: 0, minor: 0 });

    /// A word for people.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Regular { .. } => "file",
            Self::Symlink(_) => "symlink",
            Self::CharDevice(_) => "character device",
            Self::BlockDevice(_) => "block device",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
        }
    }

    /// The same in the words of the layer format.
    #[must_use]
    pub fn as_erofs(&self) -> dsec_erofs::Kind<'_> {
        match self {
            Self::Directory => dsec_erofs::Kind::Directory,
            Self::Regular { bytes } => dsec_erofs::Kind::Regular { bytes: *bytes },
            Self::Symlink(target) => dsec_erofs::Kind::Symlink(target),
            Self::CharDevice(device) => dsec_erofs::Kind::CharDevice(*device),
            Self::BlockDevice(device) => dsec_erofs::Kind::BlockDevice(*device),
            Self::Fifo => dsec_erofs::Kind::Fifo,
            Self::Socket => dsec_erofs::Kind::Socket,
        }
    }
}

impl From<dsec_erofs::Kind<'_>> for Kind {
    fn from(kind: dsec_erofs::Kind<'_>) -> Self {
        match kind {
            dsec_erofs::Kind::Directory => Self::Directory,
            dsec_erofs::Kind::Regular { bytes } => Self::Regular { bytes },
            dsec_erofs::Kind::Symlink(target) => Self::Symlink(target.to_vec()),
            dsec_erofs::Kind::CharDevice(device) => Self::CharDevice(device),
            dsec_erofs::Kind::BlockDevice(device) => Self::BlockDevice(device),
            dsec_erofs::Kind::Fifo => Self::Fifo,
            dsec_erofs::Kind::Socket => Self::Socket,
        }
    }
}

/// All that is kept of an inode, its content apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Mode, ids, time.
    pub attributes: Attributes,
    /// What it is.
    pub kind: Kind,
    /// Its extended attributes.
    pub xattrs: Xattrs,
    /// Present when the inode may have more than one name: names with the same identity are one link group.
    pub links: Option<Identity>,
}

/// The bytes of a regular file.
#[derive(Debug)]
pub enum Content<'a> {
    /// In chunks of a store. What no piece covers is a hole.
    Stored(Pieces<'a>),
    /// In a file.
    File {
        /// Opened for reading.
        file: File,
        /// Its data, as [`sparse::data_ranges`] gives it: the rest are holes.
        data: Vec<Range<u64>>,
    },
}

/// Why a tree cannot be read. The caller adds the path.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        #[source]
        source: io::Error,
    },
    /// It changed while it was being read.
    #[error("it changed while it was being read")]
    Changed,
    /// Another file system is mounted there.
    #[error("it is on another file system")]
    OtherFileSystem,
    /// The kernel calls it something that no image has.
    #[error("it is of a kind that cannot be kept (mode {mode:o})")]
    FileType {
        /// Its `st_mode`.
        mode: u32,
    },
    /// The metadata of a layer is malformed.
    #[error("layer {layer} is malformed")]
    Layer {
        /// The layer.
        layer: dsec_format::LayerDigest,
        /// What is wrong with it.
        #[source]
        source: dsec_erofs::image::Error,
    },
    /// The metadata of a layer is not what this project writes, and may show another tree to a kernel.
    #[error("layer {layer} is malformed")]
    Unsound {
        /// The layer.
        layer: dsec_format::LayerDigest,
        /// What is wrong with it.
        #[source]
        source: dsec_erofs::check::Error,
    },
    /// The layers of an image are too large to be held in memory.
    #[error(
        "the layers up to {layer} have {have_bytes} bytes of metadata, the limit is {} for an image",
        crate::view::MAX_PLAIN_BYTES
    )]
    TooLarge {
        /// The layer that is too much.
        layer: dsec_format::LayerDigest,
        /// What the layers come to with it.
        have_bytes: u64,
    },
    /// The extent map of a layer is malformed.
    #[error("extent map of layer {layer} is malformed")]
    Extents {
        /// The layer.
        layer: dsec_format::LayerDigest,
        /// What is wrong with it.
        #[source]
        source: dsec_format::extents::Error,
    },
    /// A file of a layer has data where no chunk is.
    #[error("layer {layer} has no chunk for its data device at {device_offset}")]
    NoChunk {
        /// The layer.
        layer: dsec_format::LayerDigest,
        /// Where.
        device_offset: u64,
    },
    /// Something that only an upper directory can have.
    #[error(transparent)]
    Upper(#[from] crate::upper::Error),
    /// A store failed.
    #[error(transparent)]
    Store(#[from] dsec_store::Error),
}

/// Content in chunks where only files are expected, or none of a store to read them from.
pub(crate) fn not_in_chunks() -> Error {
    Error::Io { what: "read it: there is no store for its chunks", source: io::ErrorKind::InvalidInput.into() }
}

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::Io { what, source: errno.into() }
    }

    pub(crate) fn std_io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// An error with the path of what it is about.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", short(show(path)))]
pub struct PathError {
    /// From the root of the tree, without a slash in front.
    pub path: Vec<u8>,
    /// What happened.
    #[source]
    pub source: Box<Error>,
}

impl PathError {
    pub(crate) fn at(path: &[u8]) -> impl FnOnce(Error) -> Self {
        move |source| Self { path: path.to_vec(), source: Box::new(source) }
    }
}

/// Of a path that is longer than people read, the beginning and the end.
fn short(path: String) -> String {
    const SHOWN_CHARS: usize = 200;
    let chars = path.chars().count();
    if chars <= 3 * SHOWN_CHARS {
        return path;
    }
    let start: String = path.chars().take(SHOWN_CHARS).collect();
    let end: String = path.chars().skip(chars - SHOWN_CHARS).collect();
    format!("{start} … {end} ({} bytes)", path.len())
}

/// A path for people: absolute, with what is not printable escaped.
#[must_use]
pub fn show(path: &[u8]) -> String {
    if path.is_empty() { "/".to_owned() } else { format!("/{}", Shown::new(path)) }
}

/// A tree that can be read from its root down.
pub trait FileTree {
    /// An inode that has been reached.
    type Handle;

    /// The root directory.
    ///
    /// # Errors
    /// The tree cannot be read. The same holds for every method here.
    fn root(&self) -> Result<Self::Handle, Error>;

    /// Names in a directory, sorted by their bytes.
    ///
    /// # Errors
    /// As [`FileTree::root`].
    fn names(&self, directory: &Self::Handle) -> Result<Vec<Vec<u8>>, Error>;

    /// What a name that [`FileTree::names`] gave is.
    ///
    /// # Errors
    /// As [`FileTree::root`].
    fn child(&self, directory: &Self::Handle, name: &[u8]) -> Result<Self::Handle, Error>;

    /// Whether an inode is a directory.
    ///
    /// # Errors
    /// As [`FileTree::root`].
    fn is_directory(&self, handle: &Self::Handle) -> Result<bool, Error>;

    /// What is kept of an inode.
    ///
    /// # Errors
    /// As [`FileTree::root`].
    fn node(&self, handle: &Self::Handle) -> Result<Node, Error>;

    /// The attributes in its [`FileTree::node`], without the rest of that.
    ///
    /// # Errors
    /// As [`FileTree::root`].
    fn attributes(&self, handle: &Self::Handle) -> Result<Attributes, Error>;

    /// Whether a directory is as it was when the handle was made: the same entries, the same attributes.
    ///
    /// # Errors
    /// As [`FileTree::root`].
    fn is_unchanged(&self, directory: &Self::Handle) -> Result<bool, Error>;

    /// The bytes of a regular file.
    ///
    /// # Errors
    /// As [`FileTree::root`].
    fn content(&self, handle: &Self::Handle) -> Result<Content<'_>, Error>;
}

impl<T: FileTree> FileTree for &T {
    type Handle = T::Handle;

    fn root(&self) -> Result<Self::Handle, Error> {
        (**self).root()
    }

    fn names(&self, directory: &Self::Handle) -> Result<Vec<Vec<u8>>, Error> {
        (**self).names(directory)
    }

    fn child(&self, directory: &Self::Handle, name: &[u8]) -> Result<Self::Handle, Error> {
        (**self).child(directory, name)
    }

    fn is_directory(&self, handle: &Self::Handle) -> Result<bool, Error> {
        (**self).is_directory(handle)
    }

    fn node(&self, handle: &Self::Handle) -> Result<Node, Error> {
        (**self).node(handle)
    }

    fn attributes(&self, handle: &Self::Handle) -> Result<Attributes, Error> {
        (**self).attributes(handle)
    }

    fn is_unchanged(&self, directory: &Self::Handle) -> Result<bool, Error> {
        (**self).is_unchanged(directory)
    }

    fn content(&self, handle: &Self::Handle) -> Result<Content<'_>, Error> {
        (**self).content(handle)
    }
}

/// What [`walk`] calls for every inode.
pub type Visit<'a, H, E> = dyn FnMut(&[u8], &H) -> Result<(), E> + 'a;

/// Goes through a tree in path order, each directory before what is in it, and shows every inode with its path (empty
/// for the root). Not recursive: depth costs heap, not stack.
///
/// # Errors
/// The tree's, or whatever `visit` answers.
pub fn walk<T: FileTree, E: From<PathError>>(tree: &T, visit: &mut Visit<'_, T::Handle, E>) -> Result<(), E> {
    let mut path = Vec::new();
    let root = tree.root().map_err(PathError::at(&path))?;
    visit(&path, &root)?;
    let names = tree.names(&root).map_err(PathError::at(&path))?;
    let mut levels = vec![(root, path.len(), names.into_iter())];
    while let Some((directory, path_bytes, names)) = levels.last_mut() {
        path.truncate(*path_bytes);
        let Some(name) = names.next() else {
            levels.pop();
            continue;
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        let child = tree.child(directory, &name).map_err(PathError::at(&path))?;
        visit(&path, &child)?;
        if tree.is_directory(&child).map_err(PathError::at(&path))? {
            let names = tree.names(&child).map_err(PathError::at(&path))?;
            levels.push((child, path.len(), names.into_iter()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_a_long_path_by_its_ends() {
        let at = |path: &str| PathError::at(path.as_bytes())(Error::Changed).to_string();
        assert_eq!(at("etc/passwd"), "cannot read /etc/passwd");
        let long = at(&"d/".repeat(20_000));
        assert!(long.starts_with("cannot read /d/d") && long.ends_with("d/ (40001 bytes)"), "{long}");
        assert!(long.len() < 500, "{}", long.len());
    }
}
