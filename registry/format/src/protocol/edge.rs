//! The HTTP/JSON of `dsec edge`.
//!
//! ```text
//! POST   /v1/sandboxes                          CreateRequest      -> Sandbox
//! GET    /v1/sandboxes                                             -> [Sandbox]
//! GET    /v1/sandboxes/ID                                          -> Sandbox
//! DELETE /v1/sandboxes/ID                                          -> Sandbox (its last state)
//! POST   /v1/sandboxes/ID/execs                 ExecRequest        -> Exec, or a stream when it attaches
//! GET    /v1/sandboxes/ID/execs/EXEC            ?wait_ms=          -> Exec
//! DELETE /v1/sandboxes/ID/execs/EXEC                               -> Exec (killed, with everything it started)
//! POST   /v1/sandboxes/ID/execs/EXEC/stdin      bytes; end of body closes standard input
//! GET    /v1/sandboxes/ID/execs/EXEC/output     ?stdout_from=&stderr_from=  -> stream (see `stream`)
//! POST   /v1/run                                RunRequest         -> stream; the sandbox lives as long as the command
//! GET    /v1/sandboxes/ID/files                 ?path=             -> tar of what is at path
//! PUT    /v1/sandboxes/ID/files                 ?path=&owner=      tar, unpacked below path, or as path -> Unpacked
//! POST   /v1/sandboxes/ID/hold                                     -> Hold (one JSON line); frozen while the connection lives
//! GET    /v1/health                                                -> Health
//! ```
//!
//! Errors are an [`ErrorBody`] with the matching status.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::environment::Limits;
use crate::refs::Spec;
use crate::{ImageDigest, LayerDigest};

/// Header of a run's stream that names its sandbox.
pub const SANDBOX_HEADER: &str = "dsec-sandbox";
/// Header of a run's stream that names its exec.
pub const EXEC_HEADER: &str = "dsec-exec";

/// Trailer of a download that the edge could not finish: an [`ErrorBody`] in JSON. Only a client that says `TE: trailers`
/// gets it; for others the answer breaks off.
pub const ERROR_TRAILER: &str = "dsec-error";

/// Asks for a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateRequest {
    /// What it is made of.
    pub image: Spec,
    /// Two creates with one key are one sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Its limits; what is absent is decided by the node.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// `KEY=VALUE`, over those of the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Its host name; its id when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Labels for the caller's own use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A sandbox as the edge knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// What it is doing.
    pub state: State,
    /// What it was made of, as asked.
    pub spec: Spec,
    /// What that was; absent until it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageDigest>,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// Its limits.
    pub limits: Limits,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Commands running in it.
    pub running: u32,
}

/// States of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Being made.
    Creating,
    /// Takes commands.
    Running,
    /// Its processes stand still (a pack-diff reads it).
    Frozen,
    /// Being taken down, or half-made and waiting for that.
    Destroying,
}

/// Asks for a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// Program and arguments; empty takes the image's entry point and command.
    #[serde(default)]
    pub argv: Vec<String>,
    /// `KEY=VALUE`, over those of the sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Absolute; the image's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// `user`, `user:group`, `uid` or `uid:gid`; the image's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether standard input will be sent; otherwise it is `/dev/null`.
    #[serde(default)]
    pub stdin: bool,
    /// Kills it, and everything it started, after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Whether the answer is its output. A run always attaches, and its end of the connection kills.
    #[serde(default, skip_serializing_if = "Attach::is_no")]
    pub attach: Attach,
}

/// Whether the answer to an [`ExecRequest`] is a stream of output, and what becomes of the command when it breaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attach {
    /// The answer is an [`Exec`]; output waits, within its caps.
    #[default]
    No,
    /// A stream. When the connection breaks, the command goes on, and its output waits a while to be asked for again.
    Keep,
    /// A stream. When the connection breaks, the command is killed, with everything it started.
    Kill,
}

impl Attach {
    /// Whether the answer is no stream.
    #[must_use]
    pub fn is_no(&self) -> bool {
        *self == Self::No
    }
}

/// A command in a sandbox of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// The sandbox.
    pub sandbox: CreateRequest,
    /// The command.
    pub exec: ExecRequest,
}

/// A command as the edge knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Its id, unique within its sandbox.
    pub id: String,
    /// Milliseconds since 1970; 0 when the edge no longer knows.
    pub started_ms: u64,
    /// Absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Why it ended.
    pub reason: Reason,
    /// Wall time.
    pub duration_ms: u64,
    /// Bytes it wrote to standard output, whether kept or not.
    pub stdout_bytes: u64,
    /// Bytes it wrote to standard error, whether kept or not.
    pub stderr_bytes: u64,
    /// Whether output was dropped because it was over the cap.
    pub truncated: bool,
}

/// Why a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reason {
    /// By itself.
    Exited {
        /// Its exit code, 0 to 255.
        code: u8,
    },
    /// By a signal.
    Signalled {
        /// The signal's number.
        signal: u32,
    },
    /// It, or something in its sandbox, was killed because memory ran out.
    Oom {
        /// The signal's number.
        signal: u32,
    },
    /// Its time was up.
    Timeout,
    /// It could not be started.
    NotStarted {
        /// The kernel's error.
        errno: i32,
        /// Whether there is no such program; ENOENT alone may also be a working directory's.
        #[serde(default)]
        no_program: bool,
        /// For people.
        message: String,
    },
    /// The platform lost it: the edge was restarted meanwhile, or the image could not be read when it was started.
    InfraLost {
        /// For people.
        #[serde(default)]
        message: String,
    },
}

/// What a pack-diff needs to know of a frozen sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The sandbox.
    pub id: String,
    /// Its upper directory on this node.
    pub upper: String,
    /// What it was made of.
    pub image: ImageDigest,
    /// The layers below it, the base first.
    pub layers: Vec<LayerDigest>,
    /// First id of its range in the upper directory: 0 when ids there are as inside.
    pub id_base: u32,
}

/// What an upload did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    /// Entries unpacked.
    pub entries: u64,
    /// Bytes of file contents written.
    pub bytes: u64,
}

/// How the edge is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Sandboxes it owns.
    pub sandboxes: u64,
    /// Sandboxes that it has made ahead, and that nobody has yet.
    #[serde(default)]
    pub spares: u64,
}

/// Body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What kind of failure.
    pub kind: ErrorKind,
    /// For people: names the object, the path and what to do.
    pub message: String,
}

/// Kinds of failure that a caller may want to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// No such sandbox, exec, image or path. Status 404.
    NotFound,
    /// The request is malformed, or asks for what cannot be. Status 400.
    BadRequest,
    /// The node does not grant it: a limit of its own, or the kernel's no. Status 403.
    Refused,
    /// It contradicts what is: another request under the same key, a sandbox on its way out, a second hold. Status 409.
    Conflict,
    /// Not now: the node is full or something it depends on does not answer. Trying again may help. Status 503.
    Unavailable,
    /// A fault of the platform. Status 500.
    Internal,
}

impl ErrorKind {
    /// Its HTTP status.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::NotFound => 404,
            Self::BadRequest => 400,
            Self::Refused => 403,
            Self::Conflict => 409,
            Self::Unavailable => 503,
            Self::Internal => 500,
        }
    }
}
