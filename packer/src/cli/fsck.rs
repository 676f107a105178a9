//! `fsck`: is the local store whole?

use std::fmt;
use std::time::Duration;

use clap::Args;
use dsec_commandline::Exit;
use dsec_pack::Stage;
use dsec_pack::transfer::StoreMonitor;
use dsec_store::LocalStore;
use dsec_store::fsck::{self, Options, fsck};
use dsec_store::local::unnamed::{Rule, Unnamed};
use serde::Serialize;

use super::context::Context;
use super::failures::Found;
use dsec_commandline::quantity::bytes_text;

/// Check that the local store is whole: every object against its name, every reference present
///
/// Whatever is found is listed, and the exit code is 10.
#[derive(Debug, Args)]
pub(crate) struct Fsck {
    /// Leave out the data in packs; their tables are checked all the same
    #[arg(long)]
    quick: bool,
    /// Set damaged objects aside in the store's quarantine: they count as missing, and the next push, pull or build of what
    /// needs them brings them again; locations are made anew
    #[arg(long)]
    repair: bool,
    /// Remove packs and layers that nothing names, which writers that failed or were killed have left; nothing else is done
    ///
    /// While others write to the store, only what is older than a day: they may rely on the rest.
    #[arg(long, conflicts_with_all = ["quick", "repair"])]
    remove_unnamed: bool,
    /// Remove what is at least so old, whether or not others write to the store; a write that relied on it fails then
    #[arg(long, value_name = "SECONDS", requires = "remove_unnamed")]
    older_than_secs: Option<u64>,
    /// Say what would be removed, and do not
    #[arg(long, requires = "remove_unnamed")]
    dry_run: bool,
}

#[derive(Debug, Serialize)]
struct Removed {
    #[serde(flatten)]
    unnamed: Unnamed,
    dry_run: bool,
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unnamed { objects, bytes, in_use } = &self.unnamed;
        let did = if self.dry_run { "would be removed" } else { "removed" };
        objects.iter().try_for_each(|object| writeln!(f, "{object}: {did}"))?;
        if *in_use {
            writeln!(f, "others write to the store: what is young was left to them")?;
        }
        write!(f, "{} objects that nothing names {did}, {}", objects.len(), bytes_text(*bytes))
    }
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
        write!(f, "the store is {verdict}: {refs} refs, {images} images, {layers} layers, {packs} packs")?;
        if report.unnamed_packs > 0 {
            let bytes = bytes_text(report.unnamed_bytes);
            write!(
                f,
                "\n{} packs ({bytes}) are named by nothing: --remove-unnamed removes them",
                report.unnamed_packs
            )?;
        }
        if report.set_aside > 0 {
            write!(
                f,
                "\n{} objects are set aside in its quarantine; delete them when nobody wants them",
                report.set_aside
            )?;
        }
        Ok(())
    }
}

impl Fsck {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        let store = LocalStore::open(&context.store_directory()?)?;
        if self.remove_unnamed {
            let rule = Rule { older_than: self.older_than_secs.map(Duration::from_secs), ..Rule::default() };
            let unnamed = store.remove_unnamed(&rule, !self.dry_run)?;
            context.output.print(&Removed { unnamed, dry_run: self.dry_run })?;
            return Ok(Exit::Success);
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let monitor = StoreMonitor { monitor: &context.progress, cancel: &context.cancel, moving: Stage::Check };
        let report = fsck(&store, &Options { quick: self.quick, threads, repair: self.repair }, &monitor)?;
        context.progress.clear();
        let count = report.findings.iter().filter(|finding| finding.is_damage()).count();
        context.output.print(&Report { report })?;
        if count == 0 { Ok(Exit::Success) } else { Err(Found::Store { count }.into()) }
    }
}
