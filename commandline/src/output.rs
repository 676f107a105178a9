//! Standard output: the result of a command and nothing else, as text or as one JSON object on a line.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

/// Where results go.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    json: bool,
}

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
pub struct Error(#[from] io::Error);

impl Output {
    /// Prints objects when `json`, else text.
    #[must_use]
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether it prints objects.
    #[must_use]
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Prints a result: its text and a newline, or its object. Of an empty text nothing is printed.
    ///
    /// # Errors
    /// When it cannot be written. A reader that went away (`| head`) is no error.
    pub fn print<T: Serialize + Display>(self, result: &T) -> Result<(), Error> {
        let text = if self.json {
            serde_json::to_string(result).map_err(io::Error::from)?
        } else {
            result.to_string().trim_end_matches('\n').to_owned()
        };
        if text.is_empty() { Ok(()) } else { self.write(format!("{text}\n").as_bytes()) }
    }

    /// Prints bytes as they are.
    ///
    /// # Errors
    /// As [`Output::print`].
    pub fn write(self, bytes: &[u8]) -> Result<(), Error> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => Ok(other?),
        }
    }
}
