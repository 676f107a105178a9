//! From a tree and its file data to durable packs and the layout of the data device.
//!
//! One coordinator decides, many workers read, hash and compress. Work is handed out and comes back in any order, but it
//! is *used* in the order of paths: which chunk is new, which frame it goes into, where a file lies on the device. So
//! neither layer nor packs depend on the number of threads or their timing.
//!
//! Memory is bounded: file data lives in a fixed number of buffers ([`super::buffer`]) and in a bounded number of frames.

use std::collections::{BTreeMap, HashSet};
use std::iter::Peekable;
use std::sync::Arc;

use dsec_erofs::Tree;
use dsec_format::ChunkDigest;
use dsec_store::pack::{EncodedFrame, FinishedPack, PackWriter};
use dsec_store::{LocalStore, Scratch, Store};

use super::buffer::{BUFFER_BYTES, Pool};
use super::error::Error;
use super::frames::Draft;
use super::layout::Layout;
use super::publish::path_of;
use super::read::{Batch, Chunks, FileChunks, Rest};
use super::workers::{self, Done, Shared, Task, Workers};
use super::{Options, Stored};
use crate::content::{Contents, Jobs};
use crate::input;
use crate::paths::Shown;
use crate::{Cancel, Monitor};

/// Files in a batch, at most: bounds what is open at a time and what a cancelled batch still does.
const BATCH_FILES: usize = 128;

/// What the pipeline works for.
pub(super) struct Target<'a> {
    pub(super) store: &'a LocalStore,
    pub(super) scratch: &'a Scratch,
    pub(super) options: Options,
    pub(super) monitor: &'a dyn Monitor,
    pub(super) cancel: &'a Cancel,
}

/// Stores the data of all files of `tree`.
pub(super) fn run(tree: &Tree, contents: &dyn Contents, target: &Target<'_>) -> Result<(Layout, Stored), Error> {
    let pool = Arc::new(Pool::default());
    let shared =
        Shared { store: target.store, pool: Arc::clone(&pool), cancel: target.cancel, level: target.options.level };
    std::thread::scope(|scope| {
        let threads = target.options.threads;
        let coordinator = Coordinator {
            tree,
            target,
            workers: workers::start(scope, threads, &shared),
            jobs: contents.jobs(tree).peekable(),
            pool,
            most_buffers: (2 * threads + 4).min(48),
            most_frames: 8 * threads + 16,
            reads: Numbers::default(),
            frames: Numbers::default(),
            publishing: 0,
            ready: BTreeMap::new(),
            compressed: BTreeMap::new(),
            resume: None,
            draft: Draft::default(),
            seen: HashSet::new(),
            layout: Layout::default(),
            writer: PackWriter::new(target.scratch.path()),
            stored: Stored::default(),
        };
        coordinator.run()
    })
}

/// Work with consecutive numbers: handed out up to `next`, used up to `used`.
#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    used: u64,
}

impl Numbers {
    fn take(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn in_flight(&self) -> usize {
        usize::try_from(self.next - self.used).unwrap_or(usize::MAX)
    }
}

struct Coordinator<'a> {
    tree: &'a Tree,
    target: &'a Target<'a>,
    workers: Workers<'a>,
    jobs: Peekable<Jobs<'a>>,
    pool: Arc<Pool>,
    most_buffers: usize,
    most_frames: usize,
    reads: Numbers,
    frames: Numbers,
    /// Packs that are being made durable.
    publishing: usize,
    /// Batches that were read before their turn.
    ready: BTreeMap<u64, Chunks<'a>>,
    /// Frames that were compressed before their turn.
    compressed: BTreeMap<u64, EncodedFrame>,
    /// The rest of the file whose turn it is, waiting for a buffer.
    resume: Option<Rest<'a>>,
    draft: Draft,
    /// Every chunk that this layer has met.
    seen: HashSet<ChunkDigest>,
    layout: Layout,
    writer: PackWriter,
    stored: Stored,
}

impl<'a> Coordinator<'a> {
    fn run(mut self) -> Result<(Layout, Stored), Error> {
        loop {
            self.target.cancel.check()?;
            self.use_frames()?;
            self.use_batches()?;
            self.hand_out_reads()?;
            if self.all_is_read() && self.frames.in_flight() == 0 {
                break;
            }
            self.wait()?;
        }
        if let Some(pack) = self.writer.close().map_err(Error::Scratch)? {
            self.publish(pack);
        }
        while self.publishing > 0 {
            self.wait()?;
        }
        Ok((self.layout, self.stored))
    }

    fn all_is_read(&mut self) -> bool {
        self.reads.in_flight() == 0 && self.resume.is_none() && self.draft.is_empty() && self.jobs.peek().is_none()
    }

    /// Batches ahead of their turn, as long as there are buffers. The rest of the file in hand needs one in any case,
    /// but it waits for the frames that hold some.
    fn hand_out_reads(&mut self) -> Result<(), Error> {
        let room = self.pool.in_use() < self.most_buffers;
        if self.resume.is_some() && (room || self.frames.in_flight() == 0) {
            let rest = self.resume.take().map(Batch::Rest);
            rest.into_iter().for_each(|rest| self.send(Task::Read(self.reads.used, rest)));
        }
        while self.pool.in_use().max(self.reads.in_flight()) < self.most_buffers {
            let Some(batch) = self.next_batch()? else { break };
            let number = self.reads.take();
            self.send(Task::Read(number, batch));
        }
        Ok(())
    }

    /// Files that fit into one buffer together, or one that does not fit.
    fn next_batch(&mut self) -> Result<Option<Batch<'a>>, Error> {
        let mut files = Vec::new();
        let mut bytes = 0_u64;
        while files.len() < BATCH_FILES {
            let Some(job) = self.jobs.next_if(|job| {
                let next = job.as_ref().map_or(0, |job| job.bytes);
                files.is_empty() || bytes.saturating_add(next) <= BUFFER_BYTES as u64
            }) else {
                break;
            };
            let job = job?;
            bytes = bytes.saturating_add(job.bytes);
            files.push(job);
        }
        Ok((!files.is_empty()).then_some(Batch::Files(files)))
    }

    /// Uses what was read, in order, as long as frames may be made.
    fn use_batches(&mut self) -> Result<(), Error> {
        while self.frames.in_flight() < self.most_frames {
            let Some(chunks) = self.ready.remove(&self.reads.used) else { break };
            let Chunks { buffer, files, rest } = chunks;
            let new = self.find_new(&files)?;
            for chunk in files.iter().flat_map(|file| &file.chunks) {
                if new.contains(&chunk.digest) && self.seen.insert(chunk.digest) {
                    let start = chunk.at as usize;
                    if !self.draft.takes(chunk.bytes as usize) {
                        self.end_frame();
                    }
                    self.draft.push(chunk.digest, &buffer, start..start + chunk.bytes as usize);
                    self.stored.new_chunks += 1;
                    self.stored.new_bytes += u64::from(chunk.bytes);
                } else if self.seen.insert(chunk.digest) {
                    self.stored.reused_chunks += 1;
                    self.stored.reused_bytes += u64::from(chunk.bytes);
                }
            }
            self.draft.own();
            self.lay_out(files)?;
            match rest {
                Some(rest) => self.resume = Some(rest),
                None => self.reads.used += 1,
            }
            if self.resume.is_some() {
                break;
            }
        }
        // The last frame waits for nothing.
        let is_last = self.reads.in_flight() == 0 && self.resume.is_none() && self.jobs.peek().is_none();
        if is_last && !self.draft.is_empty() {
            self.end_frame();
        }
        Ok(())
    }

    /// The chunks that neither this layer nor the store has.
    fn find_new(&self, files: &[FileChunks]) -> Result<HashSet<ChunkDigest>, Error> {
        let digests = files.iter().flat_map(|file| &file.chunks).map(|chunk| chunk.digest);
        let unseen: Vec<ChunkDigest> = digests.filter(|digest| !self.seen.contains(digest)).collect();
        if unseen.is_empty() {
            return Ok(HashSet::new());
        }
        Ok(self.target.store.missing_chunks(&unseen)?.into_iter().collect())
    }

    fn lay_out(&mut self, files: Vec<FileChunks>) -> Result<(), Error> {
        for file in files {
            file.chunks.iter().for_each(|chunk| self.target.monitor.advance(u64::from(chunk.bytes)));
            let full = |_| input::Error::NoRoom { path: Shown::new(&path_of(self.tree, file.inode)) };
            self.layout.add(&file).map_err(full)?;
        }
        Ok(())
    }

    fn end_frame(&mut self) {
        let draft = std::mem::take(&mut self.draft);
        let number = self.frames.take();
        self.send(Task::Compress(number, draft));
    }

    /// Writes what was compressed, in order.
    fn use_frames(&mut self) -> Result<(), Error> {
        while let Some(frame) = self.compressed.remove(&self.frames.used) {
            self.frames.used += 1;
            if let Some(pack) = self.writer.append(frame).map_err(Error::Scratch)? {
                self.publish(pack);
            }
        }
        Ok(())
    }

    fn publish(&mut self, pack: FinishedPack) {
        self.stored.new_stored_bytes += pack.bytes();
        self.stored.packs += 1;
        self.publishing += 1;
        self.workers.packs.send(pack).expect("the publisher listens for as long as the coordinator lives");
    }

    fn send(&self, task: Task<'a>) {
        self.workers.tasks.send(task).expect("workers listen for as long as the coordinator lives");
    }

    /// Takes in at least one thing that was done, and whatever else there is.
    fn wait(&mut self) -> Result<(), Error> {
        let first = self.workers.done.recv().expect("something is in flight");
        self.take_in(first)?;
        while let Ok(done) = self.workers.done.try_recv() {
            self.take_in(done)?;
        }
        Ok(())
    }

    fn take_in(&mut self, done: Done<'a>) -> Result<(), Error> {
        match done {
            Done::Read(number, chunks) => {
                self.ready.insert(number, chunks?);
            }
            Done::Compressed(number, frame) => {
                self.compressed.insert(number, frame?);
            }
            Done::Published(result) => {
                result?;
                self.publishing -= 1;
            }
            Done::Panicked(panic) => std::panic::resume_unwind(panic),
        }
        Ok(())
    }
}
