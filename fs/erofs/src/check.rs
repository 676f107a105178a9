//! Checks a whole image before anyone relies on it: above all before the kernel is given one from a stranger.
//!
//! An image that passes is one that [`crate::write`] could have made, up to the choices it is free in (where exactly
//! things lie, which xattrs are shared, how large chunks are): only our superblock, extended inodes and our three data
//! layouts; every directory reached from the root once; names legal, sorted and unique, `.` and `..` right; link counts
//! right; types in entries those of the inodes; every chunk inside the data device; xattrs legal, sorted and unique, none of them an
//! order to overlay mounts but that a directory is opaque;
//! no two structures on the same bytes, and nothing but zeros between them.
//!
//! The work is linear in the size of the image, since no byte belongs to two inodes. Beside the image it needs 1/128 of
//! its size, 16 bytes for each directory still to be entered and some 24 for each inode with unmet names.
#![deny(clippy::indexing_slicing, clippy::unwrap_used)]

mod claims;
mod content;

use std::collections::HashMap;

use self::claims::Claims;
use crate::attributes::FileType;
use crate::format::{BLOCK_BYTES, SLOT_BYTES, SUPERBLOCK_OFFSET};
use crate::image::{self, DirEntry, Image, Inode, Nid};

/// What a sound image holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// Size of the image.
    pub bytes: u64,
    /// Size of its data device.
    pub device_bytes: u64,
    /// Inodes.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names, without `.` and `..`.
    pub names: u64,
    /// Sum of the sizes of its regular files, holes included; each inode counts once.
    pub file_bytes: u64,
}

/// Why an image is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A structure cannot be read.
    #[error("cannot read the image")]
    Image(#[from] image::Error),
    /// A structure of an inode breaks a rule.
    #[error("{nid}: {rule}")]
    Inode {
        /// Which inode.
        nid: Nid,
        /// What is wrong.
        rule: &'static str,
    },
    /// An entry of a directory breaks a rule.
    #[error("entry `{}` of {dir}: {rule}", name.escape_ascii())]
    Entry {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Vec<u8>,
        /// What is wrong.
        rule: &'static str,
    },
    /// Two structures share bytes.
    #[error("{what} of {nid} overlaps another structure")]
    Overlap {
        /// Which.
        what: &'static str,
        /// Of which inode.
        nid: Nid,
    },
    /// A link count is larger than the number of names.
    #[error("{nid} has fewer names than its link count says")]
    TooFewNames {
        /// Which inode.
        nid: Nid,
    },
    /// The superblock counts other inodes than there are.
    #[error("superblock counts {stated} inodes, {found} are reached")]
    InodeCount {
        /// In the superblock.
        stated: u64,
        /// Reached from the root.
        found: u64,
    },
    /// The superblock places shared xattrs where there are none, or they overlap something.
    #[error("area of the shared xattrs is wrong")]
    SharedArea,
    /// Bytes that belong to nothing are not zero.
    #[error("unused bytes at {offset} are not zero")]
    Unused {
        /// Where.
        offset: u64,
    },
}

/// Checks an image.
pub fn check(bytes: &[u8]) -> Result<Checked, Error> {
    let image = Image::open(bytes)?;
    let mut checker = Checker {
        claims: Claims::new(bytes.len() as u64),
        starts: Claims::new(bytes.len() as u64),
        unmet_names: HashMap::new(),
        pending: Vec::new(),
        shared_end: 0,
        checked: Checked { bytes: bytes.len() as u64, device_bytes: image.device_bytes(), ..Checked::default() },
        image,
    };
    checker.claims.claim(SUPERBLOCK_OFFSET, BLOCK_BYTES - SUPERBLOCK_OFFSET);
    checker.tree()?;
    checker.whole()?;
    Ok(checker.checked)
}

/// `Some(true)` if the entry names this directory.
fn is_directory(entry: &DirEntry<'_>, nid: Nid) -> Option<bool> {
    (entry.nid == nid && entry.file_type == FileType::Directory).then_some(true)
}

struct Checker<'a> {
    image: Image<&'a [u8]>,
    /// Slots that belong to something.
    claims: Claims,
    /// Slots at which an inode that was met starts.
    starts: Claims,
    /// Inodes with more names than were met, and how many more.
    unmet_names: HashMap<Nid, u32>,
    /// Directories to enter, and their parents.
    pending: Vec<(Inode, Nid)>,
    /// Where the last shared xattr ends.
    shared_end: u64,
    checked: Checked,
}

impl Checker<'_> {
    fn tree(&mut self) -> Result<(), Error> {
        let root = self.image.inode(self.image.root_nid())?;
        if root.file_type != FileType::Directory {
            return Err(Error::Inode { nid: root.nid, rule: "the root is not a directory" });
        }
        self.starts.claim(root.offset(), 1);
        self.meet_first(&root, root.nid)?;
        while let Some((dir, parent)) = self.pending.pop() {
            let subdirectories = self.directory(&dir, parent)?;
            if u64::from(dir.nlink) != subdirectories + 2 {
                return Err(Error::Inode { nid: dir.nid, rule: "link count is not 2 and one per subdirectory" });
            }
        }
        Ok(())
    }

    /// Meets everything that the entries of a directory name, and answers how many are directories.
    fn directory(&mut self, dir: &Inode, parent: Nid) -> Result<u64, Error> {
        let mut subdirectories = 0;
        let mut before = None;
        let (mut dot, mut dotdot) = (false, false);
        let image = self.image;
        for number in 0..dir.bytes.div_ceil(BLOCK_BYTES) {
            let block = image.directory_block(dir, number)?;
            let last = (number + 1).saturating_mul(BLOCK_BYTES) >= dir.bytes;
            if block.padding().iter().any(|&byte| byte != 0) || (last && !block.padding().is_empty()) {
                return Err(Error::Inode { nid: dir.nid, rule: "bytes behind the names are not zero, or too many" });
            }
            for index in 0..block.entries {
                let entry = block.entry(number, index)?;
                let refuse = |rule| Error::Entry { dir: dir.nid, name: entry.name.to_vec(), rule };
                if before.is_some_and(|before| before >= entry.name) {
                    return Err(refuse("is not sorted behind the one before it"));
                }
                before = Some(entry.name);
                match entry.name {
                    b"." => dot = is_directory(&entry, dir.nid).ok_or_else(|| refuse("names another inode"))?,
                    b".." => dotdot = is_directory(&entry, parent).ok_or_else(|| refuse("names another inode"))?,
                    name if name.contains(&b'/') || name.contains(&0) => return Err(refuse("is no legal name")),
                    _ => {
                        self.meet(dir, &entry)?;
                        self.checked.names += 1;
                        subdirectories += u64::from(entry.file_type == FileType::Directory);
                    }
                }
            }
        }
        match dot && dotdot {
            true => Ok(subdirectories),
            false => Err(Error::Inode { nid: dir.nid, rule: "`.` or `..` is missing" }),
        }
    }

    /// Meets what an entry names.
    fn meet(&mut self, dir: &Inode, entry: &DirEntry<'_>) -> Result<(), Error> {
        let refuse = |rule| Error::Entry { dir: dir.nid, name: entry.name.to_vec(), rule };
        let inode = self.image.inode(entry.nid)?;
        if inode.file_type != entry.file_type {
            return Err(refuse("states another type than its inode"));
        }
        if self.starts.claim(inode.offset(), 1) {
            return self.meet_first(&inode, dir.nid);
        }
        if inode.file_type == FileType::Directory {
            return Err(refuse("is a second name of a directory"));
        }
        match self.unmet_names.get_mut(&inode.nid) {
            Some(1) => drop(self.unmet_names.remove(&inode.nid)),
            Some(left) => *left -= 1,
            None => return Err(refuse("is one name more than the link count says")),
        }
        Ok(())
    }

    /// Checks an inode that was not met before.
    fn meet_first(&mut self, inode: &Inode, parent: Nid) -> Result<(), Error> {
        self.checked.inodes += 1;
        match inode.file_type {
            FileType::Directory => {
                self.checked.directories += 1;
                self.pending.push((*inode, parent));
            }
            _ if inode.nlink == 0 => return Err(Error::Inode { nid: inode.nid, rule: "link count is zero" }),
            _ if inode.nlink > 1 => drop(self.unmet_names.insert(inode.nid, inode.nlink - 1)),
            _ => {}
        }
        // First the claims, so that nothing is read twice.
        let body_end = content::body_end(inode).ok_or(image::Error::Outside { what: "body", nid: inode.nid })?;
        self.claim("inode", inode, inode.offset(), body_end)?;
        if inode.data_blocks() != 0 {
            let start = u64::from(inode.data).saturating_mul(BLOCK_BYTES);
            let end = inode.data_blocks().saturating_mul(BLOCK_BYTES).saturating_add(start);
            self.claim("data", inode, start, end)?;
        }
        if inode.file_type == FileType::Regular {
            self.checked.file_bytes = self.checked.file_bytes.saturating_add(inode.bytes);
        }
        let shared_end = content::check(&self.image, inode, body_end)?;
        self.shared_end = self.shared_end.max(shared_end);
        Ok(())
    }

    fn claim(&mut self, what: &'static str, inode: &Inode, start: u64, end: u64) -> Result<(), Error> {
        if end > self.checked.bytes {
            return Err(image::Error::Outside { what, nid: inode.nid }.into());
        }
        match self.claims.claim(start, end - start) {
            true => Ok(()),
            false => Err(Error::Overlap { what, nid: inode.nid }),
        }
    }

    /// What only the end of the walk tells.
    fn whole(&mut self) -> Result<(), Error> {
        if let Some(&nid) = self.unmet_names.keys().min() {
            return Err(Error::TooFewNames { nid });
        }
        if self.checked.inodes != self.image.inode_count() {
            return Err(Error::InodeCount { stated: self.image.inode_count(), found: self.checked.inodes });
        }
        let base = self.image.xattr_base();
        if (base == 0) != (self.shared_end == 0) {
            return Err(Error::SharedArea);
        }
        if base != 0 && !self.claims.claim(base, self.shared_end - base) {
            return Err(Error::SharedArea);
        }
        let bytes = self.image.bytes();
        for (slot, slot_bytes) in (0..).zip(bytes.chunks(claims::SLOT_LEN)) {
            if !self.claims.has(slot) && slot_bytes.iter().any(|&byte| byte != 0) {
                return Err(Error::Unused { offset: slot * SLOT_BYTES });
            }
        }
        Ok(())
    }
}
