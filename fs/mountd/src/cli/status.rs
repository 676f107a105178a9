//! `status`: how the daemon is.

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use dsec_format::protocol::mountd::{self, Reply, Request, Road};

use super::Global;
use super::exit::Exit;

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
            let text = if global.json { serde_json::to_string(&status)? + "\n" } else { describe(&status) };
            super::print(text.as_bytes())?;
            if !self.watch {
                return Ok(Exit::Success);
            }
            std::thread::sleep(Duration::from_secs(1));
            if !global.json {
                super::print(b"\n")?;
            }
        }
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
        size(cache.used_bytes),
        size(cache.budget_bytes),
        cache.chunks,
        cache.hits,
        cache.misses,
        cache.evictions,
        cache.damaged,
        cache.bypassed,
        size(fetch.bytes),
        fetch.requests,
        fetch.shared,
        fetch.retries,
        fetch.errors,
        fetch.corrupt,
    );
    for image in &status.images {
        let local = (image.local_bytes * 100).checked_div(image.data_bytes).unwrap_or(100);
        let _ = writeln!(
            text,
            "image    {} ({}): {local}% of {} local, {} fetched, {} failed reads, held by {}",
            image.spec,
            image.image.short(),
            size(image.data_bytes),
            size(image.fetched_bytes),
            image.errors,
            image.holders.join(", "),
        );
    }
    text
}

/// A number of bytes for people.
fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = UNITS.iter().find(|(unit, _)| bytes >= *unit);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(unit, name)| format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")] {
            assert_eq!(size(bytes), text);
        }
    }
}
