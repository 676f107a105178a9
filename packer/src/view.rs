//! An image to read: the union of its layers, or one layer as it is.
//!
//! [`View::merged`] answers as Linux's overlay file system does over the same layers: the topmost layer that has a name
//! decides; directories of one path are merged down to an opaque one or to something that is no directory; whiteouts
//! (character device 0:0) hide what is below and are not seen; xattrs of overlay's own are not seen either.
//! [`View::changeset`] shows one layer as it is stored, whiteouts and all.
//!
//! A handle is the inodes of one path in the layers; nothing is kept per inode. Overlay's own xattrs are those in
//! `trusted.overlay.`, as for the mounts that this project makes; `user.overlay.*` is data like any other. What an overlay
//! mount would understand beside that a directory is opaque (redirects, metacopies) is in no layer: [`Layers::load`]
//! refuses one that has it.

mod layers;
mod pieces;

pub use layers::{Layers, MAX_PLAIN_BYTES};
pub(crate) use pieces::ranges_of;
pub use pieces::{Piece, Pieces};

use dsec_erofs::{Attributes, FileType, Nid};

use crate::tree::{Content, Error, FileTree, Node, Xattrs};
use layers::Opened;

/// Prefix of overlay's own xattrs in a layer.
pub(crate) const OVERLAY_PREFIX: &[u8] = b"trusted.overlay.";
/// What follows the prefix of an xattr that overlay shows with one `overlay.` less.
pub(crate) const ESCAPED: &[u8] = b"overlay.";
/// What follows the prefix of the xattr that makes a directory opaque.
pub(crate) const OPAQUE: &[u8] = b"opaque";

/// One layer's part of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LayerInode {
    /// Index in `View::layers`.
    layer: usize,
    nid: Nid,
}

/// An inode of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// What decides its attributes.
    top: LayerInode,
    /// The directories below it that are merged into it.
    below: Vec<LayerInode>,
}

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The base first.
    layers: &'a [Opened],
    /// Whether whiteouts, opaque directories and overlay's xattrs are interpreted.
    merged: bool,
}

/// What one layer has at a name.
enum Found {
    Nothing,
    Whiteout,
    Directory { inode: LayerInode, opaque: bool },
    Other(LayerInode),
}

impl<'a> View<'a> {
    /// What a mount of all layers shows.
    #[must_use]
    pub fn merged(layers: &'a Layers) -> Self {
        Self { layers: layers.as_slice(), merged: true }
    }

    /// The topmost layer alone, as it is stored.
    #[must_use]
    pub fn changeset(layers: &'a Layers) -> Self {
        let layers = layers.as_slice();
        Self { layers: &layers[layers.len().saturating_sub(1)..], merged: false }
    }

    /// What is at a path of names with slashes between them, seen from the root; no symlink is followed.
    ///
    /// # Errors
    /// A layer is malformed.
    pub fn lookup(&self, path: &[u8]) -> Result<Option<Handle>, Error> {
        let mut handle = self.root()?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            match self.find(&handle, name)? {
                Some(child) => handle = child,
                None => return Ok(None),
            }
        }
        Ok(Some(handle))
    }

    /// What a name in a directory is. `None` too for anything but a directory.
    ///
    /// # Errors
    /// A layer is malformed.
    pub fn find(&self, directory: &Handle, name: &[u8]) -> Result<Option<Handle>, Error> {
        let mut handle: Option<Handle> = None;
        for inode in directory.inodes() {
            match (self.find_in(inode, name)?, &mut handle) {
                (Found::Nothing, _) => {}
                (Found::Whiteout, _) => break,
                (Found::Other(inode), None) => return Ok(Some(Handle { top: inode, below: Vec::new() })),
                (Found::Other(_), Some(_)) => break,
                (Found::Directory { inode, opaque }, found) => {
                    match found {
                        Some(handle) => handle.below.push(inode),
                        None => *found = Some(Handle { top: inode, below: Vec::new() }),
                    }
                    if opaque {
                        break;
                    }
                }
            }
        }
        Ok(handle)
    }

    /// The chunks of a regular file.
    ///
    /// # Errors
    /// The layer is malformed.
    pub fn pieces(&self, handle: &Handle) -> Result<Pieces<'a>, Error> {
        let layer = &self.layers[handle.top.layer];
        Ok(Pieces::new(handle.top.layer, layer.digest, layer.map()?, layer.segments(handle.top.nid)?))
    }

    fn find_in(&self, directory: LayerInode, name: &[u8]) -> Result<Found, Error> {
        let layer = &self.layers[directory.layer];
        let Some(nid) = layer.lookup(directory.nid, name)? else { return Ok(Found::Nothing) };
        let inode = LayerInode { layer: directory.layer, nid };
        Ok(match layer.file_type(nid)? {
            FileType::Directory => Found::Directory { inode, opaque: self.merged && layer.is_opaque(nid)? },
            FileType::CharDevice if self.merged && layer.is_whiteout(nid)? => Found::Whiteout,
            _ => Found::Other(inode),
        })
    }

    /// Names that any of the directories of a handle has, sorted, each once.
    fn all_names(&self, directory: &Handle) -> Result<Vec<Vec<u8>>, Error> {
        let mut names = Vec::new();
        for inode in directory.inodes() {
            self.layers[inode.layer].for_each_name(inode.nid, |name| names.push(name.to_vec()))?;
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Whether the image has the layer's directory at a handle opaque: for explaining and for tests.
    ///
    /// # Errors
    /// The layer is malformed.
    pub fn is_opaque(&self, handle: &Handle) -> Result<bool, Error> {
        self.layers[handle.top.layer].is_opaque(handle.top.nid)
    }
}

impl Handle {
    fn inodes(&self) -> impl Iterator<Item = LayerInode> {
        std::iter::once(self.top).chain(self.below.iter().copied())
    }
}

/// The xattrs that overlay shows of those that a layer has.
fn shown_by_overlay(xattrs: Xattrs) -> Xattrs {
    let mut shown: Xattrs = xattrs.into_iter().filter_map(|(name, value)| Some((shown_name(name)?, value))).collect();
    shown.sort_unstable();
    shown
}

fn shown_name(name: Vec<u8>) -> Option<Vec<u8>> {
    let Some(rest) = name.strip_prefix(OVERLAY_PREFIX) else { return Some(name) };
    rest.strip_prefix(ESCAPED).map(|inner| [OVERLAY_PREFIX, inner].concat())
}

/// The reverse: under which name a layer has an xattr that overlay is to show.
pub(crate) fn stored_name(name: Vec<u8>) -> Vec<u8> {
    match name.strip_prefix(OVERLAY_PREFIX) {
        Some(rest) => [OVERLAY_PREFIX, ESCAPED, rest].concat(),
        None => name,
    }
}

impl FileTree for View<'_> {
    type Handle = Handle;

    fn root(&self) -> Result<Handle, Error> {
        // Overlay merges the roots of all layers, opaque or not.
        let inode = |(layer, opened): (usize, &Opened)| LayerInode { layer, nid: opened.root() };
        let mut inodes = self.layers.iter().enumerate().rev().map(inode);
        let top = inodes.next().ok_or_else(|| Error::io("find the root of no layers")(rustix::io::Errno::NOENT))?;
        Ok(Handle { top, below: inodes.collect() })
    }

    fn names(&self, directory: &Handle) -> Result<Vec<Vec<u8>>, Error> {
        let mut names = self.all_names(directory)?;
        if self.merged {
            let mut failed = None;
            names.retain(|name| match self.find(directory, name) {
                Ok(found) => found.is_some(),
                Err(error) => failed.replace(error).is_some(),
            });
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(names)
    }

    fn child(&self, directory: &Handle, name: &[u8]) -> Result<Handle, Error> {
        self.find(directory, name)?.ok_or_else(|| Error::io("find it")(rustix::io::Errno::NOENT))
    }

    fn is_directory(&self, handle: &Handle) -> Result<bool, Error> {
        Ok(self.layers[handle.top.layer].file_type(handle.top.nid)? == FileType::Directory)
    }

    fn node(&self, handle: &Handle) -> Result<Node, Error> {
        let inode = handle.top;
        let mut node = self.layers[inode.layer].node(inode.nid)?;
        if self.merged {
            node.xattrs = shown_by_overlay(node.xattrs);
        }
        node.links = node.links.map(|_| (1, inode.layer as u64, inode.nid.0));
        Ok(node)
    }

    fn attributes(&self, handle: &Handle) -> Result<Attributes, Error> {
        self.layers[handle.top.layer].attributes(handle.top.nid)
    }

    fn is_unchanged(&self, _directory: &Handle) -> Result<bool, Error> {
        Ok(true)
    }

    fn content(&self, handle: &Handle) -> Result<Content<'_>, Error> {
        self.pieces(handle).map(Content::Stored)
    }
}
