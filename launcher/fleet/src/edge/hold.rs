//! Holds: a sandbox stands still while a connection lives.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use dsec_format::protocol::edge::Hold;
use tokio::sync::{OwnedRwLockWriteGuard, mpsc};

use super::entry::{Entry, Live};
use super::error::Error;
use super::stream::Frames;
use super::{Edge, blocking};

impl Edge {
    /// Freezes a sandbox. The answer is one line, a [`Hold`]; the sandbox goes on when the connection ends, when it is
    /// removed, or after the longest time of a hold, upon which the answer ends. So a reader of the sandbox's files
    /// looks, when it is done, whether the answer is still open: only then nothing moved meanwhile.
    pub(crate) async fn hold(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Body, Error> {
        let live = entry.live()?;
        if !entry.begin_hold() {
            return Err(Error::Held { id: entry.id().to_string() });
        }
        let (edge, entry) = (Arc::clone(self), Arc::clone(entry));
        let (answer, answered) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let held = edge.freeze(&entry, &live).await;
            match held {
                Ok(gate) => {
                    let (frames, body) = Frames::channel();
                    let line = line(&entry, &live);
                    if answer.send(Ok(body)).is_ok() && frames.send(line).await.is_ok() {
                        edge.until_let_go(&entry, &frames).await;
                    }
                    edge.thaw(&entry, live).await;
                    entry.end_hold();
                    drop((frames, gate));
                }
                Err(error) => {
                    entry.end_hold();
                    // A caller that is gone needs no error.
                    let _ = answer.send(Err(error));
                }
            }
        });
        answered.await.map_err(|_| Error::Lost)?
    }

    async fn freeze(&self, entry: &Arc<Entry>, live: &Arc<Live>) -> Result<OwnedRwLockWriteGuard<()>, Error> {
        let waited_ms = self.config.held_wait.as_millis();
        // Uploads that have begun are let through to their ends; a command on its way to its program is frozen on it.
        let gate = tokio::time::timeout(self.config.held_wait, Arc::clone(&entry.gate).write_owned())
            .await
            .map_err(|_| Error::HeldTooLong { id: entry.id().to_string(), waited_ms })?;
        let frozen = {
            let live = Arc::clone(live);
            blocking(&self.starting, move || live.sandbox.freeze()).await?
        };
        match frozen {
            Ok(()) => Ok(gate),
            Err(error) => {
                self.thaw(entry, Arc::clone(live)).await;
                Err(Error::Sandbox { id: entry.id().to_string(), verb: "frozen", source: error.into() })
            }
        }
    }

    async fn until_let_go(&self, entry: &Entry, frames: &mpsc::Sender<Bytes>) {
        tokio::select! {
            () = frames.closed() => {}
            () = entry.wait_leaving() => {}
            () = tokio::time::sleep(self.config.hold_max) => {
                tracing::warn!(sandbox = %entry.id(), "a hold reached its longest time");
            }
        }
    }

    async fn thaw(&self, entry: &Entry, live: Arc<Live>) {
        let thawed = blocking(&self.removing, move || live.sandbox.thaw()).await;
        if entry.live().is_err() {
            // It is being removed, frozen or not.
            return;
        }
        if !matches!(thawed, Ok(Ok(()))) {
            tracing::error!(sandbox = %entry.id(), ?thawed, "a sandbox cannot be thawed");
        }
    }
}

fn line(entry: &Entry, live: &Live) -> Bytes {
    let hold = Hold {
        id: entry.id().to_string(),
        upper: live.sandbox.upper().display().to_string(),
        image: live.standing.image,
        layers: live.standing.layers.clone(),
        // The sandbox crate maps ids at the mount, not on the disk.
        id_base: 0,
    };
    let mut line = serde_json::to_vec(&hold).unwrap_or_default();
    line.push(b'\n');
    line.into()
}
