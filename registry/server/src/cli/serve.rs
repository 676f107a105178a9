//! `serve`: serves a store until it is told to stop.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use dsec_commandline::{Exit, Output, store};
use dsec_registry::{Limits, Registry, Token};
use dsec_store::LocalStore;
use rustix::process::{Resource, Rlimit};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

/// Serve a store
///
/// Prints one line, `listening on ADDRESS`, when it can be used, and runs until SIGINT or SIGTERM: then requests that
/// are under way may end.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The store [default: /var/lib/dsec/store for root, else dsec/store in the user's data directory]
    #[arg(long, env = "DSEC_STORE", value_name = "DIR", hide_env_values = true)]
    store: Option<PathBuf>,
    /// Make the store when the directory is missing or empty
    #[arg(long)]
    create: bool,
    /// Address, or name, and port to listen on; port 0 is any free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7300")]
    listen: String,
    /// Write the port to a file once it listens
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
    /// File whose first line is the token that every client must send
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    token_file: Option<PathBuf>,
    /// Allow an address that others can reach, without a token: whoever reaches it may read and write
    #[arg(long)]
    insecure: bool,
    /// Most connections at a time
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections, value_parser = positive)]
    max_connections: usize,
    /// Most connections of one client at a time: behind a proxy, which is one, as many as all
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections_of_client, value_parser = positive)]
    max_connections_of_client: usize,
    /// Most uploads at a time
    #[arg(long, value_name = "N", default_value_t = Limits::default().uploads, value_parser = positive)]
    max_uploads: usize,
    /// Most uploads that were begun and not finished
    #[arg(long, value_name = "N", default_value_t = Limits::default().unfinished_uploads, value_parser = positive)]
    max_unfinished_uploads: usize,
    /// Most bytes of uploads that were not finished
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().unfinished_bytes, value_parser = clap::value_parser!(u64).range(1..))]
    max_unfinished_bytes: u64,
    /// Longest silence of a client in the middle of a request or an answer
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().progress.as_secs(), value_parser = clap::value_parser!(u64).range(1..=3600))]
    client_timeout_secs: u64,
    /// Remove an upload that nothing was added to for so long
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().upload_idle.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    upload_idle_secs: u64,
    /// Remove what failed pushes have brought when nothing names it and no client asked for it for so long
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().unnamed_idle.as_secs(), value_parser = clap::value_parser!(u64).range(2..))]
    unnamed_idle_secs: u64,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("it is a number from 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

/// A token file that has no usable token.
#[derive(Debug, thiserror::Error)]
#[error("{} has no usable token in its first line: printable characters without blanks", path.display())]
pub(crate) struct TokenError {
    path: PathBuf,
}

/// What does not name an address.
#[derive(Debug, thiserror::Error)]
#[error("cannot find the address {given}")]
pub(crate) struct AddressError {
    given: String,
    source: std::io::Error,
}

/// The addresses of `HOST:PORT`, those of version 4 first: that is what clients that know one version speak.
fn addresses(given: &str) -> Result<Vec<SocketAddr>, AddressError> {
    let failed = |source| AddressError { given: given.to_owned(), source };
    let mut found: Vec<_> = given.to_socket_addrs().map_err(failed)?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    Ok(found)
}

impl Serve {
    pub(crate) fn run(self, output: Output) -> anyhow::Result<Exit> {
        let is_root = rustix::process::geteuid().is_root();
        let system = dsec_format::protocol::STORE_DIRECTORY.as_ref();
        let directory = store::directory(self.store.as_deref(), is_root, system, |name| std::env::var_os(name))?;
        let store = if self.create { LocalStore::create(&directory) } else { LocalStore::open(&directory) }?;
        let addresses = addresses(&self.listen)?;
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        let limits = Limits {
            connections: self.max_connections,
            connections_of_client: self.max_connections_of_client,
            uploads: self.max_uploads,
            unfinished_uploads: self.max_unfinished_uploads,
            unfinished_bytes: self.max_unfinished_bytes,
            progress: Duration::from_secs(self.client_timeout_secs),
            upload_idle: Duration::from_secs(self.upload_idle_secs),
            unnamed_idle: Duration::from_secs(self.unnamed_idle_secs),
            ..Limits::default()
        };
        raise_open_files()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut terminate = signal(SignalKind::terminate())?;
            let registry = Registry::listen(store, &addresses, token, self.insecure, limits).await?;
            announce(registry.address(), self.port_file.as_deref(), output)?;
            registry
                .serve(async {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                    tracing::info!("stopping");
                })
                .await;
            anyhow::Ok(())
        })?;
        // Threads that block on a dead file system are not waited for.
        runtime.shutdown_timeout(Duration::from_secs(5));
        Ok(Exit::Success)
    }
}

/// Every connection is an open file, and its request opens another.
fn raise_open_files() -> anyhow::Result<()> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("cannot raise the limit of open files")
}

fn read_token(path: &Path) -> anyhow::Result<Token> {
    let text = fs_err::read_to_string(path)?;
    let line = text.lines().next().unwrap_or_default().trim();
    Ok(Token::new(line).ok_or_else(|| TokenError { path: path.to_owned() })?)
}

/// What a daemon prints when it can be used.
#[derive(Debug, Serialize)]
struct Ready {
    listening: String,
    port: u16,
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listening on {}", self.listening)
    }
}

fn announce(address: SocketAddr, port_file: Option<&Path>, output: Output) -> anyhow::Result<()> {
    if let Some(path) = port_file {
        // By rename: who waits for the file never sees it empty.
        let temporary = path.with_extension(format!("tmp-{}", std::process::id()));
        fs_err::write(&temporary, format!("{}\n", address.port()))?;
        fs_err::rename(&temporary, path)?;
    }
    Ok(output.print(&Ready { listening: address.to_string(), port: address.port() })?)
}

#[cfg(test)]
mod tests {
    use super::addresses;

    #[test]
    fn names_and_numbers_are_addresses() {
        let local = addresses("localhost:7300").unwrap();
        assert!(!local.is_empty() && local.iter().all(|address| address.ip().is_loopback() && address.port() == 7300));
        assert_eq!(addresses("0.0.0.0:0").unwrap(), ["0.0.0.0:0".parse().unwrap()]);
        assert_eq!(addresses("[::1]:1").unwrap(), ["[::1]:1".parse().unwrap()]);
        for wrong in ["7300", "localhost", "localhost:port", ":"] {
            assert!(addresses(wrong).unwrap_err().to_string().contains(wrong), "{wrong}");
        }
    }
}
