//! Reads that failed, told to people: one line a chunk, which names the chunk, its pack, the image and a file.
//!
//! Finding the file is a walk through the layer's metadata, so a thread of its own does it: no read waits for it, and what
//! is too much to be told is counted by the layer alone.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use dsec_format::{ChunkDigest, PackDigest};
use lru::LruCache;

use super::{Pending, ReadError};
use crate::layer::Layer;

/// Failures that wait to be told; more are left out.
const MAX_WAITING: usize = 64;
/// Chunks that are remembered as told, each for [`SILENCE`].
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not zero");
const SILENCE: Duration = Duration::from_secs(60);

/// One failure.
#[derive(Debug)]
pub(super) struct Failure {
    layer: std::sync::Arc<Layer>,
    extent: u32,
    chunk: ChunkDigest,
    error: ReadError,
}

/// Where failures are told.
pub(super) fn channel() -> (Sender<Failure>, Receiver<Failure>) {
    bounded(MAX_WAITING)
}

impl Failure {
    /// That of a read that has not been answered, by the first chunk that it lacks.
    pub(super) fn of(pending: &Pending, error: ReadError) -> Option<Self> {
        let (extent, chunk) = pending.missing().first().copied()?;
        Some(Self { layer: std::sync::Arc::clone(pending.layer()), extent, chunk, error })
    }

    fn tell(&self) {
        let layer = &self.layer;
        let located = layer.any_located();
        let pack = located.as_ref().and_then(|located| located.pack(located.chunk(self.extent)?.frame.pack).copied());
        let path = layer.extent(self.extent).and_then(|extent| layer.file_at(extent.device_offset.get()));
        tracing::error!(
            chunk = %self.chunk,
            pack = pack.as_ref().map_or_else(|| "unknown".to_owned(), PackDigest::to_string),
            image = layer.image_names().join(", "),
            layer = %layer.digest(),
            path = path.as_deref().unwrap_or("unknown"),
            because = layer.trouble().as_deref().unwrap_or("no source has answered yet"),
            error = %self.error,
            "a read failed"
        );
    }
}

/// Tells failures until it is stopped.
pub(super) fn tell(failures: &Receiver<Failure>, stopped: &Receiver<()>) {
    let mut told: LruCache<ChunkDigest, Instant> = LruCache::new(REMEMBERED);
    loop {
        crossbeam_channel::select! {
            recv(failures) -> failure => {
                let Ok(failure) = failure else { return };
                let silent = told.get(&failure.chunk).is_some_and(|when| when.elapsed() < SILENCE);
                if !silent {
                    told.put(failure.chunk, Instant::now());
                    failure.tell();
                }
            }
            recv(stopped) -> _ => return,
        }
    }
}
