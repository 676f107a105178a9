//! `mount` and `release`: requests over the control socket.

use std::fmt;
use std::time::Duration;

use clap::Args;
use dsec_commandline::Exit;
use dsec_format::protocol::mountd::{Mounted, Reply, Request};
use dsec_format::refs::Spec;
use dsec_mountd_client::Client;
use serde::Serialize;

use super::Global;

/// A mount may unpack the metadata of many layers from far away.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Asks the daemon; its refusal is an error.
pub(super) fn ask(global: &Global, request: &Request) -> anyhow::Result<Reply> {
    Ok(Client::new(&global.socket, TIMEOUT).ask(request)?)
}

/// Mount the layers of an image, each read-only on its own directory, and print these, the base first
#[derive(Debug, Args)]
pub(crate) struct Mount {
    /// The image: NAME[:TAG] or blake3:HEX
    image: Spec,
    /// For whom. Mounting twice for one holder is one mount
    #[arg(long, value_name = "NAME")]
    holder: String,
}

/// As text: where the layers are.
#[derive(Debug, Serialize)]
struct Directories(Mounted);

impl fmt::Display for Directories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.layers.iter().try_for_each(|layer| writeln!(f, "{}", layer.path))
    }
}

impl Mount {
    pub(crate) fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let Reply::Mounted(mounted) = ask(global, &Request::Mount { image: self.image, holder: self.holder })? else {
            anyhow::bail!("the daemon gave another answer than to a mount");
        };
        global.output().print(&Directories(mounted))?;
        Ok(Exit::Success)
    }
}

/// Let go of everything that a holder holds. Holding nothing is no error
#[derive(Debug, Args)]
pub(crate) struct Release {
    /// Whose
    #[arg(long, value_name = "NAME")]
    holder: String,
}

/// As text it is nothing.
#[derive(Debug, Serialize)]
struct Released {
    /// The holder.
    released: String,
}

impl fmt::Display for Released {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl Release {
    pub(crate) fn run(self, global: &Global) -> anyhow::Result<Exit> {
        ask(global, &Request::Release { holder: self.holder.clone() })?;
        global.output().print(&Released { released: self.holder })?;
        Ok(Exit::Success)
    }
}
