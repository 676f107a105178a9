//! From a [`FileTree`] to a tree without file data, as the writer of metadata takes it: everything of an input but the
//! bytes of its files.
//!
//! What changes while it is read is an error. Nothing is left out in silence: what a layer cannot hold is an error that
//! names the entry.

use std::collections::HashMap;

use dsec_erofs::{Attributes, InodeId, Tree};

use super::{Content, FileTree, Identity, Kind, Node, PathError};
use crate::input::{Addresses, Error};
use crate::monitor::{Monitor, Stage};
use crate::paths::Shown;
use crate::{Cancel, view};

/// What overlay's own marks in a tree are: character devices 0:0 and xattrs in `trusted.overlay.`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marks {
    /// What a layer says about those below it: the tree is a changeset.
    OfTheLayer,
    /// Content: the tree is a root file system, with an overlay's directories somewhere in it perhaps.
    Content,
}

/// The name under which a layer keeps an xattr of a root file system.
pub(crate) fn kept_name(name: &[u8]) -> Vec<u8> {
    view::stored_name(name.to_vec())
}

/// A directory that is being read.
struct Level<H> {
    handle: H,
    inode: InodeId,
    path_bytes: usize,
    names: std::vec::IntoIter<Vec<u8>>,
    entries: u64,
}

struct Filler<'a, T> {
    source: &'a T,
    marks: Marks,
    tree: Tree,
    /// Inodes that may have more names.
    links: HashMap<Identity, InodeId>,
    addresses: Addresses,
    /// Of the entry in hand.
    path: Vec<u8>,
}

/// Reads everything below the root of `source`.
pub(crate) fn fill<T: FileTree>(
    source: &T,
    marks: Marks,
    monitor: &dyn Monitor,
    cancel: &Cancel,
) -> Result<Tree, Error> {
    monitor.begin(Stage::Walk, None);
    let tree = Tree::new(Attributes::default()).map_err(Error::keep(b""))?;
    let (links, addresses) = (HashMap::new(), Addresses::default());
    let mut filler = Filler { source, marks, tree, links, addresses, path: Vec::new() };
    let mut levels = vec![filler.root()?];
    while let Some(level) = levels.last_mut() {
        filler.path.truncate(level.path_bytes);
        let Some(name) = level.names.next() else {
            cancel.check()?;
            if !filler.read(source.is_unchanged(&level.handle))? {
                return Err(Error::Changed { path: Shown::new(&filler.path) });
            }
            monitor.advance(level.entries);
            levels.pop();
            continue;
        };
        if !filler.path.is_empty() {
            filler.path.push(b'/');
        }
        filler.path.extend_from_slice(&name);
        let handle = filler.read(source.child(&level.handle, &name))?;
        let below = filler.entry(level.inode, &name, handle)?;
        levels.extend(below);
    }
    Ok(filler.tree)
}

impl<T: FileTree> Filler<'_, T> {
    /// Adds the path to what went wrong.
    fn read<V>(&self, result: Result<V, super::Error>) -> Result<V, Error> {
        result.map_err(|source| match source {
            super::Error::Changed => Error::Changed { path: Shown::new(&self.path) },
            source => PathError::at(&self.path)(source).into(),
        })
    }

    fn root(&mut self) -> Result<Level<T::Handle>, Error> {
        let root = self.read(self.source.root())?;
        let node = self.read(self.source.node(&root))?;
        self.tree.set_attributes(Tree::ROOT, node.attributes).map_err(Error::keep(b""))?;
        self.set_xattrs(Tree::ROOT, &node)?;
        self.enter(root, Tree::ROOT)
    }

    /// Adds what is at `name`; gives the level to go through when it is a directory.
    fn entry(&mut self, parent: InodeId, name: &[u8], handle: T::Handle) -> Result<Option<Level<T::Handle>>, Error> {
        let node = self.read(self.source.node(&handle))?;
        if let Some(&first) = node.links.and_then(|identity| self.links.get(&identity)) {
            self.tree.link(parent, name, first).map_err(Error::keep(&self.path))?;
            return Ok(None);
        }
        match node.kind {
            Kind::Regular { bytes } => self.look_at_data(bytes, &handle)?,
            Kind::WHITEOUT if self.marks == Marks::Content => {
                return Err(Error::WhiteoutDevice { path: Shown::new(&self.path) });
            }
            _ => {}
        }
        let inode = self.tree.add(node.attributes, node.kind.as_erofs()).map_err(Error::keep(&self.path))?;
        self.tree.link(parent, name, inode).map_err(Error::keep(&self.path))?;
        self.set_xattrs(inode, &node)?;
        if let Some(identity) = node.links {
            self.links.insert(identity, inode);
        }
        if node.kind == Kind::Directory { self.enter(handle, inode).map(Some) } else { Ok(None) }
    }

    fn enter(&self, handle: T::Handle, inode: InodeId) -> Result<Level<T::Handle>, Error> {
        let names = self.read(self.source.names(&handle))?;
        Ok(Level { handle, inode, path_bytes: self.path.len(), entries: names.len() as u64, names: names.into_iter() })
    }

    fn set_xattrs(&mut self, inode: InodeId, node: &Node) -> Result<(), Error> {
        let kept = |name: &[u8]| match self.marks {
            Marks::OfTheLayer => name.to_vec(),
            Marks::Content => kept_name(name),
        };
        let xattrs: Vec<_> = node.xattrs.iter().map(|(name, value)| (kept(name), value)).collect();
        let pairs: Vec<_> = xattrs.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
        self.tree.set_xattrs(inode, &pairs).map_err(Error::keep(&self.path))
    }

    /// Whether a file that is vast will have room in the layer, before anything is read.
    fn look_at_data(&mut self, bytes: u64, handle: &T::Handle) -> Result<(), Error> {
        if !Addresses::is_vast(bytes) {
            return Ok(());
        }
        let data = match self.read(self.source.content(handle))? {
            Content::File { data, .. } => data,
            Content::Stored(pieces) => {
                let pieces = self.read(pieces.collect::<Result<Vec<_>, _>>())?;
                view::ranges_of(&pieces).as_slice().to_vec()
            }
        };
        self.addresses.take(&self.path, bytes, &data)
    }
}
