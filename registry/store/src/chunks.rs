//! Reading the chunks of one layer from any source, checked.
//!
//! For whoever goes through much of a layer in order: frames that follow one another in a pack are fetched with one
//! request, and the frame in hand is kept. The node's file system has its own way (`dsec-mountd`).

use std::num::NonZeroUsize;

use dsec_format::extents::{Extent, Map};
use dsec_format::frame;
use dsec_format::locations::{Locations, Record};
use dsec_format::{ChunkDigest, LayerDigest, PackDigest};
use lru::LruCache;

use crate::error::{Damage, Error, Result};
use crate::layer;
use crate::layout::Object;
use crate::source::Source;

/// Most bytes that are fetched at once.
const RUN_BYTES: u64 = 4 << 20;
/// Most plain bytes in the frames that are kept, when each is as large as it may be: 32 MiB.
const FRAMES_KEPT: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");

/// The frame that holds an extent's chunk: its pack's number in the locations, and its offset there.
type FrameKey = (u32, u64);

/// Reads chunks of one layer.
pub struct ChunkReader<'a> {
    source: &'a dyn Source,
    layer: LayerDigest,
    extents: Vec<u8>,
    locations: Locations,
    frames: LruCache<FrameKey, Vec<u8>>,
}

impl<'a> ChunkReader<'a> {
    /// Opens a layer: reads its extent map (all of the stored layer is checked on the way) and its locations.
    ///
    /// # Errors
    /// As [`Source::read_layer`]; [`Error::TooLarge`] for a map of more than a GiB.
    pub fn open(source: &'a dyn Source, layer: &LayerDigest) -> Result<Self> {
        let extents = layer::read_extents(&mut source.open_layer(layer)?, layer, &source.describe())?;
        Self::with_extents(source, layer, extents)
    }

    /// As [`ChunkReader::open`], with the plain extent map of the layer, whose digest was checked.
    ///
    /// # Errors
    /// As [`Source::read_locations`]; a map that is malformed.
    pub fn with_extents(source: &'a dyn Source, layer: &LayerDigest, extents: Vec<u8>) -> Result<Self> {
        let map = Map::decode(&extents).map_err(|error| layer::damaged(layer, &source.describe(), error))?;
        let locations = source.read_locations(layer, map.extents().len() as u64)?;
        check_locations(source, layer, map.extents(), &locations)?;
        Ok(Self { source, layer: *layer, extents, locations, frames: LruCache::new(FRAMES_KEPT) })
    }

    /// Its chunks, in the order of the data device.
    #[must_use]
    pub fn map(&self) -> Map<'_> {
        Map::decode_trusted(&self.extents).expect("decoded when the layer was opened")
    }

    /// Its locations, one record an extent.
    #[must_use]
    pub fn locations(&self) -> &Locations {
        &self.locations
    }

    /// The plain bytes of the extent `index`, checked.
    ///
    /// # Errors
    /// As [`Source::read_pack`]; [`Error::Damaged`] naming the pack when it does not hold the chunk.
    ///
    /// # Panics
    /// When the map has no such extent.
    pub fn read(&mut self, index: usize) -> Result<&[u8]> {
        let key = self.key(index);
        if !self.frames.contains(&key) {
            self.fetch(index)?;
        }
        let extent = self.map().extents()[index];
        let record = self.locations.records[index];
        let start = record.chunk_offset.get() as usize;
        let chunk = self.frames.get(&key).and_then(|plain| plain.get(start..start + extent.bytes.get() as usize));
        match chunk {
            Some(bytes) if ChunkDigest::of(bytes) == extent.chunk => {
                // The second look-up is for the borrow checker: a conditional return cannot keep the first borrow.
                let plain = self.frames.get(&key).expect("it was there");
                Ok(&plain[start..start + extent.bytes.get() as usize])
            }
            _ => Err(self.damaged(&record, Damage::Chunk { chunk: extent.chunk })),
        }
    }

    fn key(&self, index: usize) -> FrameKey {
        let record = &self.locations.records[index];
        (record.pack.get(), record.frame_offset.get())
    }

    fn damaged(&self, record: &Record, damage: impl Into<Damage>) -> Error {
        let object = self
            .locations
            .packs
            .get(record.pack.get() as usize)
            .map_or_else(|| Object::locations(&self.layer).to_string(), |pack| Object::pack(pack).to_string());
        Error::Damaged { object, store: self.source.describe(), source: damage.into() }
    }

    /// Fetches the frame of an extent, and those of the next extents that follow it in the pack.
    fn fetch(&mut self, index: usize) -> Result<()> {
        let first = self.locations.records[index];
        let mut run = vec![first];
        let mut end = first.frame_offset.get() + u64::from(first.stored_bytes.get());
        for record in &self.locations.records[index + 1..] {
            let last = run.last().unwrap_or(&first);
            if (record.pack, record.frame_offset) == (last.pack, last.frame_offset) {
                continue;
            }
            let next_end = end + u64::from(record.stored_bytes.get());
            let follows = record.pack == first.pack && record.frame_offset.get() == end;
            if !follows || next_end - first.frame_offset.get() > RUN_BYTES || run.len() >= FRAMES_KEPT.get() {
                break;
            }
            run.push(*record);
            end = next_end;
        }
        let pack: PackDigest = self.locations.packs[first.pack.get() as usize];
        let start = first.frame_offset.get();
        let bytes = self.source.read_pack(&pack, start, end - start)?;
        // The first one last: it is the one that is asked for, and must not be the one that is pushed out.
        for record in run.iter().rev() {
            let from = usize::try_from(record.frame_offset.get() - start).expect("inside the bytes read");
            let stored = &bytes[from..from + record.stored_bytes.get() as usize];
            let plain = record
                .codec()
                .and_then(|codec| frame::decode(codec, stored, record.plain_bytes.get()))
                .map_err(|error| self.damaged(record, error))?;
            self.frames.put((record.pack.get(), record.frame_offset.get()), plain);
        }
        Ok(())
    }
}

/// Locations are derived and not covered by any digest above: they must at least fit the map.
pub(crate) fn check_locations(
    source: &dyn Source,
    layer: &LayerDigest,
    extents: &[Extent],
    locations: &Locations,
) -> Result<()> {
    let misplaced = |chunk: ChunkDigest| Error::Damaged {
        object: Object::locations(layer).to_string(),
        store: source.describe(),
        source: Damage::Misplaced { chunk },
    };
    if locations.records.len() != extents.len() {
        let chunk = extents.get(locations.records.len()).or(extents.last()).map(|extent| extent.chunk);
        return Err(misplaced(chunk.unwrap_or_else(|| ChunkDigest::of(&[]))));
    }
    for (extent, record) in extents.iter().zip(&locations.records) {
        let end = u64::from(record.chunk_offset.get()) + u64::from(extent.bytes.get());
        if end > u64::from(record.plain_bytes.get()) {
            return Err(misplaced(extent.chunk));
        }
    }
    Ok(())
}
