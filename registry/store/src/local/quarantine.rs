//! Setting damaged objects aside, and making locations anew: what a check does when it is to mend.

use std::io;
use std::path::PathBuf;

use dsec_format::LayerDigest;
use dsec_format::extents::Map;
use fs_err as fs;

use super::LocalStore;
use crate::error::Result;
use crate::layer;
use crate::layout::{Kind, Object, QUARANTINE};
use crate::source::Source;

impl LocalStore {
    /// Moves an object into the quarantine, when it `is_bad` still; gives where it is then. From then on it is missing.
    pub(crate) fn set_aside(&self, object: Object, is_bad: &dyn Fn() -> bool) -> Result<Option<PathBuf>> {
        let (path, aside) = (self.object_path(object), object.quarantine_path(&self.root));
        // Nobody brings it anew, or relies on it, between the look and the move.
        let _names = self.names_lock_alone()?;
        if !is_bad() || !self.exists(object)? {
            return Ok(None);
        }
        let moved = self.disk.publish(&path, &aside).and_then(|()| self.disk.settle_name(&path));
        moved.map_err(|error| self.io(error))?;
        if object.kind == Kind::Pack {
            self.index.forget_tables(&dsec_format::PackDigest::from_bytes(object.digest));
        }
        tracing::warn!(%object, path = %aside.display(), "set a damaged object aside");
        Ok(Some(aside))
    }

    /// Objects in the quarantine.
    pub(crate) fn quarantined(&self) -> Result<u64> {
        let mut count = 0;
        for kind in Kind::ALL {
            match fs::read_dir(self.root.join(QUARANTINE).join(kind.directory())) {
                Ok(entries) => count += entries.count() as u64,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(self.io(error)),
            }
        }
        Ok(count)
    }

    /// Makes the locations of a layer that is there anew, from the tables of the packs that are there.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`] naming a chunk that is in no pack.
    pub(crate) fn relocate(&self, digest: &LayerDigest) -> Result<()> {
        let object = Object::layer(digest);
        let mut stored = io::BufReader::new(self.open_object(object)?);
        let extents = layer::read_extents(&mut stored, digest, &self.describe())?;
        let map = Map::decode(&extents).map_err(|error| self.damaged(object, error))?;
        self.join_writers()?;
        let _naming = self.naming()?;
        let locations = self.settled_locations_of(map)?;
        self.put_locations(digest, &locations)
    }
}
