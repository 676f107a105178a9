//! The routes, the token, and what all handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use dsec_store::LocalStore;
use dsec_store::local::unnamed;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::Failure;
use crate::{objects, refs, uploads};

/// What one client, and all of them together, may cost.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at a time. One more takes the place of the one that has been waiting longest for the head of a
    /// request; when all are in use it waits.
    pub connections: usize,
    /// Connections of one client (one address, one IPv6 network of 64 bits) at a time; the same holds for one more, but
    /// when all are in use it is closed.
    pub connections_of_client: usize,
    /// Requests with a large body at a time; more are told to come back.
    pub uploads: usize,
    /// Checks of packs and layers, and other work on the disk, at a time; more wait.
    pub work: usize,
    /// Longest upload, bytes.
    pub upload_bytes: u64,
    /// Unfinished uploads that are kept in the store; whoever begins one more is told to come back.
    pub unfinished_uploads: usize,
    /// Bytes of all unfinished uploads together; what would add more is refused as by a full disk.
    pub unfinished_bytes: u64,
    /// Longest wait for more bytes of a body, and for a client to take more of an answer. Also how far a client may be
    /// behind 16 KiB a second with either.
    pub progress: Duration,
    /// Longest wait for the head of the first request on a connection, and from the first byte of each further one.
    pub head: Duration,
    /// Longest silence between two requests on a connection.
    pub idle: Duration,
    /// Longest wait for a turn before a client is told to come back.
    pub turn: Duration,
    /// Uploads that nothing was added to for so long are removed.
    pub upload_idle: Duration,
    /// So are packs and layers that nothing names and no client asked for for so long.
    pub unnamed_idle: Duration,
    /// Longest wait for requests that are under way when the server stops.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_of_client: 256,
            uploads: 64,
            work: 16,
            upload_bytes: 4 << 30,
            unfinished_uploads: 4096,
            unfinished_bytes: 64 << 30,
            progress: Duration::from_secs(30),
            head: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            turn: Duration::from_secs(20),
            upload_idle: Duration::from_secs(24 * 60 * 60),
            unnamed_idle: unnamed::GRACE,
            grace: Duration::from_secs(10),
        }
    }
}

/// What a client has to know. Only its hash is kept; comparing hashes takes the same time wherever they differ.
#[derive(Clone)]
pub struct Token(blake3::Hash);

impl Token {
    /// A token; `None` for one that no header can carry: empty, or with blanks in it.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let sound = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        sound.then(|| Self(blake3::hash(text.as_bytes())))
    }

    fn is(&self, text: &[u8]) -> bool {
        // `blake3::Hash` compares in constant time.
        self.0 == blake3::hash(text)
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What all handlers share.
pub(crate) struct Shared {
    pub(crate) store: Arc<LocalStore>,
    pub(crate) limits: Limits,
    token: Option<Token>,
    work: Arc<Semaphore>,
    uploads: Arc<Semaphore>,
    /// Bytes of unfinished uploads that requests under way may still add.
    promised: Arc<AtomicU64>,
}

/// Bytes that a request may add to unfinished uploads. Given back when dropped.
pub(crate) struct Room {
    bytes: u64,
    promised: Arc<AtomicU64>,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.promised.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

pub(crate) type App = State<Arc<Shared>>;

impl Shared {
    pub(crate) fn new(store: Arc<LocalStore>, token: Option<Token>, limits: Limits) -> Self {
        Self {
            store,
            work: Arc::new(Semaphore::new(limits.work)),
            uploads: Arc::new(Semaphore::new(limits.uploads)),
            promised: Arc::default(),
            limits,
            token,
        }
    }

    /// Runs work on the store on a thread that may block.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LocalStore) -> dsec_store::error::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let turn = tokio::time::timeout(self.limits.turn, Arc::clone(&self.work).acquire_owned()).await;
        let permit = turn.map_err(|_| Failure::busy())?.map_err(|_| Failure::busy())?;
        let store = Arc::clone(&self.store);
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&store)
        });
        Ok(done.await.map_err(|_| Failure::internal("a worker failed"))??)
    }

    /// Room for `bytes` more bytes of unfinished uploads. What has arrived of a request counts twice until it ends.
    pub(crate) async fn room(&self, bytes: u64) -> Result<Room, Failure> {
        let (_, kept_bytes) = self.blocking(LocalStore::unfinished_uploads).await?;
        let promised = self.promised.fetch_add(bytes, Ordering::Relaxed);
        let room = Room { bytes, promised: Arc::clone(&self.promised) };
        let need = kept_bytes.saturating_add(promised).saturating_add(bytes);
        if need <= self.limits.unfinished_bytes { Ok(room) } else { Err(Failure::no_room()) }
    }

    /// A turn to send a large body, or the advice to come back.
    pub(crate) fn upload_turn(&self) -> Result<OwnedSemaphorePermit, Failure> {
        Arc::clone(&self.uploads).try_acquire_owned().map_err(|_| Failure::busy())
    }
}

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let guarded = Router::new()
        .route("/v1/refs", get(refs::list))
        .route("/v1/refs/{*name}", get(refs::read).put(refs::set).delete(refs::remove))
        .route("/v1/images/{hex}", get(objects::image).head(objects::image_head).put(objects::put_image))
        .route(
            "/v1/environments/{hex}",
            get(objects::environment).head(objects::environment_head).put(objects::put_environment),
        )
        .route("/v1/layers/{hex}", get(objects::layer).head(objects::layer_head).put(objects::put_layer))
        .route("/v1/layers/{hex}/locations", get(objects::locations))
        .route("/v1/packs/{hex}", get(objects::pack).head(objects::pack_head))
        .route("/v1/chunks/missing", post(objects::missing_chunks))
        .route("/v1/uploads", post(uploads::begin))
        .route("/v1/uploads/{id}", axum::routing::patch(uploads::append).head(uploads::offset).put(uploads::finish))
        .fallback(async || Failure::no_route())
        .method_not_allowed_fallback(async || Failure::method())
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), check_token));
    Router::new()
        .route("/v1/health", get(async || "ok\n"))
        .merge(guarded)
        .layer(middleware::from_fn(log))
        .with_state(shared)
}

async fn check_token(State(shared): App, request: Request, next: Next) -> Result<Response, Failure> {
    if let Some(token) = &shared.token {
        let given = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
        let given = given.and_then(|value| value.strip_prefix(b"Bearer "));
        if !given.is_some_and(|given| token.is(given)) {
            return Err(Failure::unauthorized());
        }
    }
    Ok(next.run(request).await)
}

async fn log(request: Request, next: Next) -> Response {
    let (start, method, path) = (Instant::now(), request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    let status = response.status().as_u16();
    tracing::info!(%method, path, status, elapsed_ms = start.elapsed().as_millis(), "request");
    response
}
