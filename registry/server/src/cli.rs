//! The command line of `dsec-registry`.
//!
//! Decided here and nowhere else: where the token comes from, what goes to standard output (the address, once it
//! listens) and to standard error (the log), exit codes, signals.

mod error;
mod exit;
mod serve;

use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tracing_subscriber::filter::LevelFilter;

use exit::Exit;

/// Serve a dsec store over HTTP.
///
/// A registry has no state but its store: a directory on a disk, or on a file system that several machines share. So any
/// number of registries may serve one store, and the store can be used by `dsec-pack --store` meanwhile.
#[derive(Debug, Parser)]
#[command(name = "dsec-registry", version, propagate_version = true, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
#[command(next_display_order = 1000)]
struct Global {
    /// Write the log, and the line that says that the registry is ready, as JSON
    #[arg(long, global = true)]
    json: bool,
    /// Least severe log lines to show on standard error: off, error, warn, info, debug, trace
    #[arg(long, global = true, env = "DSEC_LOG", value_name = "LEVEL", default_value = "info", hide_env_values = true)]
    log: LevelFilter,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    /// Print a completion script for a shell
    Completion {
        /// The shell
        shell: SupportedShell,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SupportedShell {
    Bash,
    Zsh,
    Fish,
}

impl From<SupportedShell> for Shell {
    fn from(shell: SupportedShell) -> Self {
        match shell {
            SupportedShell::Bash => Self::Bash,
            SupportedShell::Zsh => Self::Zsh,
            SupportedShell::Fish => Self::Fish,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  # For this machine only, no token needed
  dsec-registry serve --store /var/lib/dsec/store --listen 127.0.0.1:7300

  # For others: make a token, and give it to those who may read and write
  head -c 32 /dev/urandom | base64 > /etc/dsec/token && chmod 600 /etc/dsec/token
  dsec-registry serve --store /srv/dsec --listen 0.0.0.0:7300 --token-file /etc/dsec/token

  # A free port, written where a script finds it
  dsec-registry serve --store ./store --create --listen 127.0.0.1:0 --port-file ./port";

/// The parser, with examples and exit codes in its long help.
fn command() -> clap::Command {
    let after = format!("{EXAMPLES}\n\n{}", exit::help());
    Cli::command().after_long_help(after.clone()).mut_subcommand("serve", |serve| serve.after_long_help(after))
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let cli = match command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return error::report_usage(&error).into(),
    };
    start_log(&cli.global);
    let done = match cli.command {
        Command::Serve(serve) => serve.run(cli.global.json),
        Command::Completion { shell } => print_completion(shell.into()),
    };
    done.unwrap_or_else(|error| error::report(&error, cli.global.json)).into()
}

fn start_log(global: &Global) {
    let log = tracing_subscriber::fmt().with_max_level(global.log).with_writer(std::io::stderr).with_target(false);
    if global.json { log.json().flatten_event(true).init() } else { log.init() }
}

fn print_completion(shell: Shell) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "dsec-registry", &mut script);
    std::io::Write::write_all(&mut std::io::stdout().lock(), &script)?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn the_long_help_lists_every_exit_code() {
        let help = command().render_long_help().to_string();
        for exit in Exit::ALL {
            assert!(help.contains(&format!("{:>3}  {}", *exit as u8, exit.meaning())), "{exit:?} is missing");
        }
    }
}
