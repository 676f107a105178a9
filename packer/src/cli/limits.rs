//! Limits of the process that a subcommand may need raised.

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit};

/// Raises the number of files that may be open as far as it goes: packs and files that are in work are open at once.
pub(crate) fn raise_open_files() -> anyhow::Result<()> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("cannot raise the limit of open files")
}
