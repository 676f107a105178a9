//! Where the data of a file lies.

use super::{Error, Image, Inode};
use crate::attributes::{FileType, Segment};
use crate::format::{self, BLOCK_BITS, BLOCK_BYTES, CHUNK_INDEX_BYTES, ChunkIndex, NULL_BLOCK};

/// A range of a file that is a hole, or lies in one piece on the data device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where it starts in the file.
    pub file_offset: u64,
    /// Its length; it ends no later than the file.
    pub bytes: u64,
    /// Where it starts on the device; `None` for a hole.
    pub device_offset: Option<u64>,
}

impl Extent {
    fn file_end(&self) -> u64 {
        self.file_offset + self.bytes
    }

    fn device_end(&self) -> Option<u64> {
        self.device_offset.map(|offset| offset + self.bytes)
    }
}

impl<B: AsRef<[u8]>> Image<B> {
    /// The extent that starts at an offset of a file; `None` at and behind its end.
    ///
    /// It is made of whole chunks, as many as lie behind each other, until it has `wanted_bytes` or more. So a read of
    /// n bytes asks for n, and `SEEK_HOLE` for `u64::MAX`, which may go through all the chunk indexes of the file.
    pub fn map(&self, file: &Inode, file_offset: u64, wanted_bytes: u64) -> Result<Option<Extent>, Error> {
        if file.file_type != FileType::Regular {
            return Err(Error::NotAFile { nid: file.nid });
        }
        if file_offset >= file.bytes {
            return Ok(None);
        }
        let mut extent = self.chunk(file, file_offset)?;
        while extent.bytes < wanted_bytes && extent.file_end() < file.bytes {
            let next = self.chunk(file, extent.file_end())?;
            if next.device_offset != extent.device_end() {
                break;
            }
            extent.bytes += next.bytes;
        }
        Ok(Some(extent))
    }

    /// All data of a file, in order; what lies between is holes. After an error it ends.
    pub fn segments(&self, file: &Inode) -> Segments<'_, B> {
        Segments { image: self, file: *file, offset: 0 }
    }

    /// From an offset to the end of its chunk or of the file. The offset lies in the file.
    fn chunk(&self, file: &Inode, file_offset: u64) -> Result<Extent, Error> {
        let bits = u32::from(BLOCK_BITS) + chunk_bits(file);
        let number = file_offset >> bits;
        let index = self.chunk_index(file, number)?;
        let start = number << bits;
        // The file ends below 2^63 and a chunk has at most 2^43 bytes.
        let end = (start + (1 << bits)).min(file.bytes);
        let device_offset = match device_block(&index) {
            Some(None) => None,
            Some(Some(block)) => {
                let chunk_blocks = (end - start).div_ceil(BLOCK_BYTES);
                if u64::from(block) + chunk_blocks > u64::from(self.device_blocks) {
                    return Err(Error::Outside { what: "data on the device", nid: file.nid });
                }
                Some(u64::from(block) * BLOCK_BYTES + (file_offset - start))
            }
            None => return Err(Error::Invalid { what: "chunk index", nid: file.nid }),
        };
        Ok(Extent { file_offset, bytes: end - file_offset, device_offset })
    }

    fn chunk_index(&self, file: &Inode, number: u64) -> Result<ChunkIndex, Error> {
        let offset = number.checked_mul(CHUNK_INDEX_BYTES).and_then(|bytes| bytes.checked_add(index_offset(file)?));
        let index = offset.and_then(|offset| self.read::<ChunkIndex>(offset));
        index.copied().ok_or(Error::Outside { what: "chunk index", nid: file.nid })
    }
}

/// Binary logarithm of the blocks in a chunk of a chunk-based file.
fn chunk_bits(file: &Inode) -> u32 {
    file.data & u32::from(format::CHUNK_BITS_MASK)
}

/// Where the chunk indexes of a file start.
pub(crate) fn index_offset(file: &Inode) -> Option<u64> {
    format::round_up(file.body_offset(), CHUNK_INDEX_BYTES)
}

/// How many chunk indexes a file has.
pub(crate) fn chunk_count(file: &Inode) -> u64 {
    file.bytes.div_ceil(BLOCK_BYTES).div_ceil(1 << chunk_bits(file))
}

/// The block of an index, or a hole; `None` if it is neither.
fn device_block(index: &ChunkIndex) -> Option<Option<u32>> {
    match (index.block_high.get(), index.device.get(), index.block.get()) {
        (0, 0, NULL_BLOCK) => Some(None),
        (0, format::DATA_DEVICE, block) if block != NULL_BLOCK => Some(Some(block)),
        _ => None,
    }
}

/// See [`Image::segments`].
#[derive(Debug)]
pub struct Segments<'a, B> {
    image: &'a Image<B>,
    file: Inode,
    offset: u64,
}

impl<B: AsRef<[u8]>> Iterator for Segments<'_, B> {
    type Item = Result<Segment, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.offset < u64::MAX {
            let extent = match self.image.map(&self.file, self.offset, u64::MAX) {
                Ok(extent) => extent?,
                Err(error) => {
                    self.offset = u64::MAX;
                    return Some(Err(error));
                }
            };
            self.offset = extent.file_end();
            if let Some(device_offset) = extent.device_offset {
                return Some(Ok(Segment { file_offset: extent.file_offset, bytes: extent.bytes, device_offset }));
            }
        }
        None
    }
}
