//! The control socket: JSON lines over a Unix socket, for the user that the daemon runs as.
//!
//! One thread a connection, a bounded number of them; a line is bounded; a peer that is silent for long is let go.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dsec_format::protocol::mountd::{ErrorKind, MAX_LINE_BYTES, Reply, Request};

use crate::node::Node;

/// Connections at once.
const MAX_CONNECTIONS: usize = 512;
/// A peer that sends nothing for so long is let go.
const IDLE: Duration = Duration::from_secs(600);

/// Why the socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody listens on it.
    #[error("another daemon listens on {}", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// It cannot be made, or nobody answers on it.
    #[error("control socket {} cannot be used", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What happened.
        #[source]
        source: std::io::Error,
    },
    /// What came over it is no message of this protocol.
    #[error("the peer of {} does not keep to the protocol", path.display())]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// The daemon closed the connection.
    #[error("the daemon closed the connection on {}", path.display())]
    Closed {
        /// The socket.
        path: PathBuf,
    },
}

/// The listening side.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens; a socket that a dead daemon left is replaced.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Io`].
    pub fn bind(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Io { path: path.to_owned(), source };
        if let Some(parent) = path.parent() {
            fs_err::create_dir_all(parent).map_err(failed)?;
        }
        if UnixStream::connect(path).is_ok() {
            return Err(Error::InUse { path: path.to_owned() });
        }
        match fs_err::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        // Who may connect is who may write to it: its owner.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs_err::set_permissions(path, mode).map_err(failed)?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Answers connections until the process ends.
    pub fn serve(&self, node: &Arc<Node>) {
        let open = Arc::new(AtomicUsize::new(0));
        for stream in self.listener.incoming() {
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a control connection was not accepted");
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            if open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                open.fetch_sub(1, Ordering::Relaxed);
                tracing::warn!(connections = MAX_CONNECTIONS, "a control connection too many was closed");
                continue;
            }
            let (node, counter) = (Arc::clone(node), Arc::clone(&open));
            let spawned = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
                if let Err(error) = answer_all(&stream, &node) {
                    tracing::debug!(%error, "a control connection ended");
                }
                counter.fetch_sub(1, Ordering::Relaxed);
            });
            if let Err(error) = spawned {
                open.fetch_sub(1, Ordering::Relaxed);
                tracing::error!(%error, "no thread for a control connection");
            }
        }
    }

    /// Removes the socket: nobody finds it any more.
    pub fn unlink(&self) {
        if let Err(error) = fs_err::remove_file(&self.path) {
            tracing::warn!(%error, "the control socket stays");
        }
    }
}

fn answer_all(stream: &UnixStream, node: &Node) -> std::io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let bytes = (&mut lines).take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut line)?;
        if bytes == 0 {
            return Ok(());
        }
        let reply = match serde_json::from_slice(&line) {
            Ok(request) => answer(request, node),
            Err(error) => Reply::Error { kind: ErrorKind::BadRequest, message: format!("not a request: {error}") },
        };
        let mut text = serde_json::to_vec(&reply).map_err(std::io::Error::other)?;
        text.push(b'\n');
        (&*stream).write_all(&text)?;
        if line.last() != Some(&b'\n') {
            // Too long, or the last one.
            return Ok(());
        }
    }
}

fn answer(request: Request, node: &Node) -> Reply {
    match request {
        Request::Mount { image, holder } => match node.mount(&image, &holder) {
            Ok(mounted) => Reply::Mounted(mounted),
            Err(error) => {
                tracing::warn!(%image, holder, error = chain(&error), "a mount failed");
                Reply::Error { kind: error.kind(), message: chain(&error) }
            }
        },
        Request::Release { holder } => {
            node.release(&holder);
            Reply::Released
        }
        Request::Status => Reply::Status(node.status()),
    }
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// The asking side.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Client {
    /// Connects to a daemon. Every answer comes within `timeout` or is an error.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self, Error> {
        let failed = |source| Error::Io { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(timeout)).map_err(failed)?;
        stream.set_write_timeout(Some(timeout)).map_err(failed)?;
        Ok(Self { stream: BufReader::new(stream), path: path.to_owned() })
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// See [`Error`]. A refusal of the daemon is an answer.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, Error> {
        let failed = |source| Error::Io { path: self.path.clone(), source };
        let wrong = |source| Error::Protocol { path: self.path.clone(), source };
        let mut text = serde_json::to_vec(request).map_err(wrong)?;
        text.push(b'\n');
        self.stream.get_mut().write_all(&text).map_err(failed)?;
        let mut line = Vec::new();
        (&mut self.stream).take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut line).map_err(failed)?;
        if line.is_empty() {
            return Err(Error::Closed { path: self.path.clone() });
        }
        serde_json::from_slice(&line).map_err(wrong)
    }
}
