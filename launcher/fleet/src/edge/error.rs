//! Why the edge does not do what was asked, and what it answers then.

use std::error::Error as StdError;
use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use dsec_format::protocol::edge::{ErrorBody, ErrorKind};
use dsec_format::protocol::mountd::ErrorKind as MountdKind;

use super::{ids, journal};
use crate::mountd;

/// Why a request fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No sandbox has that id.
    #[error("no sandbox {id}")]
    NoSandbox {
        /// The id.
        id: String,
    },
    /// The sandbox has no command of that id, or it ended long ago and is forgotten.
    #[error("no exec {exec} in sandbox {id}")]
    NoExec {
        /// The sandbox.
        id: String,
        /// The exec.
        exec: String,
    },
    /// There is no such request.
    #[error("there is no {method} {path}")]
    NoRoute {
        /// Its method.
        method: String,
        /// Its path, cut.
        path: String,
    },
    /// The body is not what the request takes.
    #[error("the request is malformed")]
    Body(#[source] serde_json::Error),
    /// The body is larger than such a request can be.
    #[error("the request is larger than {most_bytes} bytes, or broke off")]
    BodySize {
        /// The most.
        most_bytes: usize,
    },
    /// A part of the query is not what the request takes.
    #[error("query parameter {name} is {value:?}, expected {expected}")]
    Query {
        /// Which.
        name: &'static str,
        /// What it is.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// There is nothing to run.
    #[error("no command was given, and image {image} has none")]
    NoCommand {
        /// The image.
        image: String,
    },
    /// A variable without `=`.
    #[error("environment entry {entry:?} is not KEY=VALUE")]
    Variable {
        /// The entry.
        entry: String,
    },
    /// More than the node gives to one sandbox.
    #[error("{what} of {asked} asked for, this node gives at most {most}")]
    OverLimit {
        /// Which limit.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// The most.
        most: u64,
    },
    /// The key is that of another request.
    #[error("idempotency key {key:?} belongs to sandbox {id}, which was asked for with another request")]
    KeyConflict {
        /// The key.
        key: String,
        /// Whose it is.
        id: String,
    },
    /// The sandbox is on its way out.
    #[error("sandbox {id} is being removed")]
    Leaving {
        /// The sandbox.
        id: String,
    },
    /// The sandbox is being made, or taken over from a former edge.
    #[error("sandbox {id} is not up yet")]
    NotUp {
        /// The sandbox.
        id: String,
    },
    /// So many commands run that another one would take descriptors that others need.
    #[error("{most} commands run in {what} already")]
    Commands {
        /// Where.
        what: String,
        /// The most.
        most: usize,
    },
    /// A client stood still in the middle of its request.
    #[error("the request stood still for {after_ms} ms")]
    Stalled {
        /// How long it was waited for.
        after_ms: u128,
    },
    /// Someone holds it.
    #[error("sandbox {id} is held already")]
    Held {
        /// The sandbox.
        id: String,
    },
    /// It stayed held.
    #[error("sandbox {id} is held, and was not let go within {waited_ms} ms")]
    HeldTooLong {
        /// The sandbox.
        id: String,
        /// How long the request waited.
        waited_ms: u128,
    },
    /// Standard input was not asked for, has another writer, or is closed.
    #[error("standard input of exec {exec} cannot be written: {why}")]
    Stdin {
        /// The exec.
        exec: String,
        /// Why.
        why: &'static str,
    },
    /// The edge stops.
    #[error("the edge is stopping")]
    Stopping,
    /// A sandbox cannot be asked for like this.
    #[error("the sandbox cannot be as asked")]
    Spec(#[from] dsec_sandbox::SpecError),
    /// Layers cannot be had.
    #[error("image {image} cannot be mounted")]
    Image {
        /// The image as asked.
        image: String,
        /// Why.
        #[source]
        source: mountd::Error,
    },
    /// No name or id range is left.
    #[error("no id for a sandbox")]
    Ids(#[from] ids::Error),
    /// The journal cannot be kept.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// A step of a sandbox's life failed.
    #[error("sandbox {id} cannot be {verb}")]
    Sandbox {
        /// The sandbox.
        id: String,
        /// What was done to it.
        verb: &'static str,
        /// Why not.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A copy into or out of a sandbox failed.
    #[error("files of sandbox {id} cannot be copied")]
    Files {
        /// The sandbox.
        id: String,
        /// Why.
        #[source]
        source: crate::files::Error,
    },
    /// The edge has no descriptors left, or the kernel none to give.
    #[error("cannot {what}")]
    Descriptors {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        errno: rustix::io::Errno,
    },
    /// A descriptor of a command cannot be waited for.
    #[error("exec {exec} cannot be watched")]
    Watch {
        /// The exec.
        exec: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A start cannot be waited for.
    #[error("the start of a command in sandbox {id} cannot be watched")]
    WatchStart {
        /// The sandbox.
        id: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The sandbox has not let a command begin.
    #[error("a command in sandbox {id} had not begun after {after_ms} ms, and was killed")]
    StartTooLong {
        /// The sandbox.
        id: String,
        /// How long it was waited for.
        after_ms: u128,
    },
    /// The sandbox holds up its starts, and what they hold is as much as it may be.
    #[error(
        "commands that are being started in sandbox {id} hold as much as they may, and none had begun after {waited_ms} ms"
    )]
    StartsHold {
        /// The sandbox.
        id: String,
        /// How long the request waited.
        waited_ms: u128,
    },
    /// A task of the edge ended before its time.
    #[error("a task of the edge was lost")]
    Lost,
    /// What another request waited for failed, and so did this one.
    #[error(transparent)]
    Shared(Arc<Error>),
}

impl Error {
    /// What kind of failure it is for the caller. Every variant is named: a new one has to decide.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSandbox { .. } | Self::NoExec { .. } | Self::NoRoute { .. } => ErrorKind::NotFound,
            Self::Body(_)
            | Self::BodySize { .. }
            | Self::Query { .. }
            | Self::Stalled { .. }
            | Self::NoCommand { .. }
            | Self::Variable { .. }
            | Self::Spec(_) => ErrorKind::BadRequest,
            Self::OverLimit { .. } => ErrorKind::Refused,
            Self::KeyConflict { .. } | Self::Leaving { .. } | Self::Held { .. } | Self::Stdin { .. } => {
                ErrorKind::Conflict
            }
            Self::HeldTooLong { .. }
            | Self::NotUp { .. }
            | Self::StartTooLong { .. }
            | Self::StartsHold { .. }
            | Self::WatchStart { .. }
            | Self::Commands { .. }
            | Self::Stopping
            | Self::Descriptors { .. }
            | Self::Ids(ids::Error::Exhausted { .. }) => ErrorKind::Unavailable,
            Self::Image { source, .. } => image_kind(source),
            Self::Files { source, .. } => source.kind(),
            Self::Ids(_) | Self::Journal(_) | Self::Sandbox { .. } | Self::Watch { .. } | Self::Lost => {
                ErrorKind::Internal
            }
            Self::Shared(error) => error.kind(),
        }
    }

    /// The answer.
    #[must_use]
    pub fn body(&self) -> ErrorBody {
        ErrorBody { kind: self.kind(), message: chain(self.said()) }
    }

    /// What is said of it: what mountd says of an image that it does not have names it already.
    fn said(&self) -> &(dyn StdError + 'static) {
        match self {
            Self::Image { source: source @ mountd::Error::Refused { kind: MountdKind::NotFound, .. }, .. } => source,
            Self::Shared(error) => error.said(),
            error => error,
        }
    }
}

fn image_kind(error: &mountd::Error) -> ErrorKind {
    match error {
        mountd::Error::Refused { kind: MountdKind::NotFound, .. } => ErrorKind::NotFound,
        mountd::Error::Refused { kind: MountdKind::BadRequest, .. } => ErrorKind::BadRequest,
        mountd::Error::Refused { kind: MountdKind::Node, .. } => ErrorKind::Refused,
        mountd::Error::Refused { kind: MountdKind::Corrupt, .. }
        | mountd::Error::Malformed { .. }
        | mountd::Error::Unexpected { .. } => ErrorKind::Internal,
        mountd::Error::Refused { kind: MountdKind::Unreachable, .. }
        | mountd::Error::Unreachable { .. }
        | mountd::Error::Deadline { .. } => ErrorKind::Unavailable,
    }
}

/// An error and what caused it, in one line.
#[must_use]
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let body = self.body();
        if body.kind == ErrorKind::Internal {
            tracing::error!(error = %body.message, "request failed");
        }
        let status = StatusCode::from_u16(body.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let bytes = serde_json::to_vec(&body).unwrap_or_default();
        (status, [(header::CONTENT_TYPE, "application/json")], bytes).into_response()
    }
}
