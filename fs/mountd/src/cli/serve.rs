//! `serve`: the daemon.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use dsec_commandline::Exit;
use dsec_commandline::quantity::parse_bytes;
use dsec_commandline::token::{self, TokenFile};
use dsec_mountd::cache;
use dsec_mountd::control::Listener;
use dsec_mountd::fetch;
use dsec_mountd::node::{Node, Options};
use dsec_mountd::road::Wish;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{Global, sources};

/// How often idle layers are looked after.
const TICK: Duration = Duration::from_secs(1);
/// The default budget is this share of the file system, at most [`DEFAULT_CACHE_BYTES`].
const DEFAULT_CACHE_SHARE: u64 = 4;
const DEFAULT_CACHE_BYTES: u64 = 50 << 30;
/// The default budget of metadata is this share of that of chunks.
const DEFAULT_METADATA_SHARE: u64 = 4;

/// Serve images on this node until SIGTERM or SIGINT, which unmount everything, held or not
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where images come from: the directory of a store, or the http:// URL of a registry. Give it several times for
    /// several sources, the preferred one first
    #[arg(long, visible_alias = "source", value_name = "DIR|URL",
        default_value = dsec_format::protocol::STORE_DIRECTORY)]
    store: Vec<String>,
    #[command(flatten)]
    token: TokenFile,
    /// Directory of the cache, on a local disk. Made when it is missing; belongs to one daemon
    #[arg(long, value_name = "DIR", default_value = "/var/lib/dsec/cache")]
    cache: PathBuf,
    /// Bytes that cached chunks may use, with an optional K, M, G or T (powers of 1024) [default: a quarter of
    /// the cache's file system, at most 50G]
    #[arg(long, value_name = "N", value_parser = parse_bytes)]
    cache_bytes: Option<u64>,
    /// Bytes that the unpacked metadata of layers may use, beside the chunks. What is in use may be more [default:
    /// a quarter of what the chunks may use]
    #[arg(long, value_name = "N", value_parser = parse_bytes)]
    metadata_bytes: Option<u64>,
    /// Bytes of chunks kept in memory
    #[arg(long, value_name = "N", value_parser = parse_bytes, default_value = "16M")]
    memory_bytes: u64,
    /// Directory below which layers are mounted. Belongs to one daemon
    #[arg(long, value_name = "DIR", default_value = "/run/dsec/mountd")]
    run: PathBuf,
    /// How layers are served: EROFS mounted by the kernel, a tree through FUSE, or what works here
    #[arg(long, value_enum, default_value_t = Wish::Auto)]
    road: Wish,
    /// A read that has not got its bytes by then fails with EIO
    #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..))]
    deadline_ms: u64,
    /// How long a layer stays mounted, and its pages cached, after the last holder has let go
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    linger_ms: u64,
    /// Requests to sources at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    fetch_threads: u16,
    /// Longest ranged read that neighbouring frames are joined into
    #[arg(long, value_name = "N", value_parser = parse_bytes, default_value = "1M")]
    join_bytes: u64,
    /// Threads that answer the kernel [default: two a core, at least 4, at most 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    fuse_threads: Option<u16>,
}

/// What a daemon prints when it can be used.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    listening: &'a Path,
}

impl fmt::Display for Ready<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listening on {}", self.listening.display())
    }
}

impl Serve {
    pub(crate) fn run(self, global: &Global) -> anyhow::Result<Exit> {
        // Before any thread: they inherit the mask, and nothing is mounted that a signal would leave behind.
        let signals = Signals::new([SIGTERM, SIGINT])?;
        let node = Arc::new(Node::start(self.options()?)?);
        let listener = match Listener::bind(&global.socket) {
            Ok(listener) => Arc::new(listener),
            Err(error) => {
                node.stop()?;
                return Err(error.into());
            }
        };
        let (server, served) = (Arc::clone(&listener), Arc::clone(&node));
        std::thread::Builder::new().name("listen".to_owned()).spawn(move || server.serve(&served))?;
        tracing::info!(socket = %global.socket.display(), "serving");
        let announced = global.output().print(&Ready { listening: &global.socket });
        let outcome = announced.map_err(anyhow::Error::from).and_then(|()| watch(&node, signals));
        listener.unlink();
        node.stop()?;
        outcome
    }

    fn options(&self) -> anyhow::Result<Options> {
        let budget_bytes = match self.cache_bytes {
            Some(bytes) => bytes,
            None => default_budget(&self.cache)?,
        };
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let memory_bytes = usize::try_from(self.memory_bytes)?;
        let token = self.token.read(std::env::var(token::VARIABLE).ok())?;
        let token = token.as_deref();
        let deadline = Duration::from_millis(self.deadline_ms);
        let source = |place: &String| sources::open(place, token, deadline);
        Ok(Options {
            sources: self.store.iter().map(source).collect::<Result<_, _>>()?,
            cache: self.cache.clone(),
            cache_options: cache::Options { budget_bytes, memory_bytes },
            metadata_bytes: self.metadata_bytes.unwrap_or(budget_bytes / DEFAULT_METADATA_SHARE),
            fetch: fetch::Options {
                threads: usize::from(self.fetch_threads),
                join_bytes: self.join_bytes,
                deadline,
                ..fetch::Options::default()
            },
            run: self.run.clone(),
            road: self.road,
            fuse_threads: self.fuse_threads.map_or((cores * 2).clamp(4, 16), usize::from),
            linger: Duration::from_millis(self.linger_ms),
        })
    }
}

fn default_budget(cache: &Path) -> anyhow::Result<u64> {
    // The directory itself may not be there yet.
    let there = std::path::absolute(cache)?;
    let there = there.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let file_system = rustix::fs::statvfs(there)?;
    let share = file_system.f_blocks.saturating_mul(file_system.f_frsize) / DEFAULT_CACHE_SHARE;
    Ok(share.clamp(cache::MIN_BUDGET_BYTES, DEFAULT_CACHE_BYTES))
}

/// Looks after the node until a signal comes.
fn watch(node: &Node, mut signals: Signals) -> anyhow::Result<Exit> {
    let (sender, receiver) = crossbeam_channel::bounded(1);
    let wait = move || signals.forever().next().and_then(|signal| sender.send(signal).ok());
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    loop {
        if let Ok(signal) = receiver.recv_timeout(TICK) {
            tracing::info!(signal, "stopping");
            return Ok(Exit::Success);
        }
        node.tick();
        if node.is_broken() {
            anyhow::bail!("the FUSE session has ended: somebody unmounted it");
        }
    }
}
