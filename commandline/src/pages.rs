//! `completion` and `man`, the same subcommands in every program.

use std::fmt;
use std::io;
use std::path::PathBuf;

use clap::{Args, Command, Subcommand};
use clap_complete::Shell;
use serde::Serialize;

use crate::{Exit, Output, output};

/// Both, to be flattened into the subcommands of a program.
#[derive(Debug, Subcommand)]
pub enum Page {
    /// Print a completion script for a shell
    Completion(Completion),
    /// Print the manual page, or write those of all subcommands into a directory
    Man(Man),
}

/// What `completion` takes.
#[derive(Debug, Args)]
pub struct Completion {
    /// The shell
    shell: Shell,
}

/// What `man` takes.
#[derive(Debug, Args)]
pub struct Man {
    /// Print the page of this subcommand
    #[arg(value_name = "COMMAND", conflicts_with = "directory")]
    subcommand: Option<String>,
    /// Write one page a subcommand into this directory; it is made when it is not there
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Why a page cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program has no such subcommand.
    #[error("there is no subcommand {name}")]
    NoSubcommand {
        /// As given.
        name: String,
    },
    /// A page cannot be written.
    #[error("manual pages cannot be written")]
    Write(#[from] io::Error),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] output::Error),
}

#[derive(Debug, Serialize)]
struct Script {
    shell: String,
    script: String,
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.script)
    }
}

#[derive(Debug, Serialize)]
struct Rendered {
    page: String,
}

impl fmt::Display for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.page)
    }
}

#[derive(Debug, Serialize)]
struct Written {
    pages: Vec<PathBuf>,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pages.iter().try_for_each(|page| writeln!(f, "{}", page.display()))
    }
}

impl Page {
    /// Prints it, or writes it, for the program of `command`.
    ///
    /// # Errors
    /// As [`Error`].
    pub fn run(&self, command: Command, output: Output) -> Result<Exit, Error> {
        match self {
            Self::Completion(completion) => completion.run(command, output),
            Self::Man(man) => man.run(command, output),
        }
        .map(|()| Exit::Success)
    }
}

impl Completion {
    /// Prints the script for `command`.
    ///
    /// # Errors
    /// When standard output cannot be written.
    fn run(&self, mut command: Command, output: Output) -> Result<(), Error> {
        let (mut script, name) = (Vec::new(), command.get_name().to_owned());
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        let script = String::from_utf8_lossy(&script).into_owned();
        Ok(output.print(&Script { shell: self.shell.to_string(), script })?)
    }
}

impl Man {
    /// Prints a page of `command`, or writes all of them.
    ///
    /// # Errors
    /// As [`Error`].
    fn run(&self, command: Command, output: Output) -> Result<(), Error> {
        let Some(directory) = &self.directory else { return Ok(output.print(&self.page(command)?)?) };
        fs_err::create_dir_all(directory)?;
        let pages = all(&built(command)).into_iter().map(|command| {
            let man = clap_mangen::Man::new(command);
            man.generate_to(directory)
        });
        Ok(output.print(&Written { pages: pages.collect::<Result<_, _>>()? })?)
    }

    fn page(&self, command: Command) -> Result<Rendered, Error> {
        let command = built(command);
        let command = match &self.subcommand {
            None => command,
            Some(name) => {
                command.find_subcommand(name).cloned().ok_or_else(|| Error::NoSubcommand { name: name.clone() })?
            }
        };
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        Ok(Rendered { page: String::from_utf8_lossy(&page).into_owned() })
    }
}

/// With everything that is derived: names of subcommands, global options.
fn built(command: Command) -> Command {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    command
}

/// The command and its subcommands, but for hidden ones.
pub(crate) fn all(command: &Command) -> Vec<Command> {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    std::iter::once(command.clone()).chain(shown.flat_map(all)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let about = crate::help::About { examples: "prog serve", variables: &[], exits: Exit::ALL };
        let level = clap::Arg::new("level").long("level").env("PROG_LEVEL").global(true);
        about.add_to(Command::new("prog").arg(level).subcommand(Command::new("serve").about("Serve it")))
    }

    fn page(subcommand: Option<&str>) -> Result<String, Error> {
        let man = Man { subcommand: subcommand.map(str::to_owned), directory: None };
        man.page(command()).map(|page| page.page)
    }

    #[test]
    fn a_page_has_variables_and_every_exit_code_on_a_line_of_its_own() {
        let page = page(None).unwrap().replace(r"\*(Aq", "'");
        assert!(page.contains("PROG_LEVEL") && page.contains("prog serve"), "{page}");
        for exit in Exit::ALL {
            let line = page.lines().find(|line| line.contains(exit.meaning())).unwrap_or_default();
            // A line of a page that does not begin with a blank is joined with the one before.
            assert!(line.starts_with(' ') && line.trim_start().starts_with(&exit.code().to_string()), "{line:?}");
        }
    }

    #[test]
    fn pages_of_subcommands() {
        assert!(page(Some("serve")).unwrap().contains("Serve it"));
        assert!(matches!(page(Some("sevre")), Err(Error::NoSubcommand { .. })));
        let directory = tempfile::tempdir().unwrap();
        let man = Man { subcommand: None, directory: Some(directory.path().join("new")) };
        man.run(command(), Output::new(true)).unwrap();
        let mut names: Vec<_> =
            fs_err::read_dir(directory.path().join("new")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["prog-serve.1", "prog.1"]);
    }
}
