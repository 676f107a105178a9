//! The HTTP of `dsec-registry`.
//!
//! ```text
//! GET  /v1/health
//! GET  /v1/refs?prefix=&after=&limit=     -> RefList
//! GET  /v1/refs/NAME:TAG                  -> Ref (canonical JSON)
//! PUT  /v1/refs/NAME:TAG                  SetRef -> Ref; 409 with the present Ref when `expected` does not hold
//! GET|HEAD|PUT /v1/images/HEX, /v1/environments/HEX, /v1/layers/HEX
//! GET  /v1/layers/HEX/locations           -> locations (binary)
//! GET|HEAD /v1/packs/HEX                  (ranges)
//! POST /v1/chunks/missing                 32-byte digests -> the missing ones of them
//! POST /v1/uploads                        -> Upload
//! HEAD /v1/uploads/ID                     -> header `dsec-offset`
//! PATCH /v1/uploads/ID                    bytes, header `dsec-offset`: where they go
//! PUT  /v1/uploads/ID?pack=HEX            ends the upload: the bytes are checked and become the pack
//! ```
//!
//! Every request but the first carries `Authorization: Bearer TOKEN` when the registry has one.

use serde::{Deserialize, Serialize};

use crate::refs::{Ref, Target};

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
