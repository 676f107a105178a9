//! An edge from start to stop.

use std::fs::TryLockError;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::error::chain;
use super::images::Images;
use super::journal::{Found, Journal};
use super::pool::{self, Pool};
use super::{Config, Edge, ids, journal, output, routes, table};
use crate::mountd;

/// How long the directory may be another edge's before that is an error.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks at the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// How long a stop waits for mountd.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a stop waits for the last spare to be removed.
const SPARES_PATIENCE: Duration = Duration::from_secs(10);
/// After a connection could not be accepted; mostly no descriptors are left, and some come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why an edge does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another edge has the directory.
    #[error("another edge works in {}", root.display())]
    Locked {
        /// The directory.
        root: PathBuf,
    },
    /// Something answers there already.
    #[error("something listens at {} already", socket.display())]
    SocketInUse {
        /// Where.
        socket: PathBuf,
    },
    /// A file or directory of its own cannot be used.
    #[error("the edge's files cannot be used")]
    Files(#[source] io::Error),
    /// It cannot listen.
    #[error("cannot listen at {}", socket.display())]
    Listen {
        /// Where.
        socket: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Names or ids.
    #[error(transparent)]
    Ids(#[from] ids::Error),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// The node lacks what every sandbox needs.
    #[error("this node cannot run sandboxes")]
    Runtime(#[source] dsec_sandbox::Error),
    /// A task was lost.
    #[error("a task of the edge was lost")]
    Lost,
}

/// Runs an edge until `shutdown` is done: takes over what a former one left, listens, and stops. Sandboxes run on when
/// it stops, but for those that live as long as a request.
///
/// `ready` is called once it listens.
///
/// # Errors
/// When it cannot start.
pub async fn serve(
    config: Config,
    shutdown: impl Future<Output = ()> + Send + 'static,
    ready: impl FnOnce(),
) -> Result<(), StartError> {
    let lock = {
        let root = config.root.clone();
        tokio::task::spawn_blocking(move || lock_root(&root)).await.map_err(|_| StartError::Lost)??
    };
    let (edge, found) = {
        let config = config.clone();
        tokio::task::spawn_blocking(move || open(config)).await.map_err(|_| StartError::Lost)??
    };
    let edge = Arc::new(edge);
    let (recovered, waiting) = {
        let edge = Arc::clone(&edge);
        tokio::task::spawn_blocking(move || edge.recover(found)).await.map_err(|_| StartError::Lost)?
    };
    tracing::info!(tag = %edge.tag, ?recovered, "edge started");
    let listener = listen(&config.socket).await?;
    let keeper = tokio::spawn(Arc::clone(&edge.images).keep());
    let spares = tokio::spawn(Arc::clone(&edge).keep_spares());
    let reconciler = tokio::spawn(Arc::clone(&edge).reconcile());
    let adopters = waiting.into_iter().map(|entry| tokio::spawn(Arc::clone(&edge).adopt_later(entry)));
    let adopters: Vec<_> = adopters.collect();
    ready();
    tokio::select! {
        () = accept(listener, &edge) => {}
        () = stop(Arc::clone(&edge), shutdown) => {}
    }
    // What is left by then is in the journal, as what the next edge removes.
    if tokio::time::timeout(SPARES_PATIENCE, spares).await.is_err() {
        tracing::warn!("spares stay for now");
    }
    for task in adopters.into_iter().chain([keeper, reconciler]) {
        task.abort();
    }
    edge.images.cool_down();
    // What is not given back by then is what the next edge finds.
    let _ = tokio::time::timeout(RELEASE_PATIENCE, edge.images.release_waiting()).await;
    // One that is gone already is what is wanted.
    let _ = fs_err::remove_file(&config.socket);
    drop(lock);
    Ok(())
}

/// When it is time: no new sandboxes, and those of single requests end.
async fn stop(edge: Arc<Edge>, shutdown: impl Future<Output = ()>) {
    shutdown.await;
    edge.table.stop();
    edge.spares.close();
    for entry in edge.table.all() {
        if entry.reserved.ephemeral
            && let Err(error) = edge.destroy(&entry).await
        {
            tracing::error!(sandbox = %entry.id(), error = %chain(&error), "a run's sandbox stays for now");
        }
    }
}

/// Makes the root directory and takes it for this process.
fn lock_root(root: &Path) -> Result<fs_err::File, StartError> {
    make_private_directory(root).map_err(StartError::Files)?;
    let lock = fs_err::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .open(root.join("lock"))
        .map_err(StartError::Files)?;
    let begun = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::Error(error)) => return Err(StartError::Files(error)),
            // A killed edge's last children die just after it, and its descriptors with them.
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_PATIENCE => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::WouldBlock) => return Err(StartError::Locked { root: root.to_owned() }),
        }
    }
}

fn make_private_directory(path: &Path) -> io::Result<()> {
    let make = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    make.map_err(|error| io::Error::new(error.kind(), format!("cannot make directory {}: {error}", path.display())))
}

/// The blocking part of the start.
fn open(config: Config) -> Result<(Edge, Vec<Found>), StartError> {
    config.ids.check(&config.subids)?;
    let tag = ids::Tag::load_or_draw(&config.root)?;
    let runtime = dsec_sandbox::Runtime::open(&dsec_sandbox::Config::default()).map_err(StartError::Runtime)?;
    let journal = Journal::open(&config.root)?;
    let found = journal.load()?;
    let used = found.iter().filter_map(|found| match found {
        Found::Record(record) => Some(record.id_base),
        Found::Remains(_) => None,
    });
    let mountd = mountd::Client::new(&config.mountd, config.mountd_deadline);
    let edge = Edge {
        images: Images::new(mountd, tag.clone(), config.warm, config.warm_images),
        ranges: ids::Ranges::new(config.ids, used),
        budget: output::Budget::new(config.output_budget_bytes),
        table: table::Table::default(),
        spares: Pool::new(pool::Bounds { most: config.spares, keep: config.spare_time }),
        incarnation: ids::random_letters(ids::TAG_LETTERS)?,
        next_exec: AtomicU64::new(1),
        creating: Semaphore::new(config.parallel),
        removing: Semaphore::new(config.parallel),
        starting: Semaphore::new(config.parallel),
        copying: Semaphore::new(config.copies),
        commands: Arc::new(Semaphore::new(config.commands)),
        runtime,
        journal,
        tag,
        config,
    };
    Ok((edge, found))
}

/// Listens at a path that only root can reach. What a killed edge left there is replaced.
async fn listen(socket: &Path) -> Result<UnixListener, StartError> {
    if let Some(parent) = socket.parent() {
        make_private_directory(parent).map_err(StartError::Files)?;
    }
    if UnixStream::connect(socket).await.is_ok() {
        return Err(StartError::SocketInUse { socket: socket.to_owned() });
    }
    let failed = |source| StartError::Listen { socket: socket.to_owned(), source };
    // Under another name until only root can connect.
    let new = socket.with_extension(format!("{}.new", std::process::id()));
    if new.exists() {
        fs_err::remove_file(&new).map_err(StartError::Files)?;
    }
    let listener = UnixListener::bind(&new).map_err(failed)?;
    fs_err::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    fs_err::rename(&new, socket).map_err(failed)?;
    Ok(listener)
}

/// Serves connections, each in a task of its own, within the bound on their number: the next one waits.
async fn accept(listener: UnixListener, edge: &Arc<Edge>) {
    let (places, router) = (Arc::new(Semaphore::new(edge.config.connections)), routes::router(Arc::clone(edge)));
    let head = edge.config.progress;
    loop {
        // Never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = TowerToHyperService::new(router.clone());
                tokio::spawn(async move {
                    let mut http = http1::Builder::new();
                    http.timer(TokioTimer::new()).header_read_timeout(head);
                    if let Err(error) = http.serve_connection(TokioIo::new(stream), router).await {
                        tracing::debug!(%error, "a connection ended early");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
