//! The listening side of the control socket: JSON lines over a Unix socket, for the user that the daemon runs as.
//!
//! One thread a connection, a bounded number of them; a line is bounded; a peer that is silent for long is let go.

use std::io::BufReader;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dsec_format::protocol::mountd::{ErrorKind, Reply, Request};
use dsec_mountd_client::line;

use crate::chain::chain;
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
    /// It cannot be made.
    #[error("control socket {} cannot be used", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What happened.
        #[source]
        source: std::io::Error,
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

fn answer_all(stream: &UnixStream, node: &Node) -> Result<(), line::Error> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let mut lines = BufReader::new(stream);
    loop {
        let reply = match line::read(&mut lines) {
            Ok(Some(request)) => answer(request, node),
            Ok(None) => return Ok(()),
            Err(line::Error::Malformed(error)) => bad_request(format!("not a request: {error}")),
            Err(error) => {
                line::write(&mut &*stream, &bad_request(error.to_string()))?;
                return Err(error);
            }
        };
        line::write(&mut &*stream, &reply)?;
    }
}

fn bad_request(message: String) -> Reply {
    Reply::Error { kind: ErrorKind::BadRequest, message }
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
