//! `pack-diff`: an image of what a sandbox has changed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use clap::Args;
use dsec_commandline::Exit;
use dsec_commandline::quantity::bytes_text;
use dsec_format::image::Provenance;
use dsec_format::protocol::EDGE_SOCKET;
use dsec_format::refs::{RefName, Spec};
use dsec_format::{ImageDigest, LayerDigest};
use dsec_pack::build::{self, Options};
use dsec_pack::hold::Hold;
use dsec_pack::pack_diff::{Packed, Request, pack_diff};
use dsec_pack::upper::{IdRange, Namespace};
use dsec_store::LocalStore;
use rustix::fs::{Mode, OFlags};
use serde::Serialize;

use super::context::Context;
use super::limits::raise_open_files;
use super::names;

/// Make an image of what a sandbox has changed, on top of the image it was made of
///
/// The sandbox is frozen while its changes are read, compared with the result, and thawed; the ref is set last. Only
/// what the store does not have is stored. The image below must be in the local store.
#[derive(Debug, Args)]
pub(crate) struct PackDiff {
    /// The sandbox
    #[arg(required_unless_present = "upper")]
    sandbox: Option<String>,
    /// Name the image in the store, as NAME or NAME:TAG
    #[arg(value_name = "NAME")]
    name: Option<RefName>,
    /// The same, as an option
    #[arg(long = "ref", value_name = "NAME", conflicts_with = "name")]
    name_option: Option<RefName>,
    /// The socket of the edge
    #[arg(long, env = "DSEC_EDGE", value_name = "SOCKET", default_value = EDGE_SOCKET, hide_env_values = true)]
    edge: PathBuf,
    /// Instead of a sandbox, an overlay's upper directory that nobody writes to
    #[arg(long, value_name = "DIR", requires = "parent", conflicts_with = "sandbox")]
    upper: Option<PathBuf>,
    /// The image below the upper directory
    #[arg(long, value_name = "IMAGE", requires = "upper")]
    parent: Option<Spec>,
    /// Ids in the upper directory start here
    #[arg(long, value_name = "ID", default_value_t = 0, requires = "upper")]
    id_base: u32,
    /// The overlay was mounted with userxattr: its marks are user.overlay.*, not trusted.overlay.*
    #[arg(long, requires = "upper")]
    userxattr: bool,
    /// Who made it, for the provenance
    #[arg(long)]
    author: Option<String>,
    /// Seconds since 1970, for the provenance
    #[arg(long, value_name = "SECS")]
    created: Option<u64>,
    /// What was run, for the provenance; may be given again
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    command: Vec<String>,
    /// zstd level, 1 to 19
    #[arg(long, value_name = "N", default_value_t = build::DEFAULT_LEVEL, value_parser = clap::value_parser!(i32).range(1..=19))]
    level: i32,
}

/// What is packed, and what keeps it still.
struct Source {
    upper: PathBuf,
    parent: ImageDigest,
    layers: Option<Vec<LayerDigest>>,
    ids: IdRange,
    hold: Option<Hold>,
}

#[derive(Debug, Serialize)]
struct Report {
    image: ImageDigest,
    parent: ImageDigest,
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    name: Option<RefName>,
    layer: LayerDigest,
    entries: u64,
    logical_bytes: u64,
    new_bytes: u64,
    /// Packs and the layer object.
    new_stored_bytes: u64,
    reused_bytes: u64,
    /// How long the sandbox was frozen.
    held_ms: u64,
    elapsed_ms: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.image)?;
        if let Some(name) = &self.name {
            writeln!(f, "ref      {name}")?;
        }
        writeln!(f, "parent   {}", self.parent)?;
        writeln!(f, "layer    {}: {} entries, {}", self.layer, self.entries, bytes_text(self.logical_bytes))?;
        let (new, stored) = (bytes_text(self.new_bytes), bytes_text(self.new_stored_bytes));
        writeln!(f, "stored   {new} new, in {stored}; {} was there", bytes_text(self.reused_bytes))?;
        let seconds = |ms: u64| std::time::Duration::from_millis(ms).as_secs_f64();
        writeln!(f, "time     {:.2} s, {:.2} s of it frozen", seconds(self.elapsed_ms), seconds(self.held_ms))
    }
}

impl PackDiff {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        raise_open_files()?;
        let store = LocalStore::open(&context.store_directory()?)?;
        let threads = std::thread::available_parallelism().context("cannot find out the number of cores")?.get();
        let options = Options { level: self.level, threads };
        let name = self.name.clone().or_else(|| self.name_option.clone());
        let start = Instant::now();
        let source = self.source(&store)?;
        let request = Request {
            upper: open_upper(&source.upper)?,
            ids: source.ids,
            // A sandbox's overlay is root's, so `--userxattr` goes with `--upper` alone.
            namespace: if self.userxattr { Namespace::User } else { Namespace::Trusted },
            parent: source.parent,
            layers: source.layers,
            name: name.clone(),
            provenance: Provenance {
                parent: None,
                created_secs: self.created,
                author: self.author,
                commands: self.command,
            },
        };
        let packed = pack_diff(&store, request, source.hold, options, &context.progress, &context.cancel)?;
        context.progress.clear();
        context.output.print(&report(packed, source.parent, name, start))?;
        Ok(Exit::Success)
    }

    fn source(&self, store: &LocalStore) -> anyhow::Result<Source> {
        if let (Some(upper), Some(parent)) = (&self.upper, &self.parent) {
            let (parent, _) = names::find(store, parent)?;
            let ids = IdRange::from_base(self.id_base);
            return Ok(Source { upper: upper.clone(), parent, layers: None, ids, hold: None });
        }
        let sandbox = self.sandbox.as_deref().context("no sandbox is given")?;
        let hold = Hold::take(&self.edge, sandbox)?;
        let answer = hold.answer();
        Ok(Source {
            upper: answer.upper.clone().into(),
            parent: answer.image,
            layers: Some(answer.layers.clone()),
            ids: IdRange::from_base(answer.id_base),
            hold: Some(hold),
        })
    }
}

fn open_upper(path: &Path) -> anyhow::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(std::io::Error::from)
        .with_context(|| format!("cannot open the upper directory {}", path.display()))
}

fn report(packed: Packed, parent: ImageDigest, name: Option<RefName>, start: Instant) -> Report {
    let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let layer = packed.layer;
    Report {
        image: packed.image,
        parent,
        name,
        layer: layer.record.digest,
        entries: layer.entries,
        logical_bytes: layer.record.logical_bytes,
        new_bytes: layer.stored.new_bytes,
        new_stored_bytes: layer.stored.new_stored_bytes + layer.layer_stored_bytes,
        reused_bytes: layer.stored.reused_bytes,
        held_ms: millis(packed.held),
        elapsed_ms: millis(start.elapsed()),
    }
}
