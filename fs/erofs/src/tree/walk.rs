//! A walk over everything that is linked below the root, in the order of paths.

use super::{Entry, InodeId, Tree};
use crate::attributes::FileType;

/// One name on a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'a> {
    /// The path from the root, without a slash in front.
    pub path: &'a [u8],
    /// The directory that has the name.
    pub dir: InodeId,
    /// What has the name. An inode with several names is met once for each.
    pub inode: InodeId,
}

/// See [`Tree::walk`]. It needs memory for the entries of the directories on the way to where it is.
#[derive(Debug)]
pub struct Walk<'a> {
    tree: &'a Tree,
    path: Vec<u8>,
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    dir: InodeId,
    /// Length of the path of the directory.
    path_bytes: usize,
    rest: std::vec::IntoIter<Entry>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(tree: &'a Tree) -> Walk<'a> {
        let mut walk = Walk { tree, path: Vec::new(), levels: Vec::new() };
        walk.enter(Tree::ROOT);
        walk
    }

    fn enter(&mut self, dir: InodeId) {
        // Only directories are entered.
        let sorted = self.tree.sorted_entries(dir).unwrap_or_default();
        self.levels.push(Level { dir, path_bytes: self.path.len(), rest: sorted.into_iter() });
    }

    /// The next name; `None` at the end. The root itself has no name and is not met.
    pub fn advance(&mut self) -> Option<Step<'_>> {
        let (dir, entry) = loop {
            let level = self.levels.last_mut()?;
            self.path.truncate(level.path_bytes);
            match level.rest.next() {
                Some(entry) => break (level.dir, entry),
                None => self.levels.pop(),
            };
        };
        let (name, inode) = self.tree.entry(entry);
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        if self.tree.file_type(inode) == FileType::Directory {
            self.enter(inode);
        }
        Some(Step { path: &self.path, dir, inode })
    }
}
