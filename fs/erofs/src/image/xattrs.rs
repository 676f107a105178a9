//! Xattrs of an inode: the shared ones, which are stored once and named by id, then its own.

use super::{Error, Image, Inode};
use crate::format::{XATTR_ENTRY_BYTES, XATTR_HEADER_BYTES, XATTR_NAME_MAX_BYTES, XattrEntry, XattrHeader, round_up};
use crate::tree::Xattr;
use crate::tree::xattrs::{prefix_of, split_name};

impl<B: AsRef<[u8]>> Image<B> {
    /// The xattrs of an inode: the shared ones by name, then the others by name. After an error it ends.
    pub fn xattrs(&self, inode: &Inode) -> Result<Xattrs<'_, B>, Error> {
        let area = inode.xattr_offset();
        let end = inode.body_offset();
        let mut xattrs = Xattrs { image: self, inode: *inode, shared_left: 0, shared_at: end, at: end, end };
        if inode.xattr_bytes == 0 {
            return Ok(xattrs);
        }
        let outside = Error::Outside { what: "xattrs", nid: inode.nid };
        self.slice(area, inode.xattr_bytes).ok_or(outside.clone())?;
        let header = self.read::<XattrHeader>(area).ok_or(outside)?;
        xattrs.shared_left = header.shared;
        xattrs.shared_at = area + XATTR_HEADER_BYTES;
        xattrs.at = xattrs.shared_at + u64::from(header.shared) * XATTR_ENTRY_BYTES;
        let has_base = header.shared == 0 || self.xattr_base() != 0;
        if xattrs.at > end || !has_base || header.name_filter.get() != 0 || header.reserved != [0; 7] {
            return Err(Error::Invalid { what: "xattr header", nid: inode.nid });
        }
        Ok(xattrs)
    }

    /// The value of one xattr, by its full name.
    pub fn xattr(&self, inode: &Inode, name: &[u8]) -> Result<Option<&[u8]>, Error> {
        let Some(key) = split_name(name) else { return Ok(None) };
        for xattr in self.xattrs(inode)? {
            let xattr = xattr?;
            if xattr.key() == key {
                return Ok(Some(xattr.value));
            }
        }
        Ok(None)
    }

    /// The entry at an offset, and where it ends. The caller sees to it that it ends where it may.
    fn xattr_entry(&self, inode: &Inode, at: u64) -> Result<(Xattr<'_>, u64), Error> {
        let outside = || Error::Outside { what: "xattr", nid: inode.nid };
        let invalid = || Error::Invalid { what: "xattr", nid: inode.nid };
        let entry = self.read::<XattrEntry>(at).ok_or_else(outside)?;
        let name_at = at + XATTR_ENTRY_BYTES;
        let (name_bytes, value_bytes) = (u64::from(entry.name_bytes), u64::from(entry.value_bytes.get()));
        let suffix = self.slice(name_at, name_bytes).ok_or_else(outside)?;
        let value = self.slice(name_at + name_bytes, value_bytes).ok_or_else(outside)?;
        let (prefix, wants_suffix) = prefix_of(entry.prefix).ok_or_else(invalid)?;
        let legal = prefix.len() + suffix.len() <= XATTR_NAME_MAX_BYTES && !suffix.contains(&0);
        if !legal || suffix.is_empty() == wants_suffix {
            return Err(invalid());
        }
        let end = name_at + name_bytes + value_bytes;
        let aligned_end = round_up(end, XATTR_ENTRY_BYTES).ok_or_else(outside)?;
        let padding = self.slice(end, aligned_end - end).ok_or_else(outside)?;
        if padding.iter().any(|&byte| byte != 0) {
            return Err(invalid());
        }
        Ok((Xattr { index: entry.prefix, suffix, value }, aligned_end))
    }
}

/// See [`Image::xattrs`].
#[derive(Debug)]
pub struct Xattrs<'a, B> {
    image: &'a Image<B>,
    inode: Inode,
    shared_left: u8,
    /// Where the next shared id lies.
    shared_at: u64,
    /// Where the next inline entry lies.
    at: u64,
    /// Where the xattr area ends.
    end: u64,
}

impl<'a, B: AsRef<[u8]>> Xattrs<'a, B> {
    /// The next shared xattr, and where its entry ends.
    pub(crate) fn next_shared(&mut self) -> Option<Result<(Xattr<'a>, u64), Error>> {
        self.shared_left = self.shared_left.checked_sub(1)?;
        Some(self.shared())
    }

    fn shared(&mut self) -> Result<(Xattr<'a>, u64), Error> {
        let outside = Error::Outside { what: "shared xattr", nid: self.inode.nid };
        let id = self.image.read::<zerocopy::little_endian::U32>(self.shared_at).ok_or(outside)?;
        self.shared_at += XATTR_ENTRY_BYTES;
        let at = self.image.xattr_base() + u64::from(id.get()) * XATTR_ENTRY_BYTES;
        self.image.xattr_entry(&self.inode, at)
    }

    /// The next inline xattr.
    pub(crate) fn next_inline(&mut self) -> Option<Result<Xattr<'a>, Error>> {
        (self.at < self.end).then(|| {
            let (xattr, end) = self.image.xattr_entry(&self.inode, self.at)?;
            if end > self.end {
                return Err(Error::Invalid { what: "xattr", nid: self.inode.nid });
            }
            self.at = end;
            Ok(xattr)
        })
    }
}

impl<'a, B: AsRef<[u8]>> Iterator for Xattrs<'a, B> {
    type Item = Result<Xattr<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = match self.next_shared() {
            Some(shared) => Some(shared.map(|(xattr, _)| xattr)),
            None => self.next_inline(),
        };
        if let Some(Err(_)) = next {
            self.shared_left = 0;
            self.at = self.end;
        }
        next
    }
}
