//! What every subcommand gets: the store's directory, output, progress, the request to stop.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Context as _;
use dsec_commandline::{Exit, Output, store};
use dsec_format::protocol::STORE_DIRECTORY;
use dsec_pack::Cancel;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::Global;
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
            signal_hook::flag::register_conditional_shutdown(signal, Exit::Interrupted.code().into(), cancel.flag())
                .and_then(|_| signal_hook::flag::register(signal, cancel.flag()))
                .with_context(|| format!("cannot handle signal {signal}"))?;
        }
        let visible = !global.quiet && std::io::stderr().is_terminal();
        let (output, progress) = (Output::new(global.json), Progress::new(visible));
        Ok(Self { store: global.store.clone(), output, progress, cancel })
    }

    /// The directory of the local store.
    pub(crate) fn store_directory(&self) -> anyhow::Result<PathBuf> {
        let is_root = rustix::process::geteuid().is_root();
        let directory =
            store::directory(self.store.as_deref(), is_root, STORE_DIRECTORY.as_ref(), |name| std::env::var_os(name))?;
        std::path::absolute(&directory).with_context(|| format!("{} is no path", directory.display()))
    }
}
