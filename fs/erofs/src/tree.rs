//! A file tree in memory, without file data: what every packer input fills and the writer consumes.
//!
//! It is made for millions of inodes: an inode is a record of 48 bytes in one table and is named by its index, an
//! entry is another 20 bytes and its name; symlink targets, xattrs and segments lie in shared arenas. Nothing is
//! allocated per inode. One million files with names of 16 bytes take some 100 MiB.
//!
//! Inodes and names are apart, as in a file system: [`Tree::add`] makes an inode, [`Tree::link`] gives it a name, and
//! another link makes a hard link, of any kind but a directory. A directory can be filled before it has a name or its
//! attributes. What is not linked to the root when the tree is written is left out.
//!
//! Ids are only good for the tree that gave them; with another's, methods panic or answer for another inode.

mod entries;
mod error;
mod runs;
mod walk;
pub(crate) mod xattrs;

use std::fmt;

pub use self::error::Error;
pub use self::walk::{Step, Walk};
pub use self::xattrs::Xattr;

use self::entries::{Entries, EntryId, List};
use self::runs::{Place, Runs};
use crate::attributes::{Attributes, Device, FileType, Kind, Run, Segment, Timestamp};
use crate::format;
use crate::overlay;

pub(crate) use self::entries::EntryId as Entry;
pub(crate) use self::runs::chunks_of;

/// An inode of a [`Tree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeId(u32);

impl InodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode #{}", self.0)
    }
}

/// Directory without a parent.
const NO_PARENT: u32 = u32::MAX;

/// What `Record::data` means for a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DataIs {
    Nothing,
    DeviceBlock,
    List,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    /// Bytes of a regular file or of a symlink target.
    bytes: u64,
    mtime_secs: i64,
    mtime_nanos: u32,
    uid: u32,
    gid: u32,
    /// Entries that name it.
    links: u32,
    xattrs: u32,
    /// By kind: number of the directory, place of the target, device number, place of the data.
    data: u32,
    /// Type and permissions.
    mode: u16,
    data_is: DataIs,
}

#[derive(Debug, Clone, Copy)]
struct Directory {
    parent: u32,
    /// The entry that names it, when there is a parent.
    entry: EntryId,
    list: List,
    subdirectories: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Tree {
    inodes: Vec<Record>,
    directories: Vec<Directory>,
    entries: Entries,
    targets: Vec<u8>,
    runs: Runs,
    xattrs: xattrs::Xattrs,
}

impl Tree {
    /// The root directory of every tree.
    pub const ROOT: InodeId = InodeId(0);

    /// A tree of an empty root directory.
    pub fn new(root: Attributes) -> Result<Tree, Error> {
        let mut tree = Tree {
            inodes: Vec::new(),
            directories: Vec::new(),
            entries: Entries::default(),
            targets: Vec::new(),
            runs: Runs::default(),
            xattrs: xattrs::Xattrs::new(),
        };
        tree.add(root, Kind::Directory)?;
        Ok(tree)
    }

    /// Number of inodes made, linked or not.
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Never: there is a root.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Makes an inode that no directory names yet.
    ///
    /// A regular file is one hole until [`Tree::set_segments`] says otherwise.
    pub fn add(&mut self, attributes: Attributes, kind: Kind<'_>) -> Result<InodeId, Error> {
        check_attributes(&attributes)?;
        check_kind(&kind)?;
        let id = u32::try_from(self.inodes.len()).ok().filter(|&id| id < u32::MAX - 2);
        let id = id.ok_or(Error::Full { what: "inodes" })?;
        let (bytes, data) = match kind {
            Kind::Directory => {
                let number = self.directories.len();
                self.directories.push(Directory {
                    parent: NO_PARENT,
                    entry: EntryId(0),
                    list: List::EMPTY,
                    subdirectories: 0,
                });
                // There are no more directories than inodes.
                (0, u32::try_from(number).map_err(|_| Error::Full { what: "directories" })?)
            }
            Kind::Regular { bytes } => (bytes, 0),
            Kind::Symlink(target) => {
                let at = u32::try_from(self.targets.len()).map_err(|_| Error::Full { what: "symlink targets" })?;
                self.targets.extend_from_slice(target);
                (target.len() as u64, at)
            }
            Kind::CharDevice(device) | Kind::BlockDevice(device) => {
                (0, format::encode_device(device.major, device.minor))
            }
            Kind::Fifo | Kind::Socket => (0, 0),
        };
        self.inodes.push(Record {
            bytes,
            mtime_secs: attributes.mtime.secs,
            mtime_nanos: attributes.mtime.nanos,
            uid: attributes.uid,
            gid: attributes.gid,
            links: 0,
            xattrs: 0,
            data,
            mode: attributes.mode | kind.file_type().mode_bits(),
            data_is: DataIs::Nothing,
        });
        Ok(InodeId(id))
    }

    /// Names `child` in `dir`. An error if the name is taken; see [`Tree::replace`].
    pub fn link(&mut self, dir: InodeId, name: &[u8], child: InodeId) -> Result<(), Error> {
        self.check_link(dir, name, child)?;
        if self.entries.find(dir, name).is_some() {
            return Err(Error::Exists { dir, name: name.to_vec() });
        }
        self.insert(dir, name, child)
    }

    /// Names `child` in `dir`, in the place of what had the name before, which is answered.
    ///
    /// What is replaced is unlinked as [`Tree::unlink`] does it, with everything below it.
    pub fn replace(&mut self, dir: InodeId, name: &[u8], child: InodeId) -> Result<Option<InodeId>, Error> {
        if let Some(entry) = self.entries.find(dir, name)
            && self.entries.child(entry) == child
        {
            return Ok(Some(child));
        }
        self.check_link(dir, name, child)?;
        let before = self.unlink(dir, name)?;
        self.insert(dir, name, child)?;
        Ok(before)
    }

    /// Takes a name away and answers what had it.
    ///
    /// A directory that loses its name loses its entries too, and so on down: what is left of it is an empty
    /// directory that can be linked again. Other inodes stay as they are, with their other names.
    pub fn unlink(&mut self, dir: InodeId, name: &[u8]) -> Result<Option<InodeId>, Error> {
        self.directory(dir)?;
        let Some(entry) = self.entries.find(dir, name) else { return Ok(None) };
        let child = self.entries.child(entry);
        let mut doomed = vec![entry];
        while let Some(entry) = doomed.pop() {
            let (dir, child) = (self.entries.dir(entry), self.entries.child(entry));
            let parent = self.number(dir);
            self.entries.remove(&mut self.directories[parent].list, entry);
            self.inodes[child.index()].links -= 1;
            if self.file_type(child) == FileType::Directory {
                self.directories[parent].subdirectories -= 1;
                let number = self.number(child);
                self.directories[number].parent = NO_PARENT;
                doomed.extend(self.entries.iter(self.directories[number].list));
            }
        }
        Ok(Some(child))
    }

    /// What a name in a directory names. `None` too if `dir` is no directory.
    pub fn lookup(&self, dir: InodeId, name: &[u8]) -> Option<InodeId> {
        self.entries.find(dir, name).map(|entry| self.entries.child(entry))
    }

    /// The entries of a directory, sorted by the bytes of their names.
    pub fn entries(&self, dir: InodeId) -> Result<impl Iterator<Item = (&[u8], InodeId)>, Error> {
        let sorted = self.sorted_entries(dir)?;
        Ok(sorted.into_iter().map(|entry| (self.entries.name(entry), self.entries.child(entry))))
    }

    /// The number of entries of a directory; 0 for anything else.
    pub fn entry_count(&self, dir: InodeId) -> usize {
        self.directory(dir).map_or(0, |directory| directory.list.count as usize)
    }

    /// Everything below the root, each directory before its entries, these sorted by the bytes of their names.
    pub fn walk(&self) -> Walk<'_> {
        Walk::new(self)
    }

    /// The attributes of an inode.
    pub fn attributes(&self, inode: InodeId) -> Attributes {
        let record = &self.inodes[inode.index()];
        Attributes {
            mode: record.mode & 0o7777,
            uid: record.uid,
            gid: record.gid,
            mtime: Timestamp { secs: record.mtime_secs, nanos: record.mtime_nanos },
        }
    }

    /// Replaces the attributes of an inode.
    pub fn set_attributes(&mut self, inode: InodeId, attributes: Attributes) -> Result<(), Error> {
        check_attributes(&attributes)?;
        let file_type = self.file_type(inode);
        let record = &mut self.inodes[inode.index()];
        record.mode = attributes.mode | file_type.mode_bits();
        record.uid = attributes.uid;
        record.gid = attributes.gid;
        record.mtime_secs = attributes.mtime.secs;
        record.mtime_nanos = attributes.mtime.nanos;
        Ok(())
    }

    /// What an inode is.
    pub fn kind(&self, inode: InodeId) -> Kind<'_> {
        let record = &self.inodes[inode.index()];
        let (major, minor) = format::decode_device(record.data);
        match self.file_type(inode) {
            FileType::Directory => Kind::Directory,
            FileType::Regular => Kind::Regular { bytes: record.bytes },
            FileType::Symlink => {
                let rest = &self.targets[record.data as usize..];
                Kind::Symlink(&rest[..usize::try_from(record.bytes).unwrap_or(rest.len())])
            }
            FileType::CharDevice => Kind::CharDevice(Device { major, minor }),
            FileType::BlockDevice => Kind::BlockDevice(Device { major, minor }),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
        }
    }

    /// The type of an inode.
    pub fn file_type(&self, inode: InodeId) -> FileType {
        // A record gets its type bits from a `FileType`.
        FileType::from_mode(self.inodes[inode.index()].mode).unwrap_or(FileType::Regular)
    }

    /// The link count: for a directory 2 and one per subdirectory, for others the number of their
    /// names, those in directories that are not linked themselves included.
    pub fn nlink(&self, inode: InodeId) -> u32 {
        match self.directory(inode) {
            Ok(directory) => 2 + directory.subdirectories,
            Err(_) => self.inodes[inode.index()].links,
        }
    }

    /// The directory that has an entry for this one; none for the root and for what is not linked.
    pub fn parent(&self, dir: InodeId) -> Option<InodeId> {
        let directory = self.directory(dir).ok()?;
        (directory.parent != NO_PARENT).then_some(InodeId(directory.parent))
    }

    /// The path of a directory from the topmost directory that it is linked below, without a slash in front; empty for
    /// the root.
    pub fn directory_path(&self, dir: InodeId) -> Vec<u8> {
        let mut names = Vec::new();
        let mut below = dir;
        while let Some(parent) = self.parent(below) {
            names.push(self.entries.name(self.directories[self.number(below)].entry));
            below = parent;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// The xattrs of an inode, sorted by the index of the namespace (`user.`, the ACLs, `trusted.`, `security.`), then
    /// by name.
    pub fn xattrs(&self, inode: InodeId) -> impl Iterator<Item = Xattr<'_>> {
        self.xattrs.members(self.xattr_set(inode)).iter().map(|&id| self.xattrs.item(id))
    }

    /// The value of one xattr, by its full name.
    pub fn xattr(&self, inode: InodeId, name: &[u8]) -> Option<&[u8]> {
        let key = xattrs::split_name(name)?;
        self.xattrs(inode).find(|xattr| xattr.key() == key).map(|xattr| xattr.value)
    }

    /// Replaces all xattrs of an inode. Pairs of full name and value, in any order. Refused is what would give orders to
    /// an overlay mount, but for an opaque directory.
    pub fn set_xattrs(&mut self, inode: InodeId, xattrs: &[(&[u8], &[u8])]) -> Result<(), Error> {
        let file_type = self.file_type(inode);
        let checked = xattrs.iter().map(|(name, value)| {
            let xattr = Xattr::new(name, value)?;
            let legal = overlay::may_have(file_type, &xattr);
            if legal { Ok(xattr) } else { Err(Error::XattrOverlay { name: name.to_vec() }) }
        });
        let set = self.xattrs.intern(&mut checked.collect::<Result<Vec<_>, Error>>()?)?;
        self.inodes[inode.index()].xattrs = set;
        Ok(())
    }

    /// Sets one xattr beside the others that an inode has.
    pub fn add_xattr(&mut self, inode: InodeId, name: &[u8], value: &[u8]) -> Result<(), Error> {
        let new = Xattr::new(name, value)?;
        let kept = self.xattrs(inode).filter(|xattr| xattr.key() != new.key());
        let all: Vec<_> = kept.map(|xattr| (xattr.name(), xattr.value.to_vec())).collect();
        let mut pairs: Vec<_> = all.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
        pairs.push((name, value));
        self.set_xattrs(inode, &pairs)
    }

    /// Says where the data of a regular file lies. What no segment covers is a hole.
    ///
    /// The segments are in the order of the file and do not overlap there. See [`Segment`] for their alignment.
    pub fn set_segments(&mut self, file: InodeId, segments: &[Segment]) -> Result<(), Error> {
        let Kind::Regular { bytes } = self.kind(file) else { return Err(Error::NotAFile { inode: file }) };
        let (data, data_is) = match self.runs.store(bytes, segments)? {
            Place::Hole => (0, DataIs::Nothing),
            Place::Whole(block) => (block, DataIs::DeviceBlock),
            Place::Listed(number) => (number, DataIs::List),
        };
        let record = &mut self.inodes[file.index()];
        record.data = data;
        record.data_is = data_is;
        Ok(())
    }

    /// The data of a file in order, segments joined where file and device both go on. Empty for other kinds.
    pub fn segments(&self, file: InodeId) -> impl Iterator<Item = Segment> {
        let bytes = self.inodes[file.index()].bytes;
        let (first, rest) = self.runs(file);
        first.into_iter().chain(rest.iter().copied()).map(move |run| run.segment(bytes))
    }
}

/// What the writer and the walk need.
impl Tree {
    fn number(&self, dir: InodeId) -> usize {
        self.inodes[dir.index()].data as usize
    }

    fn directory(&self, inode: InodeId) -> Result<&Directory, Error> {
        match self.file_type(inode) {
            FileType::Directory => Ok(&self.directories[self.number(inode)]),
            _ => Err(Error::NotADirectory { inode }),
        }
    }

    fn check_link(&self, dir: InodeId, name: &[u8], child: InodeId) -> Result<(), Error> {
        error::check_name(name)?;
        self.directory(dir)?;
        if self.inodes[child.index()].links == u32::MAX {
            return Err(Error::Full { what: "links to one inode" });
        }
        let Ok(directory) = self.directory(child) else { return Ok(()) };
        if child == Tree::ROOT || directory.parent != NO_PARENT {
            return Err(Error::SecondParent { inode: child });
        }
        // An empty directory has nothing below it, so a tree that is built from the top never walks up here.
        let mut above = Some(dir);
        while let Some(inode) = above {
            if inode == child {
                return Err(Error::Cycle { inode: child });
            }
            above = if directory.list.count == 0 { None } else { self.parent(inode) };
        }
        Ok(())
    }

    fn insert(&mut self, dir: InodeId, name: &[u8], child: InodeId) -> Result<(), Error> {
        let parent = self.number(dir);
        let entry = self.entries.insert(&mut self.directories[parent].list, dir, name, child)?;
        self.inodes[child.index()].links += 1;
        if self.file_type(child) == FileType::Directory {
            self.directories[parent].subdirectories += 1;
            let number = self.number(child);
            self.directories[number].parent = dir.0;
            self.directories[number].entry = entry;
        }
        Ok(())
    }

    pub(crate) fn sorted_entries(&self, dir: InodeId) -> Result<Vec<Entry>, Error> {
        let mut sorted: Vec<Entry> = self.entries.iter(self.directory(dir)?.list).collect();
        sorted.sort_unstable_by(|left, right| self.entries.name(*left).cmp(self.entries.name(*right)));
        Ok(sorted)
    }

    pub(crate) fn entry(&self, entry: Entry) -> (&[u8], InodeId) {
        (self.entries.name(entry), self.entries.child(entry))
    }

    pub(crate) fn directory_count(&self) -> usize {
        self.directories.len()
    }

    /// The number of a directory, below [`Tree::directory_count`].
    pub(crate) fn directory_number(&self, dir: InodeId) -> Result<usize, Error> {
        self.directory(dir).map(|_| self.number(dir))
    }

    pub(crate) fn xattr_set(&self, inode: InodeId) -> u32 {
        self.inodes[inode.index()].xattrs
    }

    pub(crate) fn xattr_sets(&self) -> usize {
        self.xattrs.sets()
    }

    pub(crate) fn xattr_items(&self) -> usize {
        self.xattrs.items()
    }

    pub(crate) fn xattr_members(&self, set: u32) -> &[u32] {
        self.xattrs.members(set)
    }

    pub(crate) fn xattr_item(&self, id: u32) -> Xattr<'_> {
        self.xattrs.item(id)
    }

    /// The runs of a file: either one, or a list.
    pub(crate) fn runs(&self, file: InodeId) -> (Option<Run>, &[Run]) {
        let record = &self.inodes[file.index()];
        match record.data_is {
            DataIs::Nothing => (None, &[]),
            DataIs::DeviceBlock => {
                // `Runs::store` made it of one run of so many blocks, which it found to fit.
                let blocks = u32::try_from(record.bytes.div_ceil(format::BLOCK_BYTES)).unwrap_or(u32::MAX);
                (Some(Run { file_block: 0, device_block: record.data, blocks }), &[])
            }
            DataIs::List => (None, self.runs.list(record.data)),
        }
    }
}

fn check_attributes(attributes: &Attributes) -> Result<(), Error> {
    if attributes.mode > 0o7777 {
        return Err(Error::Mode { mode: attributes.mode });
    }
    if attributes.uid == u32::MAX || attributes.gid == u32::MAX {
        return Err(Error::Id { id: u32::MAX });
    }
    if attributes.mtime.nanos >= 1_000_000_000 {
        return Err(Error::Nanoseconds { nanos: attributes.mtime.nanos });
    }
    Ok(())
}

fn check_kind(kind: &Kind<'_>) -> Result<(), Error> {
    match *kind {
        Kind::Regular { bytes } if bytes > format::FILE_MAX_BYTES => Err(Error::FileTooLarge { bytes }),
        Kind::Symlink(b"") => Err(Error::EmptyTarget),
        Kind::Symlink(target) if target.len() > format::SYMLINK_MAX_BYTES => {
            Err(Error::TargetTooLong { bytes: target.len() })
        }
        Kind::Symlink(target) if target.contains(&0) => Err(Error::NulInTarget),
        Kind::CharDevice(Device { major, minor }) | Kind::BlockDevice(Device { major, minor })
            if major > format::MAJOR_MAX || minor > format::MINOR_MAX =>
        {
            Err(Error::DeviceNumber { major, minor })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
