//! Exit codes, the numbers being those of `dsec-pack`. Part of the interface: a number never changes its meaning.

use std::process::ExitCode;

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Success = 0,
    Failure = 1,
    Usage = 2,
    NotFound = 3,
    Damaged = 5,
    Unreachable = 6,
    Refused = 7,
    Full = 8,
    Conflict = 9,
}

impl Exit {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: &[Self] = &[
        Self::Success,
        Self::Failure,
        Self::Usage,
        Self::NotFound,
        Self::Damaged,
        Self::Unreachable,
        Self::Refused,
        Self::Full,
        Self::Conflict,
    ];

    /// What `--help` says.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Success => "done; `serve` was stopped by SIGINT or SIGTERM and has unmounted everything",
            Self::Failure => "an operation failed, and none of the below says why; `doctor` found something missing",
            Self::Usage => "the command line or the request is wrong",
            Self::NotFound => "no such ref or image in any source",
            Self::Damaged => "an object does not match its digest, is malformed, or is of an unknown version",
            Self::Unreachable => "no source answers; for clients also: no daemon answers on the socket",
            Self::Refused => "the kernel, the system or a registry refuses: not enough rights, no FUSE, wrong token",
            Self::Full => "no space left",
            Self::Conflict => "another daemon has the cache, the run directory or the socket",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The table at the end of `--help`.
pub(crate) fn help() -> String {
    let lines: Vec<String> = Exit::ALL.iter().map(|exit| format!("{:>3}  {}", *exit as u8, exit.meaning())).collect();
    format!("Exit codes:\n{}", lines.join("\n"))
}
