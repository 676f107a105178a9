//! What of a window of extents has to be moved, and with which reads.

use std::collections::{BTreeMap, HashSet};

use dsec_format::ChunkDigest;
use dsec_format::extents::Extent;
use dsec_format::locations::Record;

use super::flow::Flow;
use crate::error::Result;
use crate::pack::FrameChunk;
use crate::source::Store;

/// Most stored bytes that one read fetches, a frame that is larger apart.
const RUN_BYTES: u64 = 4 << 20;

/// A frame of which at least one chunk is wanted.
pub(super) struct WantedFrame {
    pub(super) record: Record,
    pub(super) chunks: Vec<FrameChunk>,
}

impl WantedFrame {
    /// Whether the wanted chunks are all that is in the frame.
    pub(super) fn is_whole(&self) -> bool {
        let wanted: u64 = self.chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum();
        wanted == u64::from(self.record.plain_bytes.get())
    }
}

/// Frames that follow one another in a pack: one read.
pub(super) struct Run {
    pub(super) pack: u32,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) frames: Vec<WantedFrame>,
}

pub(super) struct Plan {
    pub(super) runs: Vec<Run>,
    /// Plain bytes of extents whose chunks are there already, or on their way.
    pub(super) skipped_bytes: u64,
}

/// Plans a window. `extents` and `records` belong together, entry by entry.
pub(super) fn plan(to: &dyn Store, flow: &Flow<'_>, extents: &[Extent], records: &[Record]) -> Result<Plan> {
    let mut seen = HashSet::new();
    let asked: Vec<ChunkDigest> =
        extents.iter().map(|extent| extent.chunk).filter(|chunk| !flow.has(chunk) && seen.insert(*chunk)).collect();
    let mut missing: HashSet<ChunkDigest> = to.missing_chunks(&asked)?.into_iter().collect();

    let mut frames: BTreeMap<(u32, u64), WantedFrame> = BTreeMap::new();
    let mut skipped_bytes = 0;
    for (extent, record) in extents.iter().zip(records) {
        // Removing it counts a chunk that occurs twice once.
        if !missing.remove(&extent.chunk) {
            skipped_bytes += u64::from(extent.bytes.get());
            continue;
        }
        let key = (record.pack.get(), record.frame_offset.get());
        let frame = frames.entry(key).or_insert_with(|| WantedFrame { record: *record, chunks: Vec::new() });
        let (offset, bytes) = (record.chunk_offset.get(), extent.bytes.get());
        frame.chunks.push(FrameChunk { digest: extent.chunk, offset, bytes });
    }
    Ok(Plan { runs: runs(frames.into_values()), skipped_bytes })
}

fn runs(frames: impl Iterator<Item = WantedFrame>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for frame in frames {
        let (pack, offset) = (frame.record.pack.get(), frame.record.frame_offset.get());
        let bytes = u64::from(frame.record.stored_bytes.get());
        match runs.last_mut() {
            Some(run) if run.pack == pack && run.offset + run.bytes == offset && run.bytes + bytes <= RUN_BYTES => {
                run.bytes += bytes;
                run.frames.push(frame);
            }
            _ => runs.push(Run { pack, offset, bytes, frames: vec![frame] }),
        }
    }
    runs
}
