//! Where the bytes of images are: logical, stored, unique, shared and marginal. `docs/report.md` defines the words.
//!
//! Chunks are counted by sorting: one record per chunk of each layer goes through a sorter, which holds a bounded
//! number of them and spills the rest to temporary files. So memory is bounded by the largest layer's extent map and
//! locations, whatever the number of images. Every layer is read once.

mod count;
mod sort;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::Path;

use dsec_format::extents::Map;
use dsec_format::image::Image;
use dsec_format::locations::Locations;
use dsec_format::{ImageDigest, LayerDigest};
use dsec_store::Source;
use dsec_store::layer::{UnpackError, read_extents, read_header};
use serde::Serialize;

use crate::monitor::{Monitor, Stage};
use crate::{Cancel, Cancelled};
use count::{Counter, Share};
use sort::{Record, Sorter};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] dsec_store::Error),
    /// A layer cannot be read.
    #[error("cannot read layer {layer}")]
    Layer {
        /// The layer.
        layer: LayerDigest,
        /// Why.
        #[source]
        source: UnpackError,
    },
    /// A layer's extent map is malformed.
    #[error("extent map of layer {layer} is malformed")]
    Extents {
        /// The layer.
        layer: LayerDigest,
        /// Why.
        #[source]
        source: dsec_format::extents::Error,
    },
    /// A layer's locations are those of another number of chunks.
    #[error("locations of layer {layer} have {records} records for {extents} chunks")]
    Locations {
        /// The layer.
        layer: LayerDigest,
        /// Records.
        records: usize,
        /// Chunks.
        extents: usize,
    },
    /// A temporary file.
    #[error("cannot sort in temporary files")]
    Sort(#[from] io::Error),
    /// Asked to stop.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// An image to report on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// What it is called: the refs that name it, or its digest.
    pub names: Vec<String>,
    /// It.
    pub image: Image,
}

/// The bytes of one image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What it is called.
    pub names: Vec<String>,
    /// Its digest.
    pub image: ImageDigest,
    /// Its layers.
    pub layers: usize,
    /// Its inodes, all layers together.
    pub inodes: u64,
    /// Sizes of its files, all layers together.
    pub logical_bytes: u64,
    /// What it takes in the store: unique and shared together.
    pub stored_bytes: u64,
    /// What only it takes.
    pub unique_bytes: u64,
    /// What it takes together with others.
    pub shared_bytes: u64,
    /// What it adds to the images above it.
    pub marginal_bytes: u64,
    /// Part of the stored bytes that is metadata: the image itself and its layers.
    pub metadata_bytes: u64,
}

/// All of them together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Images.
    pub images: usize,
    /// Layers, each once.
    pub layers: usize,
    /// Chunks, each once.
    pub chunks: u64,
    /// Sum of the images' logical bytes.
    pub logical_bytes: u64,
    /// What all take in the store, each chunk and layer once.
    pub stored_bytes: u64,
    /// What is taken by two images or more.
    pub shared_bytes: u64,
}

/// A report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The images, in the order that marginal bytes were counted in.
    pub images: Vec<Row>,
    /// All of them.
    pub total: Totals,
}

/// The layers of all images, each once, and which images have it.
struct LayerSet {
    digests: Vec<LayerDigest>,
    /// Indexes of images, ascending.
    images: Vec<Vec<u32>>,
}

impl LayerSet {
    fn of(subjects: &[Subject]) -> Self {
        let mut numbers: HashMap<LayerDigest, usize> = HashMap::new();
        let mut set = Self { digests: Vec::new(), images: Vec::new() };
        for (image, subject) in (0..).zip(subjects) {
            for layer in &subject.image.layers {
                let number = *numbers.entry(layer.digest).or_insert_with(|| {
                    set.digests.push(layer.digest);
                    set.images.push(Vec::new());
                    set.digests.len() - 1
                });
                if set.images[number].last() != Some(&image) {
                    set.images[number].push(image);
                }
            }
        }
        set
    }
}

/// Reports on images of a store, in their order. `scratch` is a directory for temporary files.
///
/// # Errors
/// As [`Error`].
pub fn report(
    source: &dyn Source,
    subjects: Vec<Subject>,
    scratch: &Path,
    monitor: &dyn Monitor,
    cancel: &Cancel,
) -> Result<Report, Error> {
    let set = LayerSet::of(&subjects);
    monitor.begin(Stage::Check, Some(set.digests.len() as u64));
    let mut counter = Counter::new(&set.images, subjects.len());
    let mut sorter = Sorter::new(scratch, sort::MEMORY_RECORDS);
    for (number, digest) in (0..).zip(&set.digests) {
        cancel.check()?;
        counter.add_metadata(number, read_layer(source, digest, number, &mut sorter)?);
        monitor.advance(1);
    }
    sorter.finish(&mut |same| counter.add_chunk(same))?;
    for (image, subject) in subjects.iter().enumerate() {
        counter.add_image(image, subject.image.encode().len() as u64);
    }
    Ok(assemble(subjects, set.digests.len(), counter))
}

/// Sends the chunks of a layer to the sorter and answers the bytes of the layer itself.
fn read_layer(source: &dyn Source, digest: &LayerDigest, number: u32, sorter: &mut Sorter<'_>) -> Result<u64, Error> {
    let failed = |source| Error::Layer { layer: *digest, source };
    let header = read_header(&mut source.open_layer(digest)?, digest).map_err(failed)?;
    let extents = read_extents(&mut source.open_layer(digest)?, digest, &source.describe())?;
    let map = Map::decode(&extents).map_err(|source| Error::Extents { layer: *digest, source })?;
    let locations = source.read_locations(digest, map.extents().len() as u64)?;
    add_chunks(digest, number, map, &locations, sorter)?;
    Ok(header.stored_bytes())
}

fn add_chunks(
    digest: &LayerDigest,
    number: u32,
    map: Map<'_>,
    locations: &Locations,
    sorter: &mut Sorter<'_>,
) -> Result<(), Error> {
    let (records, extents) = (locations.records.len(), map.extents().len());
    if records != extents {
        return Err(Error::Locations { layer: *digest, records, extents });
    }
    for (extent, record) in map.extents().iter().zip(&locations.records) {
        let share = Share::of(extent.bytes.get(), record.plain_bytes.get(), record.stored_bytes.get());
        sorter.push(Record { chunk: extent.chunk, layer: number, share })?;
    }
    Ok(())
}

fn assemble(subjects: Vec<Subject>, layers: usize, counter: Counter<'_>) -> Report {
    let counted = counter.finish();
    let mut total = Totals { images: subjects.len(), layers, chunks: counted.chunks, ..Totals::default() };
    total.stored_bytes = counted.stored.bytes();
    total.shared_bytes = counted.shared.bytes();
    let row = |(subject, count): (Subject, count::Count)| {
        let sum = |of: fn(&dsec_format::image::LayerRecord) -> u64| subject.image.layers.iter().map(of).sum();
        let (unique_bytes, shared_bytes) = (count.unique.bytes(), count.shared.bytes());
        let row = Row {
            image: subject.image.digest(),
            layers: subject.image.layers.len(),
            inodes: sum(|layer| layer.inodes),
            logical_bytes: sum(|layer| layer.logical_bytes),
            stored_bytes: unique_bytes + shared_bytes,
            unique_bytes,
            shared_bytes,
            marginal_bytes: count.marginal.bytes(),
            metadata_bytes: count.metadata,
            names: subject.names,
        };
        total.logical_bytes += row.logical_bytes;
        row
    };
    let images = subjects.into_iter().zip(counted.images).map(row).collect();
    Report { images, total }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |row: &Row| if row.names.is_empty() { row.image.short() } else { row.names.join(",") };
        let width = self.images.iter().map(|row| names(row).chars().count()).max().unwrap_or(0).max("total".len());
        let head = ["logical", "stored", "unique", "shared", "marginal"];
        write!(f, "{:width$}  {:>6}", "image", "layers")?;
        head.iter().try_for_each(|word| write!(f, "  {word:>11}"))?;
        writeln!(f)?;
        for row in &self.images {
            write!(f, "{:width$}  {:>6}", names(row), row.layers)?;
            let figures = [row.logical_bytes, row.stored_bytes, row.unique_bytes, row.shared_bytes, row.marginal_bytes];
            figures.iter().try_for_each(|bytes| write!(f, "  {:>11}", text(*bytes)))?;
            writeln!(f)?;
        }
        let total = &self.total;
        write!(f, "{:width$}  {:>6}", "total", total.layers)?;
        let unique = total.stored_bytes - total.shared_bytes;
        let figures = [total.logical_bytes, total.stored_bytes, unique, total.shared_bytes, total.stored_bytes];
        figures.iter().try_for_each(|bytes| write!(f, "  {:>11}", text(*bytes)))?;
        writeln!(f)
    }
}

/// A number of bytes for people: `1.5 MiB`.
fn text(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
