//! The end of `--help`: examples, variables of the environment, exit codes. Manual pages and references have it too.

use clap::Command;

use crate::Exit;
use crate::exit;

/// What a program says beside its options.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Comments and commands, a line each.
    pub examples: &'static str,
    /// Variables that it reads beside those of its options: name and what it is for.
    pub variables: &'static [(&'static str, &'static str)],
    /// The exit codes that it has.
    pub exits: &'static [Exit],
}

impl About {
    /// Adds it to the long help of a program.
    #[must_use]
    pub fn add_to(&self, command: Command) -> Command {
        let mut variables = Vec::new();
        collect(&command, &mut variables);
        variables.extend(self.variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())));
        variables.sort();
        variables.dedup();
        let width = variables.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let variables: String = variables.iter().map(|(name, text)| format!("  {name:width$}  {text}\n")).collect();
        let examples: String = self.examples.lines().map(|line| format!("  {line}\n")).collect();
        let exits = exit::table(self.exits);
        command.after_long_help(format!("Examples:\n{examples}\nEnvironment:\n{variables}\nExit codes:\n{exits}"))
    }
}

/// The variables that options of a command and its subcommands read.
fn collect(command: &Command, variables: &mut Vec<(String, String)>) {
    for argument in command.get_arguments() {
        let (Some(variable), Some(long)) = (argument.get_env(), argument.get_long()) else { continue };
        variables.push((variable.to_string_lossy().into_owned(), format!("in place of --{long}")));
    }
    command.get_subcommands().for_each(|command| collect(command, variables));
}
