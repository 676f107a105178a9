//! Names of images on the command line: finding what they name, and what to say of one that names nothing.

use dsec_commandline::suggest::nearest;
use dsec_format::ImageDigest;
use dsec_format::image::Image;
use dsec_format::refs::{RefName, Spec};
use dsec_pack::images;
use dsec_store::{Error, Source};

/// Of so many refs the one that was meant is looked for.
const CANDIDATES: usize = 10_000;

/// A store has no such ref.
#[derive(Debug, thiserror::Error)]
#[error("no image {name} in {store}")]
pub(crate) struct Missing {
    name: RefName,
    store: String,
    near: Option<String>,
}

impl Missing {
    /// What to try.
    pub(crate) fn hint(&self) -> String {
        let list = "`dsec-pack ls` lists the images of the local store, `ls --at URL|DIR` those of another";
        match &self.near {
            Some(near) => format!("did you mean {near}? {list}"),
            None => list.to_owned(),
        }
    }
}

/// Finds an image; a mistyped name is told as such.
pub(crate) fn find(source: &dyn Source, spec: &Spec) -> anyhow::Result<(ImageDigest, Image)> {
    match (images::find(source, spec), spec) {
        (Err(images::Error::Store { source: error, .. }), Spec::Name(name)) => Err(explain(source, name, *error)),
        (found, _) => Ok(found?),
    }
}

/// As [`explain`], when it was a name.
pub(crate) fn explain_spec(source: &dyn Source, spec: &Spec, error: Error) -> anyhow::Error {
    match spec {
        Spec::Name(name) => explain(source, name, error),
        Spec::Digest(_) => error.into(),
    }
}

/// The error of an operation on a ref: [`Missing`] when there is no such ref.
pub(crate) fn explain(source: &dyn Source, name: &RefName, error: Error) -> anyhow::Error {
    let is_missing =
        matches!(error, Error::NotFound { .. }) && matches!(source.read_ref(name), Err(Error::NotFound { .. }));
    if !is_missing {
        return error.into();
    }
    // Without a list there is no suggestion, and the error is the same.
    let refs = source.list_refs("", None, CANDIDATES).map(|page| page.refs).unwrap_or_default();
    let names: Vec<_> = refs.iter().map(|record| record.name.to_string()).collect();
    let near = nearest(&name.to_string(), names.iter().map(String::as_str)).map(str::to_owned);
    Missing { name: name.clone(), store: source.describe(), near }.into()
}
