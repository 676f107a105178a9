//! The threads of the pipeline: they read batches and compress frames, in whatever order these come, and send back what
//! they have done. A panic in one of them travels to whoever waits.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;

use crossbeam_channel::{Receiver, Sender, unbounded};
use dsec_format::frame;
use dsec_store::LocalStore;
use dsec_store::pack::{EncodedFrame, FinishedPack};

use super::buffer::Pool;
use super::frames::Draft;
use super::read::{self, Batch, Chunks};
use crate::cancel::Cancel;
use crate::input;

/// What a worker is given, with the number that its answer will have.
pub(super) enum Task<'a> {
    Read(u64, Batch<'a>),
    Compress(u64, Draft),
}

/// What comes back.
pub(super) enum Done<'a> {
    Read(u64, Result<Chunks<'a>, input::Error>),
    Compressed(u64, Result<EncodedFrame, frame::Error>),
    Published(Result<(), dsec_store::Error>),
    Panicked(Box<dyn Any + Send>),
}

/// The coordinator's ends of the channels.
pub(super) struct Workers<'a> {
    pub(super) tasks: Sender<Task<'a>>,
    pub(super) packs: Sender<FinishedPack>,
    pub(super) done: Receiver<Done<'a>>,
    stop: Arc<AtomicBool>,
}

impl Drop for Workers<'_> {
    /// What is still queued is not worth doing.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What the threads share.
pub(super) struct Shared<'a> {
    pub(super) store: &'a LocalStore,
    pub(super) pool: Arc<Pool>,
    pub(super) cancel: &'a Cancel,
    pub(super) level: i32,
}

/// Starts `threads` workers, and one more thread that makes packs durable while the others go on.
pub(super) fn start<'scope, 'a: 'scope>(
    scope: &'scope Scope<'scope, '_>,
    threads: usize,
    shared: &'scope Shared<'_>,
) -> Workers<'a> {
    // Unbounded, because the coordinator never has more in flight than it has counted.
    let (tasks, task_receiver) = unbounded::<Task<'a>>();
    let (packs, pack_receiver) = unbounded::<FinishedPack>();
    let (done_sender, done) = unbounded();
    let stop = Arc::new(AtomicBool::new(false));
    for _ in 0..threads.max(1) {
        let (tasks, done, stop) = (task_receiver.clone(), done_sender.clone(), Arc::clone(&stop));
        scope.spawn(move || work(&tasks, &done, &stop, |task| run(task, shared)));
    }
    let publish_stop = Arc::clone(&stop);
    scope.spawn(move || {
        let publish = |pack: FinishedPack| Done::Published(shared.store.adopt_pack(&pack));
        work(&pack_receiver, &done_sender, &publish_stop, publish);
    });
    Workers { tasks, packs, done, stop }
}

fn work<'a, T>(tasks: &Receiver<T>, done: &Sender<Done<'a>>, stop: &AtomicBool, run: impl Fn(T) -> Done<'a>) {
    for task in tasks {
        if stop.load(Ordering::Relaxed) {
            continue;
        }
        let result = catch_unwind(AssertUnwindSafe(|| run(task))).unwrap_or_else(Done::Panicked);
        // Nobody listens any more: the coordinator has ended with an error.
        if done.send(result).is_err() {
            return;
        }
    }
}

fn run<'a>(task: Task<'a>, shared: &Shared<'_>) -> Done<'a> {
    match task {
        Task::Read(number, batch) => Done::Read(number, read::read(batch, &shared.pool, shared.cancel)),
        Task::Compress(number, draft) => Done::Compressed(number, draft.encode(shared.level)),
    }
}
