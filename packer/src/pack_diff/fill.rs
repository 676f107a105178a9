//! From an upper directory to a tree without file data.

use std::collections::HashMap;

use dsec_erofs::{Attributes, InodeId, Tree};

use super::Error;
use crate::Cancel;
use crate::monitor::Monitor;
use crate::tree::{FileTree, Identity, Kind, Node, PathError, show};
use crate::upper::{Handle, Upper};

/// A directory that is being read.
struct Level {
    handle: Handle,
    inode: InodeId,
    path_bytes: usize,
    names: std::vec::IntoIter<Vec<u8>>,
}

/// Reads everything but file data.
pub(super) fn tree_of(upper: &Upper<'_>, monitor: &dyn Monitor, cancel: &Cancel) -> Result<Tree, Error> {
    let mut links: HashMap<Identity, InodeId> = HashMap::new();
    let mut path = Vec::new();
    let root = upper.root().map_err(PathError::at(&path))?;
    let node = upper.node(&root).map_err(PathError::at(&path))?;
    let mut tree = Tree::new(Attributes::default()).map_err(keep(&path))?;
    tree.set_attributes(Tree::ROOT, node.attributes).map_err(keep(&path))?;
    set_xattrs(&mut tree, Tree::ROOT, &node, &path)?;
    let mut levels = vec![enter(upper, root, Tree::ROOT, &path)?];
    while let Some(level) = levels.last_mut() {
        cancel.check()?;
        path.truncate(level.path_bytes);
        let Some(name) = level.names.next() else {
            levels.pop();
            continue;
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        monitor.advance(1);
        let handle = upper.child(&level.handle, &name).map_err(PathError::at(&path))?;
        let node = upper.node(&handle).map_err(PathError::at(&path))?;
        if let Some(first) = node.links.and_then(|identity| links.get(&identity)) {
            tree.link(level.inode, &name, *first).map_err(keep(&path))?;
            continue;
        }
        let inode = tree.add(node.attributes, node.kind.as_erofs()).map_err(keep(&path))?;
        tree.link(level.inode, &name, inode).map_err(keep(&path))?;
        set_xattrs(&mut tree, inode, &node, &path)?;
        if let Some(identity) = node.links {
            links.insert(identity, inode);
        }
        if node.kind == Kind::Directory {
            let below = enter(upper, handle, inode, &path)?;
            levels.push(below);
        }
    }
    Ok(tree)
}

fn enter(upper: &Upper<'_>, handle: Handle, inode: InodeId, path: &[u8]) -> Result<Level, Error> {
    let names = upper.names(&handle).map_err(PathError::at(path))?.into_iter();
    Ok(Level { handle, inode, path_bytes: path.len(), names })
}

fn set_xattrs(tree: &mut Tree, inode: InodeId, node: &Node, path: &[u8]) -> Result<(), Error> {
    let pairs: Vec<_> = node.xattrs.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
    tree.set_xattrs(inode, &pairs).map_err(keep(path))
}

fn keep(path: &[u8]) -> impl FnOnce(dsec_erofs::tree::Error) -> Error {
    let path = show(path);
    move |source| Error::Keep { path, source }
}
