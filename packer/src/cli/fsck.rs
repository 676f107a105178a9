//! `fsck`: is the local store whole?

use std::fmt;

use clap::Args;
use dsec_pack::Stage;
use dsec_pack::transfer::StoreMonitor;
use dsec_store::LocalStore;
use dsec_store::fsck::{self, Options, fsck};
use serde::Serialize;

use super::context::Context;
use super::exit::Exit;
use super::failures::Found;

/// Check that the local store is whole: every object against its name, every reference present
///
/// Whatever is found is listed, and the exit code is 10.
#[derive(Debug, Args)]
pub(crate) struct Fsck {
    /// Leave out the data in packs; their tables are checked all the same
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    report: fsck::Report,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = &self.report;
        report.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))?;
        let fsck::Report { refs, images, layers, packs, .. } = report;
        let verdict = if report.is_clean() { "whole" } else { "not whole" };
        write!(f, "the store is {verdict}: {refs} refs, {images} images, {layers} layers, {packs} packs")
    }
}

impl Fsck {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        let store = LocalStore::open(&context.store_directory()?)?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let monitor = StoreMonitor { monitor: &context.progress, cancel: &context.cancel, moving: Stage::Check };
        let report = fsck(&store, &Options { quick: self.quick, threads }, &monitor)?;
        context.progress.clear();
        let count = report.findings.iter().filter(|finding| finding.is_damage()).count();
        context.output.print(&Report { report })?;
        if count == 0 { Ok(Exit::Success) } else { Err(Found::Store { count }.into()) }
    }
}
