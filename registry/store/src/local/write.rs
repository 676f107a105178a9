//! Writing to a local store. The order inside each method is the order of trust: parts, then what names them.
//!
//! An object's name is given only when what it directly needs is durable, whoever has written that. So whatever is seen
//! in a store rests on durable parts, however deep, and only its own name may still be lost.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use dsec_format::environment::Environment;
use dsec_format::extents::{self, Map};
use dsec_format::image::Image;
use dsec_format::locations::{Locations, Record};
use dsec_format::pack::{Place, Tables};
use dsec_format::protocol::registry::Expected;
use dsec_format::refs::{Ref, RefName, Target};
use dsec_format::{ChunkDigest, EnvironmentDigest, ImageDigest, LayerDigest, PackDigest};
use fs_err as fs;

use super::LocalStore;
use crate::error::{Damage, Error, Result};
use crate::index::Refresh;
use crate::layer;
use crate::layout::Object;
use crate::pack::{self, FinishedPack, ReadError};
use crate::source::{Session, Source, Store};

/// Chunks that are looked up at a time: some 20 MiB.
const LOOK_UP_CHUNKS: usize = 1 << 18;

impl LocalStore {
    /// Takes a pack that this process has written in a [`crate::Scratch`] of this store. It is moved, not read again.
    ///
    /// # Errors
    /// The store's failure.
    pub fn adopt_pack(&self, finished: &FinishedPack) -> Result<()> {
        self.publish_pack(&finished.digest(), finished.path(), Arc::clone(finished.tables()))
    }

    /// As [`Store::put_pack`], but takes the file away: it lies in this store already (scratch, upload).
    ///
    /// # Errors
    /// As [`Store::put_pack`]; the file stays where it is.
    pub fn take_pack(&self, digest: &PackDigest, file: &Path) -> Result<()> {
        let tables = pack::verify(file, digest).map_err(|error| match error {
            ReadError::Io(error) => self.io(error),
            ReadError::Damaged(source) => {
                Error::Damaged { object: Object::pack(digest).to_string(), store: file.display().to_string(), source }
            }
        })?;
        self.publish_pack(digest, file, Arc::new(tables))
    }

    fn publish_pack(&self, digest: &PackDigest, file: &Path, tables: Arc<Tables>) -> Result<()> {
        let path = self.object_path(Object::pack(digest));
        self.join_writers()?;
        let _naming = self.naming()?;
        self.disk.publish(file, &path).map_err(|error| self.io(error))?;
        self.index.forget_tables(digest);
        self.index.add(*digest, tables);
        Ok(())
    }

    /// As [`Store::put_layer`], but takes the file away: it lies in this store already (scratch, upload).
    ///
    /// # Errors
    /// As [`Store::put_layer`]; the file stays where it is.
    pub fn take_layer(&self, digest: &LayerDigest, file: &Path) -> Result<()> {
        let object = Object::layer(digest);
        let extents = self.check_layer(digest, file)?;
        let damaged = |damage: Damage| Error::Damaged {
            object: object.to_string(),
            store: file.display().to_string(),
            source: damage,
        };
        let map = Map::decode(&extents).map_err(|error| damaged(error.into()))?;
        self.join_writers()?;
        let _naming = self.naming()?;
        let locations = self.settled_locations_of(map)?;
        self.put_locations(digest, &locations)?;
        self.disk.publish(file, &self.object_path(object)).map_err(|error| self.io(error))
    }

    pub(super) fn put_locations(&self, layer: &LayerDigest, locations: &Locations) -> Result<()> {
        let scratch = self.scratch()?;
        let temporary = scratch.path().join("locations");
        let written = self.disk.write(&temporary, &locations.encode(layer));
        written
            .and_then(|()| self.disk.publish(&temporary, &self.object_path(Object::locations(layer))))
            .map_err(|error| self.io(error))
    }

    /// Checks a layer in stored form; gives its plain extent map.
    fn check_layer(&self, digest: &LayerDigest, file: &Path) -> Result<Vec<u8>> {
        let mut stored = io::BufReader::new(fs::File::open(file)?);
        layer::read_extents(&mut stored, digest, &file.display().to_string())
    }

    /// Where the chunks of a map lie in this store.
    ///
    /// # Errors
    /// [`Error::NotFound`] naming a chunk that the store lacks, or has with another length.
    pub(crate) fn locations_of(&self, map: Map<'_>) -> Result<Locations> {
        let refresh = |how| self.index.refresh(how).map_err(|error| self.io(error));
        let find = |chunks: &[ChunkDigest]| self.index.find_many(chunks).map_err(|error| self.io(error));
        refresh(Refresh::Changed)?;
        let mut packs = Packs::default();
        let mut records = Vec::with_capacity(map.extents().len());
        let mut looked_everywhere = false;
        for window in map.extents().chunks(LOOK_UP_CHUNKS) {
            let chunks: Vec<ChunkDigest> = window.iter().map(|extent| extent.chunk).collect();
            let mut found = find(&chunks)?;
            if !looked_everywhere && found.iter().any(Option::is_none) {
                looked_everywhere = true;
                refresh(Refresh::All)?;
                found = find(&chunks)?;
            }
            for (extent, found) in window.iter().zip(found) {
                match found {
                    Some((pack, place)) if fits(&place, extent) => {
                        records.push(Record::new(packs.number(pack), &place));
                    }
                    _ => return Err(self.chunk_not_found(&extent.chunk)),
                }
            }
        }
        Ok(Locations { packs: packs.list, records })
    }

    /// As [`LocalStore::locations_of`], in packs that are durable, whoever has brought them.
    pub(super) fn settled_locations_of(&self, map: Map<'_>) -> Result<Locations> {
        loop {
            let locations = self.locations_of(map)?;
            let paths: Vec<_> = locations.packs.iter().map(|pack| self.object_path(Object::pack(pack))).collect();
            let settled = self.disk.settle(&paths).map_err(|error| self.io(error))?;
            let Some(lost) = settled else { return Ok(locations) };
            let pack = locations.packs.iter().zip(&paths).find(|(_, path)| **path == lost).map(|(pack, _)| pack);
            // It was removed since it was indexed. Its chunks may lie elsewhere as well, or are missing from now on.
            self.index.forget_tables(pack.expect("the path is one of those"));
        }
    }

    fn chunk_not_found(&self, chunk: &ChunkDigest) -> Error {
        Error::NotFound { object: format!("chunk {chunk}"), store: self.root.display().to_string() }
    }

    fn put_json(&self, object: Object, bytes: &[u8]) -> Result<()> {
        let path = self.object_path(object);
        // What is there is replaced only when it is not what it should be.
        if fs::read(&path).is_ok_and(|present| present == bytes) && self.settled(object)? {
            return Ok(());
        }
        let scratch = self.scratch()?;
        let temporary = scratch.path().join("object");
        self.disk
            .write(&temporary, bytes)
            .and_then(|()| self.disk.publish(&temporary, &path))
            .map_err(|error| self.io(error))
    }

    fn require_image(&self, digest: &ImageDigest) -> Result<()> {
        if self.has_image(digest)? { Ok(()) } else { Err(self.not_found(Object::image(digest))) }
    }
}

fn fits(place: &Place, extent: &extents::Extent) -> bool {
    place.chunk_bytes == extent.bytes.get()
}

/// Packs in the order of first use.
#[derive(Default)]
struct Packs {
    list: Vec<PackDigest>,
    numbers: HashMap<PackDigest, u32>,
}

impl Packs {
    fn number(&mut self, digest: PackDigest) -> u32 {
        *self.numbers.entry(digest).or_insert_with(|| {
            self.list.push(digest);
            u32::try_from(self.list.len() - 1).expect("no more packs than the index counts")
        })
    }
}

impl Store for LocalStore {
    fn missing_chunks(&self, chunks: &[ChunkDigest]) -> Result<Vec<ChunkDigest>> {
        self.join_writers()?;
        self.index.refresh(Refresh::Changed).map_err(|error| self.io(error))?;
        let mut found = self.index.find_many(chunks).map_err(|error| self.io(error))?;
        // The writer does not bring what it is told is there; a pack may have been removed since it was indexed.
        loop {
            let gone = self.rely_on(&found.iter().flatten().map(|(pack, _)| *pack).collect())?;
            if gone.is_empty() {
                break;
            }
            gone.iter().for_each(|pack| self.index.forget_tables(pack));
            found = self.index.find_many(chunks).map_err(|error| self.io(error))?;
        }
        Ok(chunks.iter().zip(found).filter(|(_, found)| found.is_none()).map(|(chunk, _)| *chunk).collect())
    }

    fn has_layer(&self, digest: &LayerDigest) -> Result<bool> {
        self.join_writers()?;
        let _naming = self.naming()?;
        for object in [Object::layer(digest), Object::locations(digest)] {
            if !self.rely_on_object(object)? || !self.settled(object)? {
                return Ok(false);
            }
        }
        // Packs that fsck has set aside are missing, and with them what layers need of them.
        let packs = match self.packs_of(digest) {
            Ok(packs) => packs,
            Err(Error::Damaged { .. } | Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let paths: Vec<_> = packs.iter().map(|pack| self.object_path(Object::pack(pack))).collect();
        Ok(self.disk.settle(&paths).map_err(|error| self.io(error))?.is_none())
    }

    fn has_image(&self, digest: &ImageDigest) -> Result<bool> {
        if !self.settled(Object::image(digest))? {
            return Ok(false);
        }
        let image = match self.read_image(digest) {
            Ok(image) => image,
            Err(Error::Damaged { .. } | Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        for layer in &image.layers {
            if !self.has_layer(&layer.digest)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(self.begin_session()?))
    }

    fn put_pack(&self, digest: &PackDigest, file: &Path) -> Result<()> {
        let scratch = self.scratch()?;
        let copy = scratch.path().join("pack");
        self.disk.copy(file, &copy).map_err(|error| self.io(error))?;
        self.take_pack(digest, &copy)
    }

    fn put_finished(&self, pack: &FinishedPack) -> Result<()> {
        // Only what lies on the store's own file system can be moved.
        if pack.path().starts_with(&self.root) {
            return self.adopt_pack(pack);
        }
        self.put_pack(&pack.digest(), pack.path())
    }

    fn put_layer(&self, digest: &LayerDigest, file: &Path) -> Result<()> {
        let scratch = self.scratch()?;
        let copy = scratch.path().join("layer");
        self.disk.copy(file, &copy).map_err(|error| self.io(error))?;
        self.take_layer(digest, &copy)
    }

    fn put_image(&self, image: &Image) -> Result<ImageDigest> {
        let (bytes, digest) = (image.encode(), image.digest());
        let object = Object::image(&digest);
        // What could not be read back is refused.
        Image::decode(&bytes, &digest).map_err(|error| self.damaged(object, error))?;
        self.join_writers()?;
        let _naming = self.naming()?;
        for layer in &image.layers {
            if !self.has_layer(&layer.digest)? {
                return Err(self.not_found(Object::layer(&layer.digest)));
            }
        }
        self.put_json(object, &bytes)?;
        Ok(digest)
    }

    fn put_environment(&self, environment: &Environment) -> Result<EnvironmentDigest> {
        let (bytes, digest) = (environment.encode(), environment.digest());
        let object = Object::environment(&digest);
        Environment::decode(&bytes, &digest).map_err(|error| self.damaged(object, error))?;
        for image in environment.images() {
            self.require_image(image)?;
        }
        self.put_json(object, &bytes)?;
        Ok(digest)
    }

    fn set_ref(&self, name: &RefName, target: Target, expected: Expected) -> Result<Ref> {
        match &target {
            Target::Image(digest) => self.require_image(digest)?,
            Target::Environment(digest) => {
                let object = Object::environment(digest);
                if !self.settled(object)? {
                    return Err(self.not_found(object));
                }
            }
        }
        let record = self.change_ref(name, Some(target), expected)?;
        Ok(record.expect("a ref that was set has a record"))
    }

    fn remove_ref(&self, name: &RefName, expected: Expected) -> Result<()> {
        self.change_ref(name, None, expected).map(|_| ())
    }
}
