//! The HTTP of `dsec-registry`.
//!
//! ```text
//! GET    /v1/health
//! GET    /v1/refs?prefix=&after=&limit=   -> RefList
//! GET    /v1/refs/NAME:TAG                -> Ref (canonical JSON)
//! PUT    /v1/refs/NAME:TAG                SetRef -> Ref; 409 when `expected` does not hold
//! DELETE /v1/refs/NAME:TAG                RemoveRef; 409 when `expected` does not hold
//! GET|HEAD|PUT /v1/images/HEX, /v1/environments/HEX
//! GET|HEAD|PUT /v1/layers/HEX             stored form (ranges)
//! GET    /v1/layers/HEX/locations         -> locations (binary, ranges)
//! GET|HEAD /v1/packs/HEX                  (ranges)
//! POST   /v1/chunks/missing               32-byte digests -> the missing ones of them, in the same order
//! POST   /v1/uploads                      -> Upload
//! HEAD   /v1/uploads/ID                   -> header `dsec-offset`
//! PATCH  /v1/uploads/ID                   bytes, header `dsec-offset`: where they go; answers with the new offset
//! PUT    /v1/uploads/ID?pack=HEX          ends the upload: the bytes are checked and become the pack
//! PUT    /v1/uploads/ID?layer=HEX         the same for a layer
//! ```
//!
//! Every request but the first carries `Authorization: Bearer TOKEN` when the registry has one. An object is sent as it
//! is stored; whoever reads it checks it. An answer with an error status carries an [`ErrorBody`]:
//!
//! ```text
//! 400 malformed    401 unauthorized    404 not-found (the object, or a part that it needs)    409 conflict
//! 413 too-large    416 malformed (a range that the object does not have)    422 damaged (what was sent)
//! 429, 503 busy    500 internal        507 full
//! ```

use serde::{Deserialize, Serialize};

use crate::refs::{Ref, RefName, Target};

/// Header with the offset of an upload, decimal.
pub const OFFSET_HEADER: &str = "dsec-offset";
/// Most digests in one `chunks/missing`.
pub const MAX_QUERY_CHUNKS: usize = 65_536;

/// Body of a ref change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetRef {
    /// What the ref shall name.
    pub target: Target,
    /// What must hold before.
    #[serde(default)]
    pub expected: Expected,
}

/// Body of a ref removal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveRef {
    /// What must hold before.
    #[serde(default)]
    pub expected: Expected,
}

/// Condition of a ref change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expected {
    /// None: the last one wins.
    #[default]
    Anything,
    /// The ref does not exist.
    Absent,
    /// The ref names this.
    Is(Target),
}

/// A page of refs, sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefList {
    /// The refs.
    pub refs: Vec<Ref>,
    /// Refs on this page that are damaged: of these only the name is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<RefName>,
    /// Where the next page starts; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// An upload that was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// Its id.
    pub id: String,
    /// Bytes that have arrived.
    pub offset: u64,
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request makes no sense.
    Malformed,
    /// No token, or a wrong one.
    Unauthorized,
    /// The object, or a part that it needs, is not there.
    NotFound,
    /// A condition does not hold: `expected` of a ref, the offset of an upload.
    Conflict,
    /// Over a limit.
    TooLarge,
    /// What was sent does not match its digest, or is malformed.
    Damaged,
    /// Try again soon.
    Busy,
    /// No space left.
    Full,
    /// The registry failed.
    Internal,
}

/// Body of an answer with an error status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What kind of error.
    pub kind: ErrorKind,
    /// For people: one line.
    pub message: String,
    /// Kind and name of the object that is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// What the ref names instead, for a conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<String>,
}
