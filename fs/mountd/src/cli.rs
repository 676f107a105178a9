//! The command line: one file a subcommand, each calling the library.
//!
//! Decided here and nowhere else: defaults, what goes to standard output and to standard error, hints, exit codes,
//! signals.

mod client;
mod doctor;
mod error;
mod serve;
mod sources;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use dsec_commandline::help::About;
use dsec_commandline::log::Log;
use dsec_commandline::pages::Page;
use dsec_commandline::{Exit, Output, token, usage};

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
    #[arg(long, global = true, env = "DSEC_MOUNTD", value_name = "SOCKET", hide_env_values = true,
        default_value = dsec_format::protocol::MOUNTD_SOCKET)]
    socket: PathBuf,
    /// Print the result, or the error, as one JSON object
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    log: Log,
}

impl Global {
    fn output(&self) -> Output {
        Output::new(self.json)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Serve>),
    Mount(client::Mount),
    Release(client::Release),
    Status(status::Status),
    Doctor(doctor::Doctor),
    #[command(flatten)]
    Page(Page),
}

impl Command {
    fn run(self, global: &Global) -> anyhow::Result<Exit> {
        match self {
            Self::Serve(command) => command.run(global),
            Self::Mount(command) => command.run(global),
            Self::Release(command) => command.run(global),
            Self::Status(command) => command.run(global),
            Self::Doctor(command) => command.run(global),
            Self::Page(page) => Ok(page.run(command(), global.output())?),
        }
    }
}

const ABOUT: About = About {
    examples: "\
# The images of the local store, or of a registry
dsec-mountd serve
dsec-mountd serve --store http://registry:7300 --cache-bytes 20G
# What is mounted, how much of it is here, what was fetched
dsec-mountd status
# The layers of an image, each on a directory; and let go of them
dsec-mountd mount debian:stable --holder me
dsec-mountd release --holder me",
    variables: &[(token::VARIABLE, "the registries' token, when there is no --token-file")],
    exits: &[
        Exit::Success,
        Exit::Failure,
        Exit::Usage,
        Exit::NotFound,
        Exit::Damaged,
        Exit::Unreachable,
        Exit::Refused,
        Exit::Full,
        Exit::Conflict,
    ],
};

/// The parser, with examples, variables and exit codes in its long help.
fn command() -> clap::Command {
    ABOUT.add_to(Cli::command())
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let line: Vec<_> = std::env::args_os().collect();
    usage::run(command(), &line, |cli: Cli| {
        cli.global.log.start(matches!(cli.command, Command::Serve(_)));
        let done = cli.command.run(&cli.global);
        done.unwrap_or_else(|error| error::report(&error, cli.global.json)).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_what_the_command_line_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/dsec-mountd.md").into();
        let update = std::env::var_os("UPDATE_REFERENCE").is_some();
        dsec_commandline::reference::check(command(), path, update).unwrap();
    }
}
