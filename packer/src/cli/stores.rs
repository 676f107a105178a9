//! Which store a subcommand works on: the local one, a directory, or a registry.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use dsec_store::remote::{Options, RemoteStore};
use dsec_store::{LocalStore, Store};

use super::context::Context;

/// How to be let in by a registry.
#[derive(Debug, Args)]
pub(crate) struct Token {
    /// A file with the registry's token; else DSEC_TOKEN holds the token itself
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Token {
    fn read(&self) -> anyhow::Result<Option<String>> {
        let token = match &self.token_file {
            Some(path) => fs_err::read_to_string(path)?.trim().to_owned(),
            None => std::env::var("DSEC_TOKEN").unwrap_or_default(),
        };
        Ok(Some(token).filter(|token| !token.is_empty()))
    }

    /// The store at a URL or in a directory; `create` makes a new one in a directory that is not there or empty.
    pub(crate) fn open(&self, place: &str, create: bool) -> anyhow::Result<Box<dyn Store>> {
        if place.starts_with("http://") || place.starts_with("https://") {
            let token = self.read()?;
            return Ok(Box::new(RemoteStore::connect(place, token.as_deref(), Options::default())?));
        }
        let path = std::path::absolute(Path::new(place)).with_context(|| format!("{place} is no path"))?;
        Ok(Box::new(if create { LocalStore::create(&path)? } else { LocalStore::open(&path)? }))
    }
}

/// Another store than the local one.
#[derive(Debug, Args)]
pub(crate) struct At {
    /// In this registry or store directory, instead of the local store
    #[arg(long, value_name = "URL|DIR")]
    at: Option<String>,
    #[command(flatten)]
    token: Token,
}

impl At {
    pub(crate) fn open(&self, context: &Context) -> anyhow::Result<Box<dyn Store>> {
        match &self.at {
            Some(place) => self.token.open(place, false),
            None => Ok(Box::new(LocalStore::open(&context.store_directory()?)?)),
        }
    }
}
