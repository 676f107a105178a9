//! Parses the command line and calls the library.

fn main() -> std::process::ExitCode {
    dsec_cli::main()
}
