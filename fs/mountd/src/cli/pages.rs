//! `completion` and `man`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::Shell;

use super::exit::Exit;

/// Print a completion script for a shell
#[derive(Debug, Args)]
pub(crate) struct Completion {
    /// The shell
    shell: SupportedShell,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SupportedShell {
    Bash,
    Zsh,
    Fish,
}

impl Completion {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let shell = match self.shell {
            SupportedShell::Bash => Shell::Bash,
            SupportedShell::Zsh => Shell::Zsh,
            SupportedShell::Fish => Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut super::command(), "dsec-mountd", &mut script);
        super::print(&script)?;
        Ok(Exit::Success)
    }
}

/// Write the manual pages, one per subcommand, into a directory
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Where to; made when it is not there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Man {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        fs_err::create_dir_all(&self.directory)?;
        clap_mangen::generate_to(super::command(), &self.directory)?;
        Ok(Exit::Success)
    }
}
