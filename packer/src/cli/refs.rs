//! `ls`, `show`, `tag`, `rm`: names and what they name, in the local store or another.

use std::fmt;

use clap::Args;
use dsec_commandline::Exit;
use dsec_commandline::quantity::bytes_text;
use dsec_format::ImageDigest;
use dsec_format::image::Image;
use dsec_format::protocol::registry::Expected;
use dsec_format::refs::{Ref, RefName, Spec, Target};
use dsec_pack::images;
use serde::Serialize;

use super::context::Context;
use super::names;
use super::stores::At;

/// List refs
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only those that start with this
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    at: At,
}

#[derive(Debug, Serialize)]
struct Listed {
    refs: Vec<Ref>,
}

fn target_text(target: &Target) -> String {
    match target {
        Target::Image(digest) => digest.to_string(),
        Target::Environment(digest) => format!("{digest} (environment)"),
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.refs.iter().map(|record| record.name.to_string().len()).max().unwrap_or_default();
        self.refs
            .iter()
            .try_for_each(|record| writeln!(f, "{:width$}  {}", record.name.to_string(), target_text(&record.target)))
    }
}

impl Ls {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        let store = self.at.open(context)?;
        let mut refs = Vec::new();
        images::each_ref(&*store, &self.prefix, &mut |record| {
            refs.push(record);
            Ok::<(), anyhow::Error>(())
        })?;
        context.output.print(&Listed { refs })?;
        Ok(Exit::Success)
    }
}

/// Show an image: its layers and how to run it
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// NAME, NAME:TAG or digest
    image: Spec,
    #[command(flatten)]
    at: At,
}

#[derive(Debug, Serialize)]
struct Shown {
    digest: ImageDigest,
    #[serde(flatten)]
    image: Image,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let image = &self.image;
        writeln!(f, "image      {}", self.digest)?;
        writeln!(f, "machine    {}/{}", image.os, image.architecture)?;
        for layer in &image.layers {
            let (data, metadata) = (bytes_text(layer.data_bytes), bytes_text(layer.metadata_bytes));
            let logical = bytes_text(layer.logical_bytes);
            writeln!(f, "layer      {}", layer.digest)?;
            writeln!(
                f,
                "           {} inodes, {logical} in files, {data} of data, {metadata} of metadata",
                layer.inodes
            )?;
        }
        let config = &image.config;
        let words = |words: &[String]| words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" ");
        for (what, value) in [
            ("user", config.user.clone()),
            ("directory", config.working_dir.clone()),
            ("entrypoint", words(&config.entrypoint)),
            ("command", words(&config.cmd)),
            ("stop", config.stop_signal.clone()),
        ] {
            if !value.is_empty() {
                writeln!(f, "{what:<10} {value}")?;
            }
        }
        config.env.iter().try_for_each(|variable| writeln!(f, "env        {variable}"))?;
        config.labels.iter().try_for_each(|(key, value)| writeln!(f, "label      {key}={value}"))?;
        let Some(provenance) = &image.provenance else { return Ok(()) };
        if let Some(parent) = &provenance.parent {
            writeln!(f, "parent     {parent}")?;
        }
        provenance.author.iter().try_for_each(|author| writeln!(f, "author     {author}"))?;
        provenance.commands.iter().try_for_each(|command| writeln!(f, "ran        {command}"))
    }
}

impl Show {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        let store = self.at.open(context)?;
        let (digest, image) = names::find(&*store, &self.image)?;
        context.output.print(&Shown { digest, image })?;
        Ok(Exit::Success)
    }
}

/// Give an image another name
#[derive(Debug, Args)]
pub(crate) struct Tag {
    /// NAME, NAME:TAG or digest
    image: Spec,
    /// The new NAME or NAME:TAG
    name: RefName,
    /// Fail when the name is taken
    #[arg(long)]
    new: bool,
    #[command(flatten)]
    at: At,
}

#[derive(Debug, Serialize)]
struct Tagged {
    #[serde(flatten)]
    record: Ref,
}

impl fmt::Display for Tagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {}", self.record.name, target_text(&self.record.target))
    }
}

impl Tag {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        let store = self.at.open(context)?;
        let target = match &self.image {
            Spec::Name(name) => store.read_ref(name).map_err(|error| names::explain(&*store, name, error))?.target,
            Spec::Digest(_) => Target::Image(names::find(&*store, &self.image)?.0),
        };
        let expected = if self.new { Expected::Absent } else { Expected::Anything };
        let record = store.set_ref(&self.name, target, expected)?;
        context.output.print(&Tagged { record })?;
        Ok(Exit::Success)
    }
}

/// Remove refs; what they name stays until the store is swept
#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// NAME or NAME:TAG
    #[arg(required = true)]
    names: Vec<RefName>,
    #[command(flatten)]
    at: At,
}

#[derive(Debug, Serialize)]
struct Removed {
    removed: Vec<RefName>,
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.removed.iter().try_for_each(|name| writeln!(f, "{name}"))
    }
}

impl Rm {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        let store = self.at.open(context)?;
        for name in &self.names {
            store.remove_ref(name, Expected::Anything).map_err(|error| names::explain(&*store, name, error))?;
        }
        context.output.print(&Removed { removed: self.names })?;
        Ok(Exit::Success)
    }
}
