//! Exit codes. Part of the interface: a number never changes its meaning.

use std::process::ExitCode;

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Success = 0,
    Failure = 1,
    Usage = 2,
    NotFound = 3,
    Input = 4,
    Damaged = 5,
    Unreachable = 6,
    Refused = 7,
    Full = 8,
    Conflict = 9,
    Different = 10,
    Interrupted = 130,
}

impl Exit {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: &[Self] = &[
        Self::Success,
        Self::Failure,
        Self::Usage,
        Self::NotFound,
        Self::Input,
        Self::Damaged,
        Self::Unreachable,
        Self::Refused,
        Self::Full,
        Self::Conflict,
        Self::Different,
        Self::Interrupted,
    ];

    /// What `--help` says.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Success => "done",
            Self::Failure => "an operation failed, and none of the below says why",
            Self::Usage => "the command line is wrong",
            Self::NotFound => "no such ref, image, layer, file or store",
            Self::Input => "the input is no directory, tar or OCI layout, or holds something that cannot be kept",
            Self::Damaged => "an object does not match its digest, is cut off, or is of an unknown version",
            Self::Unreachable => "a registry does not answer",
            Self::Refused => "a registry or the system refuses: wrong token, or not enough rights",
            Self::Full => "no space left",
            Self::Conflict => "something else changed it meanwhile, or holds it",
            Self::Different => "verify or fsck found a difference",
            Self::Interrupted => "stopped by SIGINT or SIGTERM; the store is as before",
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
