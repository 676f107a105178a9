//! `mount` and `umount`: an image at a directory, by way of `dsec-mountd`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use dsec_commandline::Exit;
use dsec_format::ImageDigest;
use dsec_format::protocol::MOUNTD_SOCKET;
use dsec_format::protocol::mountd::Road;
use dsec_format::refs::Spec;
use dsec_pack::mount::{daemon_at, mount, umount};
use serde::Serialize;

use super::context::Context;

/// Where the daemon listens.
#[derive(Debug, Args)]
struct Socket {
    /// The control socket of dsec-mountd
    #[arg(long, env = "DSEC_MOUNTD", value_name = "SOCKET", default_value = MOUNTD_SOCKET, hide_env_values = true)]
    mountd: PathBuf,
}

/// Mount an image at a directory, read-only; its files are fetched as they are read
///
/// The image is found where dsec-mountd looks for images, not in --store.
#[derive(Debug, Args)]
pub(crate) struct Mount {
    /// NAME, NAME:TAG or digest
    image: Spec,
    /// Where
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    socket: Socket,
}

/// Unmount what `mount` has mounted
#[derive(Debug, Args)]
pub(crate) struct Umount {
    /// Where
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    socket: Socket,
}

#[derive(Debug, Serialize)]
struct Report {
    image: ImageDigest,
    directory: PathBuf,
    road: Road,
    layers: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let road = match self.road {
            Road::Erofs => "erofs",
            Road::Fuse => "fuse",
        };
        write!(f, "{}: {} ({} layers, {road})", self.directory.display(), self.image, self.layers)
    }
}

#[derive(Debug, Serialize)]
struct Unmounted {
    directory: PathBuf,
}

impl fmt::Display for Unmounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: unmounted", self.directory.display())
    }
}

impl Mount {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        let mounted = mount(&daemon_at(&self.socket.mountd), &self.image, &self.directory)?;
        let (image, road, layers) = (mounted.image, mounted.road, mounted.layers.len());
        context.output.print(&Report { image, directory: self.directory, road, layers })?;
        Ok(Exit::Success)
    }
}

impl Umount {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        umount(&daemon_at(&self.socket.mountd), &self.directory)?;
        context.output.print(&Unmounted { directory: self.directory })?;
        Ok(Exit::Success)
    }
}
