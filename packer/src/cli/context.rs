//! What every subcommand gets: the store's directory, output, progress, the request to stop.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use dsec_format::protocol::STORE_DIRECTORY;
use dsec_pack::Cancel;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::Global;
use super::output::Output;
use super::progress::Progress;

/// Made once, before the subcommand runs.
#[derive(Debug)]
pub(crate) struct Context {
    store: Option<PathBuf>,
    /// Where results go.
    pub(crate) output: Output,
    /// Where progress goes.
    pub(crate) progress: Progress,
    /// Set by SIGINT and SIGTERM.
    pub(crate) cancel: Cancel,
}

impl Context {
    pub(crate) fn new(global: &Global) -> anyhow::Result<Self> {
        let cancel = Cancel::new();
        for signal in [SIGINT, SIGTERM] {
            // The first one asks; the second, when something does not listen, ends at once.
            signal_hook::flag::register_conditional_shutdown(signal, 130, cancel.flag())
                .and_then(|_| signal_hook::flag::register(signal, cancel.flag()))
                .with_context(|| format!("cannot handle signal {signal}"))?;
        }
        let visible = !global.quiet && std::io::stderr().is_terminal();
        let (output, progress) = (Output::new(global.json), Progress::new(visible));
        Ok(Self { store: global.store.clone(), output, progress, cancel })
    }

    /// The directory of the local store.
    pub(crate) fn store_directory(&self) -> anyhow::Result<PathBuf> {
        if let Some(store) = &self.store {
            return std::path::absolute(store).with_context(|| format!("{} is no path", store.display()));
        }
        if rustix::process::geteuid().is_root() {
            return Ok(STORE_DIRECTORY.into());
        }
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        absolute("XDG_DATA_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
            .map(|data| data.join("dsec/store"))
            .ok_or_else(|| anyhow!("no store given: neither --store, DSEC_STORE, XDG_DATA_HOME nor HOME is set"))
    }
}
