//! Removing what nothing names: packs, locations and layers of writers that failed or were killed before they named them.
//!
//! Images are roots, with or without a ref: they may be named by digest elsewhere. A layer is named by an image, a pack by
//! the locations of a layer that stays. What cannot be told (damaged images, a layer without locations) ends the removal:
//! then `fsck` is due first.
//!
//! Safe beside writers: what is young is left to them, however young that is to be; while something is removed nothing
//! is named, and before it is removed it is looked for once more. Nobody waits for long: some objects at a time.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use dsec_format::locations::{HEADER_BYTES, Head};
use dsec_format::{ImageDigest, LayerDigest, PackDigest};
use fs_err as fs;
use serde::Serialize;

use super::LocalStore;
use crate::disk::Stamp;
use crate::error::{Damage, Result};
use crate::layout::{Kind, Object};
use crate::source::Source;

/// What is younger is left alone while somebody writes to the store, unless a rule says otherwise: nobody takes longer
/// from learning that something is there to naming it.
pub const GRACE: Duration = Duration::from_secs(24 * 60 * 60);
/// Objects that are removed at a time, with all who name something waiting.
const BATCH: usize = 128;

/// What of the unnamed is meant.
#[derive(Debug, Clone, Default)]
pub struct Rule {
    /// Only what is at least so old. `None` is everything when nobody writes, and what is older than [`GRACE`] else.
    pub older_than: Option<Duration>,
    /// Only what has come since then.
    pub since: Option<SystemTime>,
    /// Nothing at all while others write.
    pub alone: bool,
}

/// What was found that nothing names, and removed if that was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Unnamed {
    /// The objects, each with its kind.
    pub objects: Vec<String>,
    /// Their bytes.
    pub bytes: u64,
    /// Whether others were writing to the store: then what is young was left alone.
    pub in_use: bool,
}

impl Unnamed {
    pub(crate) fn in_use() -> Self {
        Self { in_use: true, ..Self::default() }
    }
}

/// What was read of objects that do not change, or have not.
#[derive(Default)]
struct Memory {
    images: HashMap<[u8; 32], Vec<LayerDigest>>,
    locations: HashMap<[u8; 32], (Stamp, Vec<PackDigest>)>,
}

/// An object that nothing names.
struct Doomed {
    object: Object,
    bytes: u64,
}

impl LocalStore {
    /// Finds what nothing names and, with `remove`, removes it.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`] or [`crate::Error::NotFound`] when it cannot be told what is named; the store's failure. What was
    /// removed until then is gone.
    pub fn remove_unnamed(&self, rule: &Rule, remove: bool) -> Result<Unnamed> {
        let (mut memory, mut result) = (Memory::default(), Unnamed::default());
        // Without keeping anybody waiting: what this has read is not read again below.
        self.mark(&mut memory, &|_| false)?;
        loop {
            let writers = self.writers_lock_alone()?;
            result.in_use |= writers.is_none();
            if rule.alone && writers.is_none() {
                return Ok(result);
            }
            let usual = if writers.is_some() { Duration::ZERO } else { GRACE };
            let older_than = rule.older_than.unwrap_or(usual);
            let now = SystemTime::now();
            let meant = |modified: SystemTime| {
                let old = older_than.is_zero() || now.duration_since(modified).is_ok_and(|age| age >= older_than);
                old && rule.since.is_none_or(|since| modified >= since)
            };
            let _names = self.names_lock_alone()?;
            let doomed = self.mark(&mut memory, &meant)?;
            let batch = if remove { BATCH } else { usize::MAX };
            for doomed in doomed.iter().take(batch) {
                if remove {
                    self.disk.remove(&self.object_path(doomed.object)).map_err(|error| self.io(error))?;
                    tracing::info!(object = %doomed.object, bytes = doomed.bytes, "removed what nothing names");
                }
                result.bytes += doomed.bytes;
                result.objects.push(doomed.object.to_string());
            }
            if doomed.len() <= batch {
                return Ok(result);
            }
        }
    }

    /// What nothing names, of what is `meant` by its age: layers before their locations before packs, so that however
    /// far a removal comes, nothing that is left lacks anything.
    fn mark(&self, memory: &mut Memory, meant: &dyn Fn(SystemTime) -> bool) -> Result<Vec<Doomed>> {
        let mut named_layers = HashSet::new();
        for (digest, _) in self.objects(Kind::Image)? {
            let layers = match memory.images.get(&digest) {
                Some(layers) => layers,
                None => {
                    let image = self.read_image(&ImageDigest::from_bytes(digest))?;
                    let layers = image.layers.iter().map(|record| record.digest).collect();
                    memory.images.entry(digest).or_insert(layers)
                }
            };
            named_layers.extend(layers.iter().map(|layer| *layer.as_bytes()));
        }
        let mut doomed = Vec::new();
        let mut kept_layers = HashSet::new();
        for (digest, metadata) in self.objects(Kind::Layer)? {
            if named_layers.contains(&digest) || !meant(metadata.modified()?) {
                kept_layers.insert(digest);
            } else {
                doomed.push(Doomed { object: Object { kind: Kind::Layer, digest }, bytes: metadata.len() });
            }
        }
        let doomed_layers: HashSet<_> = doomed.iter().map(|doomed| doomed.object.digest).collect();
        let mut named_packs = HashSet::new();
        for (digest, metadata) in self.objects(Kind::Locations)? {
            let object = Object { kind: Kind::Locations, digest };
            let kept = kept_layers.remove(&digest);
            if !kept && (doomed_layers.contains(&digest) || meant(metadata.modified()?)) {
                doomed.push(Doomed { object, bytes: metadata.len() });
                continue;
            }
            let stamp = Stamp::of(&metadata);
            match memory.locations.get(&digest) {
                Some((read, packs)) if *read == stamp => named_packs.extend(packs.iter().copied()),
                _ => {
                    let packs = self.packs_of(&LayerDigest::from_bytes(digest))?;
                    named_packs.extend(packs.iter().copied());
                    memory.locations.insert(digest, (stamp, packs));
                }
            }
        }
        if let Some(digest) = kept_layers.into_iter().next() {
            return Err(self.not_found(Object { kind: Kind::Locations, digest }));
        }
        for (digest, metadata) in self.objects(Kind::Pack)? {
            if !named_packs.contains(&PackDigest::from_bytes(digest)) && meant(metadata.modified()?) {
                doomed.push(Doomed { object: Object { kind: Kind::Pack, digest }, bytes: metadata.len() });
            }
        }
        Ok(doomed)
    }

    /// The objects of a kind that are there. What is no object is not this one's business.
    fn objects(&self, kind: Kind) -> Result<Vec<([u8; 32], std::fs::Metadata)>> {
        let mut objects = Vec::new();
        for shard in self.entries(self.root.join(kind.directory()))? {
            for path in self.entries(shard)? {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                let Ok(digest) = PackDigest::from_hex(name) else { continue };
                match fs::symlink_metadata(&path) {
                    Ok(metadata) if metadata.is_file() => objects.push((*digest.as_bytes(), metadata)),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(self.io(error)),
                }
            }
        }
        Ok(objects)
    }

    fn entries(&self, directory: PathBuf) -> Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(directory) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            entries => entries.map_err(|error| self.io(error))?,
        };
        entries.map(|entry| entry.map(|entry| entry.path()).map_err(|error| self.io(error))).collect()
    }

    /// The packs that the chunks of a layer lie in, by its locations. Their records are not read.
    pub(crate) fn packs_of(&self, layer: &LayerDigest) -> Result<Vec<PackDigest>> {
        let object = Object::locations(layer);
        let mut file = self.open_object(object)?;
        let have_bytes = file.metadata()?.len();
        let mut header = Vec::with_capacity(HEADER_BYTES);
        file.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut header)?;
        let damaged = |error: dsec_format::locations::Error| self.damaged(object, Damage::from(error));
        let head = Head::decode(&header, layer, have_bytes).map_err(damaged)?;
        let mut packs = vec![0; head.packs_bytes()];
        file.read_exact(&mut packs)?;
        let (packs, _) = packs.as_chunks::<{ dsec_format::digest::DIGEST_BYTES }>();
        Ok(packs.iter().map(|bytes| PackDigest::from_bytes(*bytes)).collect())
    }
}
