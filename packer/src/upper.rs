//! An overlay's upper directory as the changeset that it is: a [`FileTree`] of what a layer keeps of it.
//!
//! - A whiteout is a character device 0:0 without further properties, whichever of the two forms the kernel used.
//! - Marks are believed in the one [`Namespace`] that the mount used, where programs inside cannot write them. Under the
//!   prefix of the other one everything is data, and kept.
//! - An opaque directory has `trusted.overlay.opaque=y`, whichever of the two it was.
//! - Overlay's notes to itself (`origin`, `impure`, `upper`, `uuid`, `protattr`) are left out; `nlink`, which only a mount
//!   with `index=on` writes, and an attribute that is not known are refused.
//! - A renamed directory (`redirect`) becomes an opaque one with everything that it shows; a file that only its
//!   metadata was copied up of (`metacopy`) gets its data from the layers below. Nothing of either is passed on.
//! - Ids are those inside the sandbox; so are those in ACLs and in file capabilities. An id outside the sandbox's range
//!   is refused.
//!
//! The layers below are looked at only where a redirect or a metacopy asks for it, so the cost is that of the upper
//! directory (and of the directories that were renamed).

mod ids;
mod lower;
mod xattrs;

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use dsec_erofs::Attributes;
use dsec_format::LayerDigest;
use dsec_store::Source;
use rustix::io::Errno;

use crate::chunks::ChunkReader;
use crate::tree::directory::{self, attributes_of, content_of, look, names_in, node_of};
use crate::tree::{Content, Directory, Error as TreeError, FileTree, Kind, Node, Xattrs};
use crate::view::{self, Layers, View, stored_name};

pub use ids::IdRange;
use lower::Lower;
use xattrs::Marks;
pub use xattrs::Namespace;

/// Why an upper directory cannot be kept. The caller adds the path.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An id that the sandbox does not have.
    #[error("id {id} is outside the sandbox's range of {count} ids from {first}")]
    Id {
        /// The id on this node.
        id: u32,
        /// First id of the range.
        first: u32,
        /// Ids in the range.
        count: u32,
    },
    /// An attribute of overlay's with a meaning that is not known here.
    #[error("overlay attribute {name:?} is not known")]
    Attribute {
        /// Its full name.
        name: String,
    },
    /// A hard link of a mount with an inode index: its other names may be in the layers below only.
    #[error("it is a hard link kept by an inode index; mount with index=off")]
    Indexed,
    /// An xattr with ids in it that cannot be read.
    #[error("{name:?} is malformed")]
    Malformed {
        /// Its full name.
        name: String,
    },
    /// What a redirect or a metacopy refers to is not there.
    #[error("its lower counterpart {lower} is not in the layers below, or is of another kind or size")]
    Lower {
        /// Path in the layers below.
        lower: String,
    },
}

/// The layers below an upper directory, read when first asked for.
pub struct Lowers<'a> {
    source: &'a dyn Source,
    digests: Vec<LayerDigest>,
    layers: OnceLock<Layers>,
    chunks: ChunkReader<'a>,
}

impl<'a> Lowers<'a> {
    /// Layers of a store, the base first.
    #[must_use]
    pub fn new(source: &'a dyn Source, digests: Vec<LayerDigest>) -> Self {
        let chunks = ChunkReader::new(source, digests.iter().copied());
        Self { source, digests, layers: OnceLock::new(), chunks }
    }

    /// Reads the chunks of their files.
    pub(crate) fn chunks(&self) -> &ChunkReader<'a> {
        &self.chunks
    }

    fn view(&self) -> Result<View<'_>, TreeError> {
        let layers = match self.layers.get() {
            Some(layers) => layers,
            None => {
                let layers = Layers::load(self.source, self.digests.iter().copied())?;
                self.layers.get_or_init(|| layers)
            }
        };
        Ok(View::merged(layers))
    }
}

/// See the [module](self).
pub struct Upper<'a> {
    directory: Directory,
    ids: IdRange,
    namespace: Namespace,
    lowers: &'a Lowers<'a>,
}

/// An inode of an upper directory, or of a lower one that a redirect brings in.
pub struct Handle {
    side: Side,
    /// Whether the kernel takes empty files with `overlay.whiteout` for whiteouts here.
    xattr_whiteouts: bool,
    /// Whether it is in a directory that shows its lower counterpart at another path: then whatever of that is seen
    /// belongs to the changeset.
    moved: bool,
    is_root: bool,
}

enum Side {
    /// In the upper directory.
    Upper {
        handle: Box<directory::Handle>,
        /// Path of what it covers in the layers below; `None` when it covers nothing.
        lower: Option<Lower>,
        /// Its xattrs, as far as overlay is concerned.
        marks: Marks,
    },
    /// Only in the layers below.
    Lower(view::Handle),
}

impl<'a> Upper<'a> {
    /// The upper directory at a descriptor, over `lowers`, with ids in `ids` and overlay's marks in `namespace`.
    #[must_use]
    pub fn new(directory: OwnedFd, ids: IdRange, namespace: Namespace, lowers: &'a Lowers<'a>) -> Self {
        Self { directory: Directory::from_fd(directory), ids, namespace, lowers }
    }

    /// Makes the handle of what is at `name` in the upper directory `parent`.
    fn upper_child(&self, parent: &Handle, name: &[u8], handle: directory::Handle) -> Result<Handle, TreeError> {
        let marks = Marks::of(&handle, self.namespace)?;
        let below = match &parent.side {
            Side::Upper { lower, .. } => lower.as_ref(),
            Side::Lower(_) => None,
        };
        let follows = handle.is_directory() || marks.metacopy;
        let lower = match &marks.redirect {
            _ if marks.opaque || !follows => None,
            Some(target) => Some(Lower::redirected(below, target)?),
            None => below.map(|below| below.join(name)),
        };
        let moved = parent.moved || (handle.is_directory() && marks.redirect.is_some());
        let xattr_whiteouts = marks.xattr_whiteouts;
        let side = Side::Upper { handle: Box::new(handle), lower, marks };
        Ok(Handle { side, xattr_whiteouts, moved, is_root: false })
    }

    /// What is below a handle, when that is to be seen through it.
    fn seen_below(&self, handle: &Handle) -> Result<Option<view::Handle>, TreeError> {
        match &handle.side {
            Side::Upper { lower: Some(lower), .. } if handle.moved => {
                let below = self.lowers.view()?;
                let Some(found) = below.lookup(&lower.path())? else { return Ok(None) };
                Ok(below.is_directory(&found)?.then_some(found))
            }
            Side::Upper { .. } => Ok(None),
            Side::Lower(handle) => Ok(Some(handle.clone())),
        }
    }

    fn is_whiteout(&self, handle: &Handle, parent: &Handle) -> Result<bool, TreeError> {
        let Side::Upper { handle, marks, .. } = &handle.side else { return Ok(false) };
        let stat = handle.stat();
        let device = stat.stx_mode & 0o170_000 == 0o020_000 && (stat.stx_rdev_major, stat.stx_rdev_minor) == (0, 0);
        let file = parent.xattr_whiteouts && marks.whiteout && stat.stx_mode & 0o170_000 == 0o100_000;
        Ok(device || (file && stat.stx_size == 0))
    }

    /// What has the data of a file that only its metadata was copied up of.
    fn data_below(&self, handle: &Handle) -> Result<Option<view::Handle>, TreeError> {
        let Side::Upper { handle, lower, marks } = &handle.side else { return Ok(None) };
        if !marks.metacopy || handle.is_directory() {
            return Ok(None);
        }
        let missing = |lower: &[u8]| Error::Lower { lower: crate::tree::show(lower) };
        let lower = lower.as_ref().ok_or_else(|| missing(b""))?.path();
        let view = self.lowers.view()?;
        let found = view.lookup(&lower)?.ok_or_else(|| missing(&lower))?;
        match view.node(&found)?.kind {
            Kind::Regular { bytes } if bytes == handle.stat().stx_size => Ok(Some(found)),
            _ => Err(missing(&lower).into()),
        }
    }
}

/// A whiteout keeps nothing but that it is one.
fn whiteout() -> Node {
    Node { attributes: Attributes::default(), kind: Kind::WHITEOUT, xattrs: Xattrs::new(), links: None }
}

impl FileTree for Upper<'_> {
    type Handle = Handle;

    fn root(&self) -> Result<Handle, TreeError> {
        let handle = self.directory.root()?;
        let marks = Marks::of(&handle, self.namespace)?;
        let xattr_whiteouts = marks.xattr_whiteouts;
        let side = Side::Upper { handle: Box::new(handle), lower: Some(Lower::root()), marks };
        Ok(Handle { side, xattr_whiteouts, moved: false, is_root: true })
    }

    fn names(&self, directory: &Handle) -> Result<Vec<Vec<u8>>, TreeError> {
        let mut names = match &directory.side {
            Side::Upper { handle, .. } => names_in(handle)?,
            Side::Lower(_) => Vec::new(),
        };
        if !directory.moved {
            return Ok(names);
        }
        // The directory is opaque in the layer: what is seen through it comes along, and whiteouts have done their work.
        let mut failed = None;
        names.retain(|name| match self.child(directory, name).and_then(|child| self.is_whiteout(&child, directory)) {
            Ok(whiteout) => !whiteout,
            Err(error) => failed.replace(error).is_some(),
        });
        if let Some(error) = failed {
            return Err(error);
        }
        if let Some(below) = self.seen_below(directory)? {
            for name in self.lowers.view()?.names(&below)? {
                if self.child_of_upper(directory, &name)?.is_none() {
                    names.push(name);
                }
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn child(&self, directory: &Handle, name: &[u8]) -> Result<Handle, TreeError> {
        if let Some(handle) = self.child_of_upper(directory, name)? {
            let mut child = self.upper_child(directory, name, handle)?;
            if self.is_whiteout(&child, directory)?
                && let Side::Upper { marks, .. } = &mut child.side
            {
                marks.is_whiteout = true;
            }
            return Ok(child);
        }
        let missing = || TreeError::io("find it")(Errno::NOENT);
        let below = self.seen_below(directory)?.ok_or_else(missing)?;
        let side = Side::Lower(self.lowers.view()?.child(&below, name)?);
        Ok(Handle { side, xattr_whiteouts: false, moved: true, is_root: false })
    }

    fn is_directory(&self, handle: &Handle) -> Result<bool, TreeError> {
        match &handle.side {
            Side::Upper { handle, .. } => Ok(handle.is_directory()),
            Side::Lower(handle) => self.lowers.view()?.is_directory(handle),
        }
    }

    fn node(&self, handle: &Handle) -> Result<Node, TreeError> {
        let (inner, marks) = match &handle.side {
            Side::Upper { handle, marks, .. } => (handle, marks),
            Side::Lower(handle) => {
                let mut node = self.lowers.view()?.node(handle)?;
                // As the merged tree shows them: attributes of a nested overlay must not become marks of this one.
                for (name, _) in &mut node.xattrs {
                    *name = stored_name(std::mem::take(name));
                }
                node.xattrs.sort_unstable();
                return Ok(node);
            }
        };
        if marks.is_whiteout {
            return Ok(whiteout());
        }
        let mut node = node_of(inner)?;
        node.attributes = self.attributes_inside(inner)?;
        let redirected = inner.is_directory() && marks.redirect.is_some();
        let opaque = inner.is_directory() && !handle.is_root && (marks.opaque || redirected);
        node.xattrs = xattrs::kept(node.xattrs, opaque, self.namespace, self.ids)?;
        Ok(node)
    }

    fn attributes(&self, handle: &Handle) -> Result<Attributes, TreeError> {
        match &handle.side {
            Side::Upper { marks, .. } if marks.is_whiteout => Ok(whiteout().attributes),
            Side::Upper { handle, .. } => self.attributes_inside(handle),
            Side::Lower(handle) => self.lowers.view()?.attributes(handle),
        }
    }

    fn is_unchanged(&self, directory: &Handle) -> Result<bool, TreeError> {
        match &directory.side {
            Side::Upper { handle, .. } => handle.is_unchanged(),
            Side::Lower(_) => Ok(true),
        }
    }

    fn content(&self, handle: &Handle) -> Result<Content<'_>, TreeError> {
        let below = match &handle.side {
            Side::Upper { handle: inner, .. } => match self.data_below(handle)? {
                Some(below) => below,
                None => return content_of(inner),
            },
            Side::Lower(handle) => handle.clone(),
        };
        Ok(Content::Stored(self.lowers.view()?.pieces(&below)?))
    }
}

impl Upper<'_> {
    fn attributes_inside(&self, handle: &directory::Handle) -> Result<Attributes, TreeError> {
        let outside = attributes_of(handle.stat());
        Ok(Attributes { uid: self.ids.inside(outside.uid)?, gid: self.ids.inside(outside.gid)?, ..outside })
    }

    fn child_of_upper(&self, directory: &Handle, name: &[u8]) -> Result<Option<directory::Handle>, TreeError> {
        let Side::Upper { handle, .. } = &directory.side else { return Ok(None) };
        match look(handle, name) {
            Ok(handle) => Ok(Some(handle)),
            Err(TreeError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
