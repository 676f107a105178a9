//! Data devices: reads of a layer's virtual device, put together from chunks.
//!
//! This is where the file system meets the cache and the fetcher. A read whose chunks are all here is answered on the
//! caller's thread; any other is handed to the fetcher and answered from one of its threads. What no extent covers reads
//! as zero; what cannot be had is an error, never zeros.

use std::sync::Arc;

use dsec_format::extents::Extent;

use crate::cache::Cache;
use crate::fetch::{Done, Fetcher, Pending, Piece, ReadError, assemble};
use crate::layer::Layer;

/// A part of an answer that lies in one piece on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Where it starts on the device.
    pub device_offset: u64,
    /// Its length.
    pub bytes: u64,
    /// Where it goes in the answer.
    pub target: u64,
}

/// Reads layers. See the [module](self).
#[derive(Debug)]
pub struct Reader {
    cache: Arc<Cache>,
    fetcher: Fetcher,
}

impl Reader {
    /// A reader over a cache and the fetcher that fills it.
    pub fn new(cache: Arc<Cache>, fetcher: Fetcher) -> Self {
        Self { cache, fetcher }
    }

    /// The cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The fetcher.
    pub fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// Reads `[offset, offset + bytes)` of a layer's device, cut at its end, and answers `done`, perhaps later and from
    /// another thread.
    pub fn read(&self, layer: &Arc<Layer>, offset: u64, bytes: u64, done: Done) {
        let bytes = bytes.min(layer.device_bytes().saturating_sub(offset));
        let range = Range { device_offset: offset, bytes, target: 0 };
        self.read_ranges(layer, &[range], bytes, done);
    }

    /// Reads ranges of a layer's device into an answer of `bytes` bytes; what no range covers is zero. The ranges lie
    /// inside device and answer and do not overlap in the latter.
    pub fn read_ranges(&self, layer: &Arc<Layer>, ranges: &[Range], bytes: u64, done: Done) {
        let Ok(length) = usize::try_from(bytes) else { return done(Err(ReadError::Unavailable)) };
        let mut pieces = Vec::new();
        ranges.iter().for_each(|range| self.add_pieces(layer, range, &mut pieces));
        if pieces.iter().all(|piece| piece.bytes.is_some()) {
            assemble(&pieces, length, |answer| done(answer.ok_or(ReadError::Unavailable)));
        } else {
            let deadline = self.fetcher.deadline();
            self.fetcher.submit(Pending::new(Arc::clone(layer), length, pieces, deadline, done));
        }
    }

    /// As [`Reader::read`], waiting for the answer.
    ///
    /// # Errors
    /// The bytes cannot be had before the deadline.
    pub fn read_now(&self, layer: &Arc<Layer>, offset: u64, bytes: u64) -> Result<Vec<u8>, ReadError> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let done = move |answer: Result<&[u8], ReadError>| {
            // Nobody who waits goes away before the answer.
            let _ = sender.send(answer.map(<[u8]>::to_vec));
        };
        self.read(layer, offset, bytes, Box::new(done));
        receiver.recv().unwrap_or(Err(ReadError::Stopped))
    }

    /// Plain bytes of the layer's chunks that are on the local disk. Linear in its extents.
    pub fn local_bytes(&self, layer: &Layer) -> u64 {
        let local = layer.map().extents().iter().filter(|extent| self.cache.is_on_disk(&extent.chunk));
        local.map(|extent| u64::from(extent.bytes.get())).sum()
    }

    fn add_pieces(&self, layer: &Layer, range: &Range, pieces: &mut Vec<Piece>) {
        let (offset, end) = (range.device_offset, range.device_offset.saturating_add(range.bytes));
        let map = layer.map();
        let overlapping = map.overlapping(offset, range.bytes);
        let first = u32::try_from(overlapping.start).unwrap_or(u32::MAX);
        let extents = map.extents().get(overlapping).unwrap_or_default();
        let piece = |(index, extent): (u32, &Extent)| {
            let start = extent.device_offset.get();
            let (from, to) = (offset.max(start), end.min(extent.end()));
            // All differences are below the size of a chunk or of this read.
            let at = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
            Piece {
                extent: index,
                digest: extent.chunk,
                source: at(from.saturating_sub(start))..at(to.saturating_sub(start)),
                target: at(range.target.saturating_add(from.saturating_sub(offset))),
                bytes: self.cache.get(&extent.chunk).filter(|chunk| chunk.len() == extent.bytes.get() as usize),
            }
        };
        pieces.extend((first..).zip(extents).map(piece));
    }
}
