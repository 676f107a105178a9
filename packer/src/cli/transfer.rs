//! `push` and `pull`: between the local store and another.

use std::fmt;

use clap::Args;
use dsec_commandline::Exit;
use dsec_commandline::quantity::bytes_text;
use dsec_format::refs::{RefName, Spec, Target};
use dsec_pack::Stage;
use dsec_pack::transfer::{Moved, StoreMonitor, copy};
use dsec_store::LocalStore;
use dsec_store::transfer::Options;
use serde::Serialize;

use super::context::Context;
use super::names;
use super::stores::Token;

/// Copy an image from the local store to a registry or another store
///
/// Only what is missing there is sent. The ref is set last, so that it never names something incomplete.
#[derive(Debug, Args)]
pub(crate) struct Push {
    /// NAME, NAME:TAG or digest
    image: Spec,
    /// Where to: http://HOST[:PORT], or a directory
    #[arg(value_name = "URL|DIR")]
    to: String,
    /// Its name there
    #[arg(long = "as", value_name = "NAME")]
    name: Option<RefName>,
    #[command(flatten)]
    token: Token,
}

/// Copy an image from a registry or another store to the local store
///
/// Only what is missing here is fetched, and checked. The ref is set last, so that it never names something incomplete.
#[derive(Debug, Args)]
pub(crate) struct Pull {
    /// NAME, NAME:TAG or digest
    image: Spec,
    /// Where from: http://HOST[:PORT], or a directory
    #[arg(value_name = "URL|DIR")]
    from: String,
    /// Its name here
    #[arg(long = "as", value_name = "NAME")]
    name: Option<RefName>,
    #[command(flatten)]
    token: Token,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    moved: Moved,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.moved.target {
            Target::Image(digest) => writeln!(f, "{digest}")?,
            Target::Environment(digest) => writeln!(f, "{digest}")?,
        }
        if let Some(record) = &self.moved.record {
            writeln!(f, "ref      {}", record.name)?;
        }
        let stats = &self.moved.stats;
        let [sent, moved, skipped] = [stats.sent_bytes, stats.moved_bytes, stats.skipped_bytes].map(bytes_text);
        writeln!(f, "sent     {sent} for {moved} in {} chunks; {skipped} was there", stats.moved_chunks)?;
        writeln!(f, "layers   {} sent, {} were there", stats.layers, stats.skipped_layers)?;
        let seconds = std::time::Duration::from_millis(stats.elapsed_ms).as_secs_f64();
        writeln!(f, "time     {seconds:.2} s, {} requests", stats.requests)
    }
}

impl Push {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        let store = LocalStore::open(&context.store_directory()?)?;
        let to = self.token.open(&self.to, true, &context.cancel)?;
        let scratch = store.scratch()?;
        let monitor = StoreMonitor { monitor: &context.progress, cancel: &context.cancel, moving: Stage::Push };
        let options = Options::new(scratch.path());
        let moved = copy(&store, &self.image, &*to, self.name.as_ref(), &options, &monitor);
        let moved = moved.map_err(|error| names::explain_spec(&store, &self.image, error))?;
        context.progress.clear();
        context.output.print(&Report { moved })?;
        Ok(Exit::Success)
    }
}

impl Pull {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        let store = LocalStore::create(&context.store_directory()?)?;
        let from = self.token.open(&self.from, false, &context.cancel)?;
        let scratch = store.scratch()?;
        let monitor = StoreMonitor { monitor: &context.progress, cancel: &context.cancel, moving: Stage::Pull };
        let options = Options::new(scratch.path());
        let moved = copy(&*from, &self.image, &store, self.name.as_ref(), &options, &monitor);
        let moved = moved.map_err(|error| names::explain_spec(&*from, &self.image, error))?;
        context.progress.clear();
        context.output.print(&Report { moved })?;
        Ok(Exit::Success)
    }
}
