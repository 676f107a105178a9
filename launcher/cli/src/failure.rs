//! Exit codes, and what to try after a failure: decided here, at the edge of the program.

use std::io;
use std::path::PathBuf;

use dsec_commandline::{Exit, Report, pages};
use dsec_fleet::edge::StartError;
use dsec_format::protocol::edge::{ErrorKind, Reason};

/// The exit code that tells how a command ended.
pub(crate) fn code_of(reason: &Reason) -> u8 {
    // A shell's convention; there are 64 signals.
    let signalled = |signal: u32| 128 + u8::try_from(signal).unwrap_or(127).min(127);
    match reason {
        Reason::Exited { code } => *code,
        Reason::Signalled { signal } | Reason::Oom { signal } => signalled(*signal),
        Reason::Timeout => Exit::TimedOut.code(),
        Reason::NotStarted { no_program: true, .. } => Exit::NoProgram.code(),
        Reason::NotStarted { .. } => Exit::NotRunnable.code(),
        Reason::InfraLost { .. } => Exit::Platform.code(),
    }
}

/// A line about an end that an exit code alone does not tell.
pub(crate) fn note_of(reason: &Reason) -> Option<String> {
    match reason {
        Reason::Exited { .. } | Reason::Signalled { .. } => None,
        Reason::Oom { .. } => Some("killed: the sandbox's memory ran out".to_owned()),
        Reason::Timeout => Some("killed: its time was up".to_owned()),
        Reason::NotStarted { message, .. } => Some(message.clone()),
        Reason::InfraLost { message } => Some(message.clone()),
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
        source: io::Error,
    },
    /// The connection broke.
    #[error("the edge's answer broke off")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The connection broke while a command ran.
    #[error("the edge went away while the command ran: how it ended is not known")]
    Vanished,
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
    Output(#[source] io::Error),
    /// This process cannot be made ready.
    #[error("cannot {what}")]
    Local {
        /// What was tried.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
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
    Edge(#[from] StartError),
    /// A script or a manual page.
    #[error(transparent)]
    Page(#[from] pages::Error),
}

impl Failure {
    /// What it means.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::NoEdge { source, .. } if is_denied(source) => Exit::Refused,
            Self::NoEdge { .. } | Self::Broken(_) | Self::Vanished => Exit::Unreachable,
            Self::Refused { kind, .. } => exit_of(*kind),
            Self::Usage { .. } => Exit::Usage,
            Self::Files(error) => exit_of(error.kind()),
            Self::Edge(error) => exit_of_start(error),
            Self::Output(_) | Self::Local { .. } | Self::Unexpected { .. } | Self::Encode(_) => Exit::Failure,
            Self::Page(pages::Error::NoSubcommand { .. }) => Exit::Usage,
            Self::Page(_) => Exit::Failure,
        }
    }

    /// Whether nobody reads this process's output any more.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// As it is shown.
    pub(crate) fn report(&self) -> Report {
        Report::new(self, self.exit(), self.hint())
    }

    /// What to try.
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoEdge { source, .. } if is_denied(source) => {
                Some("the edge and its sandboxes are root's: run this as root".to_owned())
            }
            Self::NoEdge { socket, .. } => Some(format!(
                "start one with `dsec edge --socket {}`, or name another with --edge or DSEC_EDGE",
                socket.display()
            )),
            Self::Vanished => {
                Some("a command does not outlive its edge; `dsec ps` lists the sandboxes, which do".to_owned())
            }
            Self::Refused { kind: ErrorKind::NotFound, message } if message.contains("sandbox") => {
                Some("`dsec ps` lists the sandboxes of this edge".to_owned())
            }
            Self::Refused { kind: ErrorKind::NotFound, message } if message.starts_with("no image") => Some(
                "`dsec-pack ls` lists the images of the local store, `ls --at URL|DIR` those of another".to_owned(),
            ),
            Self::Refused { kind: ErrorKind::Unavailable, message } if message.contains("dsec-mountd") => {
                Some("start dsec-mountd, or start the edge with --mountd and its socket".to_owned())
            }
            Self::Edge(error) => hint_of_start(error).map(str::to_owned),
            Self::Page(pages::Error::NoSubcommand { .. }) => Some("--help lists the subcommands".to_owned()),
            _ => None,
        }
    }
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// What a kind of the edge's means here.
fn exit_of(kind: ErrorKind) -> Exit {
    match kind {
        ErrorKind::NotFound => Exit::NotFound,
        ErrorKind::BadRequest => Exit::Usage,
        ErrorKind::Refused => Exit::Refused,
        ErrorKind::Conflict => Exit::Conflict,
        ErrorKind::Unavailable => Exit::Unreachable,
        ErrorKind::Internal => Exit::Failure,
    }
}

fn exit_of_start(error: &StartError) -> Exit {
    match error {
        StartError::Locked { .. } | StartError::SocketInUse { .. } => Exit::Conflict,
        StartError::Runtime(_) => Exit::Refused,
        StartError::Files(source) | StartError::Listen { source, .. } if is_denied(source) => Exit::Refused,
        StartError::Files(source) | StartError::Listen { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
        {
            Exit::Full
        }
        StartError::Files(_)
        | StartError::Listen { .. }
        | StartError::Ids(_)
        | StartError::Journal(_)
        | StartError::Lost => Exit::Failure,
    }
}

fn hint_of_start(error: &StartError) -> Option<&'static str> {
    match error {
        StartError::Locked { .. } => {
            Some("an edge has its directory to itself: stop the other one, or give --root DIR")
        }
        StartError::SocketInUse { .. } => Some("stop what listens there, or give --socket SOCKET"),
        StartError::Runtime(_) => Some("an edge runs as root; `dsec doctor` says what this node lacks"),
        StartError::Files(source) | StartError::Listen { source, .. } if is_denied(source) => {
            Some("an edge runs as root: start it as root")
        }
        StartError::Files(_)
        | StartError::Listen { .. }
        | StartError::Ids(_)
        | StartError::Journal(_)
        | StartError::Lost => None,
    }
}
