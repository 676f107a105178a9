//! All that dsec says, and to which stream.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

use crate::failure::Failure;

/// A line on standard error.
pub(crate) fn note(text: &str) {
    // A closed standard error hears nothing.
    let _ = writeln!(io::stderr(), "dsec: {text}");
}

/// A line on standard output. A reader that went away is no failure.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(Failure::Output),
    }
}

/// An object on standard output.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<ExitCode, Failure> {
    line(&serde_json::to_string(value).map_err(Failure::Encode)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Columns under their names, as wide as they need to be.
pub(crate) fn table(names: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(names.get(column).map(|name| name.len())).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..names.len()).map(width).collect();
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    for row in std::iter::once(&names).chain(rows) {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        line(cells.join("  ").trim_end())?;
    }
    Ok(())
}
