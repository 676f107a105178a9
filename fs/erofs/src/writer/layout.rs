//! Second pass: where everything goes.
//!
//! The image is, front to back: the block of the superblock, the inodes from block 1 on, the shared xattrs, the blocks
//! of directories and long symlinks. All sizes follow from the tree and the order alone.

use super::order::Order;
use super::{Error, path_of};
use crate::attributes::{FileType, Kind};
use crate::format::{
    BLOCK_BYTES, CHUNK_INDEX_BYTES, INLINE_TAIL_MAX_BYTES, INODE_BYTES, ROOT_NID, SLOT_BYTES, XATTR_AREA_MAX_BYTES,
    XATTR_ENTRY_BYTES, XATTR_HEADER_BYTES, XATTR_INLINE_MAX_BYTES, XATTR_SHARED_MAX, round_up,
};
use crate::grain::Chunks;
use crate::tree::{InodeId, Tree, chunks_of};

/// An xattr that is not shared, or has no place yet.
const INLINE: u32 = u32::MAX;

/// Where everything goes.
#[derive(Debug)]
pub(super) struct Layout {
    /// By inode: its node id.
    nids: Vec<u32>,
    /// By place in the order: the first block of the inode's data, for those that have blocks.
    data_blocks: Vec<u32>,
    pub(super) areas: Vec<XattrArea>,
    /// By xattr: its shared id, or [`INLINE`].
    shared_ids: Vec<u32>,
    /// The shared xattrs, in order.
    pub(super) shared: Vec<u32>,
    pub(super) shared_bytes: u64,
    /// First block of the shared xattrs; 0 when there are none.
    pub(super) xattr_block: u32,
    pub(super) first_data_block: u32,
    /// Blocks of the image.
    pub(super) blocks: u32,
}

/// The xattr area of the inodes that have one set of xattrs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct XattrArea {
    pub(super) bytes: u64,
    pub(super) shared: u8,
}

/// How the bytes of an inode are stored, by its kind and size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Body {
    /// Whole and part blocks elsewhere.
    pub(super) blocks: u64,
    /// Bytes behind the inode and its xattrs that may not cross a block.
    pub(super) tail_bytes: u64,
    /// Bytes of chunk indexes behind the inode and its xattrs, aligned to their size.
    pub(super) index_bytes: u64,
}

impl Body {
    pub(super) fn of(tree: &Tree, order: &Order, inode: InodeId) -> Result<Body, Error> {
        let bytes = match tree.kind(inode) {
            Kind::Directory => order.directory_bytes(tree, inode)?,
            Kind::Symlink(target) => target.len() as u64,
            Kind::Regular { bytes } => {
                let index_bytes = chunks(tree, inode, bytes).count * CHUNK_INDEX_BYTES;
                return Ok(Body { blocks: 0, tail_bytes: 0, index_bytes });
            }
            _ => 0,
        };
        let tail = bytes % BLOCK_BYTES;
        if tail != 0 && tail <= INLINE_TAIL_MAX_BYTES {
            Ok(Body { blocks: bytes / BLOCK_BYTES, tail_bytes: tail, index_bytes: 0 })
        } else {
            Ok(Body { blocks: bytes.div_ceil(BLOCK_BYTES), tail_bytes: 0, index_bytes: 0 })
        }
    }
}

/// The chunks of a file.
pub(super) fn chunks(tree: &Tree, file: InodeId, bytes: u64) -> Chunks {
    match tree.runs(file) {
        (Some(run), _) => chunks_of(bytes, &[run]),
        (None, runs) => chunks_of(bytes, runs),
    }
}

impl Layout {
    pub(super) fn of(tree: &Tree, order: &Order) -> Result<Layout, Error> {
        let mut layout = Layout {
            nids: vec![0; tree.len()],
            data_blocks: Vec::new(),
            areas: vec![XattrArea::default(); tree.xattr_sets()],
            shared_ids: vec![INLINE; tree.xattr_items()],
            shared: Vec::new(),
            shared_bytes: 0,
            xattr_block: 0,
            first_data_block: 0,
            blocks: 0,
        };
        layout.place_xattrs(tree, order)?;
        layout.place_inodes(tree, order)?;
        Ok(layout)
    }

    pub(super) fn nid(&self, inode: InodeId) -> u32 {
        self.nids[inode.index()]
    }

    pub(super) fn area(&self, tree: &Tree, inode: InodeId) -> XattrArea {
        self.areas[tree.xattr_set(inode) as usize]
    }

    /// The shared id of an xattr that is shared among the inodes of this set.
    pub(super) fn shared_id(&self, item: u32) -> Option<u32> {
        Some(self.shared_ids[item as usize]).filter(|&id| id != INLINE)
    }

    /// The members of a set: those that are stored by id, then those that are stored inline.
    pub(super) fn split<'a>(
        &'a self,
        tree: &'a Tree,
        set: u32,
    ) -> (impl Iterator<Item = u32> + 'a, impl Iterator<Item = u32> + 'a) {
        let members = tree.xattr_members(set);
        let is_shared = |item: &u32| self.shared_ids[*item as usize] != INLINE;
        let shared = members.iter().copied().filter(is_shared).take(XATTR_SHARED_MAX);
        let mut by_id = 0;
        let inline = members.iter().copied().filter(move |item| {
            let here = is_shared(item) && by_id < XATTR_SHARED_MAX;
            by_id += usize::from(here);
            !here
        });
        (shared, inline)
    }

    /// Shares what two inodes have or what is large, and sizes the areas.
    fn place_xattrs(&mut self, tree: &Tree, order: &Order) -> Result<(), Error> {
        let mut users = vec![0_u32; tree.xattr_items()];
        for &inode in &order.inodes {
            for &item in tree.xattr_members(tree.xattr_set(inode)) {
                users[item as usize] = users[item as usize].saturating_add(1);
            }
        }
        let mut sized = vec![false; tree.xattr_sets()];
        for &inode in &order.inodes {
            let set = tree.xattr_set(inode);
            if set == 0 || std::mem::replace(&mut sized[set as usize], true) {
                continue;
            }
            self.share(tree, set, &users)?;
            self.areas[set as usize] = self.size_area(tree, set, inode)?;
        }
        Ok(())
    }

    fn share(&mut self, tree: &Tree, set: u32, users: &[u32]) -> Result<(), Error> {
        let worth_it =
            |&item: &u32| users[item as usize] > 1 || tree.xattr_item(item).entry_bytes() > XATTR_INLINE_MAX_BYTES;
        for item in tree.xattr_members(set).iter().copied().filter(worth_it).take(XATTR_SHARED_MAX) {
            if self.shared_ids[item as usize] == INLINE {
                let id = u32::try_from(self.shared_bytes / XATTR_ENTRY_BYTES).ok().filter(|&id| id != INLINE);
                self.shared_ids[item as usize] = id.ok_or(Error::ImageTooLarge)?;
                self.shared_bytes += tree.xattr_item(item).entry_bytes();
                self.shared.push(item);
            }
        }
        Ok(())
    }

    fn size_area(&self, tree: &Tree, set: u32, user: InodeId) -> Result<XattrArea, Error> {
        let (shared, inline) = self.split(tree, set);
        // `split` takes no more than fit into the count.
        let shared = u8::try_from(shared.count()).unwrap_or(u8::MAX);
        let inline: u64 = inline.map(|item| tree.xattr_item(item).entry_bytes()).sum();
        let bytes = XATTR_HEADER_BYTES + u64::from(shared) * XATTR_ENTRY_BYTES + inline;
        if bytes > XATTR_AREA_MAX_BYTES {
            return Err(Error::XattrsTooLarge { path: path_of(tree, user), bytes });
        }
        Ok(XattrArea { bytes, shared })
    }

    fn place_inodes(&mut self, tree: &Tree, order: &Order) -> Result<(), Error> {
        let mut cursor = u64::from(ROOT_NID) * SLOT_BYTES;
        let mut data_blocks = 0_u64;
        self.data_blocks.reserve_exact(usize::try_from(order.directories).unwrap_or(0));
        for &inode in &order.inodes {
            let body = Body::of(tree, order, inode)?;
            let head_bytes = INODE_BYTES + self.area(tree, inode).bytes;
            let start = place_inode(cursor, head_bytes, body.tail_bytes);
            self.nids[inode.index()] = u32::try_from(start / SLOT_BYTES).map_err(|_| Error::ImageTooLarge)?;
            cursor = start + head_bytes + body.tail_bytes;
            if body.index_bytes != 0 {
                cursor = cursor.next_multiple_of(CHUNK_INDEX_BYTES) + body.index_bytes;
            }
            if has_data_blocks(tree.file_type(inode)) {
                self.data_blocks.push(u32::try_from(data_blocks).map_err(|_| Error::ImageTooLarge)?);
                data_blocks += body.blocks;
            }
        }
        let block = |bytes: u64| {
            let end = round_up(bytes, BLOCK_BYTES).ok_or(Error::ImageTooLarge)?;
            u32::try_from(end / BLOCK_BYTES).map_err(|_| Error::ImageTooLarge)
        };
        let shared_start = block(cursor)?;
        self.xattr_block = if self.shared_bytes == 0 { 0 } else { shared_start };
        self.first_data_block = block(u64::from(shared_start) * BLOCK_BYTES + self.shared_bytes)?;
        self.blocks = block((u64::from(self.first_data_block) + data_blocks) * BLOCK_BYTES)?;
        Ok(())
    }

    /// The first data blocks of directories and symlinks, in the order of the inodes.
    pub(super) fn data_blocks(&self) -> impl Iterator<Item = u32> {
        self.data_blocks.iter().map(|block| self.first_data_block + block)
    }
}

/// Whether inodes of this type may have blocks in the image.
pub(super) fn has_data_blocks(file_type: FileType) -> bool {
    matches!(file_type, FileType::Directory | FileType::Symlink)
}

/// The first slot at or behind the cursor from where the tail does not cross a block.
fn place_inode(cursor: u64, head_bytes: u64, tail_bytes: u64) -> u64 {
    let start = cursor.next_multiple_of(SLOT_BYTES);
    let tail = start + head_bytes;
    if tail % BLOCK_BYTES + tail_bytes <= BLOCK_BYTES {
        return start;
    }
    let wanted = tail.next_multiple_of(BLOCK_BYTES) - head_bytes;
    wanted.next_multiple_of(SLOT_BYTES)
}
