//! The command line of `dsec-registry`.
//!
//! Decided here and nowhere else: where the token comes from, what goes to standard output (the address, once it
//! listens) and to standard error (the log), exit codes, signals.

mod error;
mod serve;

use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use dsec_commandline::help::About;
use dsec_commandline::log::Log;
use dsec_commandline::pages::Page;
use dsec_commandline::{Exit, Output, usage};

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
    /// Print the line that says that the registry is ready, or the error, as one JSON object
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    log: Log,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    #[command(flatten)]
    Page(Page),
}

const ABOUT: About = About {
    examples: "\
# Your own store, for this machine only; no token needed
dsec-registry serve --create
# For others: make a token, and give it to those who may read and write.
# HTTP carries it as plain text: put a proxy with TLS in front of it
head -c 32 /dev/urandom | base64 > token && chmod 600 token
dsec-registry serve --store /srv/dsec --listen 0.0.0.0:7300 --token-file token
# A free port, written where a script finds it
dsec-registry serve --store ./store --create --listen localhost:0 --port-file port",
    variables: &[
        ("HOME", "a user's store is below it when XDG_DATA_HOME is not set"),
        ("XDG_DATA_HOME", "a user's data directory"),
    ],
    exits: &[Exit::Success, Exit::Failure, Exit::Usage, Exit::NotFound, Exit::Refused, Exit::Full, Exit::Conflict],
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
        let (json, output) = (cli.global.json, Output::new(cli.global.json));
        let done = match cli.command {
            Command::Serve(serve) => serve.run(output),
            Command::Page(page) => page.run(command(), output).map_err(Into::into),
        };
        done.unwrap_or_else(|error| error::report(&error, json)).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_what_the_command_line_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/dsec-registry.md").into();
        let update = std::env::var_os("UPDATE_REFERENCE").is_some();
        dsec_commandline::reference::check(command(), path, update).unwrap();
    }
}
