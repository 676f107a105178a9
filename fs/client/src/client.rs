//! The client: requests with one deadline each, over connections that are kept for the next request.
//!
//! Requests are repeatable (a holder's second mount is its first), so one that meets a connection which the daemon has
//! closed meanwhile is sent again on a new one, once.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dsec_format::protocol::mountd::{ErrorKind, Mounted, Reply, Request, Status};
use dsec_format::refs::Spec;

use crate::line;

/// Connections that are kept.
const MAX_IDLE: usize = 8;

/// Why `dsec-mountd` did not do it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens, or the connection broke.
    #[error("dsec-mountd at {} does not answer", socket.display())]
    Unreachable {
        /// Where it was looked for.
        socket: PathBuf,
        /// How it failed.
        #[source]
        source: io::Error,
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
    #[error("dsec-mountd at {} does not keep to the protocol", socket.display())]
    Malformed {
        /// Where it was asked.
        socket: PathBuf,
        /// What is wrong with it.
        #[source]
        source: line::Error,
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

/// Asks the daemon: one deadline a request, over connections that are kept for the next.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    deadline: Duration,
    idle: Mutex<Vec<BufReader<Timed>>>,
}

impl Client {
    /// A client of the daemon at `socket`; no request takes longer than `deadline`. Nothing is connected yet.
    #[must_use]
    pub fn new(socket: &Path, deadline: Duration) -> Self {
        Self { socket: socket.to_owned(), deadline, idle: Mutex::default() }
    }

    /// Mounts the layers of an image for a holder.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn mount(&self, image: &Spec, holder: &str) -> Result<Mounted, Error> {
        match self.ask(&Request::Mount { image: image.clone(), holder: holder.to_owned() })? {
            Reply::Mounted(mounted) => Ok(mounted),
            _ => Err(self.unexpected()),
        }
    }

    /// Gives up what a holder holds.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn release(&self, holder: &str) -> Result<(), Error> {
        match self.ask(&Request::Release { holder: holder.to_owned() })? {
            Reply::Released => Ok(()),
            _ => Err(self.unexpected()),
        }
    }

    /// How the daemon is.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn status(&self) -> Result<Status, Error> {
        match self.ask(&Request::Status)? {
            Reply::Status(status) => Ok(status),
            _ => Err(self.unexpected()),
        }
    }

    /// Asks, and waits for the answer. A refusal is an error, any other reply is the answer.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn ask(&self, request: &Request) -> Result<Reply, Error> {
        let until = Instant::now() + self.deadline;
        let kept = self.idle().pop();
        let answer = kept.map(|connection| exchange(connection, request, until));
        let (connection, reply) = match answer {
            Some(Err(error)) if was_closed(&error) => self.ask_anew(request, until),
            Some(answer) => answer,
            None => self.ask_anew(request, until),
        }
        .map_err(|error| self.error(error))?;
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
        drop(idle);
        match reply {
            Reply::Error { kind, message } => Err(Error::Refused { kind, message }),
            reply => Ok(reply),
        }
    }

    fn ask_anew(&self, request: &Request, until: Instant) -> Result<(BufReader<Timed>, Reply), line::Error> {
        // What else is kept was made before the daemon closed one.
        self.idle().clear();
        let stream = UnixStream::connect(&self.socket)?;
        exchange(BufReader::new(Timed { stream, until }), request, until)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<BufReader<Timed>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unexpected(&self) -> Error {
        Error::Unexpected { socket: self.socket.clone() }
    }

    fn error(&self, error: line::Error) -> Error {
        let socket = self.socket.clone();
        match error {
            line::Error::Io(source) if is_late(&source) => {
                Error::Deadline { socket, after_ms: self.deadline.as_millis() }
            }
            line::Error::Io(source) => Error::Unreachable { socket, source },
            line::Error::CutOff => Error::Unreachable { socket, source: io::ErrorKind::UnexpectedEof.into() },
            source @ (line::Error::TooLong | line::Error::Malformed(_)) => Error::Malformed { socket, source },
        }
    }
}

fn exchange(
    mut connection: BufReader<Timed>,
    request: &Request,
    until: Instant,
) -> Result<(BufReader<Timed>, Reply), line::Error> {
    connection.get_mut().until = until;
    line::write(connection.get_mut(), request)?;
    match line::read(&mut connection)? {
        Some(reply) => Ok((connection, reply)),
        None => Err(line::Error::CutOff),
    }
}

/// Whether a kept connection was of no use any more, so that the daemon did not get the request or was stopped with it.
fn was_closed(error: &line::Error) -> bool {
    match error {
        line::Error::Io(error) => !is_late(error),
        line::Error::CutOff => true,
        line::Error::TooLong | line::Error::Malformed(_) => false,
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A connection whose reads and writes together end by a point in time: a daemon that drips is late too.
#[derive(Debug)]
struct Timed {
    stream: UnixStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    const RELEASED: &str = "{\"reply\":\"released\"}\n";

    /// Answers `replies` in turn, each connection taking `per_connection` of them before it is closed.
    fn serve(socket: &Path, replies: Vec<&'static str>, per_connection: usize) -> JoinHandle<Vec<String>> {
        let listener = UnixListener::bind(socket).unwrap();
        std::thread::spawn(move || {
            let mut asked = Vec::new();
            for part in replies.chunks(per_connection) {
                let mut lines = BufReader::new(listener.accept().unwrap().0);
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

    fn place() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("mountd.sock");
        (directory, socket)
    }

    #[test]
    fn a_closed_connection_is_made_again_and_an_open_one_is_kept() {
        let (_directory, socket) = place();
        let server = serve(&socket, vec![RELEASED; 6], 2);
        let client = Client::new(&socket, Duration::from_secs(10));
        for _ in 0..6 {
            client.release("sandbox/x").unwrap();
        }
        assert_eq!(server.join().unwrap().len(), 6);
    }

    #[test]
    fn each_failure_has_its_error() {
        let (_directory, socket) = place();
        let client = Client::new(&socket, Duration::from_secs(10));
        assert!(matches!(client.status(), Err(Error::Unreachable { .. })));
        let replies = vec![
            "{\"reply\":\"error\",\"kind\":\"not-found\",\"message\":\"no image x\"}\n",
            "nonsense\n",
            RELEASED,
            "no end of line",
        ];
        let server = serve(&socket, replies, 1);
        let refused = client.release("x").unwrap_err();
        assert!(matches!(refused, Error::Refused { kind: ErrorKind::NotFound, .. }), "{refused}");
        assert!(matches!(client.release("x"), Err(Error::Malformed { .. })));
        assert!(matches!(client.status(), Err(Error::Unexpected { .. })));
        assert!(matches!(client.status(), Err(Error::Unreachable { .. })));
        server.join().unwrap();
    }

    #[test]
    fn silence_and_dripping_have_a_deadline() {
        let (_directory, socket) = place();
        let listener = UnixListener::bind(&socket).unwrap();
        let client = Client::new(&socket, Duration::from_millis(200));
        let late = |error: Error| matches!(error, Error::Deadline { after_ms: 200, .. });
        assert!(late(client.status().unwrap_err()));
        let start = Instant::now();
        let (_silent, _) = listener.accept().unwrap();
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        assert!(late(client.status().unwrap_err()));
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        server.join().unwrap();
    }
}
