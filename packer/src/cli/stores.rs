//! Which store a subcommand works on: the local one, a directory, or a registry.

use std::path::Path;

use anyhow::Context as _;
use clap::Args;
use dsec_commandline::token::{self, TokenFile};
use dsec_pack::Cancel;
use dsec_store::remote::{Options, RemoteStore};
use dsec_store::{LocalStore, Store};

use super::context::Context;

/// How to be let in by a registry.
#[derive(Debug, Default, Args)]
pub(crate) struct Token {
    #[command(flatten)]
    file: TokenFile,
}

impl Token {
    fn read(&self) -> anyhow::Result<Option<String>> {
        Ok(self.file.read(std::env::var(token::VARIABLE).ok())?)
    }

    /// The store at a URL or in a directory; `create` makes a new one in a directory that is not there or empty.
    pub(crate) fn open(&self, place: &str, create: bool, cancel: &Cancel) -> anyhow::Result<Box<dyn Store>> {
        if place.starts_with("http://") || place.starts_with("https://") {
            let token = self.read()?;
            let options = Options { interrupt: Some(cancel.flag()), ..Options::default() };
            return Ok(Box::new(RemoteStore::connect(place, token.as_deref(), options)?));
        }
        let path = std::path::absolute(Path::new(place)).with_context(|| format!("{place} is no path"))?;
        if names_a_host(place) && !path.exists() {
            let reason = "it has no scheme: write http:// before it (or ./ for a directory of this name)";
            return Err(dsec_store::Error::Url { url: place.to_owned(), reason }.into());
        }
        Ok(Box::new(if create { LocalStore::create(&path)? } else { LocalStore::open(&path)? }))
    }
}

/// Whether a place reads like `HOST:PORT`, which is more likely a registry without its scheme than a directory.
fn names_a_host(place: &str) -> bool {
    let Some((host, rest)) = place.split_once(':') else { return false };
    let port = rest.split('/').next().unwrap_or_default();
    !host.is_empty() && !host.contains('/') && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
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
            Some(place) => self.token.open(place, false, &context.cancel),
            None => Ok(Box::new(LocalStore::open(&context.store_directory()?)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_without_its_scheme_makes_no_directory() {
        let directory = tempfile::tempdir().unwrap();
        let token = Token::default();
        for place in ["localhost:7300", "127.0.0.1:7300/path"] {
            let error = token.open(place, true, &Cancel::new()).err().unwrap();
            assert!(error.to_string().contains("http://"), "{error}");
            assert!(!Path::new(place).exists());
        }
        let store = directory.path().join("a:1");
        assert!(token.open(store.to_str().unwrap(), true, &Cancel::new()).is_ok());
    }
}
