//! A program's command line as a document: `docs/reference/NAME.md`, checked by a test of each program.

use std::fmt::Write;
use std::path::PathBuf;

use clap::{Arg, Command, Id};

use crate::pages;

/// The document of a program: for each subcommand what it does, its usage and its options.
#[must_use]
pub fn render(command: Command) -> String {
    let mut command = command.disable_help_subcommand(true).term_width(100);
    command.build();
    let name = command.get_name().to_owned();
    let mut text = format!(
        "<!-- Written by the tests of {name} when UPDATE_REFERENCE is set; changes by hand are lost. -->\n\n# {name}\n"
    );
    let everywhere: Vec<_> = command.get_arguments().map(|argument| argument.get_id().clone()).collect();
    for mut command in pages::all(&command) {
        one(&mut text, &mut command, &name, &everywhere);
    }
    text
}

fn one(text: &mut String, command: &mut Command, program: &str, everywhere: &[Id]) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let is_program = name == program;
    if !is_program {
        write(text, &format!("\n## {name}\n"));
    }
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    write(text, &format!("\n{about}\n\n"));
    let usage = command.render_usage().to_string();
    usage.lines().for_each(|line| write(text, &format!("    {}\n", line.trim_start_matches("Usage: ").trim())));
    let shown = |argument: &&Arg| {
        let is_own = is_program || !everywhere.contains(argument.get_id());
        is_own && !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version")
    };
    let rows: Vec<_> = command.get_arguments().filter(shown).map(row).collect();
    if !rows.is_empty() {
        write(text, &format!("\n| | default | variable | |\n|---|---|---|---|\n{}", rows.concat()));
    }
    if let Some(after) = command.get_after_long_help() {
        let after = after.to_string();
        let lines = after.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") });
        write(text, &format!("\n{}", lines.collect::<String>()));
    }
}

fn row(argument: &Arg) -> String {
    let values = argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string);
    let takes_values = argument.get_action().takes_values();
    let values = if takes_values { values.collect::<Vec<_>>().join(" ") } else { String::new() };
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let mut names: Vec<_> = short.into_iter().chain(long).collect();
    names.extend(argument.get_visible_aliases().unwrap_or_default().into_iter().map(|alias| format!("--{alias}")));
    let what = format!("{} {values}", names.join(", "));
    let defaults: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut help = help.replace('\n', " ");
    let mut default =
        if takes_values && !argument.is_hide_default_value_set() { defaults.join(" ") } else { String::new() };
    // Of defaults that depend on something the help tells.
    if let Some((before, told)) = help.clone().split_once(" [default: ") {
        (help, default) = (before.to_owned(), told.trim_end_matches(']').to_owned());
    }
    let variable = argument.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
    let choices = argument.get_possible_values();
    let choices: Vec<_> =
        choices.iter().filter(|_| takes_values).map(|value| format!("`{}`", value.get_name())).collect();
    if !choices.is_empty() {
        help = format!("{help}: {}", choices.join(", "));
    }
    let cell = |text: &str| text.trim().replace('|', "\\|");
    format!("| `{}` | {} | {variable} | {} |\n", what.trim().replace('|', "\\|"), cell(&default), cell(&help))
}

fn write(text: &mut String, part: &str) {
    // Writing to a string does not fail.
    let _ = text.write_str(part);
}

/// Why a document is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not what the command line says.
    #[error("{} is not what the command line says: set UPDATE_REFERENCE and run this test again", path.display())]
    Stale {
        /// The document.
        path: PathBuf,
    },
    /// It cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Compares the document at `path` with a program's command line; with `update` writes it.
///
/// # Errors
/// As [`Error`].
///
/// # Panics
/// When the command line contradicts itself, as clap tells in debug builds.
pub fn check(command: Command, path: PathBuf, update: bool) -> Result<(), Error> {
    command.clone().debug_assert();
    let text = render(command);
    if update {
        return Ok(fs_err::write(path, text)?);
    }
    let same = fs_err::read_to_string(&path).is_ok_and(|found| found == text);
    if same { Ok(()) } else { Err(Error::Stale { path }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let json = Arg::new("json").long("json").global(true).action(clap::ArgAction::SetTrue).help("One object");
        let limit = Arg::new("limit").long("limit").env("P_LIMIT").default_value("7").help("The most");
        let road = Arg::new("road").long("road").value_parser(["erofs", "fuse"]).help("Which [default: what works]");
        let secret = Arg::new("secret").long("secret").hide(true);
        Command::new("p").about("Do it").arg(json).subcommand(Command::new("go").args([limit, road, secret]))
    }

    #[test]
    fn every_option_is_there_once_with_its_default_and_variable() {
        let text = render(command());
        for row in [
            "| `--json` |  |  | One object |",
            "| `--limit <limit>` | 7 | `P_LIMIT` | The most |",
            "| `--road <road>` | what works |  | Which: `erofs`, `fuse` |",
        ] {
            let row = row.replace("<limit>", "").replace("<road>", "").replace(" `", "`").replace("|`", "| `");
            assert!(text.replace(" `", "`").replace("|`", "| `").contains(&row), "{row}\n{text}");
        }
        assert_eq!((text.matches("--json").count(), text.contains("secret")), (1, false), "{text}");
    }

    #[test]
    fn a_stale_document_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.md");
        assert!(matches!(check(command(), path.clone(), false), Err(Error::Stale { .. })));
        check(command(), path.clone(), true).unwrap();
        check(command(), path.clone(), false).unwrap();
        fs_err::write(&path, "other").unwrap();
        assert!(matches!(check(command(), path, false), Err(Error::Stale { .. })));
    }
}
