//! `status`: how the daemon is.

use std::fmt::{self, Write};
use std::time::Duration;

use clap::Args;
use dsec_commandline::Exit;
use dsec_commandline::quantity::bytes_text;
use dsec_format::protocol::mountd::{self, Reply, Request, Road};
use serde::Serialize;

use super::Global;

/// Show what is mounted, how much of it is on this node, what was fetched, and what went wrong
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Show it again every second, until interrupted
    #[arg(long)]
    watch: bool,
}

impl Status {
    pub(crate) fn run(self, global: &Global) -> anyhow::Result<Exit> {
        loop {
            let Reply::Status(status) = super::client::ask(global, &Request::Status)? else {
                anyhow::bail!("the daemon gave another answer than to a status request");
            };
            global.output().print(&Shown(status))?;
            if !self.watch {
                return Ok(Exit::Success);
            }
            std::thread::sleep(Duration::from_secs(1));
            if !global.json {
                global.output().write(b"\n")?;
            }
        }
    }
}

#[derive(Debug, Serialize)]
struct Shown(mountd::Status);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(&self.0))
    }
}

fn describe(status: &mountd::Status) -> String {
    let mut text = String::new();
    let road = match status.road {
        Road::Erofs => "erofs",
        Road::Fuse => "fuse",
    };
    let (cache, fetch) = (&status.cache, &status.fetch);
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "daemon   {} (pid {}), up {} s\nroad     {road}: {}\n\
         cache    {} of {}, {} chunks; hits {}, misses {}, evicted {}, damaged {}, bypassed {}\n\
         fetched  {} in {} requests; shared {}, retries {}, failed reads {}, wrong answers {}\n",
        status.version,
        status.pid,
        status.uptime_secs,
        status.road_reason,
        bytes_text(cache.used_bytes),
        bytes_text(cache.budget_bytes),
        cache.chunks,
        cache.hits,
        cache.misses,
        cache.evictions,
        cache.damaged,
        cache.bypassed,
        bytes_text(fetch.bytes),
        fetch.requests,
        fetch.shared,
        fetch.retries,
        fetch.errors,
        fetch.corrupt,
    );
    let metadata = &status.metadata;
    let _ = writeln!(
        text,
        "metadata {} of {}: {} layers with {}, {} image records with {}",
        bytes_text(metadata.layer_bytes + metadata.image_bytes),
        bytes_text(metadata.budget_bytes),
        metadata.layers,
        bytes_text(metadata.layer_bytes),
        metadata.images,
        bytes_text(metadata.image_bytes),
    );
    if let Some(alarm) = &cache.alarm {
        let _ = writeln!(text, "ALARM    the cache takes nothing new, reads go on from the sources: {alarm}");
    }
    for image in &status.images {
        let local = (image.local_bytes * 100).checked_div(image.data_bytes).unwrap_or(100);
        let _ = writeln!(
            text,
            "image    {} ({}): {local}% of {} local, {} fetched, {} failed reads, held by {}",
            image.spec,
            image.image.short(),
            bytes_text(image.data_bytes),
            bytes_text(image.fetched_bytes),
            image.errors,
            image.holders.join(", "),
        );
    }
    text
}
