//! Copies into and out of a sandbox, as tar streams.
//!
//! A copy blocks on files, so it runs on the pool; a bounded channel joins it to the connection. At most
//! [`Config::copies`](crate::edge::Config) run at once.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes};
use dsec_format::protocol::edge::ERROR_TRAILER;
use http_body_util::BodyExt;
use hyper::body::Frame;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;

use super::{Query, in_time, json};
use crate::edge::error::Error;
use crate::edge::{Edge, blocking, chain};
use crate::files::{self, Owner, Tree, pack, unpack};

/// Bytes that are sent at once.
const PART_BYTES: usize = 64 << 10;
/// Parts between a copy and its connection.
const QUEUE_PARTS: usize = 4;

fn path_of(query: &Query) -> Result<String, Error> {
    match query.get("path") {
        Some(path) if path.starts_with('/') => Ok(path.to_owned()),
        other => Err(Error::Query {
            name: "path",
            value: other.unwrap_or_default().chars().take(200).collect(),
            expected: "an absolute path",
        }),
    }
}

fn owner_of(query: &Query) -> Result<Owner, Error> {
    let Some(text) = query.get("owner") else { return Ok(Owner::Is(0, 0)) };
    let ids = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    match (text, ids) {
        ("keep", _) => Ok(Owner::Kept),
        (_, Some((uid, gid))) => Ok(Owner::Is(uid, gid)),
        _ => Err(Error::Query { name: "owner", value: text.chars().take(80).collect(), expected: "UID:GID or keep" }),
    }
}

pub(super) async fn download(
    State(edge): State<Arc<Edge>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Error> {
    let path = path_of(&Query::of(&uri))?;
    let live = edge.table.get(&id)?.live()?;
    let (found, looked) = (Arc::clone(&live), path.clone());
    // So that a path that is not there has its own answer; from here on only the stream can break.
    blocking(&edge.copying, move || found.sandbox.look(&looked).map(|_| ()))
        .await?
        .map_err(|source| Error::Files { id: id.clone(), source })?;
    let takes_trailers =
        headers.get_all(header::TE).iter().any(|value| value.to_str().is_ok_and(|te| te.contains("trailers")));
    let (sender, receiver) = mpsc::channel(QUEUE_PARTS);
    let (runtime, progress) = (Handle::current(), edge.config.progress);
    tokio::spawn(async move {
        let errors = sender.clone();
        let packed = blocking(&edge.copying, move || {
            let mut to = io::BufWriter::with_capacity(PART_BYTES, ToConnection { sender, runtime, progress });
            pack(&live.sandbox, &path, &mut to)?;
            to.flush().map_err(|source| files::Error::Contents { path, source })
        });
        let error = match packed.await {
            Ok(Ok(())) => return,
            Ok(Err(source)) => Error::Files { id: id.clone(), source },
            Err(error) => error,
        };
        tracing::info!(sandbox = %id, error = %chain(&error), "a download broke off");
        let last = match error_trailer(&error).filter(|_| takes_trailers) {
            Some(trailer) => Ok(Frame::trailers(trailer)),
            // The reader sees a stream that breaks, not one that ends.
            None => Err(io::Error::other(chain(&error))),
        };
        let _ = errors.send_timeout(last, progress).await;
    });
    let heads = [(header::CONTENT_TYPE, "application/x-tar"), (header::TRAILER, ERROR_TRAILER)];
    Ok((heads, Body::new(Parts(receiver))).into_response())
}

/// Why a download ends early, as what follows its last byte.
fn error_trailer(error: &Error) -> Option<HeaderMap> {
    let mut json = serde_json::to_vec(&error.body()).ok()?;
    // The one byte that JSON leaves as it is and a header does not take.
    json.iter_mut().filter(|byte| **byte == 0x7f).for_each(|byte| *byte = b'?');
    let value = HeaderValue::from_bytes(&json).ok()?;
    Some(HeaderMap::from_iter([(HeaderName::from_static(ERROR_TRAILER), value)]))
}

pub(super) async fn upload(
    State(edge): State<Arc<Edge>>,
    Path(id): Path<String>,
    uri: Uri,
    mut body: Body,
) -> Result<Response, Error> {
    let query = Query::of(&uri);
    let (path, owner) = (path_of(&query)?, owner_of(&query)?);
    let entry = edge.table.get(&id)?;
    let live = entry.live()?;
    let gate = edge.pass_gate(&entry).await?;
    let (sender, receiver) = mpsc::channel(QUEUE_PARTS);
    let copying = {
        let edge = Arc::clone(&edge);
        tokio::spawn(async move {
            let from = FromConnection { parts: receiver, part: Bytes::new() };
            let unpacked = blocking(&edge.copying, move || unpack(&live.sandbox, &path, owner, from)).await;
            drop(gate);
            unpacked
        })
    };
    let mut stalled = None;
    loop {
        let part = match in_time(&edge, body.frame()).await {
            Ok(None) => break,
            Ok(Some(frame)) => frame.map_err(io::Error::other).map(|frame| frame.into_data().unwrap_or_default()),
            Err(error) => {
                stalled = Some(error);
                Err(io::ErrorKind::TimedOut.into())
            }
        };
        let broken = part.is_err();
        // The copy may have ended early, with an error of its own.
        if sender.send(part).await.is_err() || broken {
            break;
        }
    }
    drop(sender);
    let unpacked = copying.await.map_err(|_| Error::Lost)??;
    if let Some(error) = stalled {
        return Err(error);
    }
    Ok(json(&unpacked.map_err(|source| Error::Files { id, source })?))
}

/// A body that may break.
struct Parts(mpsc::Receiver<io::Result<Frame<Bytes>>>);

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context)
    }
}

/// Where a download's bytes go.
struct ToConnection {
    sender: mpsc::Sender<io::Result<Frame<Bytes>>>,
    runtime: Handle,
    /// How long the reader may take nothing.
    progress: Duration,
}

impl Write for ToConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sending = self.sender.send_timeout(Ok(Frame::data(Bytes::copy_from_slice(bytes))), self.progress);
        match self.runtime.block_on(sending) {
            Ok(()) => Ok(bytes.len()),
            Err(SendTimeoutError::Closed(_)) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(SendTimeoutError::Timeout(_)) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where an upload's bytes come from.
struct FromConnection {
    parts: mpsc::Receiver<io::Result<Bytes>>,
    part: Bytes,
}

impl Read for FromConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            match self.parts.blocking_recv() {
                Some(part) => self.part = part?,
                None => return Ok(0),
            }
        }
        let count = self.part.len().min(buffer.len());
        self.part.copy_to_slice(buffer.get_mut(..count).unwrap_or_default());
        Ok(count)
    }
}
