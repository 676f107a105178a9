//! From the segments of a file to the chunks that hold it.
//!
//! A segment may have holes that only the extent map knows: see [`dsec_format::extents::INCOMPAT_GAPS`].

use dsec_erofs::Segment;
use dsec_format::chunk::BLOCK_BYTES;
use dsec_format::extents::Map;
use dsec_format::{ChunkDigest, LayerDigest};

use crate::content::Ranges;
use crate::tree::Error;

/// A range of a file and the chunk that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where it starts in the file.
    pub file_offset: u64,
    /// Its length, not zero.
    pub bytes: u32,
    /// The chunk.
    pub chunk: ChunkDigest,
    /// Where it starts in the chunk.
    pub chunk_offset: u32,
    /// Plain bytes of the whole chunk.
    pub chunk_bytes: u32,
    /// Layer that the file is in: index, the base being 0.
    pub layer: usize,
    /// Index of the chunk in the layer's extent map.
    pub extent: usize,
}

impl Piece {
    /// Whether it is all of its chunk.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.bytes == self.chunk_bytes
    }

    /// First offset in the file after it.
    #[must_use]
    pub fn file_end(&self) -> u64 {
        self.file_offset + u64::from(self.bytes)
    }
}

/// Where a file with these pieces, all that it has, has data.
pub(crate) fn ranges_of(pieces: &[Piece]) -> Ranges {
    let file_bytes = pieces.last().map_or(0, Piece::file_end);
    let mut ranges = Ranges::default();
    pieces.iter().for_each(|piece| ranges.add(piece.file_offset..piece.file_end(), file_bytes));
    ranges
}

/// The pieces of one file, in the order of the file. What none covers is a hole.
#[derive(Debug)]
pub struct Pieces<'a> {
    layer: usize,
    digest: LayerDigest,
    map: Map<'a>,
    segments: std::vec::IntoIter<Segment>,
    /// What is left of the present segment.
    rest: Segment,
    extent: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(layer: usize, digest: LayerDigest, map: Map<'a>, segments: Vec<Segment>) -> Self {
        let rest = Segment { file_offset: 0, bytes: 0, device_offset: 0 };
        Self { layer, digest, map, segments: segments.into_iter(), rest, extent: 0 }
    }

    /// The layer that holds them.
    #[must_use]
    pub fn layer(&self) -> LayerDigest {
        self.digest
    }

    fn no_chunk(&mut self) -> Error {
        let device_offset = self.rest.device_offset;
        self.rest.bytes = 0;
        self.segments = Vec::new().into_iter();
        Error::NoChunk { layer: self.digest, device_offset }
    }

    /// Skips the hole, if any, with which what is left of the segment begins.
    fn skip_gap(&mut self) -> Result<(), Error> {
        let next = self.map.extents().get(self.extent).map_or(u64::MAX, |extent| extent.device_offset.get());
        let gap_bytes = next.saturating_sub(self.rest.device_offset).min(self.rest.bytes);
        if gap_bytes == 0 {
            return Ok(());
        }
        // Holes are whole blocks: a run that ends inside one ends with its file.
        if !self.map.has_gaps() || !self.rest.device_offset.is_multiple_of(u64::from(BLOCK_BYTES)) {
            return Err(self.no_chunk());
        }
        self.rest.file_offset += gap_bytes;
        self.rest.device_offset += gap_bytes;
        self.rest.bytes -= gap_bytes;
        Ok(())
    }

    fn cut(&mut self) -> Result<Piece, Error> {
        let Some(extent) = self.map.extents().get(self.extent) else { return Err(self.no_chunk()) };
        let start = extent.device_offset.get();
        if start > self.rest.device_offset || extent.end() <= self.rest.device_offset {
            return Err(self.no_chunk());
        }
        // Both are below the size of a chunk, which has 32 bits.
        let chunk_offset = u32::try_from(self.rest.device_offset - start).unwrap_or(u32::MAX);
        let left = extent.end() - self.rest.device_offset;
        let bytes = u32::try_from(left.min(self.rest.bytes)).unwrap_or(u32::MAX);
        let piece = Piece {
            file_offset: self.rest.file_offset,
            bytes,
            chunk: extent.chunk,
            chunk_offset,
            chunk_bytes: extent.bytes.get(),
            layer: self.layer,
            extent: self.extent,
        };
        self.rest.file_offset += u64::from(bytes);
        self.rest.device_offset += u64::from(bytes);
        self.rest.bytes -= u64::from(bytes);
        self.extent += 1;
        Ok(piece)
    }
}

impl Iterator for Pieces<'_> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while self.rest.bytes == 0 {
                self.rest = self.segments.next()?;
                self.extent = self.map.overlapping(self.rest.device_offset, 1).start;
            }
            if let Err(error) = self.skip_gap() {
                return Some(Err(error));
            }
            if self.rest.bytes > 0 {
                return Some(self.cut());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsec_format::extents::{Extent, encode};

    fn digest(n: u8) -> ChunkDigest {
        ChunkDigest::of(&[n])
    }

    fn pieces(map: &[u8], segments: Vec<Segment>) -> Vec<Result<Piece, Error>> {
        Pieces::new(0, LayerDigest::of(b"l"), Map::decode(map).unwrap(), segments).collect()
    }

    #[test]
    fn segments_become_chunks_and_a_gap_is_an_error() {
        let map = encode(
            &[Extent::new(0, digest(1), 5000), Extent::new(5000, digest(2), 3192), Extent::new(8192, digest(3), 10)],
            12_288,
        );
        let segment = |file_offset, bytes, device_offset| Segment { file_offset, bytes, device_offset };
        let found = pieces(&map, vec![segment(0, 8192, 0), segment(40_960, 10, 8192)]);
        let found: Vec<_> = found.into_iter().map(|piece| piece.unwrap()).collect();
        let shown: Vec<_> = found.iter().map(|piece| (piece.file_offset, piece.bytes, piece.chunk)).collect();
        assert_eq!(shown, [(0, 5000, digest(1)), (5000, 3192, digest(2)), (40_960, 10, digest(3))]);
        assert!(found.iter().all(Piece::is_whole));

        let part = pieces(&map, vec![segment(0, 4096, 4096)]);
        let part: Vec<_> = part.into_iter().map(|piece| piece.unwrap()).collect();
        let shown: Vec<_> = part.iter().map(|piece| (piece.bytes, piece.chunk_offset, piece.is_whole())).collect();
        assert_eq!(shown, [(904, 4096, false), (3192, 0, true)]);

        let beyond = pieces(&map, vec![segment(0, 100, 8192)]);
        assert_eq!(beyond.len(), 2);
        assert!(matches!(beyond[1], Err(Error::NoChunk { device_offset: 8202, .. })));
    }
    #[test]
    fn a_gap_that_is_stated_is_a_hole() {
        let map = encode(&[Extent::new(8192, digest(1), 4096), Extent::new(40_960, digest(2), 4096)], 65_536);
        let segment = |file_offset, bytes, device_offset| Segment { file_offset, bytes, device_offset };
        let found =
            pieces(&map, vec![segment(0, 32_768, 4096), segment(98_304, 28_672, 36_864), segment(200_704, 5, 0)]);
        let found: Vec<_> = found.into_iter().map(|piece| piece.unwrap()).collect();
        let shown: Vec<_> = found.iter().map(|piece| (piece.file_offset, piece.bytes, piece.chunk)).collect();
        assert_eq!(shown, [(4096, 4096, digest(1)), (102_400, 4096, digest(2))]);

        // A map that states no gaps has none: what is missing is an error.
        let mut map = encode(&[Extent::new(0, digest(1), 4096)], 8192);
        let preamble_incompat = 20;
        map[preamble_incompat] = 0;
        let found = pieces(&map, vec![segment(0, 8192, 0)]);
        assert!(matches!(found.as_slice(), [Ok(_), Err(Error::NoChunk { device_offset: 4096, .. })]));

        // What follows data inside its block is no hole: it could not be told from a chunk that was left out.
        let map = encode(&[Extent::new(4096, digest(1), 10)], 65_536);
        let found = pieces(&map, vec![segment(0, 8192, 0)]);
        assert!(matches!(found.as_slice(), [Ok(_), Err(Error::NoChunk { device_offset: 4106, .. })]));
    }
}
