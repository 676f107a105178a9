//! Checks the chunks of an image against their digests, each frame once, on all cores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use dsec_format::extents::Map;
use dsec_format::frame::{self, Codec};
use dsec_format::locations::Locations;
use dsec_format::{ChunkDigest, PackDigest};
use dsec_store::Source;

use super::{Error, Finding, about_object, chain};
use crate::Cancel;
use crate::monitor::Monitor;

/// Frames that lie behind one another are read together, up to this.
const READ_BYTES: u64 = 4 << 20;

/// A chunk and where it lies. Ordered by pack and place, so that frames come in the order of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Chunk {
    pack: PackDigest,
    frame_offset: u64,
    offset: u32,
    digest: ChunkDigest,
    bytes: u32,
    stored_bytes: u32,
    plain_bytes: u32,
    codec: u8,
}

impl Chunk {
    fn frame(&self) -> (PackDigest, u64, u32, u32, u8) {
        (self.pack, self.frame_offset, self.stored_bytes, self.plain_bytes, self.codec)
    }

    fn frame_end(&self) -> u64 {
        self.frame_offset + u64::from(self.stored_bytes)
    }
}

/// The chunks to check.
#[derive(Debug, Default)]
pub(super) struct Frames {
    chunks: Vec<Chunk>,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) chunks: u64,
    pub(super) bytes: u64,
    /// Sorted.
    pub(super) findings: Vec<Finding>,
}

impl Frames {
    /// Adds the chunks of a layer. Both lists are of one length.
    pub(super) fn add(&mut self, map: Map<'_>, locations: &Locations) {
        for (extent, record) in map.extents().iter().zip(&locations.records) {
            // A checked record names one of the packs.
            let Some(pack) = locations.packs.get(record.pack.get() as usize) else { continue };
            self.chunks.push(Chunk {
                pack: *pack,
                frame_offset: record.frame_offset.get(),
                offset: record.chunk_offset.get(),
                digest: extent.chunk,
                bytes: extent.bytes.get(),
                stored_bytes: record.stored_bytes.get(),
                plain_bytes: record.plain_bytes.get(),
                codec: record.codec,
            });
        }
        self.chunks.sort_unstable();
        self.chunks.dedup();
    }

    pub(super) fn plain_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum()
    }

    pub(super) fn check(self, source: &dyn Source, monitor: &dyn Monitor, cancel: &Cancel) -> Result<Checked, Error> {
        let runs = self.runs();
        let next = AtomicUsize::new(0);
        let findings = Mutex::new(Vec::new());
        let work = || -> Result<(), Error> {
            while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                cancel.check()?;
                let wrong = check_run(source, run)?;
                findings.lock().unwrap_or_else(PoisonError::into_inner).extend(wrong);
                monitor.advance(run.iter().map(|chunk| u64::from(chunk.bytes)).sum());
            }
            Ok(())
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(runs.len().max(1));
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
        })?;
        let mut findings = findings.into_inner().unwrap_or_else(PoisonError::into_inner);
        findings.sort_unstable();
        Ok(Checked { chunks: self.chunks.len() as u64, bytes: self.plain_bytes(), findings })
    }

    /// Chunks whose frames are read at once.
    fn runs(&self) -> Vec<&[Chunk]> {
        let mut runs = Vec::new();
        let mut rest = self.chunks.as_slice();
        while let Some(first) = rest.first() {
            let mut last = *first;
            let in_run = |chunk: &&Chunk| {
                let same = chunk.frame() == last.frame();
                let behind = chunk.pack == last.pack && chunk.frame_offset == last.frame_end();
                let goes_on = same || (behind && chunk.frame_end() - first.frame_offset <= READ_BYTES);
                if goes_on {
                    last = **chunk;
                }
                goes_on
            };
            let length = rest.iter().take_while(in_run).count();
            let (run, after) = rest.split_at(length);
            runs.push(run);
            rest = after;
        }
        runs
    }
}

fn check_run(source: &dyn Source, run: &[Chunk]) -> Result<Vec<Finding>, Error> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(Vec::new()) };
    let read = source.read_pack(&first.pack, first.frame_offset, last.frame_end() - first.frame_offset);
    let stored = match read {
        Ok(stored) => stored,
        Err(error) => {
            let what = about_object(error)?;
            return Ok(run.iter().map(|chunk| finding(chunk, what.clone())).collect());
        }
    };
    let mut findings = Vec::new();
    for chunks in run.chunk_by(|left, right| left.frame() == right.frame()) {
        check_frame(&stored, first.frame_offset, chunks, &mut findings);
    }
    Ok(findings)
}

/// Checks the chunks of one frame; `stored` starts at `start` in the pack.
fn check_frame(stored: &[u8], start: u64, chunks: &[Chunk], findings: &mut Vec<Finding>) {
    let Some(frame) = chunks.first() else { return };
    let plain = Codec::from_number(frame.codec).and_then(|codec| {
        // `stored` is exactly what was asked for, which ends with the last frame.
        let at = usize::try_from(frame.frame_offset - start).unwrap_or(usize::MAX);
        let bytes = stored.get(at..at.saturating_add(frame.stored_bytes as usize)).unwrap_or_default();
        frame::decode(codec, bytes, frame.plain_bytes)
    });
    for chunk in chunks {
        let start = chunk.offset as usize;
        match &plain {
            Err(error) => findings.push(finding(chunk, chain(error))),
            Ok(plain) => match plain.get(start..start.saturating_add(chunk.bytes as usize)) {
                Some(bytes) if ChunkDigest::of(bytes) == chunk.digest => {}
                _ => findings.push(finding(chunk, "its bytes do not match its digest".to_owned())),
            },
        }
    }
}

fn finding(chunk: &Chunk, what: String) -> Finding {
    Finding { object: format!("chunk {} in pack {}", chunk.digest, chunk.pack), what }
}
