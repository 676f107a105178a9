//! Standard output: the result of a subcommand and nothing else, as text or as JSON.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

/// Where results go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

/// Standard output could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
pub(crate) struct Error(#[from] io::Error);

impl Error {
    /// Whether the reader went away.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints a result: its text form and a newline, or one JSON object on a line.
    pub(crate) fn print<T: Serialize + Display>(self, result: &T) -> Result<(), Error> {
        let text = if self.json {
            serde_json::to_string(result).map_err(io::Error::from)?
        } else {
            result.to_string().trim_end_matches('\n').to_owned()
        };
        self.write(format!("{text}\n").as_bytes())
    }

    /// Prints bytes as they are.
    pub(crate) fn write(self, bytes: &[u8]) -> Result<(), Error> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }
}

/// A number of bytes for people: `1.5 MiB`.
pub(crate) fn bytes_text(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
