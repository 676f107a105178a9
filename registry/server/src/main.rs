//! Parses the command line and calls the library.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
