//! Reading a local store.

use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use dsec_format::environment::Environment;
use dsec_format::image::Image;
use dsec_format::json::MAX_JSON_BYTES;
use dsec_format::layer::Layer;
use dsec_format::locations::Locations;
use dsec_format::pack::Place;
use dsec_format::protocol::registry::RefList;
use dsec_format::refs::{Ref, RefName};
use dsec_format::{ChunkDigest, EnvironmentDigest, ImageDigest, LayerDigest, PackDigest, json};
use fs_err as fs;

use super::LocalStore;
use crate::error::{Damage, Error, Result};
use crate::index::Refresh;
use crate::layer::{self, MAX_IN_MEMORY_BYTES};
use crate::layout::Object;
use crate::source::Source;

impl LocalStore {
    /// In which pack, and where in it, a chunk lies. `None` when the store lacks it.
    ///
    /// # Errors
    /// An I/O error.
    pub fn locate(&self, chunk: &ChunkDigest) -> Result<Option<(PackDigest, Place)>> {
        if let Some(found) = self.index.find(chunk).map_err(|error| self.io(error))? {
            return Ok(Some(found));
        }
        self.index.refresh(Refresh::Changed).map_err(|error| self.io(error))?;
        self.index.find(chunk).map_err(|error| self.io(error))
    }

    /// The file of an object, for whoever sends it on as it is. Nothing is checked.
    ///
    /// # Errors
    /// [`Error::NotFound`], or the store's failure.
    pub fn open_object(&self, object: Object) -> Result<fs::File> {
        fs::File::open(self.object_path(object)).map_err(|error| self.read_error(object, error))
    }

    /// Reads a whole object that is at most `allowed_bytes` long.
    pub(super) fn read_object(&self, object: Object, allowed_bytes: u64) -> Result<Vec<u8>> {
        let file = self.open_object(object)?;
        let have_bytes = file.metadata()?.len();
        if have_bytes > allowed_bytes {
            return Err(Error::TooLarge { object: object.to_string(), have_bytes, allowed_bytes });
        }
        let mut bytes = Vec::with_capacity(usize::try_from(have_bytes).unwrap_or_default());
        file.take(allowed_bytes).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads a JSON object; one over the format's limit is damaged.
    pub(super) fn read_json(&self, object: Object, noun: &'static str) -> Result<Vec<u8>> {
        self.read_object(object, MAX_JSON_BYTES as u64).map_err(|error| match error {
            Error::TooLarge { have_bytes, .. } => {
                let have_bytes = usize::try_from(have_bytes).unwrap_or(usize::MAX);
                self.damaged(object, json::Error::Size { object: noun, have_bytes })
            }
            error => error,
        })
    }
}

impl Source for LocalStore {
    fn describe(&self) -> String {
        self.root.display().to_string()
    }

    fn read_ref(&self, name: &RefName) -> Result<Ref> {
        self.ref_or_none(name)?.ok_or_else(|| Error::NotFound { object: format!("ref {name}"), store: self.describe() })
    }

    fn list_refs(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<RefList> {
        self.list_refs_of(prefix, after, limit)
    }

    fn read_image(&self, digest: &ImageDigest) -> Result<Image> {
        let object = Object::image(digest);
        let bytes = self.read_json(object, "image")?;
        Image::decode(&bytes, digest).map_err(|error| self.damaged(object, error))
    }

    fn read_environment(&self, digest: &EnvironmentDigest) -> Result<Environment> {
        let object = Object::environment(digest);
        let bytes = self.read_json(object, "environment")?;
        Environment::decode(&bytes, digest).map_err(|error| self.damaged(object, error))
    }

    fn open_layer(&self, digest: &LayerDigest) -> Result<Box<dyn Read + Send>> {
        let object = Object::layer(digest);
        Ok(Box::new(self.open_object(object)?))
    }

    fn read_layer(&self, digest: &LayerDigest) -> Result<Layer> {
        let object = Object::layer(digest);
        let bytes = self.read_object(object, MAX_IN_MEMORY_BYTES)?;
        layer::decode(&bytes, digest, &self.object_path(object).display().to_string())
    }

    fn read_locations(&self, digest: &LayerDigest, chunks: u64) -> Result<Locations> {
        let object = Object::locations(digest);
        let have_bytes = self.open_object(object)?.metadata()?.len();
        layer::bound_locations(digest, chunks, have_bytes, &self.object_path(object).display().to_string())?;
        let bytes = self.read_object(object, MAX_IN_MEMORY_BYTES)?;
        Locations::decode(&bytes, digest).map_err(|error| self.damaged(object, error))
    }

    fn read_pack(&self, digest: &PackDigest, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let object = Object::pack(digest);
        let file = self.open_object(object)?;
        let have_bytes = file.metadata()?.len().saturating_sub(offset).min(bytes);
        if have_bytes < bytes {
            return Err(self.damaged(object, Damage::Length { need_bytes: bytes, have_bytes }));
        }
        let length = usize::try_from(bytes).map_err(|_| Error::TooLarge {
            object: object.to_string(),
            have_bytes: bytes,
            allowed_bytes: usize::MAX as u64,
        })?;
        let mut buffer = vec![0; length];
        match file.file().read_exact_at(&mut buffer, offset) {
            Ok(()) => Ok(buffer),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged(object, Damage::Length { need_bytes: bytes, have_bytes: 0 }))
            }
            Err(error) => {
                Err(io::Error::new(error.kind(), format!("reading {} failed: {error}", file.path().display())).into())
            }
        }
    }

    fn pack_bytes(&self, digest: &PackDigest) -> Result<u64> {
        let object = Object::pack(digest);
        let metadata = fs::metadata(self.object_path(object)).map_err(|error| self.read_error(object, error))?;
        Ok(metadata.len())
    }
}
