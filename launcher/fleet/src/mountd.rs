//! A client of `dsec-mountd`: which directories are the layers of an image.
//!
//! One request a connection at a time; connections are kept for the next one. Every wait has a deadline. Requests are
//! repeatable (a holder's second mount is its first), so one that hits a connection which the daemon has closed meanwhile
//! is sent again on a new one, once.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dsec_format::protocol::mountd::{ErrorKind, MAX_LINE_BYTES, Mounted, Reply, Request, Status};
use dsec_format::refs::Spec;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// Connections that are kept.
const IDLE_MAX: usize = 8;

/// Why mountd did not do it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens, or the connection broke.
    #[error("dsec-mountd does not answer at {}", socket.display())]
    Unreachable {
        /// Where it was looked for.
        socket: PathBuf,
        /// How it failed.
        #[source]
        source: std::io::Error,
    },
    /// No answer within the deadline.
    #[error("dsec-mountd at {} did not answer within {after_ms} ms", socket.display())]
    Deadline {
        /// Where it was asked.
        socket: PathBuf,
        /// The deadline.
        after_ms: u128,
    },
    /// An answer that is none.
    #[error("dsec-mountd at {} answered nonsense", socket.display())]
    Malformed {
        /// Where it was asked.
        socket: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// An answer to something else.
    #[error("dsec-mountd at {} answered another request", socket.display())]
    Unexpected {
        /// Where it was asked.
        socket: PathBuf,
    },
    /// It said no.
    #[error("{message}")]
    Refused {
        /// What kind of no.
        kind: ErrorKind,
        /// Its words.
        message: String,
    },
}

/// A client.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    deadline: Duration,
    idle: Mutex<Vec<BufReader<UnixStream>>>,
}

impl Client {
    /// A client of the daemon at `socket`; no request takes longer than `deadline`. Nothing is connected yet.
    #[must_use]
    pub fn new(socket: &Path, deadline: Duration) -> Self {
        Self { socket: socket.to_owned(), deadline, idle: Mutex::new(Vec::new()) }
    }

    /// Mounts an image's layers for a holder.
    ///
    /// # Errors
    /// As [`Error`].
    pub async fn mount(&self, image: &Spec, holder: &str) -> Result<Mounted, Error> {
        let request = Request::Mount { image: image.clone(), holder: holder.to_owned() };
        match self.ask(&request).await? {
            Reply::Mounted(mounted) => Ok(mounted),
            other => Err(self.not_expected(other)),
        }
    }

    /// Gives up what a holder holds.
    ///
    /// # Errors
    /// As [`Error`].
    pub async fn release(&self, holder: &str) -> Result<(), Error> {
        match self.ask(&Request::Release { holder: holder.to_owned() }).await? {
            Reply::Released => Ok(()),
            other => Err(self.not_expected(other)),
        }
    }

    /// The daemon's state.
    ///
    /// # Errors
    /// As [`Error`].
    pub async fn status(&self) -> Result<Status, Error> {
        match self.ask(&Request::Status).await? {
            Reply::Status(status) => Ok(status),
            other => Err(self.not_expected(other)),
        }
    }

    fn not_expected(&self, reply: Reply) -> Error {
        match reply {
            Reply::Error { kind, message } => Error::Refused { kind, message },
            Reply::Mounted(_) | Reply::Released | Reply::Status(_) => Error::Unexpected { socket: self.socket.clone() },
        }
    }

    async fn ask(&self, request: &Request) -> Result<Reply, Error> {
        let after_ms = self.deadline.as_millis();
        match tokio::time::timeout(self.deadline, self.ask_without_deadline(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::Deadline { socket: self.socket.clone(), after_ms }),
        }
    }

    async fn ask_without_deadline(&self, request: &Request) -> Result<Reply, Error> {
        let mut line =
            serde_json::to_vec(request).map_err(|source| Error::Malformed { socket: self.socket.clone(), source })?;
        line.push(b'\n');
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let unreachable = |source| Error::Unreachable { socket: self.socket.clone(), source };
        let answer = match kept {
            Some(connection) => exchange(connection, &line).await.ok(),
            None => None,
        };
        let (connection, reply) = match answer {
            Some(answer) => answer,
            None => {
                // What else is kept was made before the daemon closed this one.
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
                let stream = UnixStream::connect(&self.socket).await.map_err(unreachable)?;
                exchange(BufReader::new(stream), &line).await.map_err(unreachable)?
            }
        };
        let reply = serde_json::from_slice(&reply)
            .map_err(|source| Error::Malformed { socket: self.socket.clone(), source })?;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
        Ok(reply)
    }
}

async fn exchange(
    mut connection: BufReader<UnixStream>,
    line: &[u8],
) -> std::io::Result<(BufReader<UnixStream>, Vec<u8>)> {
    connection.get_mut().write_all(line).await?;
    let mut reply = Vec::new();
    let limit = u64::try_from(MAX_LINE_BYTES).unwrap_or(u64::MAX);
    (&mut connection).take(limit).read_until(b'\n', &mut reply).await?;
    if reply.last() != Some(&b'\n') {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok((connection, reply))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader as StdReader, Write};
    use std::os::unix::net::UnixListener;

    /// Answers `replies` in turn, each connection taking `per_connection` of them before it is closed.
    fn serve(socket: &Path, replies: Vec<&'static str>, per_connection: usize) -> std::thread::JoinHandle<Vec<String>> {
        let listener = UnixListener::bind(socket).unwrap();
        std::thread::spawn(move || {
            let mut asked = Vec::new();
            for part in replies.chunks(per_connection) {
                let mut lines = StdReader::new(listener.accept().unwrap().0);
                for reply in part {
                    let mut line = String::new();
                    lines.read_line(&mut line).unwrap();
                    asked.push(line);
                    lines.get_mut().write_all(reply.as_bytes()).unwrap();
                }
            }
            asked
        })
    }

    #[tokio::test]
    async fn a_closed_connection_is_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("mountd.sock");
        let server = serve(&socket, vec!["{\"reply\":\"released\"}\n"; 6], 2);
        let client = Client::new(&socket, Duration::from_secs(10));
        for _ in 0..6 {
            client.release("sandbox/x").await.unwrap();
        }
        assert_eq!(server.join().unwrap().len(), 6);
    }

    #[tokio::test]
    async fn each_failure_has_its_error() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("mountd.sock");
        let client = Client::new(&socket, Duration::from_millis(300));
        assert!(matches!(client.status().await, Err(Error::Unreachable { .. })));
        let replies = vec![
            "{\"reply\":\"error\",\"kind\":\"not-found\",\"message\":\"no image x\"}\n",
            "nonsense\n",
            "{\"reply\":\"released\"}\n",
            "no end of line",
        ];
        let server = serve(&socket, replies, 1);
        let refused = client.release("x").await.unwrap_err();
        assert!(matches!(refused, Error::Refused { kind: ErrorKind::NotFound, .. }), "{refused}");
        assert!(matches!(client.release("x").await, Err(Error::Malformed { .. })));
        assert!(matches!(client.status().await, Err(Error::Unexpected { .. })));
        assert!(matches!(client.status().await, Err(Error::Unreachable { .. })));
        server.join().unwrap();
    }

    #[tokio::test]
    async fn silence_has_a_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("mountd.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let client = Client::new(&socket, Duration::from_millis(100));
        assert!(matches!(client.status().await, Err(Error::Deadline { after_ms: 100, .. })));
    }
}
