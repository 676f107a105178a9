//! Reads an EROFS image that lies in memory, mapped or not, without a heap object per inode.
//!
//! Invariants: no input makes it panic, loop for longer than the image is large, or read outside the image; every
//! structure is bounds-checked when it is touched, and only what [`crate::write`] can write is understood. What it does
//! *not* do is to look at the image as a whole: that directories form a tree, that link counts are right, that entries
//! are sorted is the work of [`crate::check()`]. On an image that was not checked, answers may be nonsense, not unsafe.
#![deny(clippy::indexing_slicing, clippy::unwrap_used)]

mod directory;
mod error;
mod extents;
mod inode;
mod xattrs;

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use self::directory::{DirEntry, ReadDir};
pub use self::error::Error;
pub use self::extents::{Extent, Segments};
pub use self::inode::Inode;
pub use self::xattrs::Xattrs;

pub(crate) use self::extents::{chunk_count, index_offset};

use crate::crc32c::crc32c;
use crate::format::{self, BLOCK_BYTES, DeviceSlot, SUPERBLOCK_OFFSET, Superblock};

/// A node id: the place of an inode in its image, in units of 32 bytes. Linux shows it as the inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nid(pub u64);

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {}", self.0)
    }
}

/// An image over bytes that are held, such as a memory map, or borrowed.
#[derive(Debug, Clone, Copy)]
pub struct Image<B> {
    bytes: B,
    inodes: u64,
    /// Where the shared xattrs start; 0 when there are none.
    xattr_base: u64,
    device_blocks: u32,
}

impl<B: AsRef<[u8]>> Image<B> {
    /// Checks the superblock, with its checksum, and the size.
    ///
    /// The superblock must be, field for field, one that [`crate::write`] makes.
    pub fn open(bytes: B) -> Result<Image<B>, Error> {
        let mut image = Image { bytes, inodes: 0, xattr_base: 0, device_blocks: 0 };
        let image_bytes = image.bytes().len() as u64;
        let (Some(superblock), Some(device), Some(rest)) = (
            image.read::<Superblock>(SUPERBLOCK_OFFSET).copied(),
            image.read::<DeviceSlot>(u64::from(format::DEVICE_SLOT) * format::DEVICE_SLOT_BYTES).copied(),
            image.slice(SUPERBLOCK_OFFSET + size_of::<Superblock>() as u64, REST_BYTES),
        ) else {
            return Err(Error::TooShort { bytes: image_bytes });
        };
        check_superblock(&superblock, &device, rest)?;
        let stated_bytes = u64::from(superblock.blocks.get()) * BLOCK_BYTES;
        if stated_bytes != image_bytes {
            return Err(Error::Size { stated_bytes, bytes: image_bytes });
        }
        image.inodes = superblock.inodes.get();
        image.xattr_base = u64::from(superblock.xattr_block.get()) * BLOCK_BYTES;
        image.device_blocks = device.blocks.get();
        Ok(image)
    }

    /// The whole image.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// The root directory.
    pub fn root_nid(&self) -> Nid {
        Nid(u64::from(format::ROOT_NID))
    }

    /// How many inodes the superblock states.
    pub fn inode_count(&self) -> u64 {
        self.inodes
    }

    /// Size of the data device on which the files lie.
    pub fn device_bytes(&self) -> u64 {
        u64::from(self.device_blocks) * BLOCK_BYTES
    }

    pub(crate) fn xattr_base(&self) -> u64 {
        self.xattr_base
    }

    pub(crate) fn slice(&self, offset: u64, bytes: u64) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(bytes).ok()?)?;
        self.bytes().get(start..end)
    }

    pub(crate) fn read<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self, offset: u64) -> Option<&T> {
        T::ref_from_bytes(self.slice(offset, size_of::<T>() as u64)?).ok()
    }
}

/// What follows the superblock in its block.
const REST_BYTES: u64 = BLOCK_BYTES - SUPERBLOCK_OFFSET - size_of::<Superblock>() as u64;

fn check_superblock(superblock: &Superblock, device: &DeviceSlot, rest: &[u8]) -> Result<(), Error> {
    if superblock.magic.get() != format::MAGIC {
        return Err(Error::Magic { found: superblock.magic.get() });
    }
    let incompat = superblock.feature_incompat.get();
    if incompat != format::FEATURES_INCOMPAT || superblock.feature_compat.get() != format::FEATURES_COMPAT {
        return Err(Error::Features { compat: superblock.feature_compat.get(), incompat });
    }
    let mut unsummed = *superblock;
    unsummed.checksum = 0.into();
    let computed = crc32c(&[unsummed.as_bytes(), rest]);
    if computed != superblock.checksum.get() {
        return Err(Error::Checksum { stated: superblock.checksum.get(), computed });
    }
    let fields = [
        ("block size bits", superblock.block_bits.into(), format::BLOCK_BITS.into()),
        ("extension slots", superblock.extension_slots.into(), 0),
        ("root node id", superblock.root_nid.get().into(), format::ROOT_NID.into()),
        ("epoch", superblock.epoch.get(), 0),
        ("fixed nanoseconds", superblock.fixed_nanos.get().into(), 0),
        ("first metadata block", superblock.meta_block.get().into(), 0),
        ("compression algorithms", superblock.compression.get().into(), 0),
        ("extra devices", superblock.extra_devices.get().into(), 1),
        ("device table slot", superblock.device_slot.get().into(), format::DEVICE_SLOT.into()),
        ("directory block bits", superblock.directory_block_bits.into(), 0),
        ("xattr prefixes", superblock.xattr_prefixes.into(), 0),
        ("xattr prefix start", superblock.xattr_prefix_start.get().into(), 0),
        ("packed node id", superblock.packed_nid.get(), 0),
        ("unified block of the device", device.unified_block.get().into(), 0),
    ];
    if let Some((field, found, _)) = fields.into_iter().find(|(_, found, wanted)| found != wanted) {
        return Err(Error::Field { field, found });
    }
    let zeros: [(&str, &[u8]); 6] = [
        ("uuid", &superblock.uuid),
        ("volume name", &superblock.volume_name),
        ("reserved superblock bytes", &superblock.reserved),
        ("device tag", &device.tag),
        ("reserved device bytes", &device.reserved),
        ("bytes behind the device table", rest.get(size_of::<DeviceSlot>()..).unwrap_or_default()),
    ];
    match zeros.into_iter().find(|(_, bytes)| bytes.iter().any(|&byte| byte != 0)) {
        Some((field, _)) => Err(Error::NotZero { field }),
        None => Ok(()),
    }
}
