//! An image of OCI's or Docker's as input: a layout directory, as `umoci`, `skopeo` and `buildah` write it, the same in an
//! archive (oci-archive), or what `docker save` writes (docker-archive).
//!
//! Every blob is checked against the digest that names it before it is used, and every layer against its diff id as
//! well. Each OCI layer becomes one layer; whiteouts become those of overlay. A directory that a layer only implies has
//! the attributes that it has in the layers below, because that is what the layer means.

mod blob;
mod docker;
mod document;
mod error;
mod files;
mod lower;

use dsec_erofs::{InodeId, Tree};
use dsec_format::image::Config;

pub use self::error::Error;
pub(in crate::input) use self::files::Files;

use self::blob::Layout;
use self::document::{Descriptor, Index, Manifest};
use self::lower::Lower;
use super::tar::{Assembly, Supply, Whiteouts};
use super::{Kind, Opened, Part, Surroundings, stream, tar};
use crate::monitor::Stage;

/// What follows an image or an index inside an index, at most: an index of indexes of indexes is a mistake.
const MAX_DEPTH: usize = 4;

/// An image that was found: its configuration, and where its layers are, the lowest first.
struct Found {
    image: document::Image,
    layers: Vec<Blob>,
}

/// The archive of a layer.
enum Blob {
    /// Named by its digest.
    Digest(Descriptor),
    /// A member of an archive.
    Member(String),
}

impl Blob {
    /// For errors.
    fn name(&self) -> &str {
        match self {
            Self::Digest(descriptor) => &descriptor.digest,
            Self::Member(path) => path,
        }
    }
}

/// Reads the image `wanted` (by its ref name; the only one there is when `None`) for `architecture`.
pub(super) fn open(
    files: Files,
    kind: Kind,
    wanted: Option<&str>,
    architecture: &str,
    surroundings: Surroundings<'_>,
) -> Result<Opened, super::Error> {
    surroundings.monitor.begin(Stage::Walk, None);
    let layout = Layout::new(files);
    let Found { image, layers } = match kind {
        Kind::DockerArchive => docker::find(&layout, wanted)?,
        Kind::Oci | Kind::OciArchive | Kind::Directory | Kind::Tar => find(&layout, wanted, architecture)?,
    };
    if image.os != "linux" {
        return Err(Error::OperatingSystem { os: image.os }.into());
    }
    if layers.is_empty() || layers.len() != image.rootfs.diff_ids.len() {
        let diff_ids = image.rootfs.diff_ids.len();
        return Err(Error::Layers { layers: layers.len(), diff_ids }.into());
    }
    let mut lower: Option<Lower> = None;
    let mut parts = Vec::new();
    for (blob, diff_id) in layers.iter().zip(&image.rootfs.diff_ids) {
        let (mut part, implicit) = open_layer(&layout, blob, diff_id, surroundings)?;
        match &mut lower {
            None => lower = Some(Lower::new(&part.tree)?),
            Some(lower) => {
                lower.inherit(&mut part.tree, &implicit, blob.name())?;
                if lower.is_changed_by(&part.tree) {
                    lower.apply(&part.tree)?;
                } else {
                    continue;
                }
            }
        }
        parts.push(part);
    }
    Ok(Opened { parts, config: image.config.into(), kind, architecture: Some(image.architecture) })
}

fn open_layer(
    layout: &Layout,
    blob: &Blob,
    diff_id: &str,
    surroundings: Surroundings<'_>,
) -> Result<(Part<'static>, Vec<InodeId>), super::Error> {
    let in_layer = |source: super::Error| match source {
        super::Error::Tar(source) if !source.is_cancelled() => {
            Error::Layer { digest: blob.name().to_owned(), source: Box::new(source) }.into()
        }
        source => source,
    };
    let file = match blob {
        Blob::Digest(descriptor) if descriptor.media_type.contains("encrypted") => {
            return Err(Error::Encrypted { digest: descriptor.digest.clone() }.into());
        }
        Blob::Digest(descriptor) => layout.verified(descriptor, surroundings.cancel)?,
        Blob::Member(path) => layout.file(path)?,
    };
    let plain = stream::decompress(Box::new(file)).map_err(|error| in_layer(error.into()))?;
    let (plain, check) = blob::Checked::new(plain, diff_id)?;
    let supply = Supply::spooled(Box::new(plain), surroundings).map_err(|error| in_layer(error.into()))?;
    let (archive, implicit) =
        tar::assemble(supply, Assembly::new(Whiteouts::AreOci)?, surroundings).map_err(in_layer)?;
    check.finish()?;
    Ok((archive.into_part(), implicit))
}

fn find(layout: &Layout, wanted: Option<&str>, architecture: &str) -> Result<Found, Error> {
    let manifest = find_manifest(layout, wanted, architecture)?;
    let image = layout.json(&manifest.config)?;
    Ok(Found { image, layers: manifest.layers.into_iter().map(Blob::Digest).collect() })
}

fn find_manifest(layout: &Layout, wanted: Option<&str>, architecture: &str) -> Result<Manifest, Error> {
    let mut index = layout.index()?;
    let mut wanted = wanted;
    for _ in 0..MAX_DEPTH {
        let descriptor = choose(index, wanted, architecture)?;
        if descriptor.is_manifest() {
            return layout.json(&descriptor);
        }
        if !descriptor.is_index() {
            return Err(Error::MediaType { media_type: descriptor.media_type });
        }
        // The ref name stands in the outermost index only.
        wanted = None;
        index = layout.json(&descriptor)?;
    }
    Err(Error::Nested)
}

fn choose(index: Index, wanted: Option<&str>, architecture: &str) -> Result<Descriptor, Error> {
    let names = || {
        let names: Vec<String> = index.manifests.iter().filter_map(Descriptor::ref_name).map(str::to_owned).collect();
        names.join(", ")
    };
    let mut found: Vec<&Descriptor> = match wanted {
        Some(wanted) => index.manifests.iter().filter(|manifest| manifest.ref_name() == Some(wanted)).collect(),
        None => index.manifests.iter().collect(),
    };
    if let Some(wanted) = wanted
        && found.is_empty()
    {
        return Err(Error::NoSuchRef { wanted: wanted.to_owned(), names: names() });
    }
    if found.len() > 1 {
        found.retain(|manifest| manifest.is_for(architecture));
        if found.is_empty() {
            return Err(Error::Architecture { architecture: architecture.to_owned() });
        }
    }
    found.dedup_by(|left, right| left.digest == right.digest);
    match found.as_slice() {
        [] => Err(Error::Empty),
        [only] => Ok((*only).clone()),
        _ => Err(Error::Several { names: names() }),
    }
}

impl From<document::Config> for Config {
    fn from(config: document::Config) -> Self {
        Self {
            user: config.user.unwrap_or_default(),
            working_dir: config.working_dir.unwrap_or_default(),
            env: config.env.unwrap_or_default(),
            entrypoint: config.entrypoint.unwrap_or_default(),
            cmd: config.cmd.unwrap_or_default(),
            stop_signal: config.stop_signal.unwrap_or_default(),
            labels: config.labels.unwrap_or_default(),
        }
    }
}

/// Whether nothing is in a tree but its root.
fn is_bare(tree: &Tree) -> bool {
    tree.entry_count(Tree::ROOT) == 0
}
