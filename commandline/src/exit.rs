//! Exit codes, the same for every program. Part of the interface: a number never changes its meaning.

use std::process::ExitCode;

/// How a program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Success = 0,
    /// Failed, for a reason that has no code of its own.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// Something that was named is not there.
    NotFound = 3,
    /// What should be packed cannot be.
    Input = 4,
    /// Something is not what its name or format says.
    Damaged = 5,
    /// Whoever has to answer does not.
    Unreachable = 6,
    /// Whoever has to allow it does not.
    Refused = 7,
    /// No space is left.
    Full = 8,
    /// Somebody else has it, or changed it meanwhile.
    Conflict = 9,
    /// A check has found something.
    Different = 10,
    /// A command's time was up.
    TimedOut = 124,
    /// A command was not run, or its end is not known.
    Platform = 125,
    /// A command could not be started.
    NotRunnable = 126,
    /// There is no such program.
    NoProgram = 127,
    /// Stopped by a signal.
    Interrupted = 130,
    /// Nobody reads a command's output any more.
    ClosedPipe = 141,
}

impl Exit {
    /// All of them, in the order of their numbers.
    pub const ALL: &[Self] = &[
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
        Self::TimedOut,
        Self::Platform,
        Self::NotRunnable,
        Self::NoProgram,
        Self::Interrupted,
        Self::ClosedPipe,
    ];

    /// The number.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The word for it: `kind` of an error in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Usage => "usage",
            Self::NotFound => "not_found",
            Self::Input => "input",
            Self::Damaged => "damaged",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Full => "full",
            Self::Conflict => "conflict",
            Self::Different => "different",
            Self::TimedOut => "timed_out",
            Self::Platform => "platform",
            Self::NotRunnable => "not_runnable",
            Self::NoProgram => "no_program",
            Self::Interrupted => "interrupted",
            Self::ClosedPipe => "closed_pipe",
        }
    }

    /// What `--help` and the documents say of it.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Success => "done; a daemon: stopped by SIGINT or SIGTERM",
            Self::Failure => "failed, and none of the below says why; doctor found something missing",
            Self::Usage => "the command line, or a value on it, is wrong",
            Self::NotFound => "no such image, ref, layer, sandbox, file or store",
            Self::Input => "what should be packed holds something that cannot be kept, or is nothing that can",
            Self::Damaged => "an object does not match its digest, is cut off, or is of an unknown version",
            Self::Unreachable => "a registry or a daemon does not answer",
            Self::Refused => "the system, a registry or a daemon refuses: not enough rights, wrong token, over a limit",
            Self::Full => "no space left",
            Self::Conflict => "somebody else has it, or changed it meanwhile",
            Self::Different => "a check has found differences or damage",
            Self::TimedOut => "run, exec: the command's time was up",
            Self::Platform => "run, exec: dsec or the platform failed, whatever the reason",
            Self::NotRunnable => "run, exec: the command could not be started",
            Self::NoProgram => "run, exec: there is no such program in the sandbox",
            Self::Interrupted => "stopped by SIGINT or SIGTERM; the store is as before",
            Self::ClosedPipe => "run, exec: nobody reads the output any more",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Some of the codes, a line each.
#[must_use]
pub fn table(exits: &[Exit]) -> String {
    let lines: Vec<_> = exits.iter().map(|exit| format!("  {:>3}  {}", exit.code(), exit.meaning())).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_words_are_each_used_once() {
        let ordered = Exit::ALL.windows(2).all(|pair| pair[0].code() < pair[1].code());
        let mut words: Vec<_> = Exit::ALL.iter().map(|exit| exit.word()).collect();
        words.sort_unstable();
        words.dedup();
        assert!(ordered && words.len() == Exit::ALL.len());
    }

    #[test]
    fn the_document_has_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/command-line.md");
        let document = fs_err::read_to_string(path).unwrap();
        for exit in Exit::ALL {
            let row = format!("| {} | `{}` | {} |", exit.code(), exit.word(), exit.meaning());
            assert!(document.contains(&row), "docs/command-line.md lacks the row\n{row}");
        }
        let is_row =
            |line: &&str| line.strip_prefix("| ").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        assert_eq!(document.lines().filter(is_row).count(), Exit::ALL.len(), "the table has rows of no code");
    }
}
