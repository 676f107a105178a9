//! Exit codes. Part of the interface: a number never changes its meaning, and means the same as for `dsec-pack`.

use std::process::ExitCode;

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Success = 0,
    Failure = 1,
    Usage = 2,
    NotFound = 3,
    Refused = 7,
    Full = 8,
    Conflict = 9,
}

impl Exit {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: &[Self] =
        &[Self::Success, Self::Failure, Self::Usage, Self::NotFound, Self::Refused, Self::Full, Self::Conflict];

    /// What `--help` says.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Success => "done; also after SIGINT or SIGTERM",
            Self::Failure => "an operation failed, and none of the below says why",
            Self::Usage => "the command line or the token is wrong",
            Self::NotFound => "no store there, or one of an unknown version",
            Self::Refused => "not allowed: not enough rights, or an open address without a token",
            Self::Full => "no space left",
            Self::Conflict => "something else listens on the address",
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
