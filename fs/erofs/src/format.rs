//! The EROFS structures that this crate writes and reads, byte for byte, and the constants of our profile of it.
//!
//! Everything is little-endian and packed. `docs/format/erofs.md` describes the same bytes in words; a test holds
//! its table of constants against this file. Only the part of EROFS that the writer uses is here: no compression,
//! no compact inodes, no long xattr prefixes, no 48-bit addresses.
//!
//! Source of the layout: the public description of EROFS in the Linux documentation
//! (`Documentation/filesystems/erofs.rst`) and the on-disk header shared by the kernel and erofs-utils.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a block, of metadata and of the data device alike.
pub const BLOCK_BYTES: u64 = 4096;
/// Binary logarithm of [`BLOCK_BYTES`].
pub const BLOCK_BITS: u8 = 12;
/// [`BLOCK_BYTES`], for what lies in memory.
pub(crate) const BLOCK_LEN: usize = 1 << BLOCK_BITS;
/// Where the superblock starts.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// First field of the superblock.
pub const MAGIC: u32 = 0xE0F5_E1E2;

/// `feature_compat`: the superblock carries a checksum.
pub const COMPAT_CHECKSUM: u32 = 0x1;
/// `feature_compat`: the inode times are modification times.
pub const COMPAT_MTIME: u32 = 0x2;
/// `feature_incompat`: there are chunk-based files.
pub const INCOMPAT_CHUNKED_FILE: u32 = 0x4;
/// `feature_incompat`: there is a device table.
pub const INCOMPAT_DEVICE_TABLE: u32 = 0x8;
/// The `feature_compat` of every image.
pub const FEATURES_COMPAT: u32 = COMPAT_CHECKSUM | COMPAT_MTIME;
/// The `feature_incompat` of every image.
pub const FEATURES_INCOMPAT: u32 = INCOMPAT_CHUNKED_FILE | INCOMPAT_DEVICE_TABLE;

/// Bytes of a slot of the device table; its offset is counted in slots.
pub const DEVICE_SLOT_BYTES: u64 = 128;
/// The slot of the data device: right behind the superblock.
pub const DEVICE_SLOT: u16 = 9;
/// Device id of the data device in chunk indexes (0 would be the image itself).
pub const DATA_DEVICE: u16 = 1;
/// The block address that marks a hole, and so the number of addressable blocks of the data device.
pub const NULL_BLOCK: u32 = u32::MAX;

/// Bytes that a node id counts: an inode's id is its offset divided by this.
pub const SLOT_BYTES: u64 = 32;
/// The node id of the root directory: the first slot of the second block, in every image.
pub const ROOT_NID: u16 = 128;
/// Bytes of an extended inode.
pub const INODE_BYTES: u64 = 64;
/// Longest tail (of a directory or a symlink target) that is stored behind its inode instead of in a block.
pub const INLINE_TAIL_MAX_BYTES: u64 = 2048;

/// `i_format`: the inode is of the extended kind (bit 0).
pub const INODE_EXTENDED: u16 = 1;
/// `i_format`: where the data layout starts.
pub const INODE_LAYOUT_BIT: u16 = 1;
/// Data layout: consecutive blocks.
pub const LAYOUT_FLAT_PLAIN: u16 = 0;
/// Data layout: consecutive blocks, and the tail behind the inode.
pub const LAYOUT_FLAT_INLINE: u16 = 2;
/// Data layout: an array of chunk addresses behind the inode.
pub const LAYOUT_CHUNK_BASED: u16 = 4;

/// Chunk format: binary logarithm of the blocks in a chunk.
pub const CHUNK_BITS_MASK: u16 = 0x1F;
/// Chunk format: entries are 8-byte indexes with a device id.
pub const CHUNK_INDEXES: u16 = 0x20;
/// Bytes of a chunk index, and its alignment.
pub const CHUNK_INDEX_BYTES: u64 = 8;
/// Most chunk indexes of one file: 128 MiB of them.
pub const CHUNK_INDEXES_MAX: u64 = 1 << 24;
/// Chunk indexes that every file may have to tell its holes exactly: 128 KiB of them.
pub const GRAIN_INDEXES_MIN: u64 = 1 << 14;
/// Chunk indexes that a file may have for that for each block of its data, where that is more: 128 bytes.
pub const GRAIN_INDEXES_PER_BLOCK: u64 = 16;

/// Bytes of a directory entry without its name.
pub const DIRENT_BYTES: usize = 12;
/// Longest name of a directory entry.
pub const NAME_MAX_BYTES: usize = 255;
/// Longest symlink target.
pub const SYMLINK_MAX_BYTES: usize = 4095;

/// Bytes of the header of an inode's xattrs.
pub const XATTR_HEADER_BYTES: u64 = 12;
/// Bytes of an xattr entry without name and value; entries are aligned to it.
pub const XATTR_ENTRY_BYTES: u64 = 4;
/// Most shared xattrs of an inode.
pub const XATTR_SHARED_MAX: usize = 255;
/// Largest xattr value. Linux would allow 65,536.
pub const XATTR_VALUE_MAX_BYTES: usize = 65_535;
/// Longest xattr name, prefix included.
pub const XATTR_NAME_MAX_BYTES: usize = 255;
/// Largest xattr area of an inode: header, ids of shared xattrs and inline entries.
pub const XATTR_AREA_MAX_BYTES: u64 = XATTR_HEADER_BYTES + XATTR_ENTRY_BYTES * (u16::MAX as u64 - 1);
/// An xattr entry larger than this is shared even when one inode alone has it.
pub const XATTR_INLINE_MAX_BYTES: u64 = 512;

/// Largest device number parts that the encoding holds.
pub const MAJOR_MAX: u32 = (1 << 12) - 1;
/// See [`MAJOR_MAX`].
pub const MINOR_MAX: u32 = (1 << 20) - 1;
/// Largest size of a regular file: what `off_t` holds.
pub const FILE_MAX_BYTES: u64 = i64::MAX as u64;

/// The superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: U32,
    /// CRC-32C (without the final inversion) from here to the end of the block, taken with this field zero.
    pub checksum: U32,
    /// [`FEATURES_COMPAT`].
    pub feature_compat: U32,
    /// [`BLOCK_BITS`].
    pub block_bits: u8,
    /// Slots that extend the superblock: 0.
    pub extension_slots: u8,
    /// [`ROOT_NID`].
    pub root_nid: U16,
    /// Number of inodes.
    pub inodes: U64,
    /// Time base of compact inodes: 0.
    pub epoch: U64,
    /// Nanoseconds of compact inodes: 0.
    pub fixed_nanos: U32,
    /// Blocks of the image.
    pub blocks: U32,
    /// Block from which node ids count: 0.
    pub meta_block: U32,
    /// First block of the shared xattrs; 0 when there are none.
    pub xattr_block: U32,
    /// 0: nothing about an image may differ between two builds.
    pub uuid: [u8; 16],
    /// 0.
    pub volume_name: [u8; 16],
    /// [`FEATURES_INCOMPAT`].
    pub feature_incompat: U32,
    /// Compression algorithms: 0.
    pub compression: U16,
    /// 1: the data device.
    pub extra_devices: U16,
    /// [`DEVICE_SLOT`].
    pub device_slot: U16,
    /// Directory block size relative to the block size: 0.
    pub directory_block_bits: u8,
    /// Long xattr prefixes: 0.
    pub xattr_prefixes: u8,
    /// 0.
    pub xattr_prefix_start: U32,
    /// 0.
    pub packed_nid: U64,
    /// 0.
    pub reserved: [u8; 24],
}

/// A slot of the device table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DeviceSlot {
    /// Digest or path of the device: 0, since the layer descriptor names it.
    pub tag: [u8; 64],
    /// Blocks of the data device.
    pub blocks: U32,
    /// Where the device lies in the unified address space: 0, it has none.
    pub unified_block: U32,
    /// 0.
    pub reserved: [u8; 56],
}

/// An extended inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Inode {
    /// [`INODE_EXTENDED`] and the data layout.
    pub format: U16,
    /// 0, or 1 + (bytes of the xattr area - [`XATTR_HEADER_BYTES`]) / [`XATTR_ENTRY_BYTES`].
    pub xattr_count: U16,
    /// File type and permissions, as `st_mode`.
    pub mode: U16,
    /// High half of a 48-bit address: 0.
    pub block_high: U16,
    /// Bytes of the file, target or directory; 0 for the other kinds.
    pub bytes: U64,
    /// First data block, chunk format or device number, by kind and layout.
    pub data: U32,
    /// The low 32 bits of the node id. Linux does not read it.
    pub number: U32,
    /// Owner.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// Seconds since 1970, negative before it.
    pub mtime: zerocopy::little_endian::I64,
    /// Nanoseconds, below 1,000,000,000.
    pub mtime_nanos: U32,
    /// Number of links.
    pub nlink: U32,
    /// 0.
    pub reserved: [u8; 16],
}

/// The fixed part of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Dirent {
    /// Node id.
    pub nid: U64,
    /// Where the name starts in the block; the name ends where the next one starts.
    pub name_offset: U16,
    /// File type, see [`crate::FileType`].
    pub file_type: u8,
    /// 0.
    pub reserved: u8,
}

/// The header of an inode's xattr area; the ids of shared xattrs and the inline entries follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct XattrHeader {
    /// Bloom filter of names: 0, the feature is off.
    pub name_filter: U32,
    /// Number of shared xattrs.
    pub shared: u8,
    /// 0.
    pub reserved: [u8; 7],
}

/// The fixed part of an xattr entry; name (without its prefix) and value follow, then zeros up to 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct XattrEntry {
    /// Bytes of the name without its prefix.
    pub name_bytes: u8,
    /// Index of the prefix.
    pub prefix: u8,
    /// Bytes of the value.
    pub value_bytes: U16,
}

/// Where a chunk of a file lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChunkIndex {
    /// High half of a 48-bit address: 0.
    pub block_high: U16,
    /// [`DATA_DEVICE`]; 0 for a hole.
    pub device: U16,
    /// First block of the chunk on the device; [`NULL_BLOCK`] for a hole.
    pub block: U32,
}

const _: () = {
    assert!(size_of::<Superblock>() == 128);
    assert!(SUPERBLOCK_OFFSET + 128 == DEVICE_SLOT as u64 * DEVICE_SLOT_BYTES);
    assert!(size_of::<DeviceSlot>() as u64 == DEVICE_SLOT_BYTES);
    assert!(size_of::<Inode>() as u64 == INODE_BYTES);
    assert!(size_of::<Dirent>() == DIRENT_BYTES);
    assert!(size_of::<XattrHeader>() as u64 == XATTR_HEADER_BYTES);
    assert!(size_of::<XattrEntry>() as u64 == XATTR_ENTRY_BYTES);
    assert!(size_of::<ChunkIndex>() as u64 == CHUNK_INDEX_BYTES);
    assert!(ROOT_NID as u64 * SLOT_BYTES == BLOCK_BYTES);
    assert!(BLOCK_LEN as u64 == BLOCK_BYTES);
    // A tail is inline only if it fits into a block wherever the 4-byte aligned xattrs before it end.
    assert!(INLINE_TAIL_MAX_BYTES + SLOT_BYTES <= BLOCK_BYTES);
    assert!(std::mem::offset_of!(Superblock, root_nid) == 14);
    assert!(std::mem::offset_of!(Superblock, blocks) == 36);
    assert!(std::mem::offset_of!(Superblock, feature_incompat) == 80);
    assert!(std::mem::offset_of!(Superblock, extra_devices) == 86);
    assert!(std::mem::offset_of!(Inode, data) == 16);
    assert!(std::mem::offset_of!(Inode, mtime) == 32);
    assert!(std::mem::offset_of!(Inode, nlink) == 44);
};

/// The device number as Linux encodes it in 32 bits: 12 bits of major, 20 of minor.
pub fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xFF) | (major << 8) | ((minor & !0xFF) << 12)
}

/// The inverse of [`encode_device`]: major and minor.
pub fn decode_device(encoded: u32) -> (u32, u32) {
    ((encoded >> 8) & 0xFFF, (encoded & 0xFF) | ((encoded >> 12) & 0xF_FF00))
}

/// Rounds up to a multiple of `unit`, a power of two. `None` on overflow.
pub fn round_up(value: u64, unit: u64) -> Option<u64> {
    value.checked_add(unit - 1).map(|sum| sum & !(unit - 1))
}
