//! From the members of an archive, in any order, to a tree.
//!
//! A directory that is only implied by what lies in it is made at once and gets its attributes when its own member
//! comes; a hard link waits for its target. Of two members with one path the last counts, but a directory with entries
//! is never replaced: what cannot all be kept is an error.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use dsec_erofs::{Attributes, Device, FileType, InodeId, Kind, Timestamp, Tree};

use super::Error;
use super::entry::{Body, Entry, EntryPath, Place};
use crate::input::{self, Addresses};
use crate::paths::join;
use crate::tree::fill::kept_name;

/// Of a directory that has no member of its own.
const IMPLICIT_DIRECTORY: Attributes =
    Attributes { mode: 0o755, uid: 0, gid: 0, mtime: Timestamp { secs: 0, nanos: 0 } };
/// Of a whiteout: what overlay gives its own.
const WHITEOUT: Attributes = Attributes { mode: 0, uid: 0, gid: 0, mtime: Timestamp { secs: 0, nanos: 0 } };
/// What overlay calls a directory that hides what the layers below have in it.
const OPAQUE: (&[u8], &[u8]) = (b"trusted.overlay.opaque", b"y");

/// What names that begin with `.wh.` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whiteouts {
    /// Names like any other.
    AreFiles,
    /// Whiteouts and opaque marks of the OCI image specification; they become those of overlay.
    AreOci,
}

/// See the [module](self).
pub(crate) struct Assembly {
    tree: Tree,
    whiteouts: Whiteouts,
    places: Vec<(InodeId, Place)>,
    addresses: Addresses,
    /// Directories without a member of their own.
    implicit: HashSet<InodeId>,
    /// Hard links whose target has not come.
    waiting: BTreeMap<EntryPath, EntryPath>,
    hidden: BTreeSet<Vec<u8>>,
    opaque: BTreeSet<InodeId>,
    /// The directory of the last member: the next one is mostly in the same.
    last: (Vec<u8>, InodeId),
}

/// A finished tree.
pub(super) struct Assembled {
    pub(super) tree: Tree,
    /// Sorted by inode.
    pub(super) places: Vec<(InodeId, Place)>,
    /// Directories that had no member of their own, the root perhaps among them.
    pub(super) implicit: Vec<InodeId>,
}

impl Assembly {
    pub(crate) fn new(whiteouts: Whiteouts) -> Result<Self, input::Error> {
        Ok(Self {
            tree: Tree::new(IMPLICIT_DIRECTORY).map_err(input::Error::keep(b""))?,
            whiteouts,
            places: Vec::new(),
            addresses: Addresses::default(),
            implicit: HashSet::from([Tree::ROOT]),
            waiting: BTreeMap::new(),
            hidden: BTreeSet::new(),
            opaque: BTreeSet::new(),
            last: (Vec::new(), Tree::ROOT),
        })
    }

    /// Adds a member.
    pub(super) fn place(&mut self, entry: Entry) -> Result<(), input::Error> {
        let Some((directory, name)) = entry.path.split() else { return self.place_root(&entry) };
        let parent = self.directory(directory, &entry.path)?;
        if self.whiteouts == Whiteouts::AreOci
            && let Some(hidden) = name.strip_prefix(b".wh.")
        {
            return Ok(self.place_whiteout(&entry.path, parent, directory, hidden)?);
        }
        self.waiting.remove(&entry.path);
        if let Body::HardLink(target) = &entry.body {
            return self.place_link(&entry.path, parent, name, target);
        }
        let present = self.tree.lookup(parent, name).filter(|&inode| self.is_directory(inode));
        let inode = match (&entry.body, present) {
            (Body::Directory, Some(inode)) => {
                self.tree.set_attributes(inode, entry.attributes).map_err(keep(&entry.path))?;
                self.implicit.remove(&inode);
                inode
            }
            _ => {
                self.clear(parent, name, &entry.path)?;
                self.add(&entry, parent, name)?
            }
        };
        self.set_xattrs(inode, &entry)
    }

    /// All that an archive says is content; what a layer says about those below it comes from whiteouts alone.
    fn set_xattrs(&mut self, inode: InodeId, entry: &Entry) -> Result<(), input::Error> {
        let xattrs: Vec<_> = entry.xattrs.iter().map(|(name, value)| (kept_name(name), value)).collect();
        let pairs: Vec<_> = xattrs.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
        self.tree.set_xattrs(inode, &pairs).map_err(keep(&entry.path))
    }

    fn add(&mut self, entry: &Entry, parent: InodeId, name: &[u8]) -> Result<InodeId, input::Error> {
        let kind = match &entry.body {
            Body::CharDevice(Device { major: 0, minor: 0 }) => {
                return Err(input::Error::WhiteoutDevice { path: entry.path.shown() });
            }
            Body::Directory => Kind::Directory,
            Body::File { bytes, .. } => Kind::Regular { bytes: *bytes },
            Body::Symlink(target) => Kind::Symlink(target),
            Body::CharDevice(device) => Kind::CharDevice(*device),
            Body::BlockDevice(device) => Kind::BlockDevice(*device),
            Body::Fifo => Kind::Fifo,
            Body::HardLink(_) => unreachable!("links are not inodes"),
        };
        let inode = self.tree.add(entry.attributes, kind).map_err(keep(&entry.path))?;
        self.tree.link(parent, name, inode).map_err(keep(&entry.path))?;
        if let Body::File { place, bytes } = &entry.body {
            if Addresses::is_vast(*bytes) {
                self.addresses.take(entry.path.as_bytes(), *bytes, place.ranges(*bytes).as_slice())?;
            }
            // Inodes are numbered in the order in which they are made, so this stays sorted.
            self.places.push((inode, place.clone()));
        }
        Ok(inode)
    }

    fn place_root(&mut self, entry: &Entry) -> Result<(), input::Error> {
        if !matches!(entry.body, Body::Directory) {
            return Err(Error::Root.into());
        }
        self.tree.set_attributes(Tree::ROOT, entry.attributes).map_err(keep(&entry.path))?;
        self.implicit.remove(&Tree::ROOT);
        self.set_xattrs(Tree::ROOT, entry)
    }

    /// A link to what is there now; to what comes later if nothing is. So a link means what it means to a program that
    /// unpacks, and still may come before its target.
    fn place_link(
        &mut self,
        path: &EntryPath,
        parent: InodeId,
        name: &[u8],
        target: &EntryPath,
    ) -> Result<(), input::Error> {
        match self.find(target) {
            Some(inode) if self.is_directory(inode) => {
                Err(Error::LinkToDirectory { path: path.shown(), target: target.shown() }.into())
            }
            Some(inode) => {
                if self.tree.lookup(parent, name) != Some(inode) {
                    self.clear(parent, name, path)?;
                    self.tree.link(parent, name, inode).map_err(keep(path))?;
                }
                Ok(())
            }
            None => {
                self.clear(parent, name, path)?;
                self.waiting.insert(path.clone(), target.clone());
                Ok(())
            }
        }
    }

    fn place_whiteout(
        &mut self,
        path: &EntryPath,
        parent: InodeId,
        directory: &[u8],
        hidden: &[u8],
    ) -> Result<(), Error> {
        match hidden {
            b".wh..opq" => {
                self.opaque.insert(parent);
                Ok(())
            }
            // The rest of that prefix is what aufs kept for itself.
            b"" | b"." | b".." => Err(Error::Whiteout { path: path.shown() }),
            _ if hidden.starts_with(b".wh.") => Err(Error::Whiteout { path: path.shown() }),
            _ => {
                self.hidden.insert(join(directory, hidden));
                Ok(())
            }
        }
    }

    /// Ends the archive: links, then whiteouts.
    pub(super) fn finish(mut self) -> Result<Assembled, input::Error> {
        self.link_waiting()?;
        self.hide()?;
        for inode in std::mem::take(&mut self.opaque) {
            let path = self.tree.directory_path(inode);
            self.tree.add_xattr(inode, OPAQUE.0, OPAQUE.1).map_err(input::Error::keep(&path))?;
        }
        // What was replaced is not in the tree any more, but its numbers are.
        let reachable = |inode: &InodeId| *inode == Tree::ROOT || self.tree.parent(*inode).is_some();
        let implicit = self.implicit.iter().copied().filter(reachable).collect();
        Ok(Assembled { implicit, tree: self.tree, places: self.places })
    }

    /// Links that wait for each other are resolved round by round.
    fn link_waiting(&mut self) -> Result<(), input::Error> {
        while !self.waiting.is_empty() {
            let before = self.waiting.len();
            for (path, target) in std::mem::take(&mut self.waiting) {
                let Some((directory, name)) = path.split() else { return Err(Error::Root.into()) };
                let parent = self.directory(directory, &path)?;
                if self.tree.lookup(parent, name).is_some() {
                    // Something was put below its path meanwhile.
                    return Err(Error::TwoThings { path: path.shown() }.into());
                }
                self.place_link(&path, parent, name, &target)?;
            }
            if self.waiting.len() == before
                && let Some((path, target)) = self.waiting.first_key_value()
            {
                return Err(Error::LinkTarget { path: path.shown(), target: target.shown() }.into());
            }
        }
        Ok(())
    }

    /// A whiteout hides what the layers below have; what this layer has there stays. So a directory here is opaque, and
    /// anything else hides by itself.
    fn hide(&mut self) -> Result<(), input::Error> {
        for path in std::mem::take(&mut self.hidden) {
            let path = EntryPath::new(&path)?;
            let Some((directory, name)) = path.split() else { return Err(Error::Root.into()) };
            let parent = self.directory(directory, &path)?;
            match self.tree.lookup(parent, name) {
                Some(inode) if self.is_directory(inode) => {
                    self.opaque.insert(inode);
                }
                Some(_) => {}
                None => {
                    let device = Kind::CharDevice(Device { major: 0, minor: 0 });
                    let inode = self.tree.add(WHITEOUT, device).map_err(keep(&path))?;
                    self.tree.link(parent, name, inode).map_err(keep(&path))?;
                }
            }
        }
        Ok(())
    }

    /// Makes room for something that is no directory, or for a directory in the place of such.
    fn clear(&mut self, parent: InodeId, name: &[u8], path: &EntryPath) -> Result<(), input::Error> {
        if let Some(inode) = self.tree.lookup(parent, name)
            && self.is_directory(inode)
            && self.tree.entry_count(inode) > 0
        {
            return Err(Error::TwoThings { path: path.shown() }.into());
        }
        self.tree.unlink(parent, name).map_err(keep(path))?;
        // A directory may have gone.
        self.last = (Vec::new(), Tree::ROOT);
        Ok(())
    }

    fn is_directory(&self, inode: InodeId) -> bool {
        self.tree.file_type(inode) == FileType::Directory
    }

    fn find(&self, path: &EntryPath) -> Option<InodeId> {
        let parts = path.as_bytes().split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(Tree::ROOT, |inode, part| self.tree.lookup(inode, part))
    }

    /// The directory at `path`, made if it is not there; `wanted` is what shall be put into it.
    fn directory(&mut self, path: &[u8], wanted: &EntryPath) -> Result<InodeId, input::Error> {
        if self.last.0 == path {
            return Ok(self.last.1);
        }
        let mut inode = Tree::ROOT;
        let mut end = 0;
        while end < path.len() {
            let start = if end == 0 { 0 } else { end + 1 };
            end = path[start..].iter().position(|byte| *byte == b'/').map_or(path.len(), |length| start + length);
            inode = match self.tree.lookup(inode, &path[start..end]) {
                Some(below) if self.is_directory(below) => below,
                Some(_) => {
                    let parent = crate::paths::Shown::new(&path[..end]);
                    return Err(Error::Parent { path: wanted.shown(), parent }.into());
                }
                None => {
                    let below = self.tree.add(IMPLICIT_DIRECTORY, Kind::Directory).map_err(keep(wanted))?;
                    self.tree.link(inode, &path[start..end], below).map_err(keep(wanted))?;
                    self.implicit.insert(below);
                    below
                }
            };
        }
        self.last = (path.to_vec(), inode);
        Ok(inode)
    }
}

fn keep(path: &EntryPath) -> impl FnOnce(dsec_erofs::tree::Error) -> input::Error {
    input::Error::keep(path.as_bytes())
}
