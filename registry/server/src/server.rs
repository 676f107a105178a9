//! Listening, serving, stopping.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dsec_store::LocalStore;
use dsec_store::local::unnamed;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::app::{self, Limits, Shared, Token};
use crate::connections::{Connections, Seat};
use crate::seated::Seated;
use crate::stream::Timed;

/// How often abandoned uploads are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
/// How often, at most, what nothing names is looked for: all locations are read for it.
const UNNAMED_EVERY: Duration = Duration::from_secs(60 * 60);
/// After such a time without a push others may know that nobody writes to the store.
const REST: Duration = Duration::from_secs(600);
/// Pause after a failed accept (no descriptors left): trying again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest head of a request.
const HEAD_BYTES: usize = 64 * 1024;

/// Why a registry does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is taken, not this machine's, or not allowed.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The host has no address.
    #[error("there is no address to listen on")]
    NoAddress,
    /// Anybody could write to the store.
    #[error("{address} can be reached from other machines, and no token is configured")]
    Open {
        /// The address.
        address: SocketAddr,
    },
}

/// A registry that listens and does not serve yet.
#[derive(Debug)]
pub struct Registry {
    listener: TcpListener,
    address: SocketAddr,
    store: Arc<LocalStore>,
    token: Option<Token>,
    limits: Limits,
}

impl Registry {
    /// Listens on the first of `addresses`, which are those of one host, that it gets. Without a token only when all are
    /// addresses of this machine itself, unless `insecure`.
    ///
    /// # Errors
    /// As [`Error`]; of several addresses that of the last one.
    pub async fn listen(
        store: LocalStore,
        addresses: &[SocketAddr],
        token: Option<Token>,
        insecure: bool,
        limits: Limits,
    ) -> Result<Self, Error> {
        let is_open = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
        if let Some(&address) = addresses.iter().find(is_open).filter(|_| token.is_none() && !insecure) {
            return Err(Error::Open { address });
        }
        let mut failed = Error::NoAddress;
        for &address in addresses {
            let bound = TcpListener::bind(address).await.and_then(|listener| Ok((listener.local_addr()?, listener)));
            match bound {
                Ok((address, listener)) => {
                    return Ok(Self { listener, address, store: Arc::new(store), token, limits });
                }
                Err(source) => failed = Error::Listen { address, source },
            }
        }
        Err(failed)
    }

    /// Where it listens: the port is chosen when the address had port 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is done; then lets requests that are under way end, for a while.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let limits = self.limits.clone();
        let sweepers = [
            tokio::spawn(sweep_uploads(Arc::clone(&self.store), limits.upload_idle)),
            tokio::spawn(sweep_unnamed(Arc::clone(&self.store), limits.unnamed_idle)),
        ];
        let router = app::router(Arc::new(Shared::new(self.store, self.token, self.limits)));
        let connections = Connections::new(limits.connections, limits.connections_of_client);
        let graceful = GracefulShutdown::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = async {
                let (stream, address) = self.listener.accept().await?;
                let seat = connections.enter(address.ip()).await;
                io::Result::Ok(seat.map(|seat| (stream, seat)))
            };
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = accepted => accepted,
            };
            let (stream, seat) = match accepted {
                Ok(Some(accepted)) => accepted,
                Ok(None) => {
                    tracing::debug!("a client with too many connections was refused one more");
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let connection = graceful.watch(connection(stream, Arc::clone(&seat), router.clone(), &limits));
            tokio::spawn(async move {
                tokio::select! {
                    ended = connection => {
                        if let Err(error) = ended {
                            tracing::debug!(%error, "a connection ended early");
                        }
                    }
                    () = seat.ended() => tracing::debug!("a connection without a request made room"),
                }
            });
        }
        drop(self.listener);
        sweepers.iter().for_each(JoinHandle::abort);
        if tokio::time::timeout(limits.grace, graceful.shutdown()).await.is_err() {
            tracing::warn!("requests were still under way and are cut");
        }
    }
}

type Connection = http1::Connection<TokioIo<Timed>, Seated>;

fn connection(stream: TcpStream, seat: Arc<Seat>, router: axum::Router, limits: &Limits) -> Connection {
    // Answers are written whole; waiting for more to fill a packet only costs time.
    let _ = stream.set_nodelay(true);
    let stream = Timed::new(stream, Arc::clone(&seat), limits.head, limits.progress);
    http1::Builder::new()
        .timer(TokioTimer::new())
        // For hyper, silence between two requests is a part of the head of the next one.
        .header_read_timeout(limits.idle.max(limits.head))
        .max_header_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), Seated { router: TowerToHyperService::new(router), seat })
}

/// Removes what failed pushes have brought and nothing names, now and again.
async fn sweep_unnamed(store: Arc<LocalStore>, idle: Duration) {
    let rule = unnamed::Rule { older_than: Some(idle), ..unnamed::Rule::default() };
    loop {
        tokio::time::sleep(idle.clamp(Duration::from_secs(1), UNNAMED_EVERY)).await;
        let (store, rule) = (Arc::clone(&store), rule.clone());
        let swept = tokio::task::spawn_blocking(move || store.remove_unnamed(&rule, true));
        match swept.await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "what nothing names could not be removed"),
            Err(error) => tracing::warn!(%error, "what nothing names could not be removed"),
        }
    }
}

/// Removes abandoned uploads, now and again.
async fn sweep_uploads(store: Arc<LocalStore>, idle: Duration) {
    loop {
        let store = Arc::clone(&store);
        let swept = tokio::task::spawn_blocking(move || {
            store.rest(REST);
            store.idle_uploads(idle, true)
        });
        match swept.await {
            Ok(Ok(uploads)) => {
                for (id, bytes) in uploads {
                    tracing::info!(%id, bytes, "removed an abandoned upload");
                }
            }
            Ok(Err(error)) => tracing::warn!(%error, "abandoned uploads could not be looked for"),
            Err(error) => tracing::warn!(%error, "abandoned uploads could not be looked for"),
        }
        tokio::time::sleep(SWEEP_EVERY).await;
    }
}
