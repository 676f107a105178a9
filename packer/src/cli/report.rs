//! `report`: where the bytes of images are.

use std::collections::BTreeMap;

use clap::Args;
use dsec_commandline::Exit;
use dsec_format::ImageDigest;
use dsec_format::refs::{Spec, Target};
use dsec_pack::images;
use dsec_pack::report::{Subject, report};
use dsec_store::{LocalStore, Source};

use super::context::Context;
use super::names;

/// Show the logical, stored, unique, shared and marginal bytes of images
///
/// Unique is what only this image takes among those reported on; shared is what others take too; marginal is what it
/// adds to the images above it in the list.
#[derive(Debug, Args)]
pub(crate) struct Report {
    /// NAME, NAME:TAG or digest; every image that a ref names when none is given
    images: Vec<Spec>,
}

impl Report {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        let store = LocalStore::open(&context.store_directory()?)?;
        let subjects = if self.images.is_empty() { named(&store)? } else { given(&store, &self.images)? };
        let scratch = store.scratch()?;
        let report = report(&store, subjects, scratch.path(), &context.progress, &context.cancel)?;
        context.progress.clear();
        context.output.print(&report)?;
        Ok(Exit::Success)
    }
}

/// The images of a command line, each once.
fn given(store: &LocalStore, specs: &[Spec]) -> anyhow::Result<Vec<Subject>> {
    let mut subjects: Vec<Subject> = Vec::new();
    let mut numbers: BTreeMap<ImageDigest, usize> = BTreeMap::new();
    for spec in specs {
        let (digest, image) = names::find(store, spec)?;
        let number = *numbers.entry(digest).or_insert(subjects.len());
        if number == subjects.len() {
            subjects.push(Subject { names: Vec::new(), image });
        }
        subjects[number].names.push(spec.to_string());
    }
    Ok(subjects)
}

/// The images that refs name, each once, in the order of their first names.
fn named(store: &LocalStore) -> anyhow::Result<Vec<Subject>> {
    let mut subjects: Vec<Subject> = Vec::new();
    let mut numbers: BTreeMap<ImageDigest, usize> = BTreeMap::new();
    images::each_ref(store, "", &mut |record| {
        let Target::Image(digest) = record.target else { return Ok(()) };
        let number = *numbers.entry(digest).or_insert(subjects.len());
        if number == subjects.len() {
            subjects.push(Subject { names: Vec::new(), image: store.read_image(&digest)? });
        }
        subjects[number].names.push(record.name.to_string());
        Ok::<(), anyhow::Error>(())
    })?;
    Ok(subjects)
}
