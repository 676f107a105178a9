//! Third pass: the bytes, front to back.

use std::io::{self, BufWriter, Write};

use zerocopy::IntoBytes;
use zerocopy::little_endian::{I64, U16, U32, U64};

use super::Error;
use super::layout::{Body, Layout, chunks, has_data_blocks};
use super::order::{BlockFill, Order};
use crate::attributes::{FileType, Kind, Run};
use crate::crc32c::crc32c;
use crate::format::{self, BLOCK_BYTES, ChunkIndex, DeviceSlot, Dirent, Inode, Superblock, XattrEntry, XattrHeader};
use crate::tree::{InodeId, Tree, Xattr};

/// What follows the superblock and the device slot in their block.
const BLOCK_REST_BYTES: usize = format::BLOCK_LEN - 1024 - size_of::<Superblock>() - size_of::<DeviceSlot>();
const BUFFER_BYTES: usize = 256 * 1024;

/// Writes the image.
pub(super) fn emit(
    tree: &Tree,
    order: &Order,
    layout: &Layout,
    device_blocks: u32,
    out: impl Write,
) -> Result<(), Error> {
    let out = Output { inner: BufWriter::with_capacity(BUFFER_BYTES, out), at: 0 };
    let mut emitter = Emitter { tree, order, layout, device_blocks, out };
    emitter.first_block()?;
    emitter.inodes()?;
    emitter.shared_xattrs()?;
    emitter.data_blocks()?;
    emitter.out.inner.flush().map_err(Error::Write)
}

/// Counts where it is.
struct Output<W: Write> {
    inner: BufWriter<W>,
    at: u64,
}

impl<W: Write> Output<W> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.inner.write_all(bytes).map_err(Error::Write)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Zeros up to a place, which is not behind.
    fn pad_to(&mut self, place: u64) -> Result<(), Error> {
        let bytes = place - self.at;
        io::copy(&mut io::Read::take(io::repeat(0), bytes), &mut self.inner).map_err(Error::Write)?;
        self.at = place;
        Ok(())
    }

    fn pad_to_multiple(&mut self, unit: u64) -> Result<(), Error> {
        self.pad_to(self.at.next_multiple_of(unit))
    }
}

struct Emitter<'a, W: Write> {
    tree: &'a Tree,
    order: &'a Order,
    layout: &'a Layout,
    device_blocks: u32,
    out: Output<W>,
}

impl<W: Write> Emitter<'_, W> {
    fn first_block(&mut self) -> Result<(), Error> {
        let mut superblock = Superblock {
            magic: U32::new(format::MAGIC),
            checksum: U32::ZERO,
            feature_compat: U32::new(format::FEATURES_COMPAT),
            block_bits: format::BLOCK_BITS,
            extension_slots: 0,
            root_nid: U16::new(format::ROOT_NID),
            inodes: U64::new(self.order.inodes.len() as u64),
            epoch: U64::ZERO,
            fixed_nanos: U32::ZERO,
            blocks: U32::new(self.layout.blocks),
            meta_block: U32::ZERO,
            xattr_block: U32::new(self.layout.xattr_block),
            uuid: [0; 16],
            volume_name: [0; 16],
            feature_incompat: U32::new(format::FEATURES_INCOMPAT),
            compression: U16::ZERO,
            extra_devices: U16::new(1),
            device_slot: U16::new(format::DEVICE_SLOT),
            directory_block_bits: 0,
            xattr_prefixes: 0,
            xattr_prefix_start: U32::ZERO,
            packed_nid: U64::ZERO,
            reserved: [0; 24],
        };
        let device = DeviceSlot {
            tag: [0; 64],
            blocks: U32::new(self.device_blocks),
            unified_block: U32::ZERO,
            reserved: [0; 56],
        };
        let checksum = crc32c(&[superblock.as_bytes(), device.as_bytes(), &[0; BLOCK_REST_BYTES]]);
        superblock.checksum = U32::new(checksum);
        self.out.pad_to(format::SUPERBLOCK_OFFSET)?;
        self.out.put(superblock.as_bytes())?;
        self.out.put(device.as_bytes())?;
        self.out.pad_to(BLOCK_BYTES)
    }

    fn inodes(&mut self) -> Result<(), Error> {
        let mut data_blocks = self.layout.data_blocks();
        for &inode in &self.order.inodes {
            let body = Body::of(self.tree, self.order, inode)?;
            let data_block =
                if has_data_blocks(self.tree.file_type(inode)) { data_blocks.next().unwrap_or(0) } else { 0 };
            self.out.pad_to(u64::from(self.layout.nid(inode)) * format::SLOT_BYTES)?;
            self.inode(inode, body, data_block)?;
            self.xattr_area(inode)?;
            match self.tree.kind(inode) {
                Kind::Directory if body.tail_bytes != 0 => {
                    let last = self.directory_blocks(inode, |_, _| Ok(()))?;
                    self.out.put(&last)?;
                }
                Kind::Symlink(target) if body.tail_bytes != 0 => self.out.put(target)?,
                Kind::Regular { bytes } if body.index_bytes != 0 => {
                    self.out.pad_to_multiple(format::CHUNK_INDEX_BYTES)?;
                    self.chunk_indexes(inode, bytes)?;
                }
                _ => {}
            }
        }
        self.out.pad_to_multiple(BLOCK_BYTES)
    }

    fn inode(&mut self, inode: InodeId, body: Body, data_block: u32) -> Result<(), Error> {
        let (tree, layout) = (self.tree, self.layout);
        let attributes = tree.attributes(inode);
        let kind = tree.kind(inode);
        let flat = if body.tail_bytes == 0 { format::LAYOUT_FLAT_PLAIN } else { format::LAYOUT_FLAT_INLINE };
        let data_block = if body.blocks == 0 { 0 } else { data_block };
        let (data_layout, bytes, data) = match kind {
            Kind::Directory => (flat, self.order.directory_bytes(tree, inode)?, data_block),
            Kind::Symlink(target) => (flat, target.len() as u64, data_block),
            Kind::Regular { bytes: 0 } => (flat, 0, 0),
            Kind::Regular { bytes } => {
                let bits = chunks(tree, inode, bytes).bits;
                (format::LAYOUT_CHUNK_BASED, bytes, u32::from(format::CHUNK_INDEXES) | bits)
            }
            Kind::CharDevice(device) | Kind::BlockDevice(device) => {
                (flat, 0, format::encode_device(device.major, device.minor))
            }
            Kind::Fifo | Kind::Socket => (flat, 0, 0),
        };
        let area_bytes = layout.area(tree, inode).bytes;
        let xattr_count = match area_bytes.checked_sub(format::XATTR_HEADER_BYTES) {
            // `Layout` found that it fits.
            Some(rest) => u16::try_from(1 + rest / format::XATTR_ENTRY_BYTES).unwrap_or(u16::MAX),
            None => 0,
        };
        let record = Inode {
            format: U16::new(format::INODE_EXTENDED | data_layout << format::INODE_LAYOUT_BIT),
            xattr_count: U16::new(xattr_count),
            mode: U16::new(attributes.mode | kind.file_type().mode_bits()),
            block_high: U16::ZERO,
            bytes: U64::new(bytes),
            data: U32::new(data),
            number: U32::new(layout.nid(inode)),
            uid: U32::new(attributes.uid),
            gid: U32::new(attributes.gid),
            mtime: I64::new(attributes.mtime.secs),
            mtime_nanos: U32::new(attributes.mtime.nanos),
            nlink: U32::new(self.order.links[inode.index()]),
            reserved: [0; 16],
        };
        self.out.put(record.as_bytes())
    }

    fn xattr_area(&mut self, inode: InodeId) -> Result<(), Error> {
        let (tree, layout) = (self.tree, self.layout);
        let area = layout.area(tree, inode);
        if area.bytes == 0 {
            return Ok(());
        }
        let header = XattrHeader { name_filter: U32::ZERO, shared: area.shared, reserved: [0; 7] };
        self.out.put(header.as_bytes())?;
        let (shared, inline) = layout.split(tree, tree.xattr_set(inode));
        for id in shared.filter_map(|item| layout.shared_id(item)) {
            self.out.put(U32::new(id).as_bytes())?;
        }
        for item in inline {
            self.xattr(tree.xattr_item(item))?;
        }
        Ok(())
    }

    fn xattr(&mut self, xattr: Xattr<'_>) -> Result<(), Error> {
        let entry = XattrEntry {
            // `Xattr::new` found that both fit.
            name_bytes: u8::try_from(xattr.suffix().len()).unwrap_or(u8::MAX),
            prefix: xattr.index,
            value_bytes: U16::new(u16::try_from(xattr.value.len()).unwrap_or(u16::MAX)),
        };
        self.out.put(entry.as_bytes())?;
        self.out.put(xattr.suffix())?;
        self.out.put(xattr.value)?;
        self.out.pad_to_multiple(format::XATTR_ENTRY_BYTES)
    }

    fn chunk_indexes(&mut self, file: InodeId, bytes: u64) -> Result<(), Error> {
        let chunks = chunks(self.tree, file, bytes);
        let (first, rest) = self.tree.runs(file);
        let mut runs = first.into_iter().chain(rest.iter().copied()).peekable();
        for number in 0..chunks.count {
            let block = number << chunks.bits;
            while runs.next_if(|run| run.file_end() <= block).is_some() {}
            let index = match runs.peek() {
                Some(run) if run.file_block <= block => self.mapped(file, run, block)?,
                _ => ChunkIndex { block_high: U16::ZERO, device: U16::ZERO, block: U32::new(format::NULL_BLOCK) },
            };
            self.out.put(index.as_bytes())?;
        }
        Ok(())
    }

    fn mapped(&self, file: InodeId, run: &Run, block: u64) -> Result<ChunkIndex, Error> {
        if run.device_end() > u64::from(self.device_blocks) {
            return Err(Error::OutsideDevice {
                path: super::path_of(self.tree, file),
                end: run.device_end() * BLOCK_BYTES,
                device_bytes: u64::from(self.device_blocks) * BLOCK_BYTES,
            });
        }
        let device_block = u64::from(run.device_block) + (block - run.file_block);
        Ok(ChunkIndex {
            block_high: U16::ZERO,
            device: U16::new(format::DATA_DEVICE),
            // Below the end of the run, which is a block of the device.
            block: U32::new(u32::try_from(device_block).unwrap_or(format::NULL_BLOCK)),
        })
    }

    fn shared_xattrs(&mut self) -> Result<(), Error> {
        let (tree, layout) = (self.tree, self.layout);
        for &item in &layout.shared {
            self.xattr(tree.xattr_item(item))?;
        }
        self.out.pad_to_multiple(BLOCK_BYTES)
    }

    fn data_blocks(&mut self) -> Result<(), Error> {
        for &inode in &self.order.inodes {
            match self.tree.kind(inode) {
                Kind::Directory => {
                    let body = Body::of(self.tree, self.order, inode)?;
                    if body.blocks == 0 {
                        continue;
                    }
                    let last = self.directory_blocks(inode, |out, block| {
                        out.put(block)?;
                        out.pad_to_multiple(BLOCK_BYTES)
                    })?;
                    if body.tail_bytes == 0 {
                        self.out.put(&last)?;
                    }
                }
                Kind::Symlink(target) if target.len() as u64 > format::INLINE_TAIL_MAX_BYTES => self.out.put(target)?,
                _ => {}
            }
            self.out.pad_to_multiple(BLOCK_BYTES)?;
        }
        Ok(())
    }

    /// Gives every block of a directory but the last to `sink`, without its padding, and answers the last.
    fn directory_blocks(
        &mut self,
        dir: InodeId,
        mut sink: impl FnMut(&mut Output<W>, &[u8]) -> Result<(), Error>,
    ) -> Result<Vec<u8>, Error> {
        let mut fill = BlockFill::default();
        let mut block = DirectoryBlock::default();
        let (tree, order, layout) = (self.tree, self.order, self.layout);
        for (name, inode) in order.names(tree, dir)? {
            if fill.add(name.len()) {
                sink(&mut self.out, &block.take())?;
            }
            block.add(name, u64::from(layout.nid(inode)), tree.file_type(inode));
        }
        Ok(block.take())
    }
}

/// Entries that are gathered for a block.
#[derive(Default)]
struct DirectoryBlock {
    names: Vec<u8>,
    /// Node id, type, and where the name starts among the names.
    entries: Vec<(u64, FileType, usize)>,
}

impl DirectoryBlock {
    fn add(&mut self, name: &[u8], nid: u64, file_type: FileType) {
        self.entries.push((nid, file_type, self.names.len()));
        self.names.extend_from_slice(name);
    }

    fn take(&mut self) -> Vec<u8> {
        let head_bytes = self.entries.len() * format::DIRENT_BYTES;
        let mut block = Vec::with_capacity(head_bytes + self.names.len());
        for (nid, file_type, name_at) in self.entries.drain(..) {
            let dirent = Dirent {
                nid: U64::new(nid),
                // `BlockFill` keeps a block below 4 KiB.
                name_offset: U16::new(u16::try_from(head_bytes + name_at).unwrap_or(u16::MAX)),
                file_type: file_type as u8,
                reserved: 0,
            };
            block.extend_from_slice(dirent.as_bytes());
        }
        block.append(&mut self.names);
        block
    }
}
