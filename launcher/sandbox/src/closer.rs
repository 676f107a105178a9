//! Closes descriptors of detached mounts beside the road of those who made them.
//!
//! Closing one waits for an RCU grace period, often longer than everything else that making a sandbox takes, and nobody
//! needs it done. The queue is bounded; when it is full, the caller closes by itself.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, sync_channel};

/// How many sandboxes' descriptors may wait.
const QUEUE_MAX: usize = 256;

/// The thread that closes; it ends when this value is dropped and the queue is empty.
#[derive(Debug)]
pub(crate) struct Closer {
    queue: SyncSender<Vec<OwnedFd>>,
}

impl Closer {
    pub(crate) fn new() -> std::io::Result<Self> {
        let (queue, receiver) = sync_channel::<Vec<OwnedFd>>(QUEUE_MAX);
        std::thread::Builder::new().name("closer".into()).spawn(move || receiver.into_iter().for_each(drop))?;
        Ok(Self { queue })
    }

    /// Closes these, soon.
    pub(crate) fn close(&self, descriptors: Vec<OwnedFd>) {
        // What the queue does not take comes back in the error, and is dropped here.
        drop(self.queue.try_send(descriptors));
    }
}
