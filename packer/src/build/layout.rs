//! Where each run of data lies on the layer's data device.
//!
//! Runs are laid out in the order in which they are added, each from a block boundary on. A run whose chunks are those
//! of one before shares its place: so a file that is there twice is there once. The result depends on the files and on
//! their order, on nothing else.

use std::collections::HashMap;

use dsec_erofs::{InodeId, Segment, Tree, tree};
use dsec_format::ChunkDigest;
use dsec_format::chunk::BLOCK_BYTES;
use dsec_format::extents::{Extent, MAX_DEVICE_BYTES};

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
    /// Where the last extent ends.
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
    /// Adds the next chunk of the file in hand; `run_offset` is the offset in the file when a run begins with it.
    pub(super) fn chunk(&mut self, digest: ChunkDigest, bytes: u32, run_offset: Option<u64>) -> Result<(), Full> {
        if let Some(file_offset) = run_offset {
            self.end_run()?;
            self.run = Some(Run { file_offset, ..Run::default() });
        }
        let run = self.run.as_mut().expect("a file begins with the beginning of a run");
        run.bytes += u64::from(bytes);
        run.chunks.push((digest, bytes));
        Ok(())
    }

    /// Ends the file in hand.
    pub(super) fn end_file(&mut self, inode: InodeId, file_bytes: u64) -> Result<(), Full> {
        self.end_run()?;
        match self.segments.as_slice() {
            [] => {}
            [only] if only.file_offset == 0 && only.bytes == file_bytes => self.whole.push((inode, only.device_offset)),
            _ => self.others.push((inode, std::mem::take(&mut self.segments))),
        }
        self.segments.clear();
        Ok(())
    }

    fn end_run(&mut self) -> Result<(), Full> {
        let Some(run) = self.run.take() else { return Ok(()) };
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
        if start + run.bytes > MAX_DEVICE_BYTES {
            return Err(Full);
        }
        let first = u32::try_from(self.extents.len()).map_err(|_| Full)?;
        self.end = start;
        for &(digest, bytes) in &run.chunks {
            self.extents.push(Extent::new(self.end, digest, bytes));
            self.end += u64::from(bytes);
        }
        self.data_bytes += run.bytes;
        self.runs.insert(name, first);
        Ok(start)
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

    #[test]
    fn equal_runs_share_a_place_and_others_begin_at_blocks() {
        let mut tree = Tree::new(Attributes::default()).unwrap();
        let mut file = |bytes| tree.add(Attributes::default(), Kind::Regular { bytes }).unwrap();
        let (a, b, c) = (file(5000), file(20_001), file(5000));
        let chunk = ChunkDigest::of;
        let mut layout = Layout::default();
        layout.chunk(chunk(b"x"), 4096, Some(0)).unwrap();
        layout.chunk(chunk(b"y"), 904, None).unwrap();
        layout.end_file(a, 5000).unwrap();
        layout.chunk(chunk(b"z"), 4096, Some(0)).unwrap();
        layout.chunk(chunk(b"x"), 4096, Some(8192)).unwrap();
        layout.chunk(chunk(b"w"), 3617, Some(16_384)).unwrap();
        layout.end_file(b, 20_001).unwrap();
        layout.chunk(chunk(b"x"), 4096, Some(0)).unwrap();
        layout.chunk(chunk(b"y"), 904, None).unwrap();
        layout.end_file(c, 5000).unwrap();

        let (extents, device_bytes, data_bytes) = layout.finish(&mut tree).unwrap();
        let offsets: Vec<u64> = extents.iter().map(|extent| extent.device_offset.get()).collect();
        assert_eq!(offsets, [0, 4096, 8192, 12_288, 16_384]);
        assert_eq!((device_bytes, data_bytes), (20_480, 5000 + 4096 + 4096 + 3617));
        assert!(dsec_format::extents::Map::decode(&dsec_format::extents::encode(&extents, device_bytes)).is_ok());
        assert_eq!(tree.segments(a).collect::<Vec<_>>(), tree.segments(c).collect::<Vec<_>>());
        let segment = |file_offset, bytes, device_offset| Segment { file_offset, bytes, device_offset };
        assert_eq!(
            tree.segments(b).collect::<Vec<_>>(),
            [segment(0, 4096, 8192), segment(8192, 4096, 12_288), segment(16_384, 3617, 16_384)]
        );
    }
}
