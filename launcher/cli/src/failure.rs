//! Exit codes, and what to try after a failure: decided here, at the edge of the program.

use std::path::PathBuf;
use std::process::ExitCode;

use dsec_format::protocol::edge::{ErrorKind, Reason};

/// Exit codes of dsec's own making.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// The command line is none.
    Usage = 2,
    /// The command's time was up.
    Timeout = 124,
    /// dsec or the platform failed.
    Failed = 125,
    /// The command could not be run.
    NotRunnable = 126,
    /// There is no such program.
    NotFound = 127,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// The exit code that tells how a command ended.
pub(crate) fn code_of(reason: &Reason) -> u8 {
    // A shell's convention; there are 64 signals.
    let signalled = |signal: u32| 128 + u8::try_from(signal).unwrap_or(127).min(127);
    match reason {
        Reason::Exited { code } => *code,
        Reason::Signalled { signal } | Reason::Oom { signal } => signalled(*signal),
        Reason::Timeout => Code::Timeout as u8,
        Reason::NotStarted { errno, .. } if *errno == NO_ENTRY => Code::NotFound as u8,
        Reason::NotStarted { .. } => Code::NotRunnable as u8,
        Reason::InfraLost => Code::Failed as u8,
    }
}

/// 128 and SIGPIPE.
pub(crate) const CLOSED_PIPE: u8 = 141;

/// ENOENT.
const NO_ENTRY: i32 = 2;

/// A line about an end that an exit code alone does not tell.
pub(crate) fn note_of(reason: &Reason) -> Option<String> {
    match reason {
        Reason::Exited { .. } | Reason::Signalled { .. } => None,
        Reason::Oom { .. } => Some("killed: the sandbox's memory ran out".to_owned()),
        Reason::Timeout => Some("killed: its time was up".to_owned()),
        Reason::NotStarted { message, .. } => Some(message.clone()),
        Reason::InfraLost => Some("the edge was restarted meanwhile: how the command ended is not known".to_owned()),
    }
}

/// Why dsec failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Nobody answers.
    #[error("no edge answers at {}", socket.display())]
    NoEdge {
        /// Where it was looked for.
        socket: PathBuf,
        /// How it failed.
        #[source]
        source: std::io::Error,
    },
    /// The connection broke.
    #[error("the edge's answer broke off")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It said no.
    #[error("{message}")]
    Refused {
        /// What kind of no.
        kind: ErrorKind,
        /// Its words.
        message: String,
    },
    /// It said something else.
    #[error("the edge answered something unexpected ({what})")]
    Unexpected {
        /// What.
        what: String,
    },
    /// A request has no JSON form.
    #[error("the request cannot be encoded")]
    Encode(#[source] serde_json::Error),
    /// Standard output or error is closed, or its disk full.
    #[error("output cannot be written")]
    Output(#[source] std::io::Error),
    /// This process cannot be made ready.
    #[error("cannot {what}")]
    Local {
        /// What was tried.
        what: &'static str,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// What was asked for cannot be done like this.
    #[error("{what}")]
    Usage {
        /// Why.
        what: &'static str,
    },
    /// A copy failed on this side.
    #[error("the copy failed")]
    Files(#[from] dsec_fleet::files::Error),
    /// The edge did not start.
    #[error("the edge did not start")]
    Edge(#[from] dsec_fleet::edge::StartError),
}

impl Failure {
    /// The exit code.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Usage { .. } => Code::Usage,
            _ => Code::Failed,
        }
    }

    /// Whether nobody reads this process's output any more.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// A stable word for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::NoEdge { .. } | Self::Broken(_) => ErrorKind::Unavailable,
            Self::Refused { kind, .. } => *kind,
            Self::Usage { .. } => ErrorKind::BadRequest,
            Self::Files(error) => error.kind(),
            Self::Unexpected { .. } | Self::Encode(_) | Self::Output(_) | Self::Local { .. } | Self::Edge(_) => {
                ErrorKind::Internal
            }
        }
    }

    /// What to try.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::NoEdge { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                Some("the edge belongs to root; try as root".to_owned())
            }
            Self::NoEdge { socket, .. } => Some(format!(
                "start one with `dsec edge --socket {}`, or name another with --edge or DSEC_EDGE",
                socket.display()
            )),
            Self::Refused { kind: ErrorKind::NotFound, message } if message.contains("sandbox") => {
                Some("`dsec ps` lists the sandboxes of this edge".to_owned())
            }
            Self::Refused { kind: ErrorKind::Unavailable, message } if message.contains("dsec-mountd") => {
                Some("start dsec-mountd, or start the edge with --mountd and its socket".to_owned())
            }
            _ => None,
        }
    }
}
