//! The JSON documents of the OCI image specification, as far as they are used. Unknown keys are allowed by it.

use std::collections::BTreeMap;

use serde::Deserialize;

const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// `oci-layout`.
#[derive(Debug, Deserialize)]
pub(super) struct LayoutFile {
    #[serde(rename = "imageLayoutVersion")]
    pub(super) version: String,
}

/// `index.json`, or an index in a blob.
#[derive(Debug, Deserialize)]
pub(super) struct Index {
    pub(super) manifests: Vec<Descriptor>,
}

/// Names a blob.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    pub(super) media_type: String,
    pub(super) digest: String,
    pub(super) size: u64,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

impl Descriptor {
    pub(super) fn ref_name(&self) -> Option<&str> {
        self.annotations.as_ref()?.get(REF_NAME).map(String::as_str)
    }

    /// Whether it is for that machine, or does not say.
    pub(super) fn is_for(&self, architecture: &str) -> bool {
        self.platform.as_ref().is_none_or(|platform| platform.os == "linux" && platform.architecture == architecture)
    }

    pub(super) fn is_manifest(&self) -> bool {
        matches!(
            self.media_type.as_str(),
            "application/vnd.oci.image.manifest.v1+json" | "application/vnd.docker.distribution.manifest.v2+json"
        )
    }

    pub(super) fn is_index(&self) -> bool {
        matches!(
            self.media_type.as_str(),
            "application/vnd.oci.image.index.v1+json" | "application/vnd.docker.distribution.manifest.list.v2+json"
        )
    }
}

/// An image manifest.
#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    pub(super) config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

/// An image configuration.
#[derive(Debug, Deserialize)]
pub(super) struct Image {
    pub(super) architecture: String,
    pub(super) os: String,
    #[serde(default)]
    pub(super) config: Config,
    pub(super) rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
pub(super) struct RootFs {
    pub(super) diff_ids: Vec<String>,
}

/// How to run the image. Every key may be missing or null.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Config {
    pub(super) user: Option<String>,
    pub(super) env: Option<Vec<String>>,
    pub(super) entrypoint: Option<Vec<String>>,
    pub(super) cmd: Option<Vec<String>>,
    pub(super) working_dir: Option<String>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) stop_signal: Option<String>,
}
