//! The command line: one file a subcommand, each calling the library.
//!
//! Decided here and nowhere else: where the store is, what goes to standard output (the result, as text or JSON) and
//! to standard error (progress, warnings, errors), hints, exit codes, signals.

mod build;
mod context;
mod error;
mod failures;
mod fsck;
mod limits;
mod mount;
mod names;
mod pack_diff;
mod progress;
mod refs;
mod report;
mod stores;
mod transfer;
mod unpack;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use dsec_commandline::help::About;
use dsec_commandline::log::Log;
use dsec_commandline::pages::Page;
use dsec_commandline::{Exit, token, usage};

use context::Context;

/// Build, verify, move and take apart images for agent environments.
#[derive(Debug, Parser)]
#[command(name = "dsec-pack", version, propagate_version = true, disable_help_subcommand = true)]
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
    /// The local store [default: /var/lib/dsec/store for root, else dsec/store in the user's data directory]
    #[arg(long, global = true, env = "DSEC_STORE", value_name = "DIR", hide_env_values = true)]
    store: Option<PathBuf>,
    /// Print the result, or the error, as one JSON object
    #[arg(long, global = true)]
    json: bool,
    /// Show no progress
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(flatten)]
    log: Log,
}

#[derive(Debug, Subcommand)]
enum Command {
    Build(Box<build::Build>),
    Push(transfer::Push),
    Pull(transfer::Pull),
    Ls(refs::Ls),
    Show(refs::Show),
    Tag(refs::Tag),
    Rm(refs::Rm),
    Verify(verify::Verify),
    Unpack(unpack::Unpack),
    Mount(mount::Mount),
    Umount(mount::Umount),
    PackDiff(Box<pack_diff::PackDiff>),
    Report(report::Report),
    Fsck(fsck::Fsck),
    #[command(flatten)]
    Page(Page),
}

impl Command {
    fn run(self, context: &Context) -> anyhow::Result<Exit> {
        match self {
            Self::Build(command) => command.run(context),
            Self::Push(command) => command.run(context),
            Self::Pull(command) => command.run(context),
            Self::Ls(command) => command.run(context),
            Self::Show(command) => command.run(context),
            Self::Tag(command) => command.run(context),
            Self::Rm(command) => command.run(context),
            Self::Verify(command) => command.run(context),
            Self::Unpack(command) => command.run(context),
            Self::Mount(command) => command.run(context),
            Self::Umount(command) => command.run(context),
            Self::PackDiff(command) => command.run(context),
            Self::Report(command) => command.run(context),
            Self::Fsck(command) => command.run(context),
            Self::Page(page) => Ok(page.run(command(), context.output)?),
        }
    }
}

const ABOUT: About = About {
    examples: "\
# From a directory, a tar or an OCI layout, into the local store
dsec-pack build /srv/debian --ref debian:stable
# To a registry and back; only what is missing moves
dsec-pack push debian:stable http://registry:7300
dsec-pack pull debian:stable http://registry:7300
# What a sandbox has changed, as an image
dsec-pack pack-diff SANDBOX debian:noted
# What is there, what it takes, whether it is whole
dsec-pack ls
dsec-pack report
dsec-pack verify debian:stable --against /srv/debian",
    variables: &[
        (token::VARIABLE, "the registry's token, when there is no --token-file"),
        ("HOME", "a user's store is below it when XDG_DATA_HOME is not set"),
        ("XDG_DATA_HOME", "a user's data directory"),
    ],
    exits: &[
        Exit::Success,
        Exit::Failure,
        Exit::Usage,
        Exit::NotFound,
        Exit::Input,
        Exit::Damaged,
        Exit::Unreachable,
        Exit::Refused,
        Exit::Full,
        Exit::Conflict,
        Exit::Different,
        Exit::Interrupted,
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
        cli.global.log.start(false);
        let done = Context::new(&cli.global).and_then(|context| {
            let result = cli.command.run(&context);
            context.progress.clear();
            result
        });
        done.unwrap_or_else(|error| error::report(&error, cli.global.json)).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_what_the_command_line_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/dsec-pack.md").into();
        let update = std::env::var_os("UPDATE_REFERENCE").is_some();
        dsec_commandline::reference::check(command(), path, update).unwrap();
    }
}
