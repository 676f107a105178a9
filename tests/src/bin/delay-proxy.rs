//! `delay-proxy`: puts a distance between a node and a registry on one machine. See [`dsec_tests::proxy`].

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use dsec_tests::proxy::{Proxy, STATS_PATH};

/// Relays HTTP/1.1 to one server, after a fixed delay for each request, and counts.
#[derive(Parser)]
#[command(version, after_help = format!("GET {STATS_PATH} is answered by the proxy itself: its counters, as JSON."))]
struct Arguments {
    /// Address to listen on; port 0 takes a free one. The address taken is printed as the first line.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Address of the server.
    #[arg(long)]
    upstream: SocketAddr,
    /// Milliseconds that each request waits before it is passed on.
    #[arg(long, default_value_t = 20)]
    delay_ms: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let listener =
        TcpListener::bind(arguments.listen).with_context(|| format!("cannot listen on {}", arguments.listen))?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    std::io::stdout().flush()?;
    Proxy::new(arguments.upstream, Duration::from_millis(arguments.delay_ms)).serve(&listener);
    Ok(())
}
