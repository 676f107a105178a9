//! How a reserved sandbox comes to stand: one straight line on one thread, from the record to what follows.
//!
//! Only two waits leave the line: for the layers, which may come from far away (a removal does not wait for them), and
//! for a place among those that are made at once, when there is none.

use std::sync::Arc;
use std::time::Instant;

use dsec_format::protocol::mountd::Mounted;
use dsec_sandbox::Spec;

use super::entry::{Entry, Live, Phase};
use super::error::Error;
use super::journal::{Record, Standing, Step};
use super::life::pairs;
use super::pool::Shape;
use super::spares::Spare;
use super::{Edge, blocking};

/// What a sandbox's environment begins with, unless the image says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How far the line came.
enum Line<T, F> {
    /// To its end.
    Done(T),
    /// To its layers; others are being made, and nobody waits for them on a thread.
    Crowded(Box<Mounted>, F),
}

impl Edge {
    /// Makes a reserved sandbox and does `then` with it, on the thread that has made it. When it cannot be made, nothing is
    /// left of it and the entry knows why. Not to be dropped half way: call it in a task.
    pub(crate) async fn make<T: Send + 'static>(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        then: impl FnOnce(&Live) -> T + Send + 'static,
    ) -> Option<T> {
        let made = {
            let removed = entry.removed.lock().await;
            // Its removal may have been asked for, and done, before it began.
            if *removed { return None } else { self.try_make(entry, then).await }
        };
        match made {
            Ok(done) => return Some(done),
            Err(error) => {
                let error = entry.failed(error);
                tracing::info!(sandbox = %entry.id(), error = %super::chain(&*error), "sandbox not made");
            }
        }
        entry.leaving();
        if let Err(error) = self.remove(entry).await {
            tracing::error!(sandbox = %entry.id(), error = %super::chain(&error), "its remains stay for now");
        }
        None
    }

    async fn try_make<T: Send + 'static>(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        then: impl FnOnce(&Live) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let mut line = {
            let (edge, entry) = (Arc::clone(self), Arc::clone(entry));
            tokio::task::spawn_blocking(move || edge.line(&entry, then))
        };
        let came = tokio::select! {
            came = &mut line => came,
            () = entry.wait_leaving() => {
                if entry.leave() {
                    // The line learns it when it has its layers, and gives them back.
                    return Err(Error::Leaving { id: entry.id().to_string() });
                }
                line.await
            }
        };
        match came.map_err(|_| Error::Lost)?? {
            Line::Done(done) => Ok(done),
            Line::Crowded(mounted, then) => {
                let (edge, entry) = (Arc::clone(self), Arc::clone(entry));
                blocking(&self.creating, move || edge.stand(&entry, &mounted, then)).await?
            }
        }
    }

    /// The line. Blocks.
    fn line<T, F: FnOnce(&Live) -> T>(&self, entry: &Entry, then: F) -> Result<Line<T, F>, Error> {
        entry.wait_for_layers(|| match entry.has_spare() {
            // Its record is there.
            true => Ok(()),
            false => Ok(self.journal.write(&entry.reserved)?),
        })?;
        let (spec, id) = (&entry.request().image, entry.id().as_str());
        let mounted = self.images.mount(spec, id);
        if !entry.begin() {
            // They may have come after the release that followed the leave; this one is theirs.
            self.images.release(id);
            return Err(Error::Leaving { id: id.to_owned() });
        }
        let mounted = mounted.map_err(|source| Error::Image { image: spec.to_string(), source })?;
        match self.creating.try_acquire() {
            Ok(_place) => self.stand(entry, &mounted, then).map(Line::Done),
            Err(_) => Ok(Line::Crowded(Box::new(mounted), then)),
        }
    }

    /// From layers to a sandbox that stands, and is in the journal as such. Blocks.
    fn stand<T>(&self, entry: &Entry, mounted: &Mounted, then: impl FnOnce(&Live) -> T) -> Result<T, Error> {
        let shape = Shape { image: mounted.image, limits: entry.reserved.limits };
        if entry.phase() != Phase::Creating {
            return Err(Error::Leaving { id: entry.id().to_string() });
        }
        let live = match entry.take_spare() {
            Some(spare) if spare.fits(shape, mounted) => self.furnish(entry, spare, mounted)?,
            Some(spare) => {
                // One of another shape was taken for its range of ids, and says nothing about its like.
                if spare.shape == shape {
                    self.spares.retire(shape);
                }
                self.clear(spare)?;
                self.build(&entry.reserved, mounted)?
            }
            None => self.build(&entry.reserved, mounted)?,
        };
        if !entry.reserved.ephemeral {
            let mut record = entry.reserved.clone();
            record.step = Step::Running(Box::new(live.standing.clone()));
            self.journal.write(&record)?;
        }
        // Only now: one like it can be made.
        if entry.request().hostname.is_none() {
            self.spares.asked(&entry.request().image, shape, Instant::now());
        }
        entry.made(live);
        Ok(then(&*entry.live()?))
    }

    /// Makes the sandbox of a record. Blocks.
    pub(super) fn build(&self, record: &Record, mounted: &Mounted) -> Result<Live, Error> {
        let request = &record.request;
        let spec = Spec {
            id: record.id.clone(),
            layers: mounted.layers.iter().map(|layer| layer.path.clone().into()).collect(),
            directory: self.journal.disk(&record.id),
            limits: record.limits,
            id_base: record.id_base,
            hostname: request.hostname.clone().unwrap_or_else(|| record.id.to_string()),
            env: environment(&mounted.config.env, &request.env)?,
            nameservers: Vec::new(),
            profile: dsec_sandbox::Profile::Default,
        };
        let sandbox = self.runtime.create(&spec).map_err(|error| match error {
            dsec_sandbox::Error::Spec(error) => Error::Spec(error),
            error => Error::Sandbox { id: record.id.to_string(), verb: "made", source: error.into() },
        })?;
        Ok(live(sandbox, mounted))
    }

    /// A spare becomes what a request asks for: all that is missing is the environment of its commands.
    fn furnish(&self, entry: &Entry, spare: Spare, mounted: &Mounted) -> Result<Live, Error> {
        let mut sandbox = spare.live.sandbox;
        sandbox.set_env(environment(&mounted.config.env, &entry.request().env)?)?;
        Ok(live(sandbox, mounted))
    }

    /// Removes the sandbox of a spare that does not fit; id, range and record stay.
    fn clear(&self, spare: Spare) -> Result<(), Error> {
        let id = &spare.record.id;
        tracing::info!(sandbox = %id, "a spare does not fit any more");
        let failed = |source: dsec_sandbox::Error| Error::Sandbox {
            id: id.to_string(),
            verb: "made anew",
            source: source.into(),
        };
        spare.live.sandbox.destroy().map_err(failed)
    }
}

fn live(sandbox: dsec_sandbox::Sandbox, mounted: &Mounted) -> Live {
    let standing = Standing {
        image: mounted.image,
        config: mounted.config.clone(),
        layers: mounted.layers.iter().map(|layer| layer.digest).collect(),
        handle: sandbox.state().clone(),
    };
    Live { sandbox, standing }
}

/// The environment of a sandbox's commands: the image's, and over it the request's.
fn environment(image: &[String], request: &[String]) -> Result<Vec<(String, String)>, Error> {
    let mut env = vec![("PATH".to_owned(), PATH.to_owned())];
    for (key, value) in pairs(image)?.into_iter().chain(pairs(request)?) {
        match env.iter_mut().find(|(present, _)| *present == key) {
            Some(present) => present.1 = value,
            None => env.push((key, value)),
        }
    }
    Ok(env)
}
