//! `completion`: a completion script for a shell.

use clap::{Args, ValueEnum};
use clap_complete::Shell;

use super::context::Context;
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
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        let shell = match self.shell {
            SupportedShell::Bash => Shell::Bash,
            SupportedShell::Zsh => Shell::Zsh,
            SupportedShell::Fish => Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut super::command(), "dsec-pack", &mut script);
        context.output.write(&script)?;
        Ok(Exit::Success)
    }
}
