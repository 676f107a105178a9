//! Directories: search by name, and iteration that can be resumed anywhere.
//!
//! A position in a directory is the offset of the entry, as Linux counts it (`d_off`): block times 4,096 plus the
//! place of the entry in its block. Positions are stable for ever, since the image is.

use std::cmp::Ordering;

use super::{Error, Image, Inode, Nid};
use crate::attributes::FileType;
use crate::format::{BLOCK_BYTES, DIRENT_BYTES, Dirent, NAME_MAX_BYTES};

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The name; `.` and `..` are entries like others.
    pub name: &'a [u8],
    /// What it names.
    pub nid: Nid,
    /// The type of what it names, as the entry states it.
    pub file_type: FileType,
    /// Where iteration goes on behind this entry.
    pub next_offset: u64,
}

/// A block of a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectoryBlock<'a> {
    nid: Nid,
    bytes: &'a [u8],
    pub(crate) entries: usize,
}

impl<'a> DirectoryBlock<'a> {
    fn new(nid: Nid, bytes: &'a [u8]) -> Result<DirectoryBlock<'a>, Error> {
        let mut block = DirectoryBlock { nid, bytes, entries: 1 };
        let head_bytes = usize::from(block.dirent(0).ok_or_else(|| block.invalid())?.name_offset.get());
        if head_bytes == 0 || head_bytes % DIRENT_BYTES != 0 || head_bytes > bytes.len() {
            return Err(block.invalid());
        }
        block.entries = head_bytes / DIRENT_BYTES;
        Ok(block)
    }

    fn invalid(&self) -> Error {
        Error::Invalid { what: "directory block", nid: self.nid }
    }

    fn dirent(&self, index: usize) -> Option<&'a Dirent> {
        let start = index.checked_mul(DIRENT_BYTES)?;
        let bytes = self.bytes.get(start..start.checked_add(DIRENT_BYTES)?)?;
        zerocopy::FromBytes::ref_from_bytes(bytes).ok()
    }

    /// Where the name of an entry starts and ends in the block.
    fn name_range(&self, index: usize) -> Option<(usize, usize)> {
        let start = usize::from(self.dirent(index)?.name_offset.get());
        if index + 1 < self.entries {
            return Some((start, usize::from(self.dirent(index + 1)?.name_offset.get())));
        }
        // The last name ends at a NUL or at the end of the block.
        let rest = self.bytes.get(start..)?;
        let length = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
        Some((start, start + length))
    }

    fn name(&self, index: usize) -> Result<&'a [u8], Error> {
        let (start, end) = self.name_range(index).ok_or_else(|| self.invalid())?;
        let name = self.bytes.get(start..end).filter(|name| (1..=NAME_MAX_BYTES).contains(&name.len()));
        name.filter(|_| start >= self.entries * DIRENT_BYTES).ok_or_else(|| self.invalid())
    }

    /// What follows the last name.
    pub(crate) fn padding(&self) -> &'a [u8] {
        let end = self.entries.checked_sub(1).and_then(|last| self.name_range(last));
        end.and_then(|(_, end)| self.bytes.get(end..)).unwrap_or_default()
    }

    /// An entry; `block` is the number of this block.
    pub(crate) fn entry(&self, block: u64, index: usize) -> Result<DirEntry<'a>, Error> {
        let dirent = self.dirent(index).ok_or_else(|| self.invalid())?;
        let file_type = FileType::from_dirent(dirent.file_type).filter(|_| dirent.reserved == 0);
        let file_type = file_type.ok_or_else(|| self.invalid())?;
        let name = self.name(index)?;
        let (block, next) = if index + 1 < self.entries { (block, index + 1) } else { (block + 1, 0) };
        let next_offset = block * BLOCK_BYTES + (next * DIRENT_BYTES) as u64;
        Ok(DirEntry { name, nid: Nid(dirent.nid.get()), file_type, next_offset })
    }

    fn search(&self, name: &[u8]) -> Result<Option<usize>, Error> {
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.name(middle)?.cmp(name) {
                Ordering::Equal => return Ok(Some(middle)),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }
}

impl<B: AsRef<[u8]>> Image<B> {
    pub(crate) fn directory_block(&self, dir: &Inode, block: u64) -> Result<DirectoryBlock<'_>, Error> {
        if dir.file_type != FileType::Directory {
            return Err(Error::NotADirectory { nid: dir.nid });
        }
        DirectoryBlock::new(dir.nid, self.flat_block(dir, block)?)
    }

    /// The entry with this name, by binary search.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<DirEntry<'_>>, Error> {
        // The last block whose first name is not behind the wanted one.
        let (mut low, mut high) = (0, dir.bytes.div_ceil(BLOCK_BYTES));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.directory_block(dir, middle)?.name(0)? <= name { low = middle + 1 } else { high = middle }
        }
        let Some(number) = low.checked_sub(1) else {
            // Not even a first block, or all names are behind it; a directory is always asked for its type.
            return self.directory_block(dir, 0).map(|_| None);
        };
        let block = self.directory_block(dir, number)?;
        block.search(name)?.map(|index| block.entry(number, index)).transpose()
    }

    /// The entries of a directory from a position on: 0, or the [`DirEntry::next_offset`] of any entry.
    ///
    /// After an error it ends.
    pub fn read_dir(&self, dir: &Inode, offset: u64) -> ReadDir<'_, B> {
        ReadDir { image: self, dir: *dir, offset }
    }
}

/// See [`Image::read_dir`].
#[derive(Debug)]
pub struct ReadDir<'a, B> {
    image: &'a Image<B>,
    dir: Inode,
    offset: u64,
}

impl<'a, B: AsRef<[u8]>> ReadDir<'a, B> {
    fn entry(&mut self) -> Result<Option<DirEntry<'a>>, Error> {
        while self.offset < self.dir.bytes || self.dir.file_type != FileType::Directory {
            let number = self.offset / BLOCK_BYTES;
            let block = self.image.directory_block(&self.dir, number)?;
            // A position inside an entry counts as the next entry.
            let index = usize::try_from(self.offset % BLOCK_BYTES).unwrap_or(usize::MAX).div_ceil(DIRENT_BYTES);
            if index < block.entries {
                let entry = block.entry(number, index)?;
                self.offset = entry.next_offset;
                return Ok(Some(entry));
            }
            self.offset = (number + 1) * BLOCK_BYTES;
        }
        Ok(None)
    }
}

impl<'a, B: AsRef<[u8]>> Iterator for ReadDir<'a, B> {
    type Item = Result<DirEntry<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset == u64::MAX {
            return None;
        }
        let entry = self.entry();
        if !matches!(entry, Ok(Some(_))) {
            self.offset = u64::MAX;
        }
        entry.transpose()
    }
}
