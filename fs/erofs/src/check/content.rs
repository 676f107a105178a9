//! The rules for a single inode and what belongs to it, but for the entries of directories.

use super::Error;
use crate::attributes::FileType;
use crate::format::{BLOCK_BYTES, SLOT_BYTES, round_up};
use crate::image::{Image, Inode, chunk_count, index_offset};
use crate::overlay::may_have;
use crate::tree::Xattr;

/// Where the last byte of an inode with all that lies behind it ends; `None` if that is beyond all offsets.
pub(super) fn body_end(inode: &Inode) -> Option<u64> {
    if inode.file_type == FileType::Regular && inode.bytes != 0 {
        return chunk_count(inode).checked_mul(8)?.checked_add(index_offset(inode)?);
    }
    inode.body_offset().checked_add(inode.tail_bytes())
}

/// Checks xattrs, chunks or target, and what lies between them. Answers where the last shared xattr ends, or 0.
pub(super) fn check(image: &Image<&[u8]>, inode: &Inode, body_end: u64) -> Result<u64, Error> {
    let refuse = |rule| Error::Inode { nid: inode.nid, rule };
    if inode.data_blocks() != 0 && inode.tail_bytes() == 0 {
        let end = (u64::from(inode.data) * BLOCK_BYTES).saturating_add(inode.bytes);
        zeros(image, end, round_up(end, BLOCK_BYTES)).ok_or_else(|| refuse("bytes behind the data are not zero"))?;
    }
    match inode.file_type {
        FileType::Symlink => drop(image.read_link(inode)?),
        FileType::Regular if inode.bytes != 0 => {
            zeros(image, inode.body_offset(), index_offset(inode))
                .ok_or_else(|| refuse("bytes before the chunk indexes are not zero"))?;
            // Maps every chunk, and so checks every index.
            image.segments(inode).try_for_each(|segment| segment.map(drop))?;
        }
        _ => {}
    }
    zeros(image, body_end, round_up(body_end, SLOT_BYTES))
        .ok_or_else(|| refuse("bytes behind the inode are not zero"))?;
    xattrs(image, inode)
}

/// `Some` if the range is in the image and zero.
fn zeros(image: &Image<&[u8]>, start: u64, end: Option<u64>) -> Option<()> {
    let bytes = image.slice(start, end?.checked_sub(start)?)?;
    bytes.iter().all(|&byte| byte == 0).then_some(())
}

/// Nothing that would let an overlay mount show another tree than the image has.
fn overlay(inode: &Inode, xattr: &Xattr<'_>) -> Result<(), Error> {
    let rule = "an xattr would be an order to overlay mounts";
    if may_have(inode.file_type, xattr) { Ok(()) } else { Err(Error::Inode { nid: inode.nid, rule }) }
}

/// Both kinds sorted, and no name twice.
fn xattrs(image: &Image<&[u8]>, inode: &Inode) -> Result<u64, Error> {
    let refuse = |rule| Error::Inode { nid: inode.nid, rule };
    let mut shared_end = 0;
    let mut shared = Vec::new();
    let mut xattrs = image.xattrs(inode)?;
    while let Some(next) = xattrs.next_shared() {
        let (xattr, end) = next?;
        overlay(inode, &xattr)?;
        shared_end = shared_end.max(end);
        shared.push(xattr.key());
    }
    if !shared.is_sorted_by(|left, right| left < right) {
        return Err(refuse("shared xattrs are not sorted"));
    }
    let mut before = None;
    while let Some(next) = xattrs.next_inline() {
        let xattr = next?;
        overlay(inode, &xattr)?;
        let key = xattr.key();
        if before.is_some_and(|before| before >= key) {
            return Err(refuse("xattrs are not sorted"));
        }
        if shared.binary_search(&key).is_ok() {
            return Err(refuse("an xattr is there twice"));
        }
        before = Some(key);
    }
    if inode.xattr_bytes != 0 && shared.is_empty() && before.is_none() {
        return Err(refuse("xattr area is empty"));
    }
    Ok(shared_end)
}
