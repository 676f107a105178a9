//! What can be typed.

use std::path::PathBuf;

use clap::{Args as ClapArgs, CommandFactory, Parser, Subcommand};
use dsec_commandline::Exit;
use dsec_commandline::help::About;
use dsec_commandline::log::Log;
use dsec_commandline::pages::Page;
use dsec_commandline::quantity::parse_bytes;
use dsec_format::protocol::{EDGE_SOCKET, MOUNTD_SOCKET};
use dsec_format::refs::Spec;

/// Sandboxes, from the command line.
#[derive(Debug, Parser)]
#[command(name = "dsec", version, propagate_version = true, disable_help_subcommand = true)]
pub struct Args {
    /// What every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Debug, ClapArgs)]
#[command(next_display_order = 1000)]
pub struct Global {
    /// The socket of the edge
    #[arg(long, global = true, env = "DSEC_EDGE", default_value = EDGE_SOCKET, value_name = "SOCKET", hide_env_values = true)]
    pub edge: PathBuf,
    /// Print the result, or the error, as one JSON object
    #[arg(long, global = true)]
    pub json: bool,
}

const ABOUT: About = About {
    examples: "\
# A command in a sandbox of its own
dsec run debian:stable -- python3 -c 'print(1)'
# A sandbox that stays, with limits; commands and files in it
dsec create --memory 2G --cpus 1.5 debian:stable
dsec exec ID -- sh -c 'echo hello > /srv/note'
dsec cp ./project ID:/srv
dsec cp ID:/srv/note .
dsec ps
dsec rm ID
# The daemon that owns the sandboxes of this node, and whether it can
dsec doctor
dsec edge",
    variables: &[],
    exits: &[
        Exit::Success,
        Exit::Failure,
        Exit::Usage,
        Exit::NotFound,
        Exit::Unreachable,
        Exit::Refused,
        Exit::Full,
        Exit::Conflict,
        Exit::TimedOut,
        Exit::Platform,
        Exit::NotRunnable,
        Exit::NoProgram,
        Exit::ClosedPipe,
    ],
};

/// What run and exec end with, beside the table.
const PASSED_ON: &str = "\n
run and exec end with the command's own code, or 128 and the number of the signal
that ended it, 137 also when memory ran out. The reason is in --json, and a line
on standard error tells of time-outs, lack of memory and failures.";

/// The parser, with examples, variables and exit codes in its long help.
#[must_use]
pub fn command() -> clap::Command {
    let command = ABOUT.add_to(Args::command());
    let after = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    command.after_long_help(after + PASSED_ON)
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in a sandbox of its own, which is removed afterwards
    Run(Run),
    /// Make a sandbox; print its id
    Create(Create),
    /// Run a command in a sandbox
    Exec(Exec),
    /// Copy files into or out of a sandbox, as cp -r would
    Cp(Cp),
    /// List sandboxes
    Ps,
    /// Remove sandboxes, whatever they are doing
    Rm(Rm),
    /// Run the daemon that owns this node's sandboxes. As root
    Edge(Edge),
    /// Tell what this node has and lacks for sandboxes; fail when it can have none. As root
    Doctor,
    /// What it says of itself.
    #[command(flatten)]
    Page(Page),
}

impl Command {
    /// Whether its exit code is that of a command in a sandbox.
    #[must_use]
    pub fn passes_on(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Exec(_))
    }
}

/// How a sandbox is made.
#[derive(Debug, Clone, ClapArgs)]
pub struct Sandbox {
    /// Memory: bytes, or with K, M, G (powers of 1024) [default: the node's, 1G]
    #[arg(long, value_parser = parse_bytes, value_name = "BYTES")]
    pub memory: Option<u64>,
    /// CPU: cores, as 1.5 [default: the node's, 1]
    #[arg(long, value_parser = parse_cpus, value_name = "CORES")]
    pub cpus: Option<u32>,
    /// Processes and threads [default: the node's, 1024]
    #[arg(long, value_name = "COUNT")]
    pub pids: Option<u32>,
    /// Host name inside [default: the sandbox's id]
    #[arg(long, value_name = "NAME")]
    pub hostname: Option<String>,
    /// A label for your own use; may be given again
    #[arg(long = "label", value_parser = parse_pair, value_name = "KEY=VALUE")]
    pub labels: Vec<(String, String)>,
}

/// How a command is run.
#[derive(Debug, Clone, ClapArgs)]
pub struct Process {
    /// A variable of its environment; may be given again
    #[arg(short, long = "env", value_name = "KEY=VALUE", value_parser = parse_variable)]
    pub env: Vec<String>,
    /// Working directory [default: the image's, else the user's home]
    #[arg(short, long = "workdir", value_name = "PATH")]
    pub working_dir: Option<String>,
    /// User: NAME or UID, with :GROUP or :GID if wanted [default: the image's, else root]
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Kill it after so many seconds [default: never]
    #[arg(long, value_parser = parse_seconds, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Send standard input, even from a terminal. What is piped or redirected is sent anyway
    #[arg(short, long)]
    pub interactive: bool,
    /// Send no standard input
    #[arg(short = 'n', long, conflicts_with = "interactive")]
    pub no_stdin: bool,
    /// A terminal: not there yet
    #[arg(short, long)]
    pub tty: bool,
}

/// `dsec run`.
#[derive(Debug, ClapArgs)]
pub struct Run {
    /// The sandbox.
    #[command(flatten)]
    pub sandbox: Sandbox,
    /// The command.
    #[command(flatten)]
    pub process: Process,
    /// Accepted for those who are used to it: the sandbox is always removed.
    #[arg(long, hide = true)]
    pub rm: bool,
    /// The image: NAME, NAME:TAG or digest
    pub image: Spec,
    /// Program and arguments [default: the image's own]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGV")]
    pub argv: Vec<String>,
}

/// `dsec create`.
#[derive(Debug, ClapArgs)]
pub struct Create {
    /// The sandbox.
    #[command(flatten)]
    pub sandbox: Sandbox,
    /// A variable of every command's environment; may be given again
    #[arg(short, long = "env", value_name = "KEY=VALUE", value_parser = parse_variable)]
    pub env: Vec<String>,
    /// Creates with one key make one sandbox
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// The image: NAME, NAME:TAG or digest
    pub image: Spec,
}

/// `dsec exec`.
#[derive(Debug, ClapArgs)]
pub struct Exec {
    /// The command.
    #[command(flatten)]
    pub process: Process,
    /// The sandbox.
    pub id: String,
    /// Program and arguments [default: the image's own]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGV")]
    pub argv: Vec<String>,
}

/// `dsec cp`.
#[derive(Debug, ClapArgs)]
pub struct Cp {
    /// Owner inside the sandbox: UID:GID, or keep for that of the source [default: 0:0]
    #[arg(long, value_name = "OWNER")]
    pub owner: Option<String>,
    /// A path, or ID:PATH
    pub source: String,
    /// A path, or ID:PATH
    pub target: String,
}

/// `dsec rm`.
#[derive(Debug, ClapArgs)]
pub struct Rm {
    /// The sandboxes.
    #[arg(required_unless_present = "all")]
    pub ids: Vec<String>,
    /// All of this edge's
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
}

/// `dsec edge`.
#[derive(Debug, ClapArgs)]
pub struct Edge {
    /// Directory of its journal and its sandboxes' files, on a local disk
    #[arg(long, visible_alias = "state", default_value = "/var/lib/dsec/edge", value_name = "DIR")]
    pub root: PathBuf,
    /// Where it listens [default: as --edge]
    #[arg(long, value_name = "SOCKET")]
    pub socket: Option<PathBuf>,
    /// The socket of dsec-mountd
    #[arg(long, env = "DSEC_MOUNTD", default_value = MOUNTD_SOCKET, value_name = "SOCKET", hide_env_values = true)]
    pub mountd: PathBuf,
    /// First user and group id that sandboxes get, a multiple of 65536 [default: 1879048192]
    #[arg(long, value_name = "ID")]
    pub id_base: Option<u32>,
    /// How many ranges of 65536 ids there are: the most sandboxes at once [default: 4094]
    #[arg(long, value_name = "COUNT")]
    pub id_ranges: Option<u32>,
    /// How many sandboxes are kept ready for what is asked for again and again; 0 for none [default: 4 a core]
    #[arg(long, value_name = "COUNT")]
    pub spares: Option<usize>,
    /// Its log.
    #[command(flatten)]
    pub log: Log,
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
fn parse_cpus(text: &str) -> Result<u32, String> {
    let cores: Option<f64> = text.parse().ok();
    match cores.map(|cores| (cores * 1000.0).round()) {
        Some(millis) if (1.0..=1e9).contains(&millis) => Ok(millis as u32),
        _ => Err("expected a number of cores, as 0.5 or 2".to_owned()),
    }
}

/// Seconds, as milliseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
fn parse_seconds(text: &str) -> Result<u64, String> {
    let seconds: Option<f64> = text.trim_end_matches('s').parse().ok();
    match seconds.map(|seconds| (seconds * 1000.0).ceil()) {
        Some(millis) if (1.0..=1e15).contains(&millis) => Ok(millis as u64),
        _ => Err("expected a number of seconds, as 0.5 or 30".to_owned()),
    }
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

fn parse_variable(text: &str) -> Result<String, String> {
    parse_pair(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_what_the_command_line_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/dsec.md").into();
        let update = std::env::var_os("UPDATE_REFERENCE").is_some();
        dsec_commandline::reference::check(command(), path, update).unwrap();
    }

    #[test]
    fn quantities() {
        assert_eq!(parse_cpus("0.25"), Ok(250));
        assert!(parse_cpus("0").is_err() && parse_cpus("NaN").is_err());
        assert_eq!((parse_seconds("1.5"), parse_seconds("2s")), (Ok(1500), Ok(2000)));
    }

    #[test]
    fn what_follows_the_image_is_the_commands() {
        for line in [["dsec", "run", "debian", "--", "ls", "-la"].as_slice(), &["dsec", "run", "debian", "ls", "-la"]] {
            let Command::Run(run) = Args::try_parse_from(line).unwrap().command else { panic!("{line:?}") };
            assert_eq!(run.argv, ["ls", "-la"], "{line:?}");
        }
    }
}
