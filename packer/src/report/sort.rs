//! Sorts records of chunks with bounded memory: sorted runs in temporary files, merged at the end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use dsec_format::ChunkDigest;

use super::count::Share;

/// Records held in memory: 48 MiB.
pub(super) const MEMORY_RECORDS: usize = 1 << 20;
/// Runs that are merged at once. More are first merged into one.
const MAX_RUNS: usize = 64;
/// Bytes of a record in a file: digest, layer, share.
const RECORD_BYTES: usize = 44;

/// That a layer has a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Record {
    pub(super) chunk: ChunkDigest,
    /// Number of the layer in the report.
    pub(super) layer: u32,
    /// Stored bytes of the chunk.
    pub(super) share: Share,
}

impl Record {
    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..32].copy_from_slice(self.chunk.as_bytes());
        bytes[32..36].copy_from_slice(&self.layer.to_le_bytes());
        bytes[36..].copy_from_slice(&self.share.to_bits().to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Self {
        let (mut chunk, mut layer, mut share) = ([0; 32], [0; 4], [0; 8]);
        chunk.copy_from_slice(&bytes[..32]);
        layer.copy_from_slice(&bytes[32..36]);
        share.copy_from_slice(&bytes[36..]);
        Self {
            chunk: ChunkDigest::from_bytes(chunk),
            layer: u32::from_le_bytes(layer),
            share: Share::from_bits(u64::from_le_bytes(share)),
        }
    }
}

/// See the [module](self).
pub(super) struct Sorter<'a> {
    directory: &'a Path,
    memory: Vec<Record>,
    memory_records: usize,
    runs: Vec<File>,
}

impl<'a> Sorter<'a> {
    /// Temporary files go to `directory`; they have no names, so nothing is left of them.
    pub(super) fn new(directory: &'a Path, memory_records: usize) -> Self {
        Self { directory, memory: Vec::new(), memory_records, runs: Vec::new() }
    }

    pub(super) fn push(&mut self, record: Record) -> io::Result<()> {
        self.memory.push(record);
        if self.memory.len() >= self.memory_records { self.spill() } else { Ok(()) }
    }

    fn spill(&mut self) -> io::Result<()> {
        self.memory.sort_unstable();
        let mut run = BufWriter::new(tempfile::tempfile_in(self.directory)?);
        for record in self.memory.drain(..) {
            run.write_all(&record.to_bytes())?;
        }
        self.add_run(run)?;
        if self.runs.len() < MAX_RUNS {
            return Ok(());
        }
        let mut merged = BufWriter::new(tempfile::tempfile_in(self.directory)?);
        let runs = std::mem::take(&mut self.runs);
        let mut merge = Merge::new(runs, Vec::new())?;
        while let Some(record) = merge.next()? {
            merged.write_all(&record.to_bytes())?;
        }
        self.add_run(merged)
    }

    fn add_run(&mut self, run: BufWriter<File>) -> io::Result<()> {
        let mut run = run.into_inner().map_err(io::IntoInnerError::into_error)?;
        run.rewind()?;
        self.runs.push(run);
        Ok(())
    }

    /// Gives all records, those of one chunk together.
    pub(super) fn finish(mut self, found: &mut dyn FnMut(&[Record])) -> io::Result<()> {
        self.memory.sort_unstable();
        let mut merge = Merge::new(self.runs, self.memory)?;
        let mut same: Vec<Record> = Vec::new();
        while let Some(record) = merge.next()? {
            if same.last().is_some_and(|last| last.chunk != record.chunk) {
                found(&same);
                same.clear();
            }
            // A layer that has a chunk many times counts once, so this is bounded by the number of layers.
            if same.last() != Some(&record) {
                same.push(record);
            }
        }
        if !same.is_empty() {
            found(&same);
        }
        Ok(())
    }
}

enum Run {
    File(BufReader<File>),
    Memory(std::vec::IntoIter<Record>),
}

impl Run {
    fn next(&mut self) -> io::Result<Option<Record>> {
        let file = match self {
            Self::Memory(records) => return Ok(records.next()),
            Self::File(file) => file,
        };
        let mut bytes = [0; RECORD_BYTES];
        match file.read_exact(&mut bytes) {
            Ok(()) => Ok(Some(Record::from_bytes(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

struct Merge {
    runs: Vec<Run>,
    heads: BinaryHeap<Reverse<(Record, usize)>>,
}

impl Merge {
    fn new(files: Vec<File>, memory: Vec<Record>) -> io::Result<Self> {
        let files = files.into_iter().map(|file| Run::File(BufReader::new(file)));
        let mut merge =
            Self { runs: files.chain([Run::Memory(memory.into_iter())]).collect(), heads: BinaryHeap::new() };
        for number in 0..merge.runs.len() {
            merge.refill(number)?;
        }
        Ok(merge)
    }

    fn refill(&mut self, number: usize) -> io::Result<()> {
        if let Some(record) = self.runs[number].next()? {
            self.heads.push(Reverse((record, number)));
        }
        Ok(())
    }

    fn next(&mut self) -> io::Result<Option<Record>> {
        let Some(Reverse((record, number))) = self.heads.pop() else { return Ok(None) };
        self.refill(number)?;
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spilled_and_merged_records_come_sorted_and_grouped() {
        let directory = tempfile::tempdir().unwrap();
        // So little memory that runs are merged more than once.
        let mut sorter = Sorter::new(directory.path(), 3);
        let records: Vec<Record> = (0..1000u32)
            .map(|n| Record {
                chunk: ChunkDigest::of(&(n * 7 % 100).to_le_bytes()),
                layer: n % 5,
                share: Share::whole((n * 7 % 100).into()),
            })
            .collect();
        records.iter().for_each(|record| sorter.push(*record).unwrap());
        let mut groups: Vec<Vec<Record>> = Vec::new();
        sorter.finish(&mut |same| groups.push(same.to_vec())).unwrap();

        let mut expected = records;
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(groups.len(), 100);
        assert_eq!(groups.concat(), expected);
        assert!(groups.iter().all(|group| group.iter().all(|record| record.chunk == group[0].chunk)));
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }
}
