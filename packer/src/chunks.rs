//! Reads the chunks of an image's files from a store, checked.
//!
//! Files are read in path order and chunks of neighbours share frames, so a few decoded frames are kept: each is fetched
//! and decoded about once. Memory is [`CACHED_FRAMES`] frames and the locations of the layers that were read from.

use std::num::NonZeroUsize;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dsec_format::frame;
use dsec_format::locations::{Locations, Record};
use dsec_format::{ChunkDigest, LayerDigest, PackDigest};
use dsec_store::Source;
use dsec_store::error::{Damage, Error, Result};
use lru::LruCache;

use crate::view::Piece;

/// Decoded frames that are kept. A frame is at most 1 MiB, mostly a quarter of that.
const CACHED_FRAMES: NonZeroUsize = NonZeroUsize::new(32).expect("32 is not zero");

/// Names a frame: its pack, its offset in that.
type FrameName = (PackDigest, u64);

/// See the [module](self).
pub struct ChunkReader<'a> {
    source: &'a dyn Source,
    /// The base first, as [`Piece::layer`] counts.
    layers: Vec<(LayerDigest, OnceLock<Locations>)>,
    frames: Mutex<LruCache<FrameName, Arc<Vec<u8>>>>,
}

/// The bytes of a piece.
#[derive(Debug, Clone)]
pub struct Bytes {
    frame: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.frame[self.range.clone()]
    }
}

impl<'a> ChunkReader<'a> {
    /// Reads the chunks of `layers`, the base first.
    #[must_use]
    pub fn new(source: &'a dyn Source, layers: impl IntoIterator<Item = LayerDigest>) -> Self {
        let layers = layers.into_iter().map(|layer| (layer, OnceLock::new())).collect();
        Self { source, layers, frames: Mutex::new(LruCache::new(CACHED_FRAMES)) }
    }

    /// The bytes of a piece. Its whole chunk is checked.
    ///
    /// # Errors
    /// The store's; [`Error::Damaged`] when the chunk is not what its name says.
    pub fn piece(&self, piece: &Piece) -> Result<Bytes> {
        let (pack, record) = self.locate(piece)?;
        let damaged = |damage: Damage| self.damaged(&piece.chunk, damage);
        let frame = self.frame(pack, &record).map_err(|error| match error {
            FrameError::Store(error) => error,
            FrameError::Frame(error) => damaged(error.into()),
        })?;
        let start = record.chunk_offset.get() as usize;
        let chunk = start..start + piece.chunk_bytes as usize;
        let have_bytes = frame.len() as u64;
        let bytes = frame.get(chunk.clone());
        let bytes = bytes.ok_or_else(|| damaged(Damage::Length { need_bytes: chunk.end as u64, have_bytes }))?;
        if ChunkDigest::of(bytes) != piece.chunk {
            return Err(damaged(Damage::Chunk { chunk: piece.chunk }));
        }
        let start = chunk.start + piece.chunk_offset as usize;
        // A piece lies inside its chunk.
        Ok(Bytes { frame, range: start..start + piece.bytes as usize })
    }

    fn damaged(&self, chunk: &ChunkDigest, source: Damage) -> Error {
        Error::Damaged { object: format!("chunk {chunk}"), store: self.source.describe(), source }
    }

    fn locate(&self, piece: &Piece) -> Result<(PackDigest, Record)> {
        let missing = || Error::NotFound { object: format!("chunk {}", piece.chunk), store: self.source.describe() };
        let (layer, cell) = self.layers.get(piece.layer).ok_or_else(missing)?;
        let locations = match cell.get() {
            Some(locations) => locations,
            None => {
                let locations = self.source.read_locations(layer)?;
                cell.get_or_init(|| locations)
            }
        };
        let record = *locations.records.get(piece.extent).ok_or_else(missing)?;
        let pack = *locations.packs.get(record.pack.get() as usize).ok_or_else(missing)?;
        Ok((pack, record))
    }

    fn frame(&self, pack: PackDigest, record: &Record) -> Result<Arc<Vec<u8>>, FrameError> {
        let name = (pack, record.frame_offset.get());
        let kept = self.frames.lock().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
        if let Some(frame) = kept {
            return Ok(frame);
        }
        let stored = self.source.read_pack(&pack, name.1, record.stored_bytes.get().into())?;
        let frame = Arc::new(frame::decode(record.codec()?, &stored, record.plain_bytes.get())?);
        self.frames.lock().unwrap_or_else(PoisonError::into_inner).put(name, Arc::clone(&frame));
        Ok(frame)
    }
}

enum FrameError {
    Store(Error),
    Frame(frame::Error),
}

impl From<Error> for FrameError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<frame::Error> for FrameError {
    fn from(error: frame::Error) -> Self {
        Self::Frame(error)
    }
}
