//! The command line: one file a subcommand, each calling the library.
//!
//! Decided here and nowhere else: where the store is, what goes to standard output (the result, as text or JSON) and
//! to standard error (progress, warnings, errors), hints, exit codes, signals.

mod build;
mod completion;
mod context;
mod error;
mod exit;
mod failures;
mod fsck;
mod limits;
mod man;
mod mount;
mod output;
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

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

use context::Context;
use exit::Exit;

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
    /// The local store. Default: /var/lib/dsec/store for root, else $XDG_DATA_HOME/dsec/store
    #[arg(long, global = true, env = "DSEC_STORE", value_name = "DIR", hide_env_values = true)]
    store: Option<PathBuf>,
    /// Print the result as one JSON object
    #[arg(long, global = true)]
    json: bool,
    /// Show no progress
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Least severe log lines to show on standard error: off, error, warn, info, debug, trace
    #[arg(long, global = true, env = "DSEC_LOG", value_name = "LEVEL", default_value = "warn", hide_env_values = true)]
    log: LevelFilter,
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
    Completion(completion::Completion),
    Man(man::Man),
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
            Self::Completion(command) => command.run(context),
            Self::Man(command) => command.run(context),
        }
    }
}

/// The parser, with the exit codes in its long help.
fn command() -> clap::Command {
    Cli::command().after_long_help(exit::help())
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let cli = match command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return error::report_usage(&error).into(),
    };
    tracing_subscriber::fmt()
        .with_max_level(cli.global.log)
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .init();
    let exit = match Context::new(&cli.global).and_then(|context| {
        let result = cli.command.run(&context);
        context.progress.clear();
        result
    }) {
        Ok(exit) => exit,
        Err(error) => error::report(&error, cli.global.json),
    };
    exit.into()
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
