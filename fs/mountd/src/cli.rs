//! The command line: one file a subcommand, each calling the library.
//!
//! Decided here and nowhere else: defaults, what goes to standard output and to standard error, hints, exit codes,
//! signals.

mod client;
mod doctor;
mod error;
mod exit;
mod pages;
mod serve;
mod sources;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

use exit::Exit;

/// Serves images on this node, lazily: a layer is mounted at once and its data is fetched when it is read.
///
/// Start `dsec-mountd serve` as root; with no option at all it serves the local store. Then `dsec-mountd mount IMAGE
/// --holder NAME` mounts the layers of an image and prints where, `status` shows what is here and what was fetched, and
/// `release --holder NAME` lets go. `doctor` says whether this machine has what is needed.
#[derive(Debug, Parser)]
#[command(name = "dsec-mountd", version, propagate_version = true, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every subcommand takes.
#[derive(Debug, Args)]
#[command(next_display_order = 1000)]
struct Global {
    /// The control socket of the daemon
    #[arg(long, global = true, env = "DSEC_MOUNTD_SOCKET", value_name = "PATH", hide_env_values = true,
        default_value = dsec_format::protocol::MOUNTD_SOCKET)]
    socket: PathBuf,
    /// Print the result as one JSON object
    #[arg(long, global = true)]
    json: bool,
    /// Least severe log lines to show on standard error: off, error, warn, info, debug, trace. Default: info for
    /// `serve`, else warn
    #[arg(long, global = true, env = "DSEC_LOG", value_name = "LEVEL", hide_env_values = true)]
    log: Option<LevelFilter>,
    /// Write log lines as JSON objects
    #[arg(long, global = true)]
    log_json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Serve>),
    Mount(client::Mount),
    Release(client::Release),
    Status(status::Status),
    Doctor(doctor::Doctor),
    Completion(pages::Completion),
    Man(pages::Man),
}

impl Command {
    fn run(self, global: &Global) -> anyhow::Result<Exit> {
        match self {
            Self::Serve(command) => command.run(global),
            Self::Mount(command) => command.run(global),
            Self::Release(command) => command.run(global),
            Self::Status(command) => command.run(global),
            Self::Doctor(command) => command.run(global),
            Self::Completion(command) => command.run(),
            Self::Man(command) => command.run(),
        }
    }
}

/// The parser, with the exit codes in its long help.
fn command() -> clap::Command {
    Cli::command().after_long_help(exit::help())
}

fn start_log(global: &Global, default: LevelFilter) {
    let builder = tracing_subscriber::fmt()
        .with_max_level(global.log.unwrap_or(default))
        .with_writer(std::io::stderr)
        .with_target(false);
    if global.log_json { builder.json().init() } else { builder.init() }
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let cli = match command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return error::report_usage(&error).into(),
    };
    let default = if matches!(cli.command, Command::Serve(_)) { LevelFilter::INFO } else { LevelFilter::WARN };
    start_log(&cli.global, default);
    match cli.command.run(&cli.global) {
        Ok(exit) => exit,
        Err(error) => error::report(&error, cli.global.json),
    }
    .into()
}

/// Writes to standard output. A reader that went away is no failure.
fn print(text: &[u8]) -> anyhow::Result<()> {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
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
