//! Building an image: from an input to packs, layers, an image and a ref, in this order. Layers are read back and compared
//! with the input before an image names them: nobody removes an image, not even one that no ref names.
//!
//! Each step is durable before the next begins, so a build that is killed leaves objects that nothing names and no ref
//! that names something unfinished. The same input gives the same image digest, whatever the number of threads, the
//! compression level and what the store already has.

mod buffer;
mod error;
mod frames;
mod layout;
mod pipeline;
mod publish;
mod read;
mod verify;
mod workers;

use std::time::Instant;

use dsec_format::ImageDigest;
use dsec_format::image::{Config, Image, LayerRecord, MAX_LAYERS};
use dsec_format::protocol::registry::Expected;
use dsec_format::refs::{RefName, Target};
use dsec_store::{LocalStore, Session, Store};

use self::pipeline::Target as Pipeline;
use self::verify::Verification;
use crate::input::{Input, Kind, Location, Part, Surroundings};
use crate::monitor::Stage;
use crate::{Cancel, Monitor};

pub use self::error::Error;

/// The compression level that is used when none is asked for.
pub const DEFAULT_LEVEL: i32 = 3;

/// How to build.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// zstd level of frames and metadata.
    pub level: i32,
    /// Threads that read, hash and compress.
    pub threads: usize,
}

/// What to build.
#[derive(Debug, Clone)]
pub struct Request {
    /// From what.
    pub input: Input,
    /// Set last, when everything else is durable.
    pub name: Option<RefName>,
    /// Laid over the configuration that the input has: what is set here wins.
    pub config: Config,
    /// Whether the image is read back and compared with its source before it is put into the store.
    pub verify: bool,
}

/// What the file data of a layer came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stored {
    /// Chunks that the store did not have, and their plain bytes.
    pub new_chunks: u64,
    /// Plain bytes of those.
    pub new_bytes: u64,
    /// Distinct chunks that the store had already.
    pub reused_chunks: u64,
    /// Plain bytes of those.
    pub reused_bytes: u64,
    /// Packs written.
    pub packs: u64,
    /// Bytes of those.
    pub new_stored_bytes: u64,
}

/// A layer of a built image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltLayer {
    /// As it stands in the image.
    pub record: LayerRecord,
    /// Whether the store had it, metadata and all.
    pub reused: bool,
    /// Names in it, the root not counted.
    pub entries: u64,
    /// Its file data.
    pub stored: Stored,
    /// Bytes of the layer object, when it was written.
    pub layer_stored_bytes: u64,
}

/// A built image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// Its name.
    pub image: ImageDigest,
    /// The ref that was set.
    pub name: Option<RefName>,
    /// What the input was found to be.
    pub kind: Kind,
    /// The layers, the lowest first.
    pub layers: Vec<BuiltLayer>,
    /// Wall time.
    pub elapsed_ms: u64,
}

/// Builds an image in `store`.
///
/// # Errors
/// As [`enum@Error`]. The refs of the store are then as they were, and what was stored is removed again, unless others
/// write to the store: they may rely on it.
pub fn build(
    store: &LocalStore,
    request: &Request,
    options: Options,
    monitor: &dyn Monitor,
    cancel: &Cancel,
) -> Result<Built, Error> {
    let mut session = store.session()?;
    build_in(store, request, options, monitor, cancel).inspect_err(|_| give_up(&mut *session))
}

/// Removes what was stored for something that failed.
pub(crate) fn give_up(session: &mut dyn Session) {
    if let Err(error) = session.give_up() {
        tracing::warn!(%error, "what was stored for nothing was not removed");
    }
}

fn build_in(
    store: &LocalStore,
    request: &Request,
    options: Options,
    monitor: &dyn Monitor,
    cancel: &Cancel,
) -> Result<Built, Error> {
    let start = Instant::now();
    let scratch = store.scratch()?;
    let opened = request.input.open(Surroundings { scratch: scratch.path(), monitor, cancel })?;
    if opened.parts.len() > MAX_LAYERS {
        return Err(Error::Layers { layers: opened.parts.len() });
    }
    let target = Pipeline { store, scratch: &scratch, options, monitor, cancel };
    let mut layers = Vec::new();
    let mut parts = Vec::new();
    for mut part in opened.parts {
        let layer = publish::layer(&mut part, &target)?;
        if request.verify && opened.kind != Kind::Directory {
            parts.push((layer.record.digest, part));
        }
        layers.push(layer);
    }
    drop_repeated(&mut layers);
    cancel.check()?;
    let architecture = opened.architecture.as_deref().unwrap_or(&request.input.architecture);
    let records = layers.iter().map(|layer| layer.record.clone()).collect();
    let image = Image::new(architecture, records, overlay(opened.config, &request.config));
    if request.verify {
        let verification = Verification { store, image: &image, monitor, cancel };
        verification.whole()?;
        match &request.input.location {
            Location::Path(path) if opened.kind == Kind::Directory => verification.against_directory(path)?,
            Location::Path(_) | Location::Stdin => verification.against_archives(&parts)?,
        }
    }
    cancel.check()?;
    // Last, and nobody is asked from here on whether to stop: an image stays, with or without a ref.
    monitor.begin(Stage::Publish, None);
    let digest = store.put_image(&image)?;
    if let Some(name) = &request.name {
        store.set_ref(name, Target::Image(digest), Expected::Anything)?;
    }
    let elapsed_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Built { image: digest, name: request.name.clone(), kind: opened.kind, layers, elapsed_ms })
}

/// An overlay refuses the same lower directory twice. A layer that comes again higher up covers all that it did below.
fn drop_repeated(layers: &mut Vec<BuiltLayer>) {
    let digests: Vec<_> = layers.iter().map(|layer| layer.record.digest).collect();
    let mut index = 0;
    layers.retain(|layer| {
        index += 1;
        !digests[index..].contains(&layer.record.digest)
    });
}

/// Stores one layer that is not read from an [`Input`].
///
/// # Errors
/// As [`enum@Error`].
pub(crate) fn layer(
    mut part: Part<'_>,
    store: &LocalStore,
    options: Options,
    monitor: &dyn Monitor,
    cancel: &Cancel,
) -> Result<BuiltLayer, Error> {
    let scratch = store.scratch()?;
    publish::layer(&mut part, &Pipeline { store, scratch: &scratch, options, monitor, cancel })
}

/// `over` where it says something, else `under`. Environment and labels are joined by key.
fn overlay(under: Config, over: &Config) -> Config {
    let key = |variable: &str| variable.split('=').next().unwrap_or_default().to_owned();
    let mut env = under.env;
    for variable in &over.env {
        match env.iter_mut().find(|present| key(present) == key(variable)) {
            Some(present) => present.clone_from(variable),
            None => env.push(variable.clone()),
        }
    }
    let mut labels = under.labels;
    labels.extend(over.labels.clone());
    let text = |under: String, over: &String| if over.is_empty() { under } else { over.clone() };
    let list = |under: Vec<String>, over: &Vec<String>| if over.is_empty() { under } else { over.clone() };
    Config {
        user: text(under.user, &over.user),
        working_dir: text(under.working_dir, &over.working_dir),
        env,
        entrypoint: list(under.entrypoint, &over.entrypoint),
        cmd: list(under.cmd, &over.cmd),
        stop_signal: text(under.stop_signal, &over.stop_signal),
        labels,
    }
}
