//! Reading the command line, and ending as what it asked for does.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::ErrorKind;

use crate::{Exit, Report};

/// Reads a command line, the program's name first, and does what it asks for.
pub fn run<T: FromArgMatches>(command: clap::Command, line: &[OsString], work: impl FnOnce(T) -> ExitCode) -> ExitCode {
    read(command, line).map_or_else(ExitCode::from, work)
}

/// Reads a command line, the program's name first. What it says when that is not possible has been printed then, `--help`
/// and `--version` too; the code to end with is left.
///
/// # Errors
/// The code to end with.
fn read<T: FromArgMatches>(command: clap::Command, line: &[OsString]) -> Result<T, Exit> {
    let read = command.try_get_matches_from(line).and_then(|matches| T::from_arg_matches(&matches));
    read.map_err(|error| refuse(&error, wants_json(line)))
}

/// Says what clap says: help and version are no errors.
fn refuse(error: &clap::Error, json: bool) -> Exit {
    if json && error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Report::new(&Wrong(first_line(error)), Exit::Usage, hint(error)).show(true);
    }
    // Nobody is left to tell when this fails.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Success }
}

/// A line that cannot be read has no `json` member to look at: the word itself is looked for, before what belongs to
/// another program.
fn wants_json(line: &[OsString]) -> bool {
    line.iter().skip(1).take_while(|word| *word != "--").any(|word| word == "--json")
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Wrong(String);

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let paragraph: Vec<_> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let message = paragraph.join(" ");
    message.strip_prefix("error: ").unwrap_or(&message).to_owned()
}

fn hint(error: &clap::Error) -> Option<String> {
    let text = error.to_string();
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: "));
    Some(tip.unwrap_or("--help shows what can be given").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_looked_for_up_to_the_end_of_options() {
        let line = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert!(wants_json(&line(&["dsec", "ps", "--json", "--nonsense"])));
        assert!(!wants_json(&line(&["dsec", "run", "x", "--", "tool", "--json"])));
        assert!(!wants_json(&line(&["--json"])));
    }

    #[test]
    fn what_clap_says_becomes_a_message_and_a_hint() {
        let command = clap::Command::new("x").arg(clap::Arg::new("listen").long("listen"));
        let error = command.try_get_matches_from(["x", "--lisen=1"]).unwrap_err();
        assert_eq!(first_line(&error), "unexpected argument '--lisen' found");
        assert_eq!(hint(&error).as_deref(), Some("a similar argument exists: '--listen'"));
    }
}
