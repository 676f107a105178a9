//! Locations of one layer in one source, in a file that is mapped: nothing is kept on the heap for a chunk.
//!
//! ```text
//! records (32 bytes each, one an extent) | order (u32 each): extents sorted by pack and offset of their frame
//! ```
//!
//! The file is this daemon's own, derived and never trusted: look-ups are free of panics for any bytes.

use std::io::Write;
use std::path::Path;

use dsec_format::PackDigest;
use dsec_format::frame::Codec;
use dsec_format::locations::{Locations, RECORD_BYTES, Record};
use dsec_sys::mapped::Mapped;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// Where a frame lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameKey {
    /// Index of the pack in [`Located::pack`].
    pub pack: u32,
    /// Offset in the pack.
    pub offset: u64,
    /// Stored bytes.
    pub stored_bytes: u32,
}

impl FrameKey {
    fn of(record: &Record) -> Self {
        Self { pack: record.pack.get(), offset: record.frame_offset.get(), stored_bytes: record.stored_bytes.get() }
    }

    /// First offset after the frame.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.stored_bytes)
    }
}

/// Where a chunk lies in its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Its frame.
    pub frame: FrameKey,
    /// Plain bytes of the frame.
    pub plain_bytes: u32,
    /// How the frame is stored.
    pub codec: Codec,
    /// Offset in the decoded frame.
    pub offset: u32,
}

/// The locations of a layer, mapped from a file of this node.
#[derive(Debug)]
pub struct Located {
    packs: Vec<PackDigest>,
    records: usize,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mapped),
    /// The disk took no file: a full disk fails no read.
    Heap(Vec<u8>),
}

impl Located {
    /// Writes decoded locations to a file and maps it; if that cannot be, keeps them in memory.
    pub fn create(locations: &Locations, path: &Path) -> Self {
        let count = u32::try_from(locations.records.len()).unwrap_or(u32::MAX);
        let mut order: Vec<U32> = (0..count).map(U32::new).collect();
        order.sort_by_key(|index| locations.records.get(index.get() as usize).map(FrameKey::of));
        let parts = [locations.records.as_bytes(), order.as_bytes()];
        let bytes = write_and_map(parts, path).map_or_else(
            |error| {
                tracing::warn!(%error, "locations are kept in memory");
                Bytes::Heap(parts.concat())
            },
            Bytes::Mapped,
        );
        Self { packs: locations.packs.clone(), records: locations.records.len(), bytes }
    }

    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Heap(bytes) => bytes,
        }
    }

    fn records(&self) -> &[Record] {
        let bytes = self.bytes().get(..self.records * RECORD_BYTES).unwrap_or_default();
        <[Record]>::ref_from_bytes(bytes).unwrap_or_default()
    }

    fn order(&self) -> &[U32] {
        let bytes = self.bytes().get(self.records * RECORD_BYTES..).unwrap_or_default();
        <[U32]>::ref_from_bytes(bytes).unwrap_or_default()
    }

    /// The pack of an index.
    pub fn pack(&self, index: u32) -> Option<&PackDigest> {
        self.packs.get(index as usize)
    }

    /// Number of records; one an extent when the locations are those of the layer.
    pub fn len(&self) -> usize {
        self.records
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Where the chunk of an extent lies.
    pub fn chunk(&self, extent: u32) -> Option<Chunk> {
        let record = self.records().get(extent as usize)?;
        Some(Chunk {
            frame: FrameKey::of(record),
            plain_bytes: record.plain_bytes.get(),
            codec: record.codec().ok()?,
            offset: record.chunk_offset.get(),
        })
    }

    /// The extents of this layer whose chunks are in a frame.
    pub fn extents_of(&self, frame: FrameKey) -> impl Iterator<Item = u32> {
        let key = move |index: &U32| self.records().get(index.get() as usize).map(FrameKey::of);
        let order = self.order();
        let first = order.partition_point(|index| key(index) < Some(frame));
        let rest = order.get(first..).unwrap_or_default().iter();
        rest.take_while(move |index| key(index) == Some(frame)).map(|index| index.get())
    }
}

fn write_and_map(parts: [&[u8]; 2], path: &Path) -> std::io::Result<Mapped> {
    let temporary = path.with_extension("tmp");
    let mut file = fs_err::File::create(&temporary)?;
    for part in parts {
        file.write_all(part)?;
    }
    fs_err::rename(&temporary, path)?;
    Mapped::open(fs_err::File::open(path)?.file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsec_format::pack::Place;

    #[test]
    fn extents_of_a_frame_are_found_whatever_their_order() {
        let place = |frame_offset, chunk_offset| Place {
            frame_offset,
            stored_bytes: 10,
            plain_bytes: 20,
            codec: Codec::Zstd,
            chunk_offset,
            chunk_bytes: 5,
        };
        let records = [(0, 50, 0), (1, 32, 0), (0, 32, 5), (0, 32, 0), (0, 50, 9)];
        let records = records.map(|(pack, frame, chunk)| Record::new(pack, &place(frame, chunk))).to_vec();
        let packs = vec![PackDigest::of(b"a"), PackDigest::of(b"b")];
        let directory = tempfile::tempdir().unwrap();
        let located = Located::create(&Locations { packs, records }, &directory.path().join("l"));
        let frame = located.chunk(2).unwrap().frame;
        assert_eq!(located.extents_of(frame).collect::<Vec<_>>(), [2, 3]);
        let frame = located.chunk(4).unwrap().frame;
        assert_eq!(located.extents_of(frame).collect::<Vec<_>>(), [0, 4]);
        assert_eq!(located.chunk(5), None);
    }
}
