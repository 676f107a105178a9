//! Inodes: decoding, and the bytes of directories and symlinks.

use super::{Error, Image, Nid};
use crate::attributes::{Attributes, Device, FileType, Kind, Timestamp};
use crate::format::{self, BLOCK_BYTES, INODE_BYTES, SLOT_BYTES};

/// A decoded inode. Small and `Copy`: made anew at each look, kept nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    /// Its node id.
    pub nid: Nid,
    /// Mode, owner and times.
    pub attributes: Attributes,
    /// What it is.
    pub file_type: FileType,
    /// Bytes of a regular file, of a symlink target, or of a directory as it lies in the image.
    pub bytes: u64,
    /// Link count.
    pub nlink: u32,
    /// Data layout.
    pub(crate) layout: u16,
    /// First block, chunk format or device number.
    pub(crate) data: u32,
    /// Bytes of the xattr area.
    pub(crate) xattr_bytes: u64,
}

impl Inode {
    /// The device number of a device, 0:0 of anything else.
    pub fn device(&self) -> Device {
        match self.file_type {
            FileType::CharDevice | FileType::BlockDevice => {
                let (major, minor) = format::decode_device(self.data);
                Device { major, minor }
            }
            _ => Device::default(),
        }
    }

    /// Whether overlay takes it for "nothing is here, whatever the layers below have".
    pub fn is_whiteout(&self) -> bool {
        self.file_type == FileType::CharDevice && self.data == 0
    }

    /// Where the inode starts in the image.
    pub(crate) fn offset(&self) -> u64 {
        self.nid.0.saturating_mul(SLOT_BYTES)
    }

    /// Where the xattr area starts.
    pub(crate) fn xattr_offset(&self) -> u64 {
        self.offset().saturating_add(INODE_BYTES)
    }

    /// Where the inline tail or, after alignment, the chunk indexes start.
    pub(crate) fn body_offset(&self) -> u64 {
        self.xattr_offset().saturating_add(self.xattr_bytes)
    }

    /// Bytes of the inline tail.
    pub(crate) fn tail_bytes(&self) -> u64 {
        if self.layout == format::LAYOUT_FLAT_INLINE { self.bytes % BLOCK_BYTES } else { 0 }
    }

    /// Blocks in the image that are its own.
    pub(crate) fn data_blocks(&self) -> u64 {
        match self.layout {
            format::LAYOUT_FLAT_PLAIN => self.bytes.div_ceil(BLOCK_BYTES),
            format::LAYOUT_FLAT_INLINE => self.bytes / BLOCK_BYTES,
            _ => 0,
        }
    }
}

impl<B: AsRef<[u8]>> Image<B> {
    /// The inode with this id. Any number may be asked for; an error if no inode can be there.
    pub fn inode(&self, nid: Nid) -> Result<Inode, Error> {
        let outside = Error::Outside { what: "inode", nid };
        let offset = nid.0.checked_mul(SLOT_BYTES).ok_or(outside.clone())?;
        if offset < BLOCK_BYTES {
            return Err(outside);
        }
        decode(nid, self.read::<format::Inode>(offset).ok_or(outside)?)
    }

    /// What the inode is, with what is particular to it.
    pub fn kind(&self, inode: &Inode) -> Result<Kind<'_>, Error> {
        Ok(match inode.file_type {
            FileType::Directory => Kind::Directory,
            FileType::Regular => Kind::Regular { bytes: inode.bytes },
            FileType::Symlink => Kind::Symlink(self.read_link(inode)?),
            FileType::CharDevice => Kind::CharDevice(inode.device()),
            FileType::BlockDevice => Kind::BlockDevice(inode.device()),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
        })
    }

    /// The target of a symlink.
    pub fn read_link(&self, inode: &Inode) -> Result<&[u8], Error> {
        if inode.file_type != FileType::Symlink {
            return Err(Error::NotASymlink { nid: inode.nid });
        }
        let target = self.flat_block(inode, 0)?;
        if target.contains(&0) {
            return Err(Error::Invalid { what: "symlink target", nid: inode.nid });
        }
        Ok(target)
    }

    /// The bytes of a block of a directory or symlink, as far as the inode goes. None if the inode ends before it.
    pub(crate) fn flat_block(&self, inode: &Inode, block: u64) -> Result<&[u8], Error> {
        let outside = Error::Outside { what: "data", nid: inode.nid };
        let start = block.checked_mul(BLOCK_BYTES).ok_or(outside.clone())?;
        let bytes = inode.bytes.saturating_sub(start).min(BLOCK_BYTES);
        let offset = if block < inode.data_blocks() {
            (u64::from(inode.data) + block).saturating_mul(BLOCK_BYTES)
        } else {
            inode.body_offset()
        };
        self.slice(offset, bytes).ok_or(outside)
    }
}

fn decode(nid: Nid, raw: &format::Inode) -> Result<Inode, Error> {
    let invalid = |what| Error::Invalid { what, nid };
    let layout = raw.format.get() >> format::INODE_LAYOUT_BIT;
    if raw.format.get() & format::INODE_EXTENDED == 0
        || !matches!(layout, format::LAYOUT_FLAT_PLAIN | format::LAYOUT_FLAT_INLINE | format::LAYOUT_CHUNK_BASED)
    {
        return Err(invalid("format"));
    }
    let mode = raw.mode.get();
    let file_type = FileType::from_mode(mode).ok_or_else(|| invalid("type"))?;
    let mtime = Timestamp { secs: raw.mtime.get(), nanos: raw.mtime_nanos.get() };
    if mtime.nanos >= 1_000_000_000 {
        return Err(invalid("mtime"));
    }
    if raw.uid.get() == u32::MAX || raw.gid.get() == u32::MAX {
        return Err(invalid("owner"));
    }
    let number = nid.0 & u64::from(u32::MAX);
    if raw.block_high.get() != 0 || raw.reserved != [0; 16] || u64::from(raw.number.get()) != number {
        return Err(invalid("reserved fields"));
    }
    let xattr_bytes = match raw.xattr_count.get() {
        0 => 0,
        1 => return Err(invalid("xattr count")),
        count => format::XATTR_HEADER_BYTES + u64::from(count - 1) * format::XATTR_ENTRY_BYTES,
    };
    let attributes = Attributes { mode: mode & 0o7777, uid: raw.uid.get(), gid: raw.gid.get(), mtime };
    let inode = Inode {
        nid,
        attributes,
        file_type,
        bytes: raw.bytes.get(),
        nlink: raw.nlink.get(),
        layout,
        data: raw.data.get(),
        xattr_bytes,
    };
    check_layout(&inode)?;
    Ok(inode)
}

/// Whether type, size and layout go together.
fn check_layout(inode: &Inode) -> Result<(), Error> {
    let invalid = |what| Error::Invalid { what, nid: inode.nid };
    let sized = match inode.file_type {
        FileType::Regular => inode.bytes <= format::FILE_MAX_BYTES,
        FileType::Directory => inode.bytes > 0,
        FileType::Symlink => (1..=format::SYMLINK_MAX_BYTES as u64).contains(&inode.bytes),
        _ => inode.bytes == 0,
    };
    if !sized {
        return Err(invalid("size"));
    }
    let tail = inode.bytes % BLOCK_BYTES;
    let fits = match (inode.file_type, inode.layout) {
        (FileType::Regular, format::LAYOUT_CHUNK_BASED) => {
            inode.bytes > 0 && inode.data & !u32::from(format::CHUNK_BITS_MASK) == u32::from(format::CHUNK_INDEXES)
        }
        (FileType::Regular | FileType::Fifo | FileType::Socket, format::LAYOUT_FLAT_PLAIN) => {
            inode.bytes == 0 && inode.data == 0
        }
        (FileType::CharDevice | FileType::BlockDevice, format::LAYOUT_FLAT_PLAIN) => true,
        (FileType::Directory | FileType::Symlink, format::LAYOUT_FLAT_PLAIN) => true,
        (FileType::Directory | FileType::Symlink, format::LAYOUT_FLAT_INLINE) => {
            let crosses = inode.body_offset() % BLOCK_BYTES + tail > BLOCK_BYTES;
            tail != 0 && !crosses && (inode.data == 0 || inode.data_blocks() != 0)
        }
        _ => false,
    };
    if fits { Ok(()) } else { Err(invalid("data layout")) }
}
