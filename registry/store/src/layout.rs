//! Where things lie in a store directory.
//!
//! ```text
//! format                      what the directory is, one line
//! packs/ab/HEX                also layers/, locations/, images/, environments/: two digits, then the whole digest
//! refs/NAME/:TAG              NAME may have several parts, each a directory
//! uploads/ID                  what has arrived of an upload
//! quarantine/packs/HEX        also of the other kinds: damaged objects that a check has set aside
//! locks/NAME                  files that are only locked, never read
//! tmp/PID-RANDOM/             one per process that writes, with its locked file `lock`
//! ```
//!
//! Nothing here touches the disk. The document is `docs/format/store.md`.

use std::path::{Path, PathBuf};

use dsec_format::refs::RefName;
use dsec_format::{EnvironmentDigest, ImageDigest, LayerDigest, PackDigest};

/// The file that makes a directory a store.
pub const FORMAT_FILE: &str = "format";
/// What it contains: the version of this layout.
pub const FORMAT_LINE: &str = "dsec.store.v1\n";
/// Directory of refs.
pub const REFS: &str = "refs";
/// Directory of unfinished uploads.
pub const UPLOADS: &str = "uploads";
/// Directory of objects that a check has set aside, by kind.
pub const QUARANTINE: &str = "quarantine";
/// Directory of lock files.
pub const LOCKS: &str = "locks";
/// Directory of temporary files.
pub const TMP: &str = "tmp";
/// The file that a live process holds locked in its directory below `tmp`.
pub const OWNER_LOCK: &str = "lock";
/// A tag's file starts with this, so that it is never taken for a part of a name.
pub const TAG_PREFIX: char = ':';

/// A kind of object that is named by a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Packs.
    Pack,
    /// Layers in stored form.
    Layer,
    /// Locations, named by their layer.
    Locations,
    /// Images.
    Image,
    /// Environments.
    Environment,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Pack, Self::Layer, Self::Locations, Self::Image, Self::Environment];

    /// Its directory.
    #[must_use]
    pub const fn directory(self) -> &'static str {
        match self {
            Self::Pack => "packs",
            Self::Layer => "layers",
            Self::Locations => "locations",
            Self::Image => "images",
            Self::Environment => "environments",
        }
    }

    /// What errors call one object of it.
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Pack => "pack",
            Self::Layer => "layer",
            Self::Locations => "locations of layer",
            Self::Image => "image",
            Self::Environment => "environment",
        }
    }
}

/// Kind and digest of an object: its place, and what errors call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// Its digest; for [`Kind::Locations`] that of the layer.
    pub digest: [u8; 32],
}

impl Object {
    /// A pack.
    #[must_use]
    pub const fn pack(digest: &PackDigest) -> Self {
        Self { kind: Kind::Pack, digest: *digest.as_bytes() }
    }

    /// A layer.
    #[must_use]
    pub const fn layer(digest: &LayerDigest) -> Self {
        Self { kind: Kind::Layer, digest: *digest.as_bytes() }
    }

    /// The locations of a layer.
    #[must_use]
    pub const fn locations(digest: &LayerDigest) -> Self {
        Self { kind: Kind::Locations, digest: *digest.as_bytes() }
    }

    /// An image.
    #[must_use]
    pub const fn image(digest: &ImageDigest) -> Self {
        Self { kind: Kind::Image, digest: *digest.as_bytes() }
    }

    /// An environment.
    #[must_use]
    pub const fn environment(digest: &EnvironmentDigest) -> Self {
        Self { kind: Kind::Environment, digest: *digest.as_bytes() }
    }

    fn hex(&self) -> String {
        // The kinds of digests differ only in their type; the digits are the same.
        PackDigest::from_bytes(self.digest).hex()
    }

    /// Where it is set aside in the store at `root`.
    #[must_use]
    pub fn quarantine_path(&self, root: &Path) -> PathBuf {
        root.join(QUARANTINE).join(self.kind.directory()).join(self.hex())
    }

    /// Its file in the store at `root`.
    #[must_use]
    pub fn path(&self, root: &Path) -> PathBuf {
        let hex = self.hex();
        root.join(self.kind.directory()).join(&hex[..2]).join(hex)
    }
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}{}", self.kind.noun(), dsec_format::digest::PREFIX, self.hex())
    }
}

/// The file of a ref in the store at `root`. A valid name cannot lead out of it.
#[must_use]
pub fn ref_path(root: &Path, name: &RefName) -> PathBuf {
    root.join(REFS).join(name.name()).join(format!("{TAG_PREFIX}{}", name.tag()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let root = Path::new("/s");
        let digest = PackDigest::of(b"");
        let path = Object::pack(&digest).path(root);
        assert_eq!(path, Path::new("/s/packs/af").join(digest.hex()));
        assert_eq!(Object::pack(&digest).to_string(), format!("pack {digest}"));
        assert_eq!(ref_path(root, &"a/b:c".parse().unwrap()), Path::new("/s/refs/a/b/:c"));
    }
}
