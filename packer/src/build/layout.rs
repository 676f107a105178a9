//! Where each run of data lies on the layer's data device.
//!
//! Runs are laid out in the order in which they are added, each from a block boundary on. A run whose chunks are those
//! of one before shares its place: so a file that is there twice is there once. A file with a grain
//! ([`dsec_erofs::grain_bytes`]) lies in pieces of that size instead, each in the place of its own and with its holes.
//! The result depends on the files and on their order, on nothing else.

use std::collections::HashMap;

use dsec_erofs::{InodeId, Segment, Tree, tree};
use dsec_format::ChunkDigest;
use dsec_format::chunk::BLOCK_BYTES;
use dsec_format::extents::{Extent, MAX_DEVICE_BYTES};

use super::read::FileChunks;

/// A run of data of the file in hand.
#[derive(Debug, Default)]
struct Run {
    file_offset: u64,
    bytes: u64,
    chunks: Vec<(ChunkDigest, u32)>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Layout {
    extents: Vec<Extent>,
    /// Where the last run or piece ends.
    end: u64,
    data_bytes: u64,
    /// First extent of the runs that begin with a chunk.
    runs: HashMap<RunName, u32>,
    /// Files that are one piece, as nearly all are, and where it lies.
    whole: Vec<(InodeId, u64)>,
    others: Vec<(InodeId, Vec<Segment>)>,
    run: Option<Run>,
    segments: Vec<Segment>,
}

/// Names a run: BLAKE3 over its length and the names of its chunks, cut to 16 bytes. A hit is compared with the run.
type RunName = [u8; 16];

/// The device has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

impl Layout {
    /// Adds the next chunks of the file in hand, or the first ones of another.
    pub(super) fn add(&mut self, file: &FileChunks) -> Result<(), Full> {
        for chunk in &file.chunks {
            if let Some(file_offset) = chunk.run_offset {
                self.end_run(file)?;
                self.run = Some(Run { file_offset, ..Run::default() });
            }
            let run = self.run.as_mut().expect("a file begins with the beginning of a run");
            run.bytes += u64::from(chunk.bytes);
            run.chunks.push((chunk.digest, chunk.bytes));
        }
        if file.ends { self.end_file(file) } else { Ok(()) }
    }

    fn end_file(&mut self, file: &FileChunks) -> Result<(), Full> {
        self.end_run(file)?;
        match self.segments.as_slice() {
            [] => {}
            [only] if only.file_offset == 0 && only.bytes == file.bytes => {
                self.whole.push((file.inode, only.device_offset));
            }
            _ => self.others.push((file.inode, std::mem::take(&mut self.segments))),
        }
        self.segments.clear();
        Ok(())
    }

    fn end_run(&mut self, file: &FileChunks) -> Result<(), Full> {
        let Some(run) = self.run.take() else { return Ok(()) };
        if let Some(grain_bytes) = file.grain_bytes {
            return self.append_in_grains(&run, grain_bytes, file.bytes);
        }
        let device_offset = match self.find(&run) {
            (_, Some(device_offset)) => device_offset,
            (name, None) => self.append(name, &run)?,
        };
        self.segments.push(Segment { file_offset: run.file_offset, bytes: run.bytes, device_offset });
        Ok(())
    }

    fn find(&self, run: &Run) -> (RunName, Option<u64>) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&run.bytes.to_le_bytes());
        run.chunks.iter().for_each(|(digest, _)| {
            hasher.update(digest.as_bytes());
        });
        let mut name = RunName::default();
        hasher.finalize_xof().fill(&mut name);
        let Some(&first) = self.runs.get(&name) else { return (name, None) };
        let there = self.extents[first as usize..].iter().map(|extent| extent.chunk);
        let is_same = there.take(run.chunks.len()).eq(run.chunks.iter().map(|(digest, _)| *digest));
        (name, is_same.then(|| self.extents[first as usize].device_offset.get()))
    }

    fn append(&mut self, name: RunName, run: &Run) -> Result<u64, Full> {
        let start = self.end.next_multiple_of(u64::from(BLOCK_BYTES));
        let end = self.bounded_end(start, run.bytes)?;
        let first = u32::try_from(self.extents.len()).map_err(|_| Full)?;
        self.place(run, start);
        self.end = end;
        self.runs.insert(name, first);
        Ok(start)
    }

    /// Puts a run into the grains that it touches. Those that follow one another in the file do so on the device.
    fn append_in_grains(&mut self, run: &Run, grain_bytes: u64, file_bytes: u64) -> Result<(), Full> {
        let first = run.file_offset / grain_bytes * grain_bytes;
        let mut segment = match self.segments.last() {
            Some(last) if first <= last.file_offset + last.bytes => *last,
            _ => {
                let device_offset = self.end.next_multiple_of(u64::from(BLOCK_BYTES));
                Segment { file_offset: first, bytes: 0, device_offset }
            }
        };
        let file_end = (run.file_offset + run.bytes).div_ceil(grain_bytes).saturating_mul(grain_bytes).min(file_bytes);
        segment.bytes = file_end - segment.file_offset;
        self.end = self.bounded_end(segment.device_offset, segment.bytes)?;
        self.place(run, segment.device_offset + (run.file_offset - segment.file_offset));
        if self.segments.last().is_some_and(|last| last.file_offset == segment.file_offset) {
            self.segments.pop();
        }
        self.segments.push(segment);
        Ok(())
    }

    fn bounded_end(&self, start: u64, bytes: u64) -> Result<u64, Full> {
        start.checked_add(bytes).filter(|end| *end <= MAX_DEVICE_BYTES).ok_or(Full)
    }

    /// Adds the extents of a run that begins at `device_offset`.
    fn place(&mut self, run: &Run, mut device_offset: u64) {
        for &(digest, bytes) in &run.chunks {
            self.extents.push(Extent::new(device_offset, digest, bytes));
            device_offset += u64::from(bytes);
        }
        self.data_bytes += run.bytes;
    }

    /// Writes into the tree where its files lie, and gives the rest: extents, size of the device, bytes of data.
    pub(super) fn finish(self, tree: &mut Tree) -> Result<(Vec<Extent>, u64, u64), (InodeId, tree::Error)> {
        for (inode, device_offset) in self.whole {
            let dsec_erofs::Kind::Regular { bytes } = tree.kind(inode) else { continue };
            let segment = Segment { file_offset: 0, bytes, device_offset };
            tree.set_segments(inode, &[segment]).map_err(|error| (inode, error))?;
        }
        for (inode, segments) in self.others {
            tree.set_segments(inode, &segments).map_err(|error| (inode, error))?;
        }
        Ok((self.extents, self.end.next_multiple_of(u64::from(BLOCK_BYTES)), self.data_bytes))
    }
}

#[cfg(test)]
mod tests {
    use dsec_erofs::{Attributes, Kind};

    use super::*;

    /// Chunks of a file: word, length, and the offset in the file where a run begins.
    fn chunks(inode: InodeId, bytes: u64, grain_bytes: Option<u64>, chunks: &[(&str, u32, Option<u64>)]) -> FileChunks {
        let chunk = |&(word, bytes, run_offset): &(&str, u32, Option<u64>)| {
            let digest = ChunkDigest::of(word.as_bytes());
            super::super::read::Chunk { digest, at: 0, bytes, run_offset }
        };
        FileChunks { inode, bytes, grain_bytes, chunks: chunks.iter().map(chunk).collect(), ends: true }
    }

    fn segment(file_offset: u64, bytes: u64, device_offset: u64) -> Segment {
        Segment { file_offset, bytes, device_offset }
    }

    #[test]
    fn equal_runs_share_a_place_and_others_begin_at_blocks() {
        let mut tree = Tree::new(Attributes::default()).unwrap();
        let mut file = |bytes| tree.add(Attributes::default(), Kind::Regular { bytes }).unwrap();
        let (a, b, c) = (file(5000), file(20_001), file(5000));
        let mut layout = Layout::default();
        for inode in [a, c] {
            let equal = chunks(inode, 5000, None, &[("x", 4096, Some(0)), ("y", 904, None)]);
            layout.add(&equal).unwrap();
            if inode == a {
                let other = [("z", 4096, Some(0)), ("x", 4096, Some(8192)), ("w", 3617, Some(16_384))];
                layout.add(&chunks(b, 20_001, None, &other)).unwrap();
            }
        }
        let (extents, device_bytes, data_bytes) = layout.finish(&mut tree).unwrap();
        let offsets: Vec<u64> = extents.iter().map(|extent| extent.device_offset.get()).collect();
        assert_eq!(offsets, [0, 4096, 8192, 12_288, 16_384]);
        assert_eq!((device_bytes, data_bytes), (20_480, 5000 + 4096 + 4096 + 3617));
        let encoded = dsec_format::extents::encode(&extents, device_bytes);
        assert!(!dsec_format::extents::Map::decode(&encoded).unwrap().has_gaps());
        assert_eq!(tree.segments(a).collect::<Vec<_>>(), tree.segments(c).collect::<Vec<_>>());
        assert_eq!(
            tree.segments(b).collect::<Vec<_>>(),
            [segment(0, 4096, 8192), segment(8192, 4096, 12_288), segment(16_384, 3617, 16_384)]
        );
    }

    #[test]
    fn a_file_with_a_grain_lies_in_whole_pieces() {
        const KIB: u64 = 1024;
        let mut tree = Tree::new(Attributes::default()).unwrap();
        let mut file = |bytes| tree.add(Attributes::default(), Kind::Regular { bytes }).unwrap();
        let (before, vast, after) = (file(10), file(1000 * KIB + 5), file(4096));
        let mut layout = Layout::default();
        layout.add(&chunks(before, 10, None, &[("a", 10, Some(0))])).unwrap();
        // Grains of 64 KiB: 1; 3 and 4 by a run over their border and another in 4; 15, the last, which ends early.
        let pieces = [
            ("b", 4096, Some(68 * KIB)),
            ("c", 8192, Some(252 * KIB)),
            ("a", 4096, Some(300 * KIB)),
            ("d", 5, Some(1000 * KIB)),
        ];
        layout.add(&chunks(vast, 1000 * KIB + 5, Some(64 * KIB), &pieces)).unwrap();
        layout.add(&chunks(after, 4096, None, &[("d", 4096, Some(0))])).unwrap();
        let (extents, device_bytes, data_bytes) = layout.finish(&mut tree).unwrap();
        let first = 4 * KIB;
        let last = first + 3 * 64 * KIB;
        assert_eq!(
            tree.segments(vast).collect::<Vec<_>>(),
            [
                segment(64 * KIB, 64 * KIB, first),
                segment(192 * KIB, 128 * KIB, first + 64 * KIB),
                segment(960 * KIB, 40 * KIB + 5, last)
            ]
        );
        let offsets: Vec<u64> = extents.iter().map(|extent| extent.device_offset.get()).collect();
        let end = last + 44 * KIB;
        assert_eq!(offsets, [0, first + 4 * KIB, first + 124 * KIB, first + 172 * KIB, last + 40 * KIB, end]);
        assert_eq!((device_bytes, data_bytes), (end + 4096, 10 + 4096 + 8192 + 4096 + 5 + 4096));
        let encoded = dsec_format::extents::encode(&extents, device_bytes);
        assert!(dsec_format::extents::Map::decode(&encoded).unwrap().has_gaps());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut layout = Layout::default();
        let grain = 8 << 40;
        let inode = Tree::ROOT;
        layout.add(&chunks(inode, i64::MAX as u64, Some(grain), &[("a", 4096, Some(0))])).unwrap();
        let second = chunks(inode, i64::MAX as u64, Some(grain), &[("a", 4096, Some(0))]);
        assert_eq!(layout.add(&second), Err(Full), "two grains are one block more than there is");
    }
}
