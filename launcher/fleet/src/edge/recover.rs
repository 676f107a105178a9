//! What a starting edge does with what a former one left: adopt what stands, remove the rest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dsec_format::ImageDigest;

use super::entry::{Entry, Live, Phase};
use super::error::{Error, chain};
use super::journal::{Found, Record, Standing, Step};
use super::{Edge, blocking};

/// First wait before what failed is tried again; doubled up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// Longest wait between two tries.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// What was found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Sandboxes that run on.
    pub(crate) adopted: usize,
    /// Sandboxes that may run on, and could not be taken over yet.
    pub(crate) waiting: usize,
    /// Sandboxes, and parts of them, that were removed.
    pub(crate) removed: usize,
    /// What could not be removed; the next start tries again.
    pub(crate) left: usize,
}

/// What taking over one sandbox came to.
enum Adopted {
    Stands(Box<Live>),
    /// It was not left standing, or certainly stands no more.
    Gone,
    /// Whether it stands is not known.
    Failed,
}

impl Edge {
    /// Adopts and removes. Blocks; nothing else uses the edge yet. What may stand and could not be taken over is in the
    /// table as a sandbox in the making, and is given back too: see [`Edge::adopt_later`].
    pub(crate) fn recover(&self, found: Vec<Found>) -> (Recovered, Vec<Arc<Entry>>) {
        let (mut recovered, mut waiting) = (Recovered::default(), Vec::new());
        for found in found {
            let removed = match found {
                Found::Record(record) => match self.adopt(&record) {
                    Adopted::Stands(live) => {
                        let entry = Entry::new(*record, None);
                        entry.made(*live);
                        self.table.add(entry);
                        recovered.adopted += 1;
                        continue;
                    }
                    Adopted::Failed => {
                        let entry = Entry::new(*record, None);
                        self.table.add(Arc::clone(&entry));
                        waiting.push(entry);
                        recovered.waiting += 1;
                        continue;
                    }
                    Adopted::Gone => {
                        self.remove_remains(record.id.as_str()).inspect(|()| self.ranges.give_back(record.id_base))
                    }
                },
                Found::Remains(name) => self.remove_remains(&name),
            };
            match removed {
                Ok(()) => recovered.removed += 1,
                Err(error) => {
                    tracing::error!(error = %chain(&error), "remains of a sandbox stay for now");
                    recovered.left += 1;
                }
            }
        }
        (recovered, waiting)
    }

    /// Tries to take over a sandbox until that works, or it is certainly gone, or its removal is asked for.
    pub(crate) async fn adopt_later(self: Arc<Self>, entry: Arc<Entry>) {
        let mut wait = RETRY_FIRST;
        loop {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = entry.wait_leaving() => return,
            }
            wait = (wait * 2).min(RETRY_MAX);
            let removed = entry.removed.lock().await;
            if entry.phase() != Phase::Creating {
                return;
            }
            let (edge, trying) = (Arc::clone(&self), Arc::clone(&entry));
            let Ok(adopted) = blocking(&self.creating, move || edge.adopt(&trying.reserved)).await else { continue };
            match adopted {
                Adopted::Failed => {}
                Adopted::Stands(live) => {
                    entry.made(*live);
                    tracing::info!(sandbox = %entry.id(), "a sandbox was taken over after all");
                    // Its layers may not be held; whatever else is looked at agrees by now.
                    return Arc::clone(&self).reconcile().await;
                }
                Adopted::Gone => {
                    entry.failed(Error::Leaving { id: entry.id().to_string() });
                    drop(removed);
                    if let Err(error) = self.destroy(&entry).await {
                        tracing::error!(error = %chain(&error), "remains of a sandbox stay for now");
                    }
                    return;
                }
            }
        }
    }

    /// The sandbox of a record, if it was left standing and stands.
    fn adopt(&self, record: &Record) -> Adopted {
        let Step::Running(standing) = &record.step else { return Adopted::Gone };
        if record.ephemeral {
            return Adopted::Gone;
        }
        match self.find(standing) {
            Ok(sandbox) => Adopted::Stands(Box::new(Live { sandbox, standing: (**standing).clone() })),
            Err(error @ dsec_sandbox::Error::Gone { .. }) => {
                tracing::warn!(sandbox = %record.id, error = %chain(&error), "a sandbox was lost");
                Adopted::Gone
            }
            Err(error) => {
                tracing::error!(sandbox = %record.id, error = %chain(&error), "a sandbox cannot be taken over yet");
                Adopted::Failed
            }
        }
    }

    fn find(&self, standing: &Standing) -> Result<dsec_sandbox::Sandbox, dsec_sandbox::Error> {
        let sandbox = self.runtime.adopt(standing.handle.clone())?;
        // A hold ends with the edge that gave it.
        sandbox.thaw()?;
        // Nobody can tell their outcomes any more, and a caller may run them again: two at once would be wrong.
        sandbox.end_orphans()?;
        Ok(sandbox)
    }

    fn remove_remains(&self, name: &str) -> Result<(), Error> {
        // What is not named like a sandbox is none, and not the edge's to remove.
        let id = name.parse().map_err(|_| Error::NoSandbox { id: name.to_owned() })?;
        let swept = self.runtime.sweep(&id, &self.journal.disk(&id));
        swept.map_err(|error| Error::Sandbox { id: name.to_owned(), verb: "removed", source: error.into() })?;
        Ok(self.journal.forget(name)?)
    }

    /// Makes mountd's holders agree with what was adopted. Tried until mountd answers.
    pub(crate) async fn reconcile(self: Arc<Self>) {
        let mut wait = RETRY_FIRST;
        loop {
            let live: HashMap<String, ImageDigest> =
                self.table.all().iter().filter_map(|entry| Some((entry.id().to_string(), entry.image()?))).collect();
            let known = |id: &str| self.knows(id);
            match self.images.reconcile(&live, known).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(error = %chain(&error), "mountd's holders cannot be looked at yet"),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }
}
