//! A command's stream: its output to this process's, or into one object.

use std::io::{self, Write};
use std::process::ExitCode;

use bytes::{Buf, BytesMut};
use dsec_format::protocol::edge::{ErrorBody, Outcome};
use dsec_format::protocol::stream::{HEADER_BYTES, Header, Kind, Output, Skipped};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Serialize;

use crate::failure::{Failure, code_of, note_of};
use crate::print;

/// With `--json`, so much of each output is put into the object.
const OBJECT_BYTES: usize = 8 << 20;

/// What `--json` prints of a command.
#[derive(Debug, Serialize)]
struct Report {
    sandbox: String,
    exec: String,
    outcome: Outcome,
    exit_code: u8,
    /// As text; what is no UTF-8 is replaced.
    stdout: String,
    stderr: String,
    /// Bytes that are in the outcome's count and not here.
    stdout_missing_bytes: u64,
    stderr_missing_bytes: u64,
}

/// Where output goes.
enum Sink {
    Through,
    Object { stdout: Vec<u8>, stderr: Vec<u8> },
}

impl Sink {
    fn write(&mut self, output: Output, bytes: &[u8]) -> io::Result<()> {
        match (self, output) {
            (Self::Through, Output::Stdout) => through(io::stdout(), bytes),
            (Self::Through, Output::Stderr) => through(io::stderr(), bytes),
            (Self::Object { stdout: kept, .. }, Output::Stdout)
            | (Self::Object { stderr: kept, .. }, Output::Stderr) => {
                let room = OBJECT_BYTES.saturating_sub(kept.len()).min(bytes.len());
                kept.extend_from_slice(bytes.get(..room).unwrap_or_default());
                Ok(())
            }
        }
    }
}

fn through(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// Shows a command's output until its end; the exit code that tells how it ended.
pub(crate) async fn show(body: Incoming, sandbox: String, exec: String, json: bool) -> Result<ExitCode, Failure> {
    let mut sink = if json { Sink::Object { stdout: Vec::new(), stderr: Vec::new() } } else { Sink::Through };
    let outcome = follow(body, &mut sink).await?;
    let code = code_of(&outcome.reason);
    match sink {
        Sink::Through => {
            if let Some(note) = note_of(&outcome.reason) {
                print::note(&note);
            }
        }
        Sink::Object { stdout, stderr } => {
            let missing = |bytes: u64, kept: &Vec<u8>| bytes.saturating_sub(kept.len() as u64);
            print::json(&Report {
                sandbox,
                exec,
                exit_code: code,
                stdout_missing_bytes: missing(outcome.stdout_bytes, &stdout),
                stderr_missing_bytes: missing(outcome.stderr_bytes, &stderr),
                stdout: String::from_utf8_lossy(&stdout).into_owned(),
                stderr: String::from_utf8_lossy(&stderr).into_owned(),
                outcome,
            })?;
        }
    }
    Ok(ExitCode::from(code))
}

async fn follow(mut body: Incoming, sink: &mut Sink) -> Result<Outcome, Failure> {
    let mut buffer = BytesMut::new();
    loop {
        while let Some((kind, payload)) = next(&mut buffer)? {
            match kind {
                Kind::Stdout => sink.write(Output::Stdout, &payload).map_err(Failure::Output)?,
                Kind::Stderr => sink.write(Output::Stderr, &payload).map_err(Failure::Output)?,
                Kind::Skipped => {
                    let skipped: Skipped = decode(&payload)?;
                    print::note(&format!("{} bytes of output are missing here: they came too fast", skipped.bytes));
                }
                Kind::Outcome => return decode(&payload),
                Kind::Error => {
                    let error: ErrorBody = decode(&payload)?;
                    return Err(Failure::Refused { kind: error.kind, message: error.message });
                }
            }
        }
        match body.frame().await {
            Some(Ok(frame)) => buffer.extend_from_slice(&frame.into_data().unwrap_or_default()),
            // An edge that stops, or is killed, says no more.
            Some(Err(_)) | None => return Err(Failure::Vanished),
        }
    }
}

/// The next whole frame.
fn next(buffer: &mut BytesMut) -> Result<Option<(Kind, BytesMut)>, Failure> {
    if buffer.len() < HEADER_BYTES {
        return Ok(None);
    }
    let header = Header::decode(buffer).map_err(|error| Failure::Unexpected { what: error.to_string() })?;
    let bytes = header.bytes as usize;
    if buffer.len() < HEADER_BYTES + bytes {
        buffer.reserve(HEADER_BYTES + bytes - buffer.len());
        return Ok(None);
    }
    buffer.advance(HEADER_BYTES);
    Ok(Some((header.kind, buffer.split_to(bytes))))
}

fn decode<T: serde::de::DeserializeOwned>(payload: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(payload).map_err(|error| Failure::Unexpected { what: error.to_string() })
}
