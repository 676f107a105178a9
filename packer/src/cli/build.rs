//! `build`: an image from a directory, a tar archive, an OCI layout or a docker-archive.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZero;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use dsec_commandline::Exit;
use dsec_commandline::quantity::bytes_text;
use dsec_format::ImageDigest;
use dsec_format::image::Config;
use dsec_format::refs::RefName;
use dsec_pack::build::{self, Built, BuiltLayer, Options, Request};
use dsec_pack::input::{Input, Kind, Location};
use dsec_store::LocalStore;
use serde::Serialize;

use super::context::Context;
use super::limits::raise_open_files;

/// Build an image from a directory, a tar archive, an OCI layout or a docker-archive
///
/// What the input is is found out, unless --input says it. Everything is kept or refused: an entry that an image cannot
/// hold is an error. The same input gives the same digest.
#[derive(Debug, Args)]
pub(crate) struct Build {
    /// A directory; an archive (plain, gzip, zstd or xz) of a root file system, of an OCI layout or from `docker save`; an
    /// OCI layout directory; or - for an archive from standard input
    input: PathBuf,
    /// Name the image in the store, as NAME or NAME:TAG
    #[arg(long = "ref", value_name = "NAME")]
    name: Option<RefName>,
    /// What the input is
    #[arg(long = "input", value_name = "KIND")]
    kind: Option<InputKind>,
    /// Go into file systems that are mounted below a directory; without it, one is an error
    #[arg(long)]
    cross_mounts: bool,
    /// Which image of an OCI layout or docker-archive that has several
    #[arg(long, value_name = "TAG")]
    oci_ref: Option<String>,
    /// For which machine, in Debian's words [default: this one]
    #[arg(long, value_name = "NAME")]
    architecture: Option<String>,
    /// zstd level, 1 to 19
    #[arg(long, value_name = "N", default_value_t = build::DEFAULT_LEVEL, value_parser = clap::value_parser!(i32).range(1..=19))]
    level: i32,
    /// Threads that read, hash and compress [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZero<u16>>,
    /// Do not read the image back and compare it with its source
    #[arg(long)]
    no_verify: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// How to run the image. What is given here wins over what the input says.
#[derive(Debug, Args)]
#[command(next_help_heading = "Configuration")]
struct ConfigArgs {
    /// An environment variable; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    env: Vec<(String, String)>,
    /// The user: user, user:group, uid or uid:gid
    #[arg(long)]
    user: Option<String>,
    /// The working directory
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// What always runs; given again for each word
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    entrypoint: Vec<String>,
    /// Its default arguments, or the whole command; given again for each word
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    cmd: Vec<String>,
    /// A label; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    label: Vec<(String, String)>,
    /// The signal that stops it
    #[arg(long, value_name = "SIGNAL")]
    stop_signal: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum InputKind {
    Directory,
    Tar,
    Oci,
    OciArchive,
    DockerArchive,
}

fn key_value(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE"),
    }
}

impl From<InputKind> for Kind {
    fn from(kind: InputKind) -> Self {
        match kind {
            InputKind::Directory => Self::Directory,
            InputKind::Tar => Self::Tar,
            InputKind::Oci => Self::Oci,
            InputKind::OciArchive => Self::OciArchive,
            InputKind::DockerArchive => Self::DockerArchive,
        }
    }
}

impl ConfigArgs {
    fn config(self) -> Config {
        Config {
            user: self.user.unwrap_or_default(),
            working_dir: self.workdir.unwrap_or_default(),
            env: self.env.into_iter().map(|(key, value)| format!("{key}={value}")).collect(),
            entrypoint: self.entrypoint,
            cmd: self.cmd,
            stop_signal: self.stop_signal.unwrap_or_default(),
            labels: self.label.into_iter().collect::<BTreeMap<_, _>>(),
        }
    }
}

impl Build {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        raise_open_files()?;
        let threads = match self.threads {
            Some(threads) => usize::from(threads.get()),
            None => std::thread::available_parallelism().context("cannot find out the number of cores")?.get(),
        };
        let shown = self.input.display().to_string();
        let location = if shown == "-" { Location::Stdin } else { Location::Path(self.input) };
        let input = Input {
            location,
            kind: self.kind.map(Kind::from),
            cross_mounts: self.cross_mounts,
            oci_ref: self.oci_ref,
            architecture: self.architecture.unwrap_or_else(host_architecture),
        };
        let store = LocalStore::create(&context.store_directory()?)?;
        let request = Request { input, name: self.name, config: self.config.config(), verify: !self.no_verify };
        let options = Options { level: self.level, threads };
        let built = build::build(&store, &request, options, &context.progress, &context.cancel)
            .with_context(|| format!("cannot build an image from {shown}"))?;
        context.progress.clear();
        context.output.print(&Report::new(built))?;
        Ok(Exit::Success)
    }
}

fn host_architecture() -> String {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
    .to_owned()
}

/// The result, as text and as JSON.
#[derive(Debug, Serialize)]
struct Report {
    image: ImageDigest,
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    name: Option<RefName>,
    input: &'static str,
    entries: u64,
    logical_bytes: u64,
    new_bytes: u64,
    new_stored_bytes: u64,
    reused_bytes: u64,
    elapsed_ms: u64,
    layers: Vec<LayerReport>,
}

#[derive(Debug, Serialize)]
struct LayerReport {
    digest: dsec_format::LayerDigest,
    reused: bool,
    entries: u64,
    inodes: u64,
    logical_bytes: u64,
    data_bytes: u64,
    metadata_bytes: u64,
    new_chunks: u64,
    new_bytes: u64,
    /// Packs and the layer object.
    new_stored_bytes: u64,
    reused_chunks: u64,
    reused_bytes: u64,
    packs: u64,
}

impl LayerReport {
    fn new(layer: BuiltLayer) -> Self {
        let BuiltLayer { record, reused, entries, stored, layer_stored_bytes } = layer;
        Self {
            digest: record.digest,
            reused,
            entries,
            inodes: record.inodes,
            logical_bytes: record.logical_bytes,
            data_bytes: record.data_bytes,
            metadata_bytes: record.metadata_bytes,
            new_chunks: stored.new_chunks,
            new_bytes: stored.new_bytes,
            new_stored_bytes: stored.new_stored_bytes + layer_stored_bytes,
            reused_chunks: stored.reused_chunks,
            reused_bytes: stored.reused_bytes,
            packs: stored.packs,
        }
    }
}

impl Report {
    fn new(built: Built) -> Self {
        let input = match built.kind {
            Kind::Directory => "directory",
            Kind::Tar => "tar",
            Kind::Oci => "oci",
            Kind::OciArchive => "oci-archive",
            Kind::DockerArchive => "docker-archive",
        };
        let layers: Vec<LayerReport> = built.layers.into_iter().map(LayerReport::new).collect();
        let sum = |value: fn(&LayerReport) -> u64| layers.iter().map(value).sum();
        Self {
            image: built.image,
            name: built.name,
            input,
            entries: sum(|layer| layer.entries),
            logical_bytes: sum(|layer| layer.logical_bytes),
            new_bytes: sum(|layer| layer.new_bytes),
            new_stored_bytes: sum(|layer| layer.new_stored_bytes),
            reused_bytes: sum(|layer| layer.reused_bytes),
            elapsed_ms: built.elapsed_ms,
            layers,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.image)?;
        if let Some(name) = &self.name {
            writeln!(f, "ref      {name}")?;
        }
        writeln!(f, "input    {}, {} entries, {}", self.input, self.entries, bytes_text(self.logical_bytes))?;
        for layer in &self.layers {
            let note = if layer.reused { " (was there)" } else { "" };
            writeln!(f, "layer    {} {}{note}", layer.digest, bytes_text(layer.data_bytes))?;
        }
        let (new, stored) = (bytes_text(self.new_bytes), bytes_text(self.new_stored_bytes));
        writeln!(f, "stored   {new} new, in {stored}; {} was there", bytes_text(self.reused_bytes))?;
        writeln!(f, "time     {:.2} s", std::time::Duration::from_millis(self.elapsed_ms).as_secs_f64())
    }
}
