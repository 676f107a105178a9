//! The directories of the layers below, merged as overlay merges them: what a layer means that does not say what a
//! directory is, but only puts something into it.

use std::collections::HashMap;

use dsec_erofs::{FileType, InodeId, Kind, Tree};

use super::{Error, is_bare};
use crate::input;
use crate::paths::Shown;

const OPAQUE: &[u8] = b"trusted.overlay.opaque";

/// Directories with their attributes, and symlinks; other files are not there.
pub(super) struct Lower {
    tree: Tree,
}

impl Lower {
    /// Of the lowest layer.
    pub(super) fn new(layer: &Tree) -> Result<Self, input::Error> {
        let tree = Tree::new(layer.attributes(Tree::ROOT)).map_err(input::Error::keep(b""))?;
        let mut lower = Self { tree };
        lower.apply(layer)?;
        Ok(lower)
    }

    /// Gives the `implicit` directories of the next layer the attributes that they have here.
    pub(super) fn inherit(&self, layer: &mut Tree, implicit: &[InodeId], digest: &str) -> Result<(), input::Error> {
        for &inode in implicit {
            let path = layer.directory_path(inode);
            let Some(below) = self.find(&path) else { continue };
            if self.tree.file_type(below) != FileType::Directory {
                return Err(Error::BelowSymlink { digest: digest.to_owned(), path: Shown::new(&path) }.into());
            }
            layer.set_attributes(inode, self.tree.attributes(below)).map_err(input::Error::keep(&path))?;
            for xattr in self.tree.xattrs(below) {
                layer.add_xattr(inode, &xattr.name(), xattr.value).map_err(input::Error::keep(&path))?;
            }
        }
        Ok(())
    }

    /// Whether a layer says anything: not when it is empty and leaves the root as it is.
    pub(super) fn is_changed_by(&self, layer: &Tree) -> bool {
        let root = Tree::ROOT;
        !is_bare(layer)
            || layer.attributes(root) != self.tree.attributes(root)
            || !layer.xattrs(root).eq(self.tree.xattrs(root))
    }

    /// Puts a layer on top.
    pub(super) fn apply(&mut self, layer: &Tree) -> Result<(), input::Error> {
        let mut here = HashMap::from([(Tree::ROOT, Tree::ROOT)]);
        if layer.xattr(Tree::ROOT, OPAQUE).is_some() {
            self.tree = Tree::new(layer.attributes(Tree::ROOT)).map_err(input::Error::keep(b""))?;
        }
        self.copy(layer, Tree::ROOT, Tree::ROOT, b"")?;
        let mut walk = layer.walk();
        while let Some(step) = walk.advance() {
            let dir = *here.get(&step.dir).expect("a directory comes before its entries");
            let name = step.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            if let Some(inode) = self.merge(layer, step.inode, dir, name, step.path)? {
                here.insert(step.inode, inode);
            }
        }
        Ok(())
    }

    /// Puts one entry of a layer into `dir`; gives its directory when it is one.
    fn merge(
        &mut self,
        layer: &Tree,
        entry: InodeId,
        dir: InodeId,
        name: &[u8],
        path: &[u8],
    ) -> Result<Option<InodeId>, input::Error> {
        let kind = layer.kind(entry);
        let is_directory = kind == Kind::Directory;
        let present = self.tree.lookup(dir, name);
        let merged = present.filter(|&inode| {
            let is_opaque = layer.xattr(entry, OPAQUE).is_some();
            is_directory && !is_opaque && self.tree.file_type(inode) == FileType::Directory
        });
        let inode = match (merged, kind) {
            (Some(inode), _) => inode,
            (None, Kind::Directory | Kind::Symlink(_)) => {
                let inode = self.tree.add(layer.attributes(entry), kind).map_err(input::Error::keep(path))?;
                self.tree.replace(dir, name, inode).map_err(input::Error::keep(path))?;
                inode
            }
            (None, _) => {
                self.tree.unlink(dir, name).map_err(input::Error::keep(path))?;
                return Ok(None);
            }
        };
        if !is_directory {
            return Ok(None);
        }
        self.copy(layer, entry, inode, path)?;
        Ok(Some(inode))
    }

    /// Attributes and xattrs of a directory of a layer; that it is opaque there means nothing above it.
    fn copy(&mut self, layer: &Tree, from: InodeId, to: InodeId, path: &[u8]) -> Result<(), input::Error> {
        self.tree.set_attributes(to, layer.attributes(from)).map_err(input::Error::keep(path))?;
        let xattrs: Vec<_> = layer.xattrs(from).map(|xattr| (xattr.name(), xattr.value)).collect();
        let kept = xattrs.iter().filter(|(name, _)| name != OPAQUE);
        let pairs: Vec<_> = kept.map(|(name, value)| (name.as_slice(), *value)).collect();
        self.tree.set_xattrs(to, &pairs).map_err(input::Error::keep(path))
    }

    fn find(&self, path: &[u8]) -> Option<InodeId> {
        let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        parts.try_fold(Tree::ROOT, |inode, part| self.tree.lookup(inode, part))
    }
}
