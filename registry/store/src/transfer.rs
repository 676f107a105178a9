//! Moving images between stores: push and pull are the same.
//!
//! Only chunks that the destination lacks are moved, in their compressed frames as they lie in the source's packs; a
//! frame of which only a part is lacking is compressed anew. Then layers, image, environment, and the ref last. Every
//! chunk is checked before it is sent on. A transfer that was cut short at any point is simply run again: what has
//! arrived is no longer missing.
//!
//! Memory: the extent map and locations of one layer, and a window of frames in flight.

mod flow;
mod plan;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use dsec_format::extents::Map;
use dsec_format::protocol::registry::{Expected, MAX_QUERY_CHUNKS};
use dsec_format::refs::{Ref, RefName, Target};
use dsec_format::{EnvironmentDigest, ImageDigest, LayerDigest};
use fs_err as fs;

use crate::chunks::check_locations;
use crate::error::{Error, Result};
use crate::layer;
use crate::monitor::{Monitor, Stage};
use crate::source::{Source, Store};

/// How a transfer is done.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory for temporary files. On the destination's own file system, packs are moved instead of copied
    /// ([`crate::LocalStore::scratch`]).
    pub scratch: PathBuf,
    /// zstd level for frames of which only a part is moved.
    pub level: i32,
    /// Reads from the source that are in flight at a time.
    pub reads: usize,
    /// Writes to the destination that are in flight at a time.
    pub writes: usize,
}

impl Options {
    /// The usual ones, with temporary files in `scratch`.
    #[must_use]
    pub fn new(scratch: &Path) -> Self {
        Self { scratch: scratch.to_owned(), level: 3, reads: 4, writes: 2 }
    }
}

/// What a transfer has moved.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Bytes of the packs and layers that were written to the destination.
    pub sent_bytes: u64,
    /// Plain bytes of the chunks that were moved.
    pub moved_bytes: u64,
    /// Chunks that were moved.
    pub moved_chunks: u64,
    /// Plain bytes of the layers' chunks that the destination had already.
    pub skipped_bytes: u64,
    /// Packs that were written.
    pub packs: u64,
    /// Layers that were written.
    pub layers: u64,
    /// Layers that the destination had already.
    pub skipped_layers: u64,
    /// Requests to other machines, on both sides.
    pub requests: u64,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// Moves what a ref names, and then the ref itself, under the name `to_name`.
///
/// # Errors
/// Those of both stores; [`Error::Conflict`] when the ref of the destination changed against `expected`. The
/// destination's refs are unchanged then; objects that were moved stay.
pub fn transfer_ref(
    from: &dyn Source,
    name: &RefName,
    to: &dyn Store,
    to_name: &RefName,
    expected: Expected,
    options: &Options,
    monitor: &dyn Monitor,
) -> Result<(Ref, Stats)> {
    let (start, before) = (Instant::now(), from.requests() + to.requests());
    let target = from.read_ref(name)?.target;
    let mut stats = transfer(from, target, to, options, monitor)?;
    let record = to.set_ref(to_name, target, expected)?;
    stats.elapsed_ms = elapsed_ms(start);
    stats.requests = from.requests() + to.requests() - before;
    Ok((record, stats))
}

/// Moves an image or an environment with everything that belongs to it.
///
/// # Errors
/// Those of both stores.
pub fn transfer(
    from: &dyn Source,
    target: Target,
    to: &dyn Store,
    options: &Options,
    monitor: &dyn Monitor,
) -> Result<Stats> {
    let (start, before) = (Instant::now(), from.requests() + to.requests());
    let mut session = to.session()?;
    let mut transfer = Transfer { from, to, options, monitor, stats: Stats::default() };
    let moved = match target {
        Target::Image(digest) => transfer.image(&digest),
        Target::Environment(digest) => transfer.environment(&digest),
    };
    if let Err(error) = moved {
        // What has arrived is for the next try, unless it is what leaves no room for that.
        if error.is_full()
            && let Err(error) = session.give_up()
        {
            tracing::warn!(%error, "what a failed transfer has brought was not removed");
        }
        return Err(error);
    }
    drop(session);
    let mut stats = transfer.stats;
    stats.elapsed_ms = elapsed_ms(start);
    stats.requests = from.requests() + to.requests() - before;
    Ok(stats)
}

fn elapsed_ms(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

struct Transfer<'a> {
    from: &'a dyn Source,
    to: &'a dyn Store,
    options: &'a Options,
    monitor: &'a dyn Monitor,
    stats: Stats,
}

/// A layer whose stored form was fetched and checked.
struct Spooled {
    digest: LayerDigest,
    file: PathBuf,
    bytes: u64,
}

impl Transfer<'_> {
    fn environment(&mut self, digest: &EnvironmentDigest) -> Result<()> {
        let environment = self.from.read_environment(digest)?;
        for image in environment.images() {
            self.image(image)?;
        }
        self.to.put_environment(&environment).map(|_| ())
    }

    fn image(&mut self, digest: &ImageDigest) -> Result<()> {
        let image = self.from.read_image(digest)?;
        let has_image = self.to.has_image(digest)?;
        let (mut lacking, mut lacking_bytes) = (Vec::new(), 0u64);
        for record in &image.layers {
            if has_image || self.to.has_layer(&record.digest)? {
                self.stats.skipped_layers += 1;
                self.stats.skipped_bytes = self.stats.skipped_bytes.saturating_add(record.data_bytes);
            } else {
                lacking.push(record.digest);
                lacking_bytes = lacking_bytes.saturating_add(record.data_bytes);
            }
        }
        if has_image {
            return Ok(());
        }
        self.monitor.begin(Stage::Move, Some(lacking_bytes));
        let spooled = self.chunks_of(&lacking)?;
        self.monitor.begin(Stage::Publish, Some(spooled.len() as u64 + 1));
        for layer in spooled {
            self.to.put_layer(&layer.digest, &layer.file)?;
            fs::remove_file(&layer.file)?;
            self.stats.layers += 1;
            self.stats.sent_bytes += layer.bytes;
            self.monitor.advance(1);
        }
        self.to.put_image(&image)?;
        self.monitor.advance(1);
        Ok(())
    }

    /// Moves the chunks of layers; gives the layers, ready to be put.
    fn chunks_of(&mut self, layers: &[LayerDigest]) -> Result<Vec<Spooled>> {
        let (from, to, options, monitor) = (self.from, self.to, self.options, self.monitor);
        let (spooled, moved) = flow::run(from, to, options, monitor, |flow| {
            let mut spooled: Vec<Spooled> = Vec::new();
            for digest in layers {
                // One layer may be listed twice.
                if spooled.iter().any(|layer| layer.digest == *digest) {
                    continue;
                }
                let (layer, extents) = self.spool(digest, spooled.len())?;
                spooled.push(layer);
                self.chunks_of_layer(digest, &extents, flow)?;
            }
            Ok(spooled)
        })?;
        self.stats.sent_bytes += moved.pack_bytes;
        self.stats.packs += moved.packs;
        self.stats.moved_chunks += moved.chunks;
        self.stats.moved_bytes += moved.plain_bytes;
        Ok(spooled)
    }

    fn chunks_of_layer(&mut self, digest: &LayerDigest, extents: &[u8], flow: &mut flow::Flow<'_>) -> Result<()> {
        let map = Map::decode(extents).map_err(|error| layer::damaged(digest, &self.from.describe(), error))?;
        if map.extents().is_empty() {
            return Ok(());
        }
        let locations = self.from.read_locations(digest, map.extents().len() as u64)?;
        check_locations(self.from, digest, map.extents(), &locations)?;
        let windows = map.extents().chunks(MAX_QUERY_CHUNKS).zip(locations.records.chunks(MAX_QUERY_CHUNKS));
        for (extents, records) in windows {
            if self.monitor.interrupted() {
                return Err(Error::Interrupted);
            }
            let plan = plan::plan(self.to, flow, extents, records)?;
            self.stats.skipped_bytes += plan.skipped_bytes;
            self.monitor.advance(plan.skipped_bytes);
            for run in plan.runs {
                flow.push(run, &locations.packs)?;
            }
        }
        Ok(())
    }

    /// Fetches the stored form of a layer into a file, checking all of it; gives the plain extent map as well.
    fn spool(&self, digest: &LayerDigest, number: usize) -> Result<(Spooled, Vec<u8>)> {
        let path = self.options.scratch.join(format!("layer-{number:06}"));
        let mut file = std::io::BufWriter::new(fs::File::create(&path)?);
        let mut stored = self.from.open_layer(digest)?;
        let mut tee = Tee { from: &mut stored, to: &mut file, failed: None };
        let extents = layer::read_extents(&mut tee, digest, &self.from.describe());
        if let Some(error) = tee.failed {
            return Err(error.into());
        }
        let extents = extents?;
        file.flush()?;
        let bytes = fs::metadata(&path)?.len();
        Ok((Spooled { digest: *digest, file: path, bytes }, extents))
    }
}

/// Writes down what is read.
struct Tee<'a> {
    from: &'a mut dyn Read,
    to: &'a mut dyn Write,
    failed: Option<std::io::Error>,
}

impl Read for Tee<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.from.read(buffer)?;
        if let Err(error) = self.to.write_all(&buffer[..count]) {
            let kind = error.kind();
            self.failed = Some(error);
            return Err(kind.into());
        }
        Ok(count)
    }
}
