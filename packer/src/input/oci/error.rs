//! What is wrong with an image of OCI's or Docker's.

use std::io;

use super::super::tar;
use crate::cancel::Cancelled;
use crate::paths::Shown;

/// Why such an image was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the image cannot be read; the source names it.
    #[error("cannot read the files of the image")]
    Read(#[source] io::Error),
    /// `oci-layout` states another version.
    #[error("OCI layout version {found:?} is not supported, only 1.0.0")]
    Version {
        /// What it states.
        found: String,
    },
    /// A JSON document that is none, or not of the expected form.
    #[error("{name} is not a valid document")]
    Document {
        /// A file name or a digest.
        name: String,
        /// Where and what.
        #[source]
        source: serde_json::Error,
    },
    /// A JSON document over the limit.
    #[error("{name} has {bytes} bytes, allowed are {most}")]
    TooLarge {
        /// A file name or a digest.
        name: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// A digest that is malformed or of an unknown algorithm.
    #[error("{digest:?} is not a sha256 or sha512 digest")]
    DigestSyntax {
        /// As it stands there.
        digest: String,
    },
    /// A blob with other bytes than its name says.
    #[error("blob {digest} does not match its digest")]
    Digest {
        /// Its name.
        digest: String,
    },
    /// A blob of another size than its descriptor says.
    #[error("blob {digest} has {have_bytes} bytes, its descriptor says {need_bytes}")]
    Size {
        /// Its name.
        digest: String,
        /// Stated size.
        need_bytes: u64,
        /// Its size.
        have_bytes: u64,
    },
    /// A layer whose uncompressed bytes are not those that the image configuration names.
    #[error("a layer does not match its diff id {diff_id}")]
    DiffId {
        /// What the configuration names.
        diff_id: String,
    },
    /// The index names nothing.
    #[error("the input has no image")]
    Empty,
    /// No image of that name.
    #[error("the input has no image {wanted:?}; it has: {names}")]
    NoSuchRef {
        /// What was asked for.
        wanted: String,
        /// What there is.
        names: String,
    },
    /// Several images and no choice.
    #[error("the input has several images, choose one of: {names}")]
    Several {
        /// Their names.
        names: String,
    },
    /// No image for the machine.
    #[error("the input has no image for linux/{architecture}")]
    Architecture {
        /// The machine.
        architecture: String,
    },
    /// An image for something else than Linux.
    #[error("the image is for {os:?}, not for linux")]
    OperatingSystem {
        /// For what.
        os: String,
    },
    /// Indexes inside indexes without an end.
    #[error("the OCI index is nested too deeply")]
    Nested,
    /// A descriptor that names no image.
    #[error("the OCI index names an object of the unknown type {media_type:?}")]
    MediaType {
        /// Its media type.
        media_type: String,
    },
    /// No layers, or another number than the configuration says.
    #[error("the image has {layers} layers and {diff_ids} diff ids")]
    Layers {
        /// In the manifest.
        layers: usize,
        /// In the configuration.
        diff_ids: usize,
    },
    /// An encrypted layer.
    #[error("layer {digest} is encrypted")]
    Encrypted {
        /// Its digest.
        digest: String,
    },
    /// The archive of a layer.
    #[error("layer {digest} cannot be kept")]
    Layer {
        /// Its digest.
        digest: String,
        /// Why.
        #[source]
        source: Box<tar::Error>,
    },
    /// Entries below a path that is a symlink in a layer below, without an entry that says what it is now.
    #[error("layer {digest} has entries below `{path}`, which is a symlink in a layer below")]
    BelowSymlink {
        /// The layer.
        digest: String,
        /// The path.
        path: Shown,
    },
    /// Asked to stop.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}
