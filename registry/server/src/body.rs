//! Bodies: bounded ones in memory, large ones as streams with deadlines.

use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::pace::Pace;

/// Bytes that are read from a file at once.
const PIECE_BYTES: u64 = 256 * 1024;
/// Pieces that wait for the network, or for the disk.
const PIECES_QUEUED: usize = 4;

/// Reads a body of at most `allowed_bytes` into memory.
pub(crate) async fn read(mut body: Body, allowed_bytes: usize, progress: Duration) -> Result<Vec<u8>, Failure> {
    let (mut bytes, mut pace) = (Vec::new(), Pace::new(progress));
    while let Some(piece) = next(&mut body, &mut pace).await? {
        if bytes.len() + piece.len() > allowed_bytes {
            return Err(Failure::too_large(allowed_bytes as u64));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

async fn next(body: &mut Body, pace: &mut Pace) -> Result<Option<Bytes>, Failure> {
    loop {
        let since = Instant::now();
        let frame = tokio::time::timeout(pace.patience(), body.frame()).await.map_err(|_| Failure::slow())?;
        let Some(frame) = frame else { return Ok(None) };
        let frame = frame.map_err(|_| Failure::malformed("the body ended before its end"))?;
        pace.passed(since.elapsed(), frame.data_ref().map_or(0, Bytes::len));
        // Trailers mean nothing here.
        if let Ok(bytes) = frame.into_data() {
            return Ok(Some(bytes));
        }
    }
}

/// Streams a body of at most `allowed_bytes` into `write`, which runs on a thread that may block. Gives what `write` was
/// made of back. Whatever fails, what has arrived before was written.
pub(crate) async fn drain<W: Send + 'static>(
    mut body: Body,
    allowed_bytes: u64,
    progress: Duration,
    mut writer: W,
    write: fn(&mut W, &[u8]) -> dsec_store::error::Result<()>,
) -> Result<W, Failure> {
    let (sender, mut pieces) = mpsc::channel::<Bytes>(PIECES_QUEUED);
    let written = tokio::task::spawn_blocking(move || {
        while let Some(piece) = pieces.blocking_recv() {
            write(&mut writer, &piece)?;
        }
        Ok::<W, dsec_store::Error>(writer)
    });
    let received = async {
        let (mut left, mut pace) = (allowed_bytes, Pace::new(progress));
        while let Some(piece) = next(&mut body, &mut pace).await? {
            left = left.checked_sub(piece.len() as u64).ok_or_else(|| Failure::too_large(allowed_bytes))?;
            if sender.send(piece).await.is_err() {
                break; // Writing has failed; the error comes from there.
            }
        }
        Ok::<(), Failure>(())
    }
    .await;
    drop(sender);
    let written = written.await.map_err(|_| Failure::internal("a worker failed"))?;
    received?;
    Ok(written?)
}

/// The `bytes` bytes of a file from `offset`, as a body.
pub(crate) fn of_file(file: std::fs::File, offset: u64, bytes: u64) -> Body {
    let (sender, pieces) = mpsc::channel(PIECES_QUEUED);
    let file = Arc::new(file);
    tokio::spawn(async move {
        let mut at = offset;
        let end = offset.saturating_add(bytes);
        while at < end {
            let want = usize::try_from((end - at).min(PIECE_BYTES)).unwrap_or_default();
            let file = Arc::clone(&file);
            // A thread is held for the read only, not for as long as the client takes.
            let piece = tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; want];
                file.read_exact_at(&mut piece, at).map(|()| Bytes::from(piece))
            });
            let piece = piece.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            let failed = piece.is_err();
            at += want as u64;
            if sender.send(piece).await.is_err() || failed {
                return;
            }
        }
    });
    Body::new(Pieces { pieces, left: bytes })
}

/// Pieces of a known total.
struct Pieces {
    pieces: mpsc::Receiver<std::io::Result<Bytes>>,
    left: u64,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        self.pieces.poll_recv(context).map(|piece| {
            let piece = piece?;
            if let Ok(bytes) = &piece {
                self.left = self.left.saturating_sub(bytes.len() as u64);
            }
            Some(piece.map(Frame::data))
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
