//! `mount` and `release`: requests over the control socket.

use std::time::Duration;

use clap::Args;
use dsec_format::protocol::mountd::{Reply, Request};
use dsec_format::refs::Spec;
use dsec_mountd_client::Client;

use super::Global;
use super::exit::Exit;

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

impl Mount {
    pub(crate) fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let Reply::Mounted(mounted) = ask(global, &Request::Mount { image: self.image, holder: self.holder })? else {
            anyhow::bail!("the daemon gave another answer than to a mount");
        };
        let mut text = String::new();
        if global.json {
            text = serde_json::to_string(&mounted)? + "\n";
        } else {
            mounted.layers.iter().for_each(|layer| text.push_str(&format!("{}\n", layer.path)));
        }
        super::print(text.as_bytes())?;
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

impl Release {
    pub(crate) fn run(self, global: &Global) -> anyhow::Result<Exit> {
        ask(global, &Request::Release { holder: self.holder })?;
        Ok(Exit::Success)
    }
}
