//! The log: lines on standard error.

use std::io::{self, IsTerminal};

use clap::Args;
use tracing_subscriber::filter::LevelFilter;

/// What every program takes about its log.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_display_order = 1001)]
pub struct Log {
    /// Least severe log lines to show on standard error: off, error, warn, info, debug, trace [default: info for a
    /// daemon, else warn]
    #[arg(long, global = true, env = "DSEC_LOG", value_name = "LEVEL", hide_env_values = true)]
    log: Option<LevelFilter>,
    /// Write log lines as JSON objects
    #[arg(long, global = true)]
    log_json: bool,
}

impl Log {
    /// Starts the log of this process. Colours are for terminals only: never in a file or a pipe.
    ///
    /// # Panics
    /// When it was started before.
    pub fn start(self, is_daemon: bool) {
        let default = if is_daemon { LevelFilter::INFO } else { LevelFilter::WARN };
        let builder = tracing_subscriber::fmt()
            .with_max_level(self.log.unwrap_or(default))
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .with_target(false);
        match (self.log_json, is_daemon) {
            (true, _) => builder.json().flatten_event(true).init(),
            (false, true) => builder.init(),
            (false, false) => builder.without_time().init(),
        }
    }
}
