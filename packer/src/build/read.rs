//! Reading files, cutting them into chunks and naming these: what a worker does with a batch.

use std::sync::Arc;

use dsec_erofs::InodeId;
use dsec_format::ChunkDigest;
use dsec_format::chunk::CDC_MAX_BYTES;

use super::buffer::{Buffer, Pool};
use crate::cancel::Cancel;
use crate::chunker;
use crate::content::{Content, Job};
use crate::input;

/// What is read in one go: some files that fit into a buffer together, or the next part of a file that does not.
pub(super) enum Batch<'a> {
    Files(Vec<Job<'a>>),
    Rest(Rest<'a>),
}

/// A file of which a part was read.
pub(super) struct Rest<'a> {
    inode: InodeId,
    bytes: u64,
    grain_bytes: Option<u64>,
    content: Box<dyn Content + 'a>,
    /// Index of the range that comes next, and how much of it was read.
    range: usize,
    done: u64,
}

/// A batch that was read.
pub(super) struct Chunks<'a> {
    pub(super) buffer: Arc<Buffer>,
    pub(super) files: Vec<FileChunks>,
    /// What is left when the last file did not fit.
    pub(super) rest: Option<Rest<'a>>,
}

/// The chunks of a file, or of a part of it.
pub(super) struct FileChunks {
    pub(super) inode: InodeId,
    /// Size of the file.
    pub(super) bytes: u64,
    /// In which pieces it has to lie: see [`dsec_erofs::grain_bytes`].
    pub(super) grain_bytes: Option<u64>,
    pub(super) chunks: Vec<Chunk>,
    /// Whether this is the end of it.
    pub(super) ends: bool,
}

/// A chunk that lies in the batch's buffer.
pub(super) struct Chunk {
    pub(super) digest: ChunkDigest,
    /// Offset in the buffer.
    pub(super) at: u32,
    pub(super) bytes: u32,
    /// When a run of data begins here: its offset in the file.
    pub(super) run_offset: Option<u64>,
}

impl Rest<'_> {
    fn chunks(&self, chunks: Vec<Chunk>, ends: bool) -> FileChunks {
        let &Self { inode, bytes, grain_bytes, .. } = self;
        FileChunks { inode, bytes, grain_bytes, chunks, ends }
    }
}

/// Reads a batch.
pub(super) fn read<'a>(batch: Batch<'a>, pool: &Arc<Pool>, cancel: &Cancel) -> Result<Chunks<'a>, input::Error> {
    let mut buffer = pool.take();
    let mut files = Vec::new();
    let mut rest = None;
    match batch {
        Batch::Files(jobs) => {
            for job in jobs {
                cancel.check()?;
                let content = (job.open)()?;
                let grain_bytes = dsec_erofs::grain_bytes(job.bytes, content.ranges().as_slice());
                let file = Rest { inode: job.inode, bytes: job.bytes, grain_bytes, content, range: 0, done: 0 };
                rest = read_file(file, &mut buffer, &mut files)?;
            }
        }
        Batch::Rest(file) => rest = read_file(file, &mut buffer, &mut files)?,
    }
    Ok(Chunks { buffer: Arc::new(buffer), files, rest })
}

fn read_file<'a>(
    mut file: Rest<'a>,
    buffer: &mut Buffer,
    files: &mut Vec<FileChunks>,
) -> Result<Option<Rest<'a>>, input::Error> {
    let mut chunks = Vec::new();
    while let Some(range) = file.content.ranges().as_slice().get(file.range).cloned() {
        let offset = range.start + file.done;
        let left = range.end - offset;
        let window = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.room());
        let is_end = window as u64 == left;
        if !is_end && window < CDC_MAX_BYTES as usize {
            files.push(file.chunks(chunks, false));
            return Ok(Some(file));
        }
        let base = buffer.len();
        file.content.read_at(buffer.extend(window), offset)?;
        let run_offset = (file.done == 0).then_some(range.start);
        let cut_bytes = cut(buffer, base, is_end, run_offset, &mut chunks);
        buffer.truncate(base + cut_bytes);
        if is_end {
            file.range += 1;
            file.done = 0;
        } else {
            file.done += cut_bytes as u64;
        }
    }
    file.content.finish()?;
    files.push(file.chunks(chunks, true));
    Ok(None)
}

/// Cuts and names what lies from `base` on; gives the bytes that became chunks.
fn cut(buffer: &Buffer, base: usize, is_end: bool, run_offset: Option<u64>, chunks: &mut Vec<Chunk>) -> usize {
    let inside = |bytes: usize| u32::try_from(bytes).expect("a buffer is far smaller than 4 GiB");
    let mut at = base;
    for length in chunker::cut(&buffer[base..], is_end) {
        let digest = ChunkDigest::of(&buffer[at..at + length]);
        let run_offset = run_offset.filter(|_| at == base);
        chunks.push(Chunk { digest, at: inside(at), bytes: inside(length), run_offset });
        at += length;
    }
    at - base
}
