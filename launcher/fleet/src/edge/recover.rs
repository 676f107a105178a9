//! What a starting edge does with what a former one left: adopt what stands, remove the rest.

use std::collections::HashMap;
use std::sync::Arc;

use dsec_format::ImageDigest;

use super::Edge;
use super::entry::{Entry, Live};
use super::error::{Error, chain};
use super::journal::{Found, Record, Standing, Step};

/// What was found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Sandboxes that run on.
    pub(crate) adopted: usize,
    /// Sandboxes, and parts of them, that were removed.
    pub(crate) removed: usize,
    /// What could not be removed; the next start tries again.
    pub(crate) left: usize,
}

impl Edge {
    /// Adopts and removes. Blocks; nothing else uses the edge yet.
    pub(crate) fn recover(&self, found: Vec<Found>) -> Recovered {
        let mut recovered = Recovered::default();
        for found in found {
            let removed = match found {
                Found::Record(record) => match self.adopt(&record) {
                    Some(live) => {
                        let entry = Entry::new(*record);
                        entry.made(live);
                        self.table.add(entry);
                        recovered.adopted += 1;
                        continue;
                    }
                    None => self.remove_remains(record.id.as_str()).inspect(|()| self.ranges.give_back(record.id_base)),
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
        recovered
    }

    /// The sandbox of a record, if it was left standing and stands.
    fn adopt(&self, record: &Record) -> Option<Live> {
        let Step::Running(standing) = &record.step else { return None };
        if record.ephemeral {
            return None;
        }
        match self.find(standing) {
            Ok(sandbox) => Some(Live { sandbox, standing: (**standing).clone() }),
            Err(error) => {
                tracing::warn!(sandbox = %record.id, error = %chain(&error), "a sandbox was lost");
                None
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
        let mut wait = std::time::Duration::from_millis(200);
        loop {
            let live: HashMap<String, ImageDigest> =
                self.table.all().iter().filter_map(|entry| Some((entry.id().to_string(), entry.image()?))).collect();
            let known = |id: &str| self.table.get(id).is_ok();
            match self.images.reconcile(&live, known).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(error = %chain(&error), "mountd's holders cannot be looked at yet"),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(std::time::Duration::from_secs(10));
        }
    }
}
