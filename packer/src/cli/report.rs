//! `report`: where the bytes of images are.

use std::collections::BTreeMap;

use clap::Args;
use dsec_commandline::Exit;
use dsec_format::refs::{Spec, Target};
use dsec_format::{ImageDigest, LayerDigest};
use dsec_pack::images;
use dsec_pack::report::{Subject, report};
use dsec_store::{LocalStore, Source};

use super::context::Context;
use super::names;

/// Show the logical, stored, unique, shared and marginal bytes of images
///
/// Unique is what only this image takes among those reported on; shared is what others take too; marginal is what it
/// adds to the images above it in the list. Without arguments images are listed by name, parents first.
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

/// The images that refs name, each once, in the order of their first names, but each behind those that it was made of: the
/// marginal bytes of a derived image are then what deriving it has added.
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
    Ok(parents_first(subjects))
}

/// Puts each image behind those whose layers it begins with, and changes the order no more than that takes.
fn parents_first(subjects: Vec<Subject>) -> Vec<Subject> {
    let digests = |subject: &Subject| subject.image.layers.iter().map(|layer| layer.digest).collect::<Vec<_>>();
    let mut numbers: BTreeMap<Vec<LayerDigest>, Vec<usize>> = BTreeMap::new();
    for (number, subject) in subjects.iter().enumerate() {
        numbers.entry(digests(subject)).or_default().push(number);
    }
    let mut order = Vec::with_capacity(subjects.len());
    let mut placed = vec![false; subjects.len()];
    for (number, subject) in subjects.iter().enumerate() {
        let layers = digests(subject);
        // The shortest beginning first: a parent's parent is before the parent.
        let parents = (0..layers.len()).filter_map(|count| numbers.get(&layers[..count])).flatten().copied();
        for number in parents.chain([number]) {
            if !std::mem::replace(&mut placed[number], true) {
                order.push(number);
            }
        }
    }
    let mut subjects: Vec<_> = subjects.into_iter().map(Some).collect();
    order.into_iter().filter_map(|number| subjects[number].take()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsec_format::image::{Image, LayerRecord};

    fn subject(name: &str, layers: &[&str]) -> Subject {
        let record = |layer: &&str| LayerRecord {
            digest: LayerDigest::of(layer.as_bytes()),
            data_bytes: 0,
            metadata_bytes: 0,
            logical_bytes: 0,
            inodes: 1,
        };
        let image = Image {
            format: dsec_format::image::FORMAT.to_owned(),
            architecture: "amd64".to_owned(),
            os: "linux".to_owned(),
            layers: layers.iter().map(record).collect(),
            config: Default::default(),
            provenance: None,
            annotations: BTreeMap::new(),
        };
        Subject { names: vec![name.to_owned()], image }
    }

    #[test]
    fn an_image_follows_those_that_it_was_made_of_and_else_its_name() {
        let subjects = vec![
            subject("app", &["base", "tools", "app"]),
            subject("base", &["base"]),
            subject("lone", &["other"]),
            subject("same-as-tools", &["base", "tools"]),
            subject("tools", &["base", "tools"]),
        ];
        let ordered = parents_first(subjects);
        let names: Vec<_> = ordered.iter().map(|subject| subject.names[0].as_str()).collect();
        assert_eq!(names, ["base", "same-as-tools", "tools", "app", "lone"]);
    }
}
