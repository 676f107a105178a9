//! First pass: the order of the inodes, their link counts and the sizes of the directories.

use crate::attributes::FileType;
use crate::format::{BLOCK_BYTES, BLOCK_LEN, DIRENT_BYTES};
use crate::tree::{self, Entry, InodeId, Tree};

/// Directory that the walk did not meet.
const UNMET: u32 = u32::MAX;

/// What the walk found.
#[derive(Debug)]
pub(super) struct Order {
    /// Every inode that is linked below the root, in the order of the image.
    pub(super) inodes: Vec<InodeId>,
    /// By inode: its link count in the image; 0 when the walk did not meet it.
    pub(super) links: Vec<u32>,
    /// The number of directories.
    pub(super) directories: u64,
    /// The sorted entries of all directories, one directory after the other.
    sorted: Vec<Entry>,
    /// By directory: where its entries start in `sorted`.
    starts: Vec<u32>,
    /// By directory: size of its entries as they lie in blocks.
    sizes: Vec<u64>,
}

impl Order {
    pub(super) fn of(tree: &Tree) -> Result<Order, tree::Error> {
        let mut order = Order {
            inodes: Vec::new(),
            links: vec![0; tree.len()],
            directories: 0,
            sorted: Vec::new(),
            starts: vec![UNMET; tree.directory_count()],
            sizes: vec![0; tree.directory_count()],
        };
        order.meet_directory(tree, Tree::ROOT)?;
        let mut pending = vec![Tree::ROOT];
        while let Some(dir) = pending.pop() {
            let first = pending.len();
            for index in order.range(tree, dir)? {
                let (_, child) = tree.entry(order.sorted[index]);
                if tree.file_type(child) == FileType::Directory {
                    order.meet_directory(tree, child)?;
                    pending.push(child);
                } else {
                    if order.links[child.index()] == 0 {
                        order.inodes.push(child);
                    }
                    order.links[child.index()] += 1;
                }
            }
            // The first subdirectory is the next to be popped.
            pending[first..].reverse();
        }
        Ok(order)
    }

    fn meet_directory(&mut self, tree: &Tree, dir: InodeId) -> Result<(), tree::Error> {
        let number = tree.directory_number(dir)?;
        let sorted = tree.sorted_entries(dir)?;
        self.starts[number] = u32::try_from(self.sorted.len()).map_err(|_| tree::Error::Full { what: "entries" })?;
        self.sorted.extend_from_slice(&sorted);
        self.inodes.push(dir);
        self.links[dir.index()] = tree.nlink(dir);
        self.directories += 1;
        let mut size = BlockFill::default();
        for (name, _) in self.names(tree, dir)? {
            size.add(name.len());
        }
        self.sizes[number] = size.bytes();
        Ok(())
    }

    fn range(&self, tree: &Tree, dir: InodeId) -> Result<std::ops::Range<usize>, tree::Error> {
        let start = self.starts[tree.directory_number(dir)?] as usize;
        Ok(start..start + tree.entry_count(dir))
    }

    /// Size of a directory's entries as they lie in blocks.
    pub(super) fn directory_bytes(&self, tree: &Tree, dir: InodeId) -> Result<u64, tree::Error> {
        Ok(self.sizes[tree.directory_number(dir)?])
    }

    /// All names of a directory with `.` and `..`, sorted by their bytes.
    pub(super) fn names<'a>(
        &'a self,
        tree: &'a Tree,
        dir: InodeId,
    ) -> Result<impl Iterator<Item = (&'a [u8], InodeId)>, tree::Error> {
        let parent = tree.parent(dir).unwrap_or(dir);
        let mut dots = [(&b"."[..], dir), (b"..", parent)].into_iter().peekable();
        let mut entries = self.sorted[self.range(tree, dir)?].iter().map(|&entry| tree.entry(entry)).peekable();
        Ok(std::iter::from_fn(move || match (dots.peek(), entries.peek()) {
            (Some(dot), Some(entry)) if dot.0 < entry.0 => dots.next(),
            (_, Some(_)) => entries.next(),
            _ => dots.next(),
        }))
    }
}

/// How entries fill blocks: as many as fit, in order, none across a border.
#[derive(Debug, Default)]
pub(super) struct BlockFill {
    full_blocks: u64,
    used: usize,
}

impl BlockFill {
    /// Takes the next name; true if it opens a new block, and the one before it is done.
    pub(super) fn add(&mut self, name_bytes: usize) -> bool {
        let bytes = DIRENT_BYTES + name_bytes;
        let opens = self.used + bytes > BLOCK_LEN;
        if opens {
            self.full_blocks += 1;
            self.used = 0;
        }
        self.used += bytes;
        opens
    }

    /// All blocks but the last count in full.
    pub(super) fn bytes(&self) -> u64 {
        self.full_blocks * BLOCK_BYTES + self.used as u64
    }
}
