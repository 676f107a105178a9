//! What can go wrong between a caller and a store.

use std::path::PathBuf;

use dsec_format::{ChunkDigest, frame, image, json, layer, locations, pack, preamble, refs};

/// Result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store has no such object.
    #[error("{object} is not in {store}")]
    NotFound {
        /// Kind and name of the object.
        object: String,
        /// The store's description.
        store: String,
    },
    /// An object is there, but it is not what its name says.
    #[error("{object} in {store} is damaged")]
    Damaged {
        /// Kind and name of the object.
        object: String,
        /// The store's description.
        store: String,
        /// What is wrong with it.
        #[source]
        source: Damage,
    },
    /// A ref changed meanwhile: the condition of the change does not hold.
    #[error("ref {name} was not changed: it now names {present}")]
    Conflict {
        /// The ref.
        name: refs::RefName,
        /// What it names now, or `nothing`.
        present: String,
    },
    /// An operation on a local path failed; the message of the source names the path.
    #[error("local store failed")]
    Io(#[from] std::io::Error),
    /// There is nothing at the path.
    #[error("there is no store at {}: no such directory", path.display())]
    NoStore {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The directory is not a store, or one of an unknown version.
    #[error("{} is not a dsec store: {reason}", path.display())]
    NotAStore {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A URL that this program cannot use for a registry.
    #[error("{url} cannot be used for a registry: {reason}")]
    Url {
        /// The URL.
        url: String,
        /// Why not.
        reason: &'static str,
    },
    /// A registry does not answer, or not in time.
    #[error("registry {url} cannot be reached")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// What happened.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A registry answered with an error.
    #[error("registry refused {url} with status {status}: {message}")]
    Refused {
        /// What was asked for.
        url: String,
        /// HTTP status.
        status: u16,
        /// What it said, cut to a line.
        message: String,
    },
    /// An object is larger than what this program handles in memory.
    #[error("{object} has {have_bytes} bytes, this program handles at most {allowed_bytes}")]
    TooLarge {
        /// Kind and name of the object.
        object: String,
        /// Its size.
        have_bytes: u64,
        /// The limit.
        allowed_bytes: u64,
    },
    /// The caller's [`crate::Monitor`] asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The disk of a local store is full.
    #[error("no space left on the disk of store {store}")]
    Full {
        /// The store's description.
        store: String,
    },
    /// A registry has no room.
    #[error("registry {store} is full: {message}")]
    RegistryFull {
        /// Its URL.
        store: String,
        /// What it said.
        message: String,
    },
}

impl Error {
    /// Whether a disk of this machine is full, be it that of a store or of temporary files.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            Self::Io(error) => is_full(error),
            Self::NotFound { .. }
            | Self::Damaged { .. }
            | Self::Conflict { .. }
            | Self::NoStore { .. }
            | Self::NotAStore { .. }
            | Self::Url { .. }
            | Self::Unreachable { .. }
            | Self::Refused { .. }
            | Self::TooLarge { .. }
            | Self::Interrupted
            | Self::RegistryFull { .. } => false,
        }
    }
}

/// Whether a write failed because there is no space for it.
pub(crate) fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// What is wrong with an object.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// Fewer or more bytes than expected.
    #[error("{have_bytes} bytes, expected {need_bytes}")]
    Length {
        /// Expected bytes.
        need_bytes: u64,
        /// Bytes there.
        have_bytes: u64,
    },
    /// The bytes have another digest.
    #[error("its bytes have digest {found}")]
    Digest {
        /// The digest of the bytes.
        found: String,
    },
    /// A chunk in a frame.
    #[error("the bytes of chunk {chunk} in it do not match its digest")]
    Chunk {
        /// The chunk.
        chunk: ChunkDigest,
    },
    /// Locations that do not lead to the chunks of their layer.
    #[error("it does not lead to chunk {chunk}")]
    Misplaced {
        /// The chunk.
        chunk: ChunkDigest,
    },
    /// A ref that names itself otherwise.
    #[error("it says that it is ref {found}")]
    Name {
        /// The name that it states.
        found: refs::RefName,
    },
    /// A preamble.
    #[error(transparent)]
    Preamble(#[from] preamble::Error),
    /// A frame.
    #[error(transparent)]
    Frame(#[from] frame::Error),
    /// A pack.
    #[error(transparent)]
    Pack(#[from] pack::Error),
    /// A layer.
    #[error(transparent)]
    Layer(#[from] layer::Error),
    /// An extent map.
    #[error(transparent)]
    Extents(#[from] dsec_format::extents::Error),
    /// Locations.
    #[error(transparent)]
    Locations(#[from] locations::Error),
    /// An image.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// An environment.
    #[error(transparent)]
    Environment(#[from] dsec_format::environment::Error),
    /// A ref or another JSON object.
    #[error(transparent)]
    Json(#[from] json::Error),
}
