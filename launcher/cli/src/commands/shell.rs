//! `dsec completion` and `man`.

use std::io;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::{Args, Completion, Man};
use crate::failure::Failure;

/// `dsec completion`.
pub(crate) fn completion(completion: &Completion) -> Result<ExitCode, Failure> {
    clap_complete::generate(completion.shell, &mut Args::command(), "dsec", &mut io::stdout());
    Ok(ExitCode::SUCCESS)
}

/// `dsec man`.
pub(crate) fn man(man: &Man) -> Result<ExitCode, Failure> {
    let written = match &man.directory {
        Some(directory) => clap_mangen::generate_to(Args::command(), directory),
        None => clap_mangen::Man::new(Args::command()).render(&mut io::stdout()),
    };
    written.map_err(Failure::Output)?;
    Ok(ExitCode::SUCCESS)
}
