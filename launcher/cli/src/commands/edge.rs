//! `dsec edge`: the daemon.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dsec_fleet::edge::{Config, serve};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Edge;
use crate::failure::Failure;
use crate::print;

/// Threads for what blocks: creations, removals, starts and copies are bounded below this by the edge itself. Beside them
/// one thread waits for all sockets: it only moves bytes, and several would wake each other for every request.
const BLOCKING: usize = 128;

/// Open files that a command costs: three pipes, and its process twice. Commands together get half of all.
const COMMAND_FILES: usize = 5;

/// What a daemon prints when it can be used.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    listening: &'a Path,
}

/// `dsec edge`.
pub(crate) fn edge(edge: Edge, socket: PathBuf, json: bool) -> Result<ExitCode, Failure> {
    edge.log.start(true);
    let open_files =
        raise_open_files().map_err(|source| Failure::Local { what: "raise the limit of open files", source })?;
    let mut config = Config::new(
        absolute(edge.root)?,
        absolute(edge.socket.unwrap_or(socket))?,
        absolute(edge.mountd)?,
        memory_bytes().map_err(|source| Failure::Local { what: "read the size of the memory", source })?,
    );
    config.commands = config.commands.min(open_files / 2 / COMMAND_FILES);
    config.ids.base = edge.id_base.unwrap_or(config.ids.base);
    config.ids.count = edge.id_ranges.unwrap_or(config.ids.count);
    config.spares = edge.spares.unwrap_or(config.spares);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING)
        .thread_name("edge")
        .enable_all()
        .build()
        .map_err(|source| Failure::Local { what: "start threads", source })?;
    runtime.block_on(async {
        let handler = |kind| signal(kind).map_err(|source| Failure::Local { what: "wait for signals", source });
        let (mut terminate, mut interrupt) = (handler(SignalKind::terminate())?, handler(SignalKind::interrupt())?);
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let at = config.socket.clone();
        let ready = move || {
            tracing::info!(socket = %at.display(), "listening");
            // An edge serves whether or not somebody reads this.
            let _ = if json {
                print::json(&Ready { listening: &at }).map(|_| ())
            } else {
                print::line(&format!("listening on {}", at.display()))
            };
        };
        Ok::<_, Failure>(serve(config, shutdown, ready).await?)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn absolute(path: PathBuf) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|source| Failure::Local { what: "find the current directory", source })
}

/// There are thousands of sandboxes, each with commands. How many open files there may be.
fn raise_open_files() -> io::Result<usize> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    Ok(limit.current.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX))
}

fn memory_bytes() -> io::Result<u64> {
    let text = fs_err::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: Option<u64> = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
