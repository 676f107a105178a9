//! What can be typed.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};
use dsec_format::protocol::{EDGE_SOCKET, MOUNTD_SOCKET};
use dsec_format::refs::Spec;

/// Sandboxes, from the command line.
#[derive(Debug, Parser)]
#[command(name = "dsec", version, about, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Args {
    /// Socket of the edge.
    #[arg(long, global = true, env = "DSEC_EDGE", default_value = EDGE_SOCKET, value_name = "SOCKET")]
    pub edge: PathBuf,
    /// One JSON object instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes of run and exec: the command's own; 128 and the signal's number when a signal ended it;
124 when its time was up; 125 when dsec or the platform failed; 126 when it could not be run; 127 when
there is no such program; 137 also when memory ran out. The reason is in --json, and a line on standard
error tells of time-outs, lack of memory and failures. Other commands: 0, 2 for a command line that is
none, 125 for a failure.";

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a command in a sandbox of its own, which is removed afterwards.
    Run(Run),
    /// Makes a sandbox; prints its id.
    Create(Create),
    /// Runs a command in a sandbox.
    Exec(Exec),
    /// Copies files into or out of a sandbox, as cp -r would.
    Cp(Cp),
    /// Lists sandboxes.
    Ps,
    /// Removes sandboxes, whatever they are doing.
    Rm(Rm),
    /// Runs the daemon that owns this node's sandboxes.
    Edge(Edge),
    /// Tells what this node has and lacks for sandboxes; fails when it can have none. As root.
    Doctor,
    /// Prints a completion script.
    Completion(Completion),
    /// Prints the manual page, or writes those of all commands into a directory.
    Man(Man),
}

/// How a sandbox is made.
#[derive(Debug, Clone, ClapArgs)]
pub struct Sandbox {
    /// Memory: bytes, or with K, M, G (powers of 1024).
    #[arg(long, value_parser = parse_bytes, value_name = "BYTES")]
    pub memory: Option<u64>,
    /// CPU: cores, as 1.5.
    #[arg(long, value_parser = parse_cpus, value_name = "CORES")]
    pub cpus: Option<u32>,
    /// Processes and threads.
    #[arg(long, value_name = "COUNT")]
    pub pids: Option<u32>,
    /// Host name inside.
    #[arg(long, value_name = "NAME")]
    pub hostname: Option<String>,
    /// A label for your own use.
    #[arg(long = "label", value_parser = parse_pair, value_name = "KEY=VALUE")]
    pub labels: Vec<(String, String)>,
}

/// How a command is run.
#[derive(Debug, Clone, ClapArgs)]
pub struct Process {
    /// A variable of its environment.
    #[arg(short, long = "env", value_name = "KEY=VALUE", value_parser = parse_variable)]
    pub env: Vec<String>,
    /// Working directory.
    #[arg(short, long = "workdir", value_name = "PATH")]
    pub working_dir: Option<String>,
    /// User: NAME or UID, with :GROUP or :GID if wanted.
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Kills it after so many seconds.
    #[arg(long, value_parser = parse_seconds, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Sends standard input, even from a terminal. What is piped or redirected is sent anyway.
    #[arg(short, long)]
    pub interactive: bool,
    /// Sends no standard input.
    #[arg(short = 'n', long, conflicts_with = "interactive")]
    pub no_stdin: bool,
    /// A terminal: not there yet.
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
    /// Image: `NAME[:TAG]`, or a digest.
    pub image: Spec,
    /// Program and arguments; the image's own if none.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGV")]
    pub argv: Vec<String>,
}

/// `dsec create`.
#[derive(Debug, ClapArgs)]
pub struct Create {
    /// The sandbox.
    #[command(flatten)]
    pub sandbox: Sandbox,
    /// A variable of every command's environment.
    #[arg(short, long = "env", value_name = "KEY=VALUE", value_parser = parse_variable)]
    pub env: Vec<String>,
    /// Creates with one key make one sandbox.
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Image: `NAME[:TAG]`, or a digest.
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
    /// Program and arguments; the image's own if none.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGV")]
    pub argv: Vec<String>,
}

/// `dsec cp`.
#[derive(Debug, ClapArgs)]
pub struct Cp {
    /// Owner inside the sandbox: UID:GID, or keep for that of the source.
    #[arg(long, value_name = "OWNER")]
    pub owner: Option<String>,
    /// A path, or ID:PATH.
    pub source: String,
    /// A path, or ID:PATH.
    pub target: String,
}

/// `dsec rm`.
#[derive(Debug, ClapArgs)]
pub struct Rm {
    /// The sandboxes.
    #[arg(required_unless_present = "all")]
    pub ids: Vec<String>,
    /// All of this edge's.
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
}

/// `dsec edge`.
#[derive(Debug, ClapArgs)]
pub struct Edge {
    /// Directory of its journal and its sandboxes' files, on a local disk.
    #[arg(long, visible_alias = "state", default_value = "/var/lib/dsec/edge", value_name = "DIRECTORY")]
    pub root: PathBuf,
    /// Where it listens; --edge when absent.
    #[arg(long, value_name = "SOCKET")]
    pub socket: Option<PathBuf>,
    /// Where dsec-mountd listens.
    #[arg(long, default_value = MOUNTD_SOCKET, value_name = "SOCKET")]
    pub mountd: PathBuf,
    /// First user and group id that sandboxes get, a multiple of 65536.
    #[arg(long, value_name = "ID")]
    pub id_base: Option<u32>,
    /// How many ranges of 65536 ids there are: the most sandboxes at once.
    #[arg(long, value_name = "COUNT")]
    pub id_ranges: Option<u32>,
    /// How many sandboxes are kept ready for what is asked for again and again; 0 for none, 4 a core when absent.
    #[arg(long, value_name = "COUNT")]
    pub spares: Option<usize>,
    /// What is logged: error, warn, info, debug.
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    pub log: tracing::Level,
}

/// `dsec completion`.
#[derive(Debug, ClapArgs)]
pub struct Completion {
    /// For which shell.
    pub shell: clap_complete::Shell,
}

/// `dsec man`.
#[derive(Debug, ClapArgs)]
pub struct Man {
    /// Where to write one page a command.
    #[arg(long, value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.to_ascii_uppercase().chars().last() {
        Some('K') => (text.get(..text.len() - 1), 10),
        Some('M') => (text.get(..text.len() - 1), 20),
        Some('G') => (text.get(..text.len() - 1), 30),
        Some('T') => (text.get(..text.len() - 1), 40),
        _ => (Some(text), 0),
    };
    let number: Option<u64> = digits.and_then(|digits| digits.parse().ok());
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| "expected a number of bytes, or one with K, M, G or T".to_owned())
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
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn quantities() {
        assert_eq!(parse_bytes("1536M"), Ok(1536 << 20));
        assert_eq!(parse_bytes("7"), Ok(7));
        assert!(parse_bytes("M").is_err() && parse_bytes("-1").is_err() && parse_bytes("99999999999G").is_err());
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
