//! The dsec command: sandboxes from the command line, and the edge daemon.
//!
//! One file a concept: [`args`] is what can be typed, `client` talks to an edge, `commands` has a file for each
//! command, `failure` decides exit codes and hints. Only this crate prints.
//!
//! The client is built for its start: one thread, no resolver, nothing read that the command does not need.

pub mod args;
mod client;
mod commands;
mod failure;
mod print;

use std::process::ExitCode;

use dsec_commandline::{Exit, usage};

/// Runs the command line of this process; its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let line: Vec<_> = std::env::args_os().collect();
    usage::run(args::command(), &line, run)
}

fn run(args: args::Args) -> ExitCode {
    let (json, passes_on) = (args.global.json, args.command.passes_on());
    match commands::run(args) {
        Ok(code) => code,
        // As one that SIGPIPE has ended: who read the output has had enough.
        Err(failure) if failure.is_closed_pipe() => Exit::ClosedPipe.into(),
        // Other codes may be the command's own.
        Err(failure) if passes_on && failure.exit() != Exit::Usage => {
            failure.report().ending_with(Exit::Platform).show(json).into()
        }
        Err(failure) => failure.report().show(json).into(),
    }
}
