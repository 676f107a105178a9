//! Where the data of a tree's files lies, and the chunk size that states it exactly.
//!
//! A file that is one piece, as nearly all are, costs nothing here: its inode holds the device block. The others
//! have a list of runs in one shared table.

use super::Error;
use crate::attributes::{Run, Segment};
use crate::format::{BLOCK_BYTES, CHUNK_INDEXES_MAX, NULL_BLOCK};
use crate::grain::Chunks;

/// Where the data of one file lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere: the file is one hole, or empty, or no file.
    Hole,
    /// All of it from this device block on.
    Whole(u32),
    /// In the list with this number.
    Listed(u32),
}

#[derive(Debug, Default)]
pub(super) struct Runs {
    all: Vec<Run>,
    /// Where each list starts and ends.
    lists: Vec<(u32, u32)>,
}

impl Runs {
    pub(super) fn list(&self, number: u32) -> &[Run] {
        let (start, end) = self.lists[number as usize];
        &self.all[start as usize..end as usize]
    }

    /// Checks the segments of a file of `file_bytes` and stores them.
    pub(super) fn store(&mut self, file_bytes: u64, segments: &[Segment]) -> Result<Place, Error> {
        let runs = to_runs(file_bytes, segments)?;
        let chunks = chunks_of(file_bytes, &runs);
        if chunks.count > CHUNK_INDEXES_MAX {
            return Err(Error::TooScattered { indexes: chunks.count });
        }
        match runs.as_slice() {
            [] => Ok(Place::Hole),
            [run] if run.file_block == 0 && run.file_end() == file_bytes.div_ceil(BLOCK_BYTES) => {
                Ok(Place::Whole(run.device_block))
            }
            _ => {
                let full = |_| Error::Full { what: "segments" };
                let number = u32::try_from(self.lists.len()).map_err(full)?;
                let start = u32::try_from(self.all.len()).map_err(full)?;
                let end = u32::try_from(self.all.len() + runs.len()).map_err(full)?;
                self.all.extend_from_slice(&runs);
                self.lists.push((start, end));
                Ok(Place::Listed(number))
            }
        }
    }
}

/// Segments in blocks, in order, neighbours joined where file and device both go on.
fn to_runs(file_bytes: u64, segments: &[Segment]) -> Result<Vec<Run>, Error> {
    let mut runs: Vec<Run> = Vec::with_capacity(segments.len());
    for segment in segments {
        let &Segment { file_offset, bytes, device_offset } = segment;
        let unaligned = Error::Unaligned { file_offset, bytes, device_offset };
        let outside = Error::SegmentOrder { file_offset };
        let end = file_offset.checked_add(bytes).filter(|&end| end <= file_bytes).ok_or(outside.clone())?;
        let whole_blocks = bytes.is_multiple_of(BLOCK_BYTES) || end == file_bytes;
        if bytes == 0
            || !whole_blocks
            || !file_offset.is_multiple_of(BLOCK_BYTES)
            || !device_offset.is_multiple_of(BLOCK_BYTES)
        {
            return Err(unaligned);
        }
        let beyond = |_| Error::DeviceOffset { device_offset };
        let run = Run {
            file_block: file_offset / BLOCK_BYTES,
            device_block: u32::try_from(device_offset / BLOCK_BYTES).map_err(beyond)?,
            blocks: u32::try_from(bytes.div_ceil(BLOCK_BYTES)).map_err(beyond)?,
        };
        if run.device_end() > u64::from(NULL_BLOCK) {
            return Err(Error::DeviceOffset { device_offset });
        }
        match runs.last_mut() {
            Some(last) if run.file_block < last.file_end() => return Err(outside),
            Some(last) if run.file_block == last.file_end() && u64::from(run.device_block) == last.device_end() => {
                // Both are below 2^32 blocks together, since the joined run ends below NULL_BLOCK on the device.
                last.blocks += run.blocks;
            }
            _ => runs.push(run),
        }
    }
    Ok(runs)
}

/// The largest chunks that state the runs exactly: every border between runs, and between a run and a hole, is one.
pub(crate) fn chunks_of(file_bytes: u64, runs: &[Run]) -> Chunks {
    let borders = runs.iter().flat_map(|run| [run.file_block, run.file_end()]);
    Chunks::of(file_bytes.div_ceil(BLOCK_BYTES), borders)
}
