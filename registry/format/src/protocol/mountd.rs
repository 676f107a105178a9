//! The control socket of `dsec-mountd`: one JSON object a line, one reply a request, in order.
//!
//! A mount is held by a *holder*, a name that the caller chooses (`sandbox/ID`, `directory/PATH`). Mounting twice for
//! one holder is one mount; a layer stays mounted while any holder uses it. So a caller that was restarted may ask again.

use serde::{Deserialize, Serialize};

use crate::image::Config;
use crate::refs::Spec;
use crate::{ImageDigest, LayerDigest};

/// No request or reply line is longer.
pub const MAX_LINE_BYTES: usize = 8 << 20;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Mounts the layers of an image for a holder.
    Mount {
        /// Which image.
        image: Spec,
        /// For whom.
        holder: String,
    },
    /// Gives up whatever a holder holds. Releasing nothing is no error.
    Release {
        /// Whose.
        holder: String,
    },
    /// How the daemon is.
    Status,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Mount`].
    Mounted(Mounted),
    /// To [`Request::Release`].
    Released,
    /// To [`Request::Status`].
    Status(Status),
    /// The request failed; nothing is held because of it.
    Error {
        /// What kind of failure.
        kind: ErrorKind,
        /// For people: names the object and the path.
        message: String,
    },
}

/// Kinds of failure that a caller may want to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request is malformed.
    BadRequest,
    /// No such ref or image in any source.
    NotFound,
    /// Something does not match its digest, or is malformed.
    Corrupt,
    /// No source answers.
    Unreachable,
    /// The kernel or this node refuses.
    Node,
}

/// How layers are served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Road {
    /// EROFS mounted by the kernel, its data device a file of the daemon.
    #[default]
    Erofs,
    /// The whole tree served through FUSE.
    Fuse,
}

/// A mounted image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounted {
    /// The image, resolved.
    pub image: ImageDigest,
    /// How to run it.
    pub config: Config,
    /// How it is served.
    pub road: Road,
    /// Its layers, the base first.
    pub layers: Vec<MountedLayer>,
}

/// One layer's directory on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountedLayer {
    /// The layer.
    pub digest: LayerDigest,
    /// Where it is mounted, read-only. Absolute.
    pub path: String,
}

/// The daemon's state. Counters count from the start of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_secs: u64,
    /// How it serves layers.
    pub road: Road,
    /// Why it took that road.
    pub road_reason: String,
    /// The cache.
    pub cache: CacheStatus,
    /// Metadata beside the chunks.
    #[serde(default)]
    pub metadata: MetadataStatus,
    /// Fetching.
    pub fetch: FetchStatus,
    /// Every image that a holder holds.
    pub images: Vec<ImageStatus>,
}

/// The chunk cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStatus {
    /// Its budget.
    pub budget_bytes: u64,
    /// What it uses.
    pub used_bytes: u64,
    /// Chunks in it.
    pub chunks: u64,
    /// Look-ups that found their chunk.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Chunks removed to stay within the budget.
    pub evictions: u64,
    /// Chunks found damaged on the disk, and dropped.
    pub damaged: u64,
    /// Writes that the disk refused (full, failing, read-only); reads went on without the cache.
    pub bypassed: u64,
    /// What is wrong with the cache's disk now, for people: nothing new is cached until it is well again. Reads go on.
    #[serde(default)]
    pub alarm: Option<String>,
}

/// Metadata of layers and records of images on the local disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataStatus {
    /// The budget of both together. What is in use may be more.
    pub budget_bytes: u64,
    /// What layers use.
    pub layer_bytes: u64,
    /// Layers, in use or not.
    pub layers: u64,
    /// What records of images use.
    pub image_bytes: u64,
    /// Records of images, mounted or not.
    pub images: u64,
}

/// Fetching from the sources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchStatus {
    /// Ranged reads sent.
    pub requests: u64,
    /// Bytes received.
    pub bytes: u64,
    /// Reads that waited for another's fetch of the same chunk.
    pub shared: u64,
    /// Attempts that failed and were made again.
    pub retries: u64,
    /// Reads that failed in the end.
    pub errors: u64,
    /// Answers with wrong bytes.
    pub corrupt: u64,
}

/// One image on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageStatus {
    /// The image.
    pub image: ImageDigest,
    /// The name it was mounted by.
    pub spec: Spec,
    /// How it is served.
    pub road: Road,
    /// Who holds it.
    pub holders: Vec<String>,
    /// Plain bytes of its chunks.
    pub data_bytes: u64,
    /// Plain bytes of its chunks that are in the cache.
    pub local_bytes: u64,
    /// Bytes fetched for it.
    pub fetched_bytes: u64,
    /// Reads of it that failed.
    pub errors: u64,
}
