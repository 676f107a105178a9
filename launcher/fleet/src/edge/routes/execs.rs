//! Commands: run, start, show, kill, standard input, output.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Path, State};
use axum::http::{HeaderName, Uri};
use axum::response::{IntoResponse, Response};
use dsec_format::protocol::edge::{Attach, EXEC_HEADER, Exec as Shown, ExecRequest, SANDBOX_HEADER};
use http_body_util::BodyExt;

use super::{Query, body, json};
use crate::edge::Edge;
use crate::edge::entry::Entry;
use crate::edge::error::Error;
use crate::edge::exec::{Exec, lost};

/// The longest that a request waits for the end of a command; the caller asks again.
const WAIT_MAX: Duration = Duration::from_secs(3600);

pub(super) async fn run(State(edge): State<Arc<Edge>>, request: Body) -> Result<Response, Error> {
    let run = edge.run(body(&edge, request).await?).await?;
    Ok(stream(&run.sandbox, &run.exec, run.body))
}

fn stream(sandbox: &str, exec: &str, body: Body) -> Response {
    let names = [(HeaderName::from_static(SANDBOX_HEADER), sandbox), (HeaderName::from_static(EXEC_HEADER), exec)];
    let names = names.map(|(name, value)| (name, value.to_owned()));
    (names, body).into_response()
}

pub(super) async fn start(
    State(edge): State<Arc<Edge>>,
    Path(id): Path<String>,
    request: Body,
) -> Result<Response, Error> {
    let request: ExecRequest = body(&edge, request).await?;
    let entry = edge.table.get(&id)?;
    let attach = request.attach;
    let starting = {
        let edge = Arc::clone(&edge);
        tokio::spawn(async move { edge.exec(&entry, request, attach != Attach::No).await })
    };
    let (exec, readers) = starting.await.map_err(|_| Error::Lost)??;
    let Some(readers) = readers else { return Ok(json(&exec.show())) };
    let name = exec.id.clone();
    Ok(stream(&id, &name, edge.attach(exec, readers, attach == Attach::Kill)))
}

/// A command of a sandbox.
enum Found {
    Known(Arc<Exec>),
    /// Of a former edge: nobody knows how it ended.
    Lost,
}

fn find(edge: &Edge, entry: &Entry, id: &str) -> Result<Found, Error> {
    match entry.exec(id) {
        Some(exec) => Ok(Found::Known(exec)),
        None if edge.is_former_exec(id) => Ok(Found::Lost),
        None => Err(Error::NoExec { id: entry.id().to_string(), exec: id.chars().take(80).collect() }),
    }
}

fn show_lost(id: String) -> Response {
    json(&Shown { id, started_ms: 0, outcome: Some(lost()) })
}

pub(super) async fn show(
    State(edge): State<Arc<Edge>>,
    Path((id, exec)): Path<(String, String)>,
    uri: Uri,
) -> Result<Response, Error> {
    let wait_ms = Query::of(&uri).number("wait_ms")?.unwrap_or(0);
    match find(&edge, &*edge.table.get(&id)?, &exec)? {
        Found::Known(exec) => {
            let wait = Duration::from_millis(wait_ms).min(WAIT_MAX);
            if !wait.is_zero() {
                // Whether it has ended by then is in the answer.
                let _ = tokio::time::timeout(wait, exec.wait()).await;
            }
            Ok(json(&exec.show()))
        }
        Found::Lost => Ok(show_lost(exec)),
    }
}

pub(super) async fn kill(
    State(edge): State<Arc<Edge>>,
    Path((id, exec)): Path<(String, String)>,
) -> Result<Response, Error> {
    match find(&edge, &*edge.table.get(&id)?, &exec)? {
        Found::Known(exec) => {
            edge.kill(&exec).await?;
            exec.wait().await;
            Ok(json(&exec.show()))
        }
        Found::Lost => Ok(show_lost(exec)),
    }
}

pub(super) async fn output(
    State(edge): State<Arc<Edge>>,
    Path((id, exec)): Path<(String, String)>,
    uri: Uri,
) -> Result<Response, Error> {
    let query = Query::of(&uri);
    let from = |name| Ok::<_, Error>(query.number(name)?.unwrap_or(0));
    let (stdout_from, stderr_from) = (from("stdout_from")?, from("stderr_from")?);
    match find(&edge, &*edge.table.get(&id)?, &exec)? {
        Found::Known(known) => {
            let readers = known.readers(stdout_from, stderr_from);
            Ok(stream(&id, &exec, edge.attach(known, readers, false)))
        }
        Found::Lost => {
            let known = Exec::lost(exec.clone(), edge.new_output(), edge.new_output());
            let readers = known.readers(0, 0);
            Ok(stream(&id, &exec, edge.attach(known, readers, false)))
        }
    }
}

/// Standard input, for as long as the body comes and the command runs: it may be a person's, so it may stand still. Its
/// end closes it; a connection that breaks does not, so that no command takes a part for the whole.
pub(super) async fn stdin(
    State(edge): State<Arc<Edge>>,
    Path((id, exec)): Path<(String, String)>,
    mut body: Body,
) -> Result<Response, Error> {
    let Found::Known(exec) = find(&edge, &*edge.table.get(&id)?, &exec)? else {
        return Err(Error::Stdin { exec, why: "the command has ended" });
    };
    let mut stdin = exec.stdin()?;
    while !body.is_end_stream() {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            _ = exec.wait() => return Err(Error::Stdin { exec: exec.id.clone(), why: "the command has ended" }),
        };
        let Some(frame) = frame else { break };
        let broken = |_| Error::Stdin { exec: exec.id.clone(), why: "the request broke off" };
        if let Ok(bytes) = frame.map_err(broken)?.into_data() {
            stdin.write(&bytes).await?;
        }
    }
    stdin.close();
    Ok(json(&exec.show()))
}
