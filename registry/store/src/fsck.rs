//! Checking a local store: every object against its digest and its format, and everything that an object needs.
//!
//! Goes on after a finding: the result is all of them. Names are listed from the top down (refs first, packs last) and
//! checked from the bottom up, so a push that runs meanwhile, which writes in the opposite order, makes no false finding.

mod finding;
mod repair;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use dsec_format::extents::{Extent, Map};
use dsec_format::image::LayerRecord;
use dsec_format::layer::Identity;
use dsec_format::locations::{Locations, Record};
use dsec_format::refs::{RefName, Target};
use dsec_format::{EnvironmentDigest, ImageDigest, LayerDigest, PackDigest};
use fs_err as fs;

use crate::chunks::check_locations;
use crate::error::{Error, Result};
use crate::index::{Index, Refresh};
use crate::layer::{self, UnpackError};
use crate::layout::{Kind, Object};
use crate::local::LocalStore;
use crate::monitor::{Monitor, Stage};
use crate::pack::{self, ReadError};
use crate::source::Source;

use repair::Wanted;

pub use finding::{Finding, Report};

/// How thorough a check is.
#[derive(Debug, Clone)]
pub struct Options {
    /// Leave out the frames of packs: their tables are still checked, and everything else.
    pub quick: bool,
    /// Packs that are checked side by side.
    pub threads: usize,
    /// Set damaged objects aside, so that they count as missing and the next push, pull or build brings them again; make
    /// locations anew.
    pub repair: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { quick: false, threads: 2, repair: false }
    }
}

/// Checks a store.
///
/// # Errors
/// [`Error::Interrupted`], or a directory of the store that cannot be listed. What is wrong with objects is in the
/// report.
pub fn fsck(store: &LocalStore, options: &Options, monitor: &dyn Monitor) -> Result<Report> {
    // An index of its own: that of the store may remember tables that have been damaged since.
    let index = Index::new(store.path());
    let mut check = Check { store, monitor, index, report: Report::default(), wanted: Wanted::default() };
    let refs = check.refs()?;
    let environments = check.list(Kind::Environment)?;
    let images = check.list(Kind::Image)?;
    let layers = check.list(Kind::Layer)?;
    let locations = check.list(Kind::Locations)?;
    let packs = check.list(Kind::Pack)?;
    let total = refs.len() + environments.len() + images.len() + layers.len() + packs.len();
    monitor.begin(Stage::Check, Some(total as u64));

    let bad_packs = check.packs(&packs, options)?;
    check.index.refresh(Refresh::All)?;
    let mut good_layers = HashMap::new();
    for digest in &layers {
        check.step()?;
        let digest = LayerDigest::from_bytes(*digest);
        if let Some(identity) = check.layer(&digest, &bad_packs)? {
            good_layers.insert(digest, identity);
        }
    }
    check.orphans(&locations, &layers);
    check.unnamed(&locations, &packs);
    let mut good_images = HashSet::new();
    let mut used_layers = HashSet::new();
    for digest in &images {
        check.step()?;
        let digest = ImageDigest::from_bytes(*digest);
        if check.image(&digest, &good_layers, &mut used_layers) {
            good_images.insert(digest);
        }
    }
    check.report.unreferenced_layers = layers.iter().filter(|layer| !used_layers.contains(*layer)).count() as u64;
    let mut good_environments = HashSet::new();
    for digest in &environments {
        check.step()?;
        let digest = EnvironmentDigest::from_bytes(*digest);
        if check.environment(&digest, &good_images) {
            good_environments.insert(digest);
        }
    }
    for name in refs {
        check.step()?;
        check.reference(&name, &good_images, &good_environments);
    }
    check.leftovers()?;
    if options.repair {
        check.report.findings.extend(repair::repair(store, check.wanted)?);
    }
    check.report.set_aside = store.quarantined()?;
    Ok(check.report)
}

struct Check<'a> {
    store: &'a LocalStore,
    monitor: &'a dyn Monitor,
    index: Index,
    report: Report,
    wanted: Wanted,
}

impl Check<'_> {
    fn step(&self) -> Result<()> {
        if self.monitor.interrupted() {
            return Err(Error::Interrupted);
        }
        self.monitor.advance(1);
        Ok(())
    }

    fn find(&mut self, finding: Finding) {
        self.report.findings.push(finding);
    }

    fn path(&self, object: Object) -> PathBuf {
        object.path(self.store.path())
    }

    /// Notes what is wrong with an object that could not be read or decoded.
    fn bad(&mut self, object: Object, error: Error) {
        if matches!(error, Error::Damaged { .. }) {
            self.wanted.bad.push(object);
        }
        let path = self.path(object);
        self.find(Finding::of_object(object, path, error));
    }

    fn refs(&mut self) -> Result<Vec<RefName>> {
        let mut names = Vec::new();
        let mut foreign = Vec::new();
        self.store.walk_refs(&|_| true, &mut |name| names.push(name), &mut |path| foreign.push(path))?;
        self.report.refs = names.len() as u64;
        self.report.findings.extend(foreign.into_iter().map(|path| Finding::Foreign { path }));
        Ok(names)
    }

    /// The digests of all objects of a kind.
    fn list(&mut self, kind: Kind) -> Result<Vec<[u8; 32]>> {
        let mut digests = Vec::new();
        let top = self.store.path().join(kind.directory());
        for shard in entries(&top)? {
            for path in if shard.is_dir() { entries(&shard)? } else { vec![shard] } {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                match PackDigest::from_hex(name) {
                    Ok(digest) if (Object { kind, digest: *digest.as_bytes() }).path(self.store.path()) == path => {
                        digests.push(*digest.as_bytes());
                    }
                    _ => self.find(Finding::Foreign { path }),
                }
            }
        }
        digests.sort_unstable();
        *self.report.count_of(kind) = digests.len() as u64;
        Ok(digests)
    }

    /// Checks packs; gives the bad ones.
    fn packs(&mut self, packs: &[[u8; 32]], options: &Options) -> Result<HashSet<PackDigest>> {
        let found = Mutex::new(Vec::new());
        let interrupted = AtomicBool::new(false);
        let next = Mutex::new(packs.iter());
        std::thread::scope(|scope| {
            for _ in 0..options.threads.max(1) {
                scope.spawn(|| {
                    loop {
                        let Some(digest) = lock(&next).next() else { return };
                        if self.monitor.interrupted() {
                            interrupted.store(true, Ordering::Relaxed);
                            return;
                        }
                        let digest = PackDigest::from_bytes(*digest);
                        let object = Object::pack(&digest);
                        let path = object.path(self.store.path());
                        if let Err(error) = check_pack(&path, &digest, options.quick) {
                            lock(&found).push((digest, error));
                        }
                        self.monitor.advance(1);
                    }
                });
            }
        });
        if interrupted.into_inner() {
            return Err(Error::Interrupted);
        }
        let mut found = found.into_inner().unwrap_or_default();
        found.sort_by_key(|(digest, _)| *digest);
        let bad = found.iter().map(|(digest, _)| *digest).collect();
        for (digest, error) in found {
            self.bad(Object::pack(&digest), error);
        }
        Ok(bad)
    }

    /// Checks a layer, its locations and its chunks; gives its identity when its own bytes are right.
    fn layer(&mut self, digest: &LayerDigest, bad_packs: &HashSet<PackDigest>) -> Result<Option<Identity>> {
        let object = Object::layer(digest);
        let mut extents = Vec::new();
        let identity = match unpack(self.store, digest, &mut extents) {
            Ok(identity) => identity,
            Err(error) => {
                self.bad(object, error);
                return Ok(None);
            }
        };
        let map = match Map::decode(&extents) {
            Ok(map) => map,
            Err(error) => {
                let store = self.store.describe();
                self.bad(object, layer::damaged(digest, &store, error));
                return Ok(None);
            }
        };
        let whole = self.chunks_of(digest, map.extents(), bad_packs)?;
        self.locations_of(digest, map.extents())?;
        Ok(whole.then_some(identity))
    }

    /// Whether every chunk of a layer is in a pack that is right.
    fn chunks_of(&mut self, layer: &LayerDigest, extents: &[Extent], bad: &HashSet<PackDigest>) -> Result<bool> {
        let mut lacking = 0u64;
        let mut first = None;
        for extent in extents {
            let places = self.index.find_all(&extent.chunk)?;
            let sound =
                places.iter().any(|(pack, place)| !bad.contains(pack) && place.chunk_bytes == extent.bytes.get());
            if !sound {
                lacking += 1;
                first.get_or_insert((extent.chunk, places.first().map(|(pack, _)| *pack)));
            }
        }
        let Some((chunk, pack)) = first else { return Ok(true) };
        self.wanted.displaced.push(*layer);
        self.find(Finding::LacksChunks { layer: *layer, lacking, chunk, pack });
        Ok(false)
    }

    fn locations_of(&mut self, layer: &LayerDigest, extents: &[Extent]) -> Result<()> {
        let object = Object::locations(layer);
        let locations = self.store.read_locations(layer, extents.len() as u64).and_then(|locations| {
            check_locations(self.store, layer, extents, &locations)?;
            Ok(locations)
        });
        match locations {
            Err(error) => self.bad(object, error),
            Ok(locations) => {
                if let Some(extent) = self.misplaced(extents, &locations)? {
                    self.wanted.bad.push(object);
                    let path = self.path(object);
                    self.find(Finding::Misplaced { layer: *layer, chunk: extent.chunk, path });
                }
            }
        }
        Ok(())
    }

    /// The first extent whose record does not say what the pack's own table says.
    fn misplaced<'e>(&mut self, extents: &'e [Extent], locations: &Locations) -> Result<Option<&'e Extent>> {
        for (extent, record) in extents.iter().zip(&locations.records) {
            let pack = locations.packs.get(record.pack.get() as usize);
            let place = match pack {
                Some(pack) => self.index.tables(pack)?.and_then(|tables| tables.find(&extent.chunk)),
                None => None,
            };
            // A chunk that is in no sound pack is another finding.
            if place.is_none_or(|place| Record::new(record.pack.get(), &place) != *record) {
                return Ok(Some(extent));
            }
        }
        Ok(None)
    }

    /// Locations without a layer: a push that was killed between the two leaves them.
    fn orphans(&mut self, locations: &[[u8; 32]], layers: &[[u8; 32]]) {
        for digest in locations.iter().filter(|digest| layers.binary_search(digest).is_err()) {
            let path = self.path(Object { kind: Kind::Locations, digest: *digest });
            let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            self.find(Finding::Leftover { path, bytes });
        }
    }

    /// Counts packs that no locations name.
    fn unnamed(&mut self, locations: &[[u8; 32]], packs: &[[u8; 32]]) {
        // What cannot be read is a finding elsewhere.
        let of_layer = |digest: &[u8; 32]| self.store.packs_of(&LayerDigest::from_bytes(*digest)).unwrap_or_default();
        let named: HashSet<PackDigest> = locations.iter().flat_map(of_layer).collect();
        for digest in
            packs.iter().map(|digest| PackDigest::from_bytes(*digest)).filter(|digest| !named.contains(digest))
        {
            self.report.unnamed_packs += 1;
            self.report.unnamed_bytes += self.store.pack_bytes(&digest).unwrap_or_default();
        }
    }

    fn image(
        &mut self,
        digest: &ImageDigest,
        layers: &HashMap<LayerDigest, Identity>,
        used: &mut HashSet<[u8; 32]>,
    ) -> bool {
        let image = match self.store.read_image(digest) {
            Ok(image) => image,
            Err(error) => {
                self.bad(Object::image(digest), error);
                return false;
            }
        };
        let mut whole = true;
        for record in &image.layers {
            used.insert(*record.digest.as_bytes());
            let needs = Object::layer(&record.digest);
            match layers.get(&record.digest) {
                None => {
                    self.find(Finding::Lacks { object: Object::image(digest).to_string(), needs: needs.to_string() })
                }
                Some(identity) if !states(record, identity) => {
                    self.find(Finding::Totals { image: *digest, layer: record.digest });
                }
                Some(_) => continue,
            }
            whole = false;
        }
        whole
    }

    fn environment(&mut self, digest: &EnvironmentDigest, images: &HashSet<ImageDigest>) -> bool {
        let object = Object::environment(digest);
        let environment = match self.store.read_environment(digest) {
            Ok(environment) => environment,
            Err(error) => {
                self.bad(object, error);
                return false;
            }
        };
        let lacking: Vec<_> = environment.images().filter(|image| !images.contains(*image)).collect();
        for image in &lacking {
            self.find(Finding::Lacks { object: object.to_string(), needs: Object::image(image).to_string() });
        }
        lacking.is_empty()
    }

    fn reference(&mut self, name: &RefName, images: &HashSet<ImageDigest>, environments: &HashSet<EnvironmentDigest>) {
        let record = match self.store.read_ref(name) {
            Ok(record) => record,
            // Removed since it was listed.
            Err(Error::NotFound { .. }) => return,
            Err(error) => {
                let path = crate::layout::ref_path(self.store.path(), name);
                self.find(Finding::of_ref(name, path, error));
                return;
            }
        };
        // A ref that was changed since it was listed may name what was not listed then.
        let needs = match record.target {
            Target::Image(digest) if !images.contains(&digest) => Object::image(&digest),
            Target::Environment(digest) if !environments.contains(&digest) => Object::environment(&digest),
            _ => return,
        };
        if self.store.exists(needs).unwrap_or(false) && !self.report.names(&needs.to_string()) {
            return;
        }
        self.find(Finding::Lacks { object: format!("ref {name}"), needs: needs.to_string() });
    }

    fn leftovers(&mut self) -> Result<()> {
        for leftover in self.store.leftovers()? {
            self.find(Finding::Leftover { path: leftover.path, bytes: leftover.bytes });
        }
        for (id, bytes) in self.store.idle_uploads(std::time::Duration::ZERO, false)? {
            self.report.uploads += 1;
            self.report.upload_bytes += bytes;
            tracing::debug!(%id, bytes, "unfinished upload");
        }
        Ok(())
    }
}

/// Checks the stored bytes of a layer; gives its extent map too.
fn unpack(store: &LocalStore, digest: &LayerDigest, extents: &mut Vec<u8>) -> Result<Identity> {
    let mut stored = io::BufReader::new(store.open_object(Object::layer(digest))?);
    layer::unpack(&mut stored, digest, &mut io::sink(), extents).map_err(|error| match error {
        UnpackError::Read(error) | UnpackError::Write(error) => Error::Io(error),
        UnpackError::Damaged(error) => layer::damaged(digest, &store.describe(), error),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn entries(directory: &std::path::Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn check_pack(path: &std::path::Path, digest: &PackDigest, quick: bool) -> Result<()> {
    let checked = if quick { pack::read_tables(path) } else { pack::verify(path, digest) };
    checked.map(|_| ()).map_err(|error| match error {
        ReadError::Io(error) => Error::Io(error),
        ReadError::Damaged(source) => {
            Error::Damaged { object: Object::pack(digest).to_string(), store: path.display().to_string(), source }
        }
    })
}

/// Whether an image says of a layer what the layer says of itself.
fn states(record: &LayerRecord, identity: &Identity) -> bool {
    (record.metadata_bytes, record.data_bytes, record.logical_bytes, record.inodes)
        == (
            identity.metadata_bytes.get(),
            identity.data_bytes.get(),
            identity.logical_bytes.get(),
            identity.inodes.get(),
        )
}
