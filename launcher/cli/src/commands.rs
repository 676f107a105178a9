//! The commands, a file each.

mod cp;
mod doctor;
mod edge;
mod process;
mod sandboxes;
mod stream;

use std::process::ExitCode;

use dsec_commandline::Output;

use crate::args::{self, Args, Command, Global};
use crate::client::Client;
use crate::failure::Failure;

/// Does what was asked for.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let Args { global: Global { edge: socket, json }, command } = args;
    let client = Client::new(&socket);
    match command {
        Command::Run(run) => wait(process::run(&client, run, json)),
        Command::Exec(exec) => wait(process::exec(&client, exec, json)),
        Command::Create(create) => wait(sandboxes::create(&client, create, json)),
        Command::Ps => wait(sandboxes::ps(&client, json)),
        Command::Rm(rm) => wait(sandboxes::rm(&client, rm, json)),
        Command::Cp(cp) => wait(cp::cp(&client, cp, json)),
        Command::Edge(edge) => edge::edge(edge, socket, json),
        Command::Doctor => doctor::doctor(wait(sandboxes::health(&client)).ok().flatten(), json),
        Command::Page(page) => Ok(page.run(args::command(), Output::new(json))?.into()),
    }
}

/// Runs a client's work: on this thread alone.
fn wait<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Failure::Local { what: "start", source })?;
    runtime.block_on(work)
}
