//! Images: ordered layers and how to run what is in them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::json::{self, Object};
use crate::{ImageDigest, LayerDigest};

/// The `format` key of an image.
pub const FORMAT: &str = "dsec.image.v1";
/// No image has more layers: what one overlay mount takes (`OVL_MAX_STACK`) is 500.
pub const MAX_LAYERS: usize = 400;

/// An image. Stored as canonical JSON; its digest is BLAKE3 of that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// [`FORMAT`].
    pub format: String,
    /// Debian's or OCI's word for the machine: `amd64`, `arm64`.
    pub architecture: String,
    /// Always `linux`.
    pub os: String,
    /// The layers, the base first.
    pub layers: Vec<LayerRecord>,
    /// How to run it.
    #[serde(default, skip_serializing_if = "Config::is_empty")]
    pub config: Config,
    /// Where it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// Free notes; keys in reverse-domain form.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// One layer of an image, with the totals of its identity record, so that an image can be shown without its layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRecord {
    /// Name of the layer.
    pub digest: LayerDigest,
    /// Plain bytes of its metadata image.
    pub metadata_bytes: u64,
    /// Plain bytes of its chunks.
    pub data_bytes: u64,
    /// Sum of its file sizes.
    pub logical_bytes: u64,
    /// Its inodes.
    pub inodes: u64,
}

/// How to run an image: the keys of an OCI image configuration that mean something to a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `user`, `user:group`, `uid` or `uid:gid`; empty is root.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Absolute; empty is `/`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
    /// `KEY=VALUE`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// What always runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// Its default arguments, or the whole command.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    /// Signal that stops it; empty is `SIGTERM`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stop_signal: String,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Config {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Where an image comes from. Only what the builder was told: no clock is read, so that the same input gives the same
/// digest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Provenance {
    /// The image that a pack-diff was made on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<ImageDigest>,
    /// Seconds since 1970, when the caller stated it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_secs: Option<u64>,
    /// Who, when the caller stated it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// Commands that led to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

impl Object for Image {
    const OBJECT: &'static str = "image";
    const FORMAT: &'static str = FORMAT;
}

/// Why bytes are not the named image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a canonical image.
    #[error(transparent)]
    Json(#[from] json::Error),
    /// Other bytes than the digest names.
    #[error("image does not match digest {expected}")]
    Digest {
        /// The name that was asked for.
        expected: ImageDigest,
    },
    /// No layers, or more than [`MAX_LAYERS`].
    #[error("image has {layers} layers, allowed are 1 to {MAX_LAYERS}")]
    Layers {
        /// Its number of layers.
        layers: usize,
    },
}

impl Image {
    /// An image of `layers` (the base first).
    #[must_use]
    pub fn new(architecture: &str, layers: Vec<LayerRecord>, config: Config) -> Self {
        Self {
            format: FORMAT.to_owned(),
            architecture: architecture.to_owned(),
            os: "linux".to_owned(),
            layers,
            config,
            provenance: None,
            annotations: BTreeMap::new(),
        }
    }

    /// The canonical bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        json::encode(self)
    }

    /// The name of the image.
    #[must_use]
    pub fn digest(&self) -> ImageDigest {
        ImageDigest::of(&self.encode())
    }

    /// Decodes the image of a name.
    ///
    /// # Errors
    /// [`Error::Digest`] first: nothing is decoded that the name does not cover.
    pub fn decode(bytes: &[u8], expected: &ImageDigest) -> Result<Self, Error> {
        if ImageDigest::of(bytes) != *expected {
            return Err(Error::Digest { expected: *expected });
        }
        let image: Self = json::decode(bytes)?;
        if image.layers.is_empty() || image.layers.len() > MAX_LAYERS {
            return Err(Error::Layers { layers: image.layers.len() });
        }
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Image {
        let layer = LayerRecord {
            digest: LayerDigest::of(b"layer"),
            metadata_bytes: 4096,
            data_bytes: 1,
            logical_bytes: 1,
            inodes: 2,
        };
        Image::new("amd64", vec![layer], Config { cmd: vec!["/bin/sh".into()], ..Config::default() })
    }

    #[test]
    fn round_trip_and_canonical_form() {
        let image = sample();
        let bytes = image.encode();
        assert_eq!(Image::decode(&bytes, &image.digest()).unwrap(), image);

        let spaced = serde_json::to_vec_pretty(&image).unwrap();
        let error = Image::decode(&spaced, &ImageDigest::of(&spaced)).unwrap_err();
        assert!(matches!(error, Error::Json(json::Error::NotCanonical { .. })), "{error}");
        assert!(matches!(Image::decode(&spaced, &image.digest()), Err(Error::Digest { .. })));
    }

    #[test]
    fn unknown_version_and_unknown_key() {
        let text = String::from_utf8(sample().encode()).unwrap();
        for (bad, what) in [
            (text.replace("image.v1", "image.v2"), "dsec.image.v2"),
            (text.replace("\"os\"", "\"o2\""), "not a valid image"),
        ] {
            let error = Image::decode(bad.as_bytes(), &ImageDigest::of(bad.as_bytes())).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}
