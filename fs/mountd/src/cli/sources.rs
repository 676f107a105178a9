//! From what `--store` says to a source.
//!
//! A daemon starts whatever its sources do: a directory that is not there yet (a file system not mounted, say) is opened
//! when it is first needed, and again until it is there.

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dsec_format::environment::Environment;
use dsec_format::image::Image;
use dsec_format::layer::Layer;
use dsec_format::locations::Locations;
use dsec_format::protocol::registry::RefList;
use dsec_format::refs::{Ref, RefName};
use dsec_format::{EnvironmentDigest, ImageDigest, LayerDigest, PackDigest};
use dsec_store::{LocalStore, RemoteStore, Source, error::Result, remote};

/// A source for one value of `--store`: a URL or a directory. `deadline` is that of a read.
pub(super) fn open(place: &str, token: Option<&str>, deadline: Duration) -> Result<Box<dyn Source>> {
    if place.contains("://") {
        // A read tries again by itself, and elsewhere: one request must leave it time for that.
        let options = remote::Options {
            connect_timeout: (deadline / 4).min(Duration::from_secs(5)),
            progress_timeout: (deadline / 2).min(Duration::from_secs(10)),
            overall_timeout: deadline,
            attempts: 2,
            ..remote::Options::default()
        };
        return Ok(Box::new(RemoteStore::connect(place, token, options)?));
    }
    let directory = Directory { path: PathBuf::from(place), store: Mutex::default() };
    if let Err(error) = directory.store() {
        tracing::warn!(store = place, %error, "a store cannot be opened yet");
    }
    Ok(Box::new(directory))
}

struct Directory {
    path: PathBuf,
    store: Mutex<Option<Arc<LocalStore>>>,
}

impl Directory {
    fn store(&self) -> Result<Arc<LocalStore>> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = &*store {
            return Ok(Arc::clone(store));
        }
        let opened = Arc::new(LocalStore::open(&self.path)?);
        *store = Some(Arc::clone(&opened));
        Ok(opened)
    }
}

impl Source for Directory {
    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    fn read_ref(&self, name: &RefName) -> Result<Ref> {
        self.store()?.read_ref(name)
    }

    fn list_refs(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<RefList> {
        self.store()?.list_refs(prefix, after, limit)
    }

    fn read_image(&self, digest: &ImageDigest) -> Result<Image> {
        self.store()?.read_image(digest)
    }

    fn read_environment(&self, digest: &EnvironmentDigest) -> Result<Environment> {
        self.store()?.read_environment(digest)
    }

    fn open_layer(&self, digest: &LayerDigest) -> Result<Box<dyn Read + Send>> {
        self.store()?.open_layer(digest)
    }

    fn read_layer(&self, digest: &LayerDigest) -> Result<Layer> {
        self.store()?.read_layer(digest)
    }

    fn read_locations(&self, digest: &LayerDigest, chunks: u64) -> Result<Locations> {
        self.store()?.read_locations(digest, chunks)
    }

    fn read_pack(&self, digest: &PackDigest, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        self.store()?.read_pack(digest, offset, bytes)
    }

    fn pack_bytes(&self, digest: &PackDigest) -> Result<u64> {
        self.store()?.pack_bytes(digest)
    }
}
