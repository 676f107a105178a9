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

use clap::Parser;

/// Runs the command line of this process; its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version are no failures; a closed pipe is nobody's.
            let _ = error.print();
            return if error.use_stderr() { failure::Code::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    let json = args.json;
    match commands::run(args) {
        Ok(code) => code,
        // As one that SIGPIPE has ended: who read the output has had enough.
        Err(failure) if failure.is_closed_pipe() => ExitCode::from(failure::CLOSED_PIPE),
        Err(failure) => {
            print::failure(&failure, json);
            failure.code().into()
        }
    }
}
