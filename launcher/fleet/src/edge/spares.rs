//! Spares: sandboxes made ahead, for whoever asks next.
//!
//! A spare is a whole sandbox in which nothing has run: it has an id, a range of ids and a holder of its own, and was
//! written into the journal as one that a restarted edge removes before anything was acquired for it. It is in no list of
//! sandboxes. A request takes one under that id, while its own place in the table is being made; what the request says
//! beyond the [`Shape`] is added then. What cannot be used after all (a ref that moved, a daemon of layers that was
//! restarted) is removed, and the sandbox made anew under the same id.
//!
//! One task, the keeper, makes and removes spares, one at a time, at low priority.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dsec_format::protocol::edge::CreateRequest;
use dsec_format::protocol::mountd::Mounted;
use dsec_format::refs::Spec;
use dsec_sandbox::Id;

use super::entry::{Entry, Live};
use super::error::{Error, chain};
use super::journal::Record;
use super::pool::{Shape, Step};
use super::{Edge, LowPriority, blocking, now_ms};

/// How long what is known of the node's memory is good for.
const MEMORY_LOOK: Duration = Duration::from_secs(1);

/// A sandbox that nobody has yet.
#[derive(Debug)]
pub(crate) struct Spare {
    /// As it is in the journal.
    pub(super) record: Record,
    /// It.
    pub(super) live: Live,
    pub(super) shape: Shape,
    /// The file systems of its layers.
    devices: Vec<u64>,
}

impl Spare {
    /// Whether it is what a request for `shape` would get now: of that image, from the same mounts (those of a daemon
    /// of layers that is gone serve nothing any more), and alive.
    pub(super) fn fits(&self, shape: Shape, mounted: &Mounted) -> bool {
        self.shape == shape
            && devices(mounted).is_ok_and(|devices| devices == self.devices)
            && self.live.sandbox.is_running()
    }
}

/// The file systems of an image's layers. While a sandbox uses one, no other has its number.
fn devices(mounted: &Mounted) -> rustix::io::Result<Vec<u64>> {
    mounted.layers.iter().map(|layer| Ok(rustix::fs::stat(layer.path.as_str())?.st_dev)).collect()
}

/// Whether memory is short, looked at from time to time. Once it is, it stays so until there is twice as much.
#[derive(Debug)]
struct Memory {
    least_bytes: u64,
    looked: Option<Instant>,
    short: bool,
}

impl Memory {
    fn look(&mut self, now: Instant) -> bool {
        if self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= MEMORY_LOOK) {
            self.looked = Some(now);
            let enough = if self.short { self.least_bytes.saturating_mul(2) } else { self.least_bytes };
            match available_bytes() {
                Some(bytes) => self.short = bytes < enough,
                None => tracing::warn!("/proc/meminfo does not tell how much memory is available"),
            }
        }
        self.short
    }
}

fn available_bytes() -> Option<u64> {
    let text = fs_err::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

impl Edge {
    /// Makes and removes spares until the pool is closed and empty.
    pub(super) async fn keep_spares(self: Arc<Self>) {
        let mut memory = Memory { least_bytes: self.config.spare_memory_bytes, looked: None, short: false };
        loop {
            let now = Instant::now();
            match self.spares.step(now, memory.short) {
                Step::Make(_) if memory.look(now) => {}
                Step::Make(shape) => self.add_spare(shape).await,
                Step::Remove(spare) => self.discard(spare.record, Some(spare.live)).await,
                Step::Wait(time) => {
                    // Looking takes a moment, and what has changed may be that somebody waits for a start.
                    if tokio::time::timeout(time, self.spares.changed()).await.is_err() {
                        memory.look(Instant::now());
                    }
                }
                Step::Done => return,
            }
        }
    }

    async fn add_spare(self: &Arc<Self>, shape: Shape) {
        let record = match self.reserve_spare(shape) {
            Ok(record) => record,
            Err(error) => return self.no_spare(shape, &error),
        };
        let (edge, reserved) = (Arc::clone(self), record.clone());
        let made = blocking(&self.creating, move || edge.make_spare(reserved, shape)).await;
        match made.and_then(|made| made) {
            Ok(spare) => self.spares.add(shape, record.id, spare),
            Err(error) => {
                self.no_spare(shape, &error);
                self.discard(record, None).await;
            }
        }
    }

    fn no_spare(&self, shape: Shape, error: &Error) {
        tracing::warn!(image = %shape.image, error = %chain(error), "a spare could not be made");
        self.spares.failed(shape, Instant::now());
    }

    /// Takes a name and a range of ids.
    fn reserve_spare(&self, shape: Shape) -> Result<Record, Error> {
        let id = self.draw_id()?;
        let id_base = self.ranges.take()?;
        let request = CreateRequest {
            image: Spec::Digest(shape.image),
            idempotency_key: None,
            limits: dsec_format::environment::Limits::default(),
            env: Vec::new(),
            hostname: None,
            labels: std::collections::BTreeMap::new(),
        };
        self.spares.making(&id);
        let mut record = self.journal.reserve(id, request, shape.limits, id_base, now_ms());
        record.ephemeral = true;
        Ok(record)
    }

    /// The blocking part.
    fn make_spare(&self, record: Record, shape: Shape) -> Result<Spare, Error> {
        let low = LowPriority::take();
        self.journal.write(&record)?;
        let mounted = self.images.hold(&record.request.image, record.id.as_str());
        let image = record.request.image.to_string();
        let mounted = mounted.map_err(|source| Error::Image { image, source })?;
        // Before the layers are used: should they be mounted anew in between, then the spare fits no request.
        let devices = devices(&mounted).map_err(|errno| Error::Descriptors { what: "look at a layer", errno })?;
        let live = self.build(&record, &mounted)?;
        drop(low);
        let failed = |errno: rustix::io::Errno| Error::Sandbox {
            id: record.id.to_string(),
            verb: "given the priority of others",
            source: errno.into(),
        };
        live.sandbox.reset_priority().map_err(failed)?;
        Ok(Spare { record, live, shape, devices })
    }

    /// Removes a spare, or what there is of one. What cannot be removed becomes a sandbox on its way out, which can be
    /// seen, and be asked again to be removed.
    async fn discard(self: &Arc<Self>, record: Record, live: Option<Live>) {
        let entry = Entry::new(record, None);
        if let Some(live) = live {
            entry.made(live);
        }
        entry.leaving();
        if let Err(error) = self.remove(&entry).await {
            tracing::error!(sandbox = %entry.id(), error = %chain(&error), "a spare stays for now");
            self.table.add(entry);
        }
    }

    /// Whether an id is that of a sandbox or a spare of this edge. In this order: a spare that is taken is in the table
    /// before it can be missed here.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.spares.knows(id) || self.table.get(id).is_ok()
    }

    /// A name for a sandbox.
    pub(super) fn draw_id(&self) -> Result<Id, Error> {
        let name = self.tag.draw_id()?;
        // The alphabet of names is one of sandbox ids.
        name.parse().map_err(|_| Error::NoSandbox { id: name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_short_has_to_be_ample() {
        let available = available_bytes().unwrap();
        let now = Instant::now();
        let mut memory = Memory { least_bytes: available / 4, looked: None, short: false };
        assert!(!memory.look(now));
        memory.least_bytes = u64::MAX;
        assert!(!memory.look(now), "looked at again too soon");
        assert!(memory.look(now + MEMORY_LOOK));
        memory.least_bytes = available / 4 * 3;
        assert!(memory.look(now + MEMORY_LOOK * 2), "enough to begin with is not enough to begin again");
        memory.least_bytes = available / 4;
        assert!(!memory.look(now + MEMORY_LOOK * 3));
    }
}
