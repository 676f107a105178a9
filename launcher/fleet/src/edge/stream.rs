//! A command's output as the body of an answer, framed as `dsec_format::protocol::stream` says.
//!
//! The body ends after one frame with the outcome. When the connection breaks before that, the feeding task learns it at
//! once (its channel closes), and says so to whoever decides what becomes of the command.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::{BufMut, Bytes, BytesMut};
use dsec_format::protocol::stream::{HEADER_BYTES, Header, Kind, Output as Which, Skipped};
use hyper::body::Frame;
use tokio::sync::mpsc;

use super::exec::Exec;
use super::output::{Piece, Reader};

/// Frames between the feeding task and the connection.
const QUEUE_FRAMES: usize = 2;

/// A body whose frames come from a task.
#[derive(Debug)]
pub(super) struct Frames(mpsc::Receiver<Bytes>);

impl Frames {
    /// A body, and where its bytes go.
    pub(super) fn channel() -> (mpsc::Sender<Bytes>, Body) {
        let (sender, receiver) = mpsc::channel(QUEUE_FRAMES);
        (sender, Body::new(Self(receiver)))
    }
}

impl HttpBody for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Readers of a command's two outputs.
#[derive(Debug)]
pub(crate) struct Readers {
    /// Of standard output.
    pub stdout: Reader,
    /// Of standard error.
    pub stderr: Reader,
}

/// The connection broke before the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken;

/// Sends all output, then the outcome.
///
/// # Errors
/// [`Broken`].
pub(super) async fn feed(exec: &Exec, readers: Readers, frames: &mpsc::Sender<Bytes>) -> Result<(), Broken> {
    let (mut stdout_open, mut stderr_open) = (true, true);
    while stdout_open || stderr_open {
        let (which, piece) = tokio::select! {
            piece = readers.stdout.next(), if stdout_open => (Which::Stdout, piece),
            piece = readers.stderr.next(), if stderr_open => (Which::Stderr, piece),
            () = frames.closed() => return Err(Broken),
        };
        match (piece, which) {
            (Some(piece), _) => send(frames, of_piece(which, &piece)).await?,
            (None, Which::Stdout) => stdout_open = false,
            (None, Which::Stderr) => stderr_open = false,
        }
    }
    let outcome = tokio::select! {
        outcome = exec.wait() => outcome,
        () = frames.closed() => return Err(Broken),
    };
    send(frames, json(Kind::Outcome, &outcome)).await
}

async fn send(frames: &mpsc::Sender<Bytes>, frame: Bytes) -> Result<(), Broken> {
    frames.send(frame).await.map_err(|_| Broken)
}

fn of_piece(which: Which, piece: &Piece) -> Bytes {
    match (piece, which) {
        (Piece::Bytes(bytes), Which::Stdout) => frame(Kind::Stdout, bytes),
        (Piece::Bytes(bytes), Which::Stderr) => frame(Kind::Stderr, bytes),
        (Piece::Skipped { from, bytes }, _) => {
            json(Kind::Skipped, &Skipped { output: which, from: *from, bytes: *bytes })
        }
    }
}

fn json<T: serde::Serialize>(kind: Kind, value: &T) -> Bytes {
    // Structures of numbers and strings always have a JSON form.
    frame(kind, &serde_json::to_vec(value).unwrap_or_default())
}

fn frame(kind: Kind, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEADER_BYTES + payload.len());
    // Pieces are cut far below the limit of a payload.
    let bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    frame.put_slice(&Header { kind, bytes }.encode());
    frame.put_slice(payload);
    frame.freeze()
}

/// What a stream is fed from, shared with the one who decides after a break.
#[derive(Debug)]
pub(super) struct Feed {
    /// The command.
    pub exec: Arc<Exec>,
    /// Its output.
    pub readers: Readers,
    /// The connection.
    pub frames: mpsc::Sender<Bytes>,
}
