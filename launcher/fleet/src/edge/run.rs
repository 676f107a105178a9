//! A sandbox for one command: made, run, removed, all in one request.

use std::sync::Arc;

use axum::body::Body;
use dsec_format::protocol::edge::RunRequest;
use tokio::sync::oneshot;

use super::Edge;
use super::entry::Entry;
use super::error::Error;
use super::exec::Exec;
use super::stream::{Broken, Feed, Frames, feed};

/// A command that runs in a sandbox of its own.
#[derive(Debug)]
pub(crate) struct Run {
    /// The sandbox.
    pub(crate) sandbox: String,
    /// The command.
    pub(crate) exec: String,
    /// Its output, then its outcome.
    pub(crate) body: Body,
}

impl Edge {
    /// Runs a command. The sandbox is removed when the command has ended or the connection breaks, whichever is first;
    /// the outcome does not wait for that.
    pub(crate) async fn run(self: &Arc<Self>, request: RunRequest) -> Result<Run, Error> {
        let mut sandbox = request.sandbox;
        // A retried run is a new run: its output went with its connection.
        sandbox.idempotency_key = None;
        let (entry, _) = self.reserve(sandbox, true)?;
        let (answer, answered) = oneshot::channel();
        let edge = Arc::clone(self);
        tokio::spawn(async move {
            edge.run_in(&entry, request.exec, answer).await;
            if let Err(error) = edge.destroy(&entry).await {
                tracing::error!(sandbox = %entry.id(), error = %super::chain(&error), "a run's sandbox stays for now");
            }
        });
        answered.await.map_err(|_| Error::Lost)?
    }

    async fn run_in(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        request: dsec_format::protocol::edge::ExecRequest,
        mut answer: oneshot::Sender<Result<Run, Error>>,
    ) {
        let begin = self.begin(entry, request);
        tokio::pin!(begin);
        let begun = tokio::select! {
            begun = &mut begin => begun,
            () = answer.closed() => {
                // Nothing is dropped half way: it sees that it is leaving, and gives up where it can.
                entry.leaving();
                begin.await
            }
        };
        let feeding = match begun {
            Ok(feeding) => feeding,
            Err(error) => {
                // A caller that is gone needs no error.
                let _ = answer.send(Err(error));
                return;
            }
        };
        let Begun { run, feed: Feed { exec, readers, frames } } = feeding;
        if answer.send(Ok(run)).is_err() {
            return;
        }
        if feed(&exec, readers, &frames).await == Err(Broken) {
            tracing::debug!(sandbox = %entry.id(), "the client of a run is gone");
        }
    }

    async fn begin(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        request: dsec_format::protocol::edge::ExecRequest,
    ) -> Result<Begun, Error> {
        let (exec, readers) = self.make_and_exec(entry, request).await?;
        let (frames, body) = Frames::channel();
        let run = Run { sandbox: entry.id().to_string(), exec: exec.id.clone(), body };
        Ok(Begun { run, feed: Feed { exec, readers, frames } })
    }

    /// The stream of a command's output; what becomes of the command when it breaks is `on_break`'s.
    pub(crate) fn attach(
        self: &Arc<Self>,
        exec: Arc<Exec>,
        readers: super::stream::Readers,
        kill_on_break: bool,
    ) -> Body {
        let (frames, body) = Frames::channel();
        let edge = Arc::clone(self);
        tokio::spawn(async move {
            let broken = feed(&exec, readers, &frames).await == Err(Broken);
            if broken
                && kill_on_break
                && let Err(error) = edge.kill(&exec).await
            {
                tracing::error!(exec = %exec.id, error = %super::chain(&error), "a command cannot be killed");
            }
        });
        body
    }
}

struct Begun {
    run: Run,
    feed: Feed,
}
