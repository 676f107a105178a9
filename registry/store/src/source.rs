//! The two traits over every store.
//!
//! Synchronous: a caller that wants several things at once uses threads. Every implementation bounds each call by a
//! deadline of its own.

use std::io::Read;
use std::path::Path;

use dsec_format::environment::Environment;
use dsec_format::image::Image;
use dsec_format::layer::Layer;
use dsec_format::locations::Locations;
use dsec_format::protocol::registry::{Expected, RefList};
use dsec_format::refs::{Ref, RefName, Target};
use dsec_format::{ChunkDigest, EnvironmentDigest, ImageDigest, LayerDigest, PackDigest};

use crate::error::Result;
use crate::local::unnamed::Unnamed;
use crate::pack::FinishedPack;

/// Something images can be read from.
pub trait Source: Send + Sync {
    /// For errors: a path or a URL.
    fn describe(&self) -> String;

    /// The present value of a ref.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`], or the store's failure. The same holds for every method here.
    fn read_ref(&self, name: &RefName) -> Result<Ref>;

    /// Refs whose `NAME:TAG` starts with `prefix`, sorted, after `after`, at most `limit`. Damaged ones are named apart:
    /// reading such a ref says what is wrong with it.
    ///
    /// # Errors
    /// The store's failure.
    fn list_refs(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<RefList>;

    /// An image, checked.
    ///
    /// # Errors
    /// As [`Source::read_ref`].
    fn read_image(&self, digest: &ImageDigest) -> Result<Image>;

    /// An environment, checked.
    ///
    /// # Errors
    /// As [`Source::read_ref`].
    fn read_environment(&self, digest: &EnvironmentDigest) -> Result<Environment>;

    /// The stored bytes of a layer, unchecked.
    ///
    /// # Errors
    /// As [`Source::read_ref`].
    fn open_layer(&self, digest: &LayerDigest) -> Result<Box<dyn Read + Send>>;

    /// A whole layer in memory, checked. For layers whose size the caller knows to be small.
    ///
    /// # Errors
    /// As [`Source::read_ref`].
    fn read_layer(&self, digest: &LayerDigest) -> Result<Layer>;

    /// Where the chunks of a layer, so many by its extent map, lie in this store. Nothing above locations states their
    /// size: without the number of chunks a source could make its reader hold anything.
    ///
    /// # Errors
    /// As [`Source::read_ref`]; locations that are larger than those of so many chunks can be are
    /// [`crate::Error::Damaged`], before they are read.
    fn read_locations(&self, digest: &LayerDigest, chunks: u64) -> Result<Locations>;

    /// Exactly `bytes` bytes of a pack from `offset`, unchecked.
    ///
    /// # Errors
    /// As [`Source::read_ref`]; a shorter answer is [`crate::error::Damage::Length`].
    fn read_pack(&self, digest: &PackDigest, offset: u64, bytes: u64) -> Result<Vec<u8>>;

    /// Size of a pack.
    ///
    /// # Errors
    /// As [`Source::read_ref`].
    fn pack_bytes(&self, digest: &PackDigest) -> Result<u64>;

    /// Requests that were made to another machine so far. A local store makes none.
    fn requests(&self) -> u64 {
        0
    }
}

/// Something images can be written to. What a method has returned `Ok` for survives a crash.
///
/// The order of a push is: packs, layers, image, ref. A store refuses an object whose parts it lacks, so whatever it
/// lists is whole.
pub trait Store: Source {
    /// Begins to bring something: for whoever may have to give it up.
    ///
    /// # Errors
    /// The store's failure.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Those of `chunks` that the store lacks, in the same order.
    ///
    /// # Errors
    /// The store's failure.
    fn missing_chunks(&self, chunks: &[ChunkDigest]) -> Result<Vec<ChunkDigest>>;

    /// Whether the store has a layer, whole.
    ///
    /// # Errors
    /// The store's failure.
    fn has_layer(&self, digest: &LayerDigest) -> Result<bool>;

    /// Whether the store has an image, whole.
    ///
    /// # Errors
    /// The store's failure.
    fn has_image(&self, digest: &ImageDigest) -> Result<bool>;

    /// Adds a finished pack from a file. The file is checked on arrival against `digest`, frame by frame and chunk by
    /// chunk.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`] when it is not that pack; the store's failure.
    fn put_pack(&self, digest: &PackDigest, file: &Path) -> Result<()>;

    /// Adds a pack that a [`crate::pack::PackWriter`] of this process has finished. A store that can take the file as it
    /// is does so: the file may be gone afterwards.
    ///
    /// # Errors
    /// As [`Store::put_pack`].
    fn put_finished(&self, pack: &FinishedPack) -> Result<()> {
        self.put_pack(&pack.digest(), pack.path())
    }

    /// Adds a layer from a file in stored form. Its chunks must be there.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`], [`crate::Error::NotFound`] naming a missing chunk, the store's failure.
    fn put_layer(&self, digest: &LayerDigest, file: &Path) -> Result<()>;

    /// Adds an image. Its layers must be there.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`] naming a missing layer, the store's failure.
    fn put_image(&self, image: &Image) -> Result<ImageDigest>;

    /// Adds an environment. Its images must be there.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`] naming a missing image, the store's failure.
    fn put_environment(&self, environment: &Environment) -> Result<EnvironmentDigest>;

    /// Changes a ref, atomically. Its target must be there.
    ///
    /// # Errors
    /// [`crate::Error::Conflict`] when `expected` does not hold, [`crate::Error::NotFound`] for the target.
    fn set_ref(&self, name: &RefName, target: Target, expected: Expected) -> Result<Ref>;

    /// Removes a ref.
    ///
    /// # Errors
    /// As [`Store::set_ref`].
    fn remove_ref(&self, name: &RefName, expected: Expected) -> Result<()>;
}

/// A piece of work that brings objects to a store.
pub trait Session {
    /// The work has failed: removes what it has brought and nothing names, unless others write to the store, who may rely
    /// on it. A registry does that by itself, in time.
    ///
    /// # Errors
    /// The store's failure; some of it may be removed then.
    fn give_up(&mut self) -> Result<Unnamed>;
}
