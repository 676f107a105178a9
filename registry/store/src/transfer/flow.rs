//! The moving parts of a transfer: readers, one ordered writer of packs, and senders.
//!
//! Runs go to the readers, whose results are taken in the order of the runs, appended to packs, and full packs go to the
//! senders. Every queue is bounded, so memory is; whoever fails first ends the whole.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use dsec_format::frame;
use dsec_format::pack::Tables;
use dsec_format::{ChunkDigest, PackDigest};
use fs_err as fs;

use super::Options;
use super::plan::{Run, WantedFrame};
use crate::error::{Damage, Error, Result};
use crate::layout::Object;
use crate::monitor::Monitor;
use crate::pack::{EncodedFrame, FinishedPack, FrameBuilder, PackWriter};
use crate::source::{Source, Store};

/// What was moved.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moved {
    pub(super) packs: u64,
    pub(super) pack_bytes: u64,
    pub(super) chunks: u64,
    pub(super) plain_bytes: u64,
}

struct Job {
    run: Run,
    pack: PackDigest,
    reply: Sender<Result<Vec<EncodedFrame>>>,
}

/// The end of the flow that runs are put into.
pub(super) struct Flow<'a> {
    jobs: Sender<Job>,
    waiting: VecDeque<Receiver<Result<Vec<EncodedFrame>>>>,
    window: usize,
    /// Chunks that are being read.
    reading: HashSet<ChunkDigest>,
    writer: PackWriter,
    packs: Sender<FinishedPack>,
    sent: Receiver<Result<PackDigest>>,
    /// Packs that are being sent.
    sending: Vec<(PackDigest, Arc<Tables>)>,
    moved: Moved,
    monitor: &'a dyn Monitor,
}

/// Runs a transfer of chunks: `feed` puts runs into the flow. When this returns `Ok`, all of them are in the store.
pub(super) fn run<T>(
    from: &dyn Source,
    to: &dyn Store,
    options: &Options,
    monitor: &dyn Monitor,
    feed: impl FnOnce(&mut Flow<'_>) -> Result<T>,
) -> Result<(T, Moved)> {
    let (reads, writes) = (options.reads.max(1), options.writes.max(1));
    let (jobs, job_queue) = bounded::<Job>(reads);
    let (packs, pack_queue) = bounded::<FinishedPack>(1);
    // Room for every answer that can be outstanding: a sender never waits for the feeder.
    let (answers, sent) = bounded(writes + 2);
    std::thread::scope(|scope| {
        for _ in 0..reads {
            let job_queue = job_queue.clone();
            scope.spawn(move || {
                for job in job_queue {
                    // Whoever asked may have given up.
                    let _ = job.reply.send(read(from, &job.run, &job.pack, options.level));
                }
            });
        }
        for _ in 0..writes {
            let (pack_queue, answers) = (pack_queue.clone(), answers.clone());
            scope.spawn(move || {
                for pack in pack_queue {
                    let _ = answers.send(send(to, &pack));
                }
            });
        }
        // Only the threads' ends are left: when they are gone, a queue says so instead of waiting for ever.
        drop((job_queue, pack_queue, answers));
        // The flow is dropped at the end of this block, and its queues with it: that ends the threads.
        let mut flow = Flow {
            jobs,
            waiting: VecDeque::new(),
            window: 2 * reads,
            reading: HashSet::new(),
            writer: PackWriter::new(&options.scratch),
            packs,
            sent,
            sending: Vec::new(),
            moved: Moved::default(),
            monitor,
        };
        let result = feed(&mut flow)?;
        flow.finish()?;
        Ok((result, flow.moved))
    })
}

impl Flow<'_> {
    /// Whether a chunk is on its way.
    pub(super) fn has(&self, chunk: &ChunkDigest) -> bool {
        self.reading.contains(chunk)
            || self.writer.contains(chunk)
            || self.sending.iter().any(|(_, tables)| tables.find(chunk).is_some())
    }

    /// Puts in a run; may wait for the oldest one.
    pub(super) fn push(&mut self, run: Run, packs: &[PackDigest]) -> Result<()> {
        let pack = packs[run.pack as usize];
        let (reply, answer) = bounded(1);
        self.reading.extend(run.frames.iter().flat_map(|frame| &frame.chunks).map(|chunk| chunk.digest));
        self.jobs.send(Job { run, pack, reply }).expect("readers live as long as the flow");
        self.waiting.push_back(answer);
        if self.waiting.len() >= self.window {
            self.take_oldest()?;
        }
        Ok(())
    }

    fn take_oldest(&mut self) -> Result<()> {
        let Some(answer) = self.waiting.pop_front() else { return Ok(()) };
        if self.monitor.interrupted() {
            return Err(Error::Interrupted);
        }
        for frame in answer.recv().expect("a reader answers every job")? {
            for chunk in frame.chunks() {
                self.reading.remove(&chunk.digest);
            }
            self.moved.chunks += frame.chunks().len() as u64;
            let plain = frame.chunks().iter().map(|chunk| u64::from(chunk.bytes)).sum();
            self.moved.plain_bytes += plain;
            if let Some(pack) = self.writer.append(frame)? {
                self.send(pack)?;
            }
            self.monitor.advance(plain);
        }
        Ok(())
    }

    fn send(&mut self, pack: FinishedPack) -> Result<()> {
        while let Ok(answer) = self.sent.try_recv() {
            self.settle(answer)?;
        }
        self.moved.packs += 1;
        self.moved.pack_bytes += pack.bytes();
        self.sending.push((pack.digest(), Arc::clone(pack.tables())));
        self.packs.send(pack).expect("senders live as long as the flow");
        Ok(())
    }

    fn settle(&mut self, answer: Result<PackDigest>) -> Result<()> {
        let digest = answer?;
        self.sending.retain(|(sending, _)| *sending != digest);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while !self.waiting.is_empty() {
            self.take_oldest()?;
        }
        if let Some(pack) = self.writer.close()? {
            self.send(pack)?;
        }
        while !self.sending.is_empty() {
            let answer = self.sent.recv().expect("a sender answers every pack");
            self.settle(answer)?;
        }
        Ok(())
    }
}

fn read(from: &dyn Source, run: &Run, pack: &PackDigest, level: i32) -> Result<Vec<EncodedFrame>> {
    let bytes = from.read_pack(pack, run.offset, run.bytes)?;
    let mut frames = Vec::with_capacity(run.frames.len());
    let mut rest = bytes.as_slice();
    for frame in &run.frames {
        let (stored, after) = rest.split_at(frame.record.stored_bytes.get() as usize);
        rest = after;
        frames.push(encode(frame, stored, level).map_err(|damage| Error::Damaged {
            object: Object::pack(pack).to_string(),
            store: from.describe(),
            source: damage,
        })?);
    }
    Ok(frames)
}

fn encode(wanted: &WantedFrame, stored: &[u8], level: i32) -> Result<EncodedFrame, Damage> {
    let codec = wanted.record.codec()?;
    let plain = frame::decode(codec, stored, wanted.record.plain_bytes.get())?;
    let copied = EncodedFrame::copied(codec, stored.to_vec(), &plain, wanted.chunks.clone())?;
    if wanted.is_whole() {
        return Ok(copied);
    }
    // Checked by `copied`: every range lies inside, and holds what its name says.
    let mut builder = FrameBuilder::new();
    for chunk in copied.chunks() {
        builder.push(chunk.digest, &plain[chunk.offset as usize..][..chunk.bytes as usize]);
    }
    Ok(builder.encode(level)?)
}

fn send(to: &dyn Store, pack: &FinishedPack) -> Result<PackDigest> {
    to.put_finished(pack)?;
    match fs::remove_file(pack.path()) {
        // The store has moved it.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(pack.digest()),
    }
}
