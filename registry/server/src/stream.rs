//! A connection whose waits have deadlines: for the rest of a head, and for a client to take more of an answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::connections::{Phase, Seat};
use crate::pace::Pace;

/// A TCP connection that fails when the peer does not send a head in time that it has begun (or, a new one, begins
/// none), and when it takes nothing of an answer for some time, or too little of it. Bodies of requests have deadlines
/// of their own.
pub(crate) struct Timed {
    stream: TcpStream,
    seat: Arc<Seat>,
    head: Duration,
    head_deadline: Pin<Box<Sleep>>,
    /// Of answers.
    pace: Pace,
    write_deadline: Pin<Box<Sleep>>,
    /// When the write that waits began to.
    waiting: Option<Instant>,
}

impl Timed {
    pub(crate) fn new(stream: TcpStream, seat: Arc<Seat>, head: Duration, progress: Duration) -> Self {
        Self {
            stream,
            seat,
            head,
            head_deadline: Box::pin(sleep(head)),
            pace: Pace::new(progress),
            write_deadline: Box::pin(sleep(progress)),
            waiting: None,
        }
    }

    /// Passes on what a write gave, unless it has been waiting for too long. `bytes` tells how much was written.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(result) = result {
            let waited = self.waiting.take().map_or(Duration::ZERO, |since| since.elapsed());
            self.pace.passed(waited, result.as_ref().map_or(0, bytes));
            return Poll::Ready(result);
        }
        if self.waiting.is_none() {
            self.waiting = Some(Instant::now());
            self.write_deadline.as_mut().reset(Instant::now() + self.pace.patience());
        }
        ready!(self.write_deadline.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        match self.seat.phase() {
            Phase::Idle if result.is_ready() => {
                self.seat.head();
                let deadline = Instant::now() + self.head;
                self.head_deadline.as_mut().reset(deadline);
            }
            Phase::Head if result.is_pending() => {
                ready!(self.head_deadline.as_mut().poll(context));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            Phase::Head | Phase::Idle | Phase::Request => {}
        }
        result
    }
}

impl AsyncWrite for Timed {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, result, |count| *count)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(context, result, |count| *count)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, result, |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, result, |()| 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::Connections;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const SHORT: Duration = Duration::from_millis(300);

    async fn pair(head: Duration, progress: Duration) -> (TcpStream, Timed, Arc<Seat>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, address) = listener.accept().await.unwrap();
        let seat = Connections::new(1, 1).enter(address.ip()).await.unwrap();
        (peer, Timed::new(stream, Arc::clone(&seat), head, progress), seat)
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (peer, mut timed, _) = pair(SHORT, SHORT).await;
        let piece = vec![0; 1 << 20];
        let error = loop {
            if let Err(error) = timed.write_all(&piece).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(peer);
    }

    #[tokio::test]
    async fn a_peer_that_takes_a_drip_is_given_up() {
        let (mut peer, mut timed, _) = pair(SHORT, SHORT).await;
        let start = Instant::now();
        let taking = tokio::spawn(async move {
            let mut drip = [0; 64];
            while peer.read_exact(&mut drip).await.is_ok() {
                sleep(SHORT / 10).await;
            }
        });
        // More than the kernel keeps between the two.
        let piece = vec![0; 64 << 20];
        assert_eq!(timed.write_all(&piece).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < SHORT * 20, "{:?}", start.elapsed());
        taking.abort();
    }

    #[tokio::test]
    async fn a_head_has_a_time_and_silence_before_it_another() {
        let (mut peer, mut timed, seat) = pair(SHORT, SHORT).await;
        let late = timed.read_u8().await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut, "the first head is due at once");

        seat.begin();
        seat.idle();
        let silent = tokio::time::timeout(SHORT * 3, timed.read_u8()).await;
        assert!(silent.is_err(), "nothing was begun");
        peer.write_all(b"G").await.unwrap();
        assert_eq!(timed.read_u8().await.unwrap(), b'G');
        let start = Instant::now();
        // A drip does not put it off.
        let dripping = tokio::spawn(async move {
            while peer.write_all(b"x").await.is_ok() {
                sleep(SHORT / 10).await;
            }
        });
        let late = loop {
            if let Err(error) = timed.read_u8().await {
                break error;
            }
        };
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < SHORT * 10);
        dripping.abort();
    }
}
