//! `unpack`: an image onto a file system.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use dsec_commandline::Exit;
use dsec_commandline::quantity::bytes_text;
use dsec_format::ImageDigest;
use dsec_format::refs::Spec;
use dsec_pack::chunks::ChunkReader;
use dsec_pack::unpack::{Owners, Stats, unpack};
use dsec_pack::view::{Layers, View};
use dsec_store::LocalStore;
use serde::Serialize;

use super::context::Context;
use super::limits::raise_open_files;
use super::names;

/// Write an image's tree into a directory
///
/// The directory must be absent or empty; it gets its name when everything is in it. As root the copy is exact. Without
/// root, what takes privileges is an error unless --no-same-owner is given.
#[derive(Debug, Args)]
pub(crate) struct Unpack {
    /// NAME, NAME:TAG or digest
    image: Spec,
    /// Where to
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Make everything your own, and leave out devices and privileged xattrs
    #[arg(long)]
    no_same_owner: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    image: ImageDigest,
    directory: PathBuf,
    #[serde(flatten)]
    stats: Stats,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { entries, bytes, left_out } = self.stats;
        writeln!(f, "{}: {entries} entries, {}", self.directory.display(), bytes_text(bytes))?;
        if left_out == Default::default() {
            return Ok(());
        }
        let (owners, devices, xattrs) = (left_out.owners, left_out.devices, left_out.xattrs);
        writeln!(f, "left out: {owners} owners, {devices} devices, {xattrs} privileged xattrs")
    }
}

impl Unpack {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        raise_open_files()?;
        let store = LocalStore::open(&context.store_directory()?)?;
        let (digest, image) = names::find(&store, &self.image)?;
        let digests = || image.layers.iter().map(|layer| layer.digest);
        let layers = Layers::load(&store, digests())?;
        let view = View::merged(&layers);
        let chunks = ChunkReader::new(&store, digests());
        let owners = if self.no_same_owner { Owners::Own } else { Owners::Same };
        let directory = std::path::absolute(&self.directory)?;
        let stats = unpack(&view, &chunks, &directory, owners, &context.progress, &context.cancel)?;
        context.progress.clear();
        context.output.print(&Report { image: digest, directory, stats })?;
        Ok(Exit::Success)
    }
}
