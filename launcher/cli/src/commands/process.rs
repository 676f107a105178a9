//! `dsec run` and `dsec exec`: a command, its input and output, its end.
//!
//! Both attach: when dsec is interrupted or killed, its connection closes, and the edge kills the command with everything
//! it started (and, for `run`, removes the sandbox). So no signal is handled here.

use std::io::{IsTerminal, Read};
use std::os::fd::AsFd;
use std::process::ExitCode;

use bytes::Bytes;
use dsec_format::protocol::edge::{Attach, CreateRequest, EXEC_HEADER, ExecRequest, RunRequest, SANDBOX_HEADER};
use hyper::body::Incoming;
use hyper::{Method, Response};
use rustix::fs::FileType;

use super::sandboxes::{labels, limits};
use super::stream;
use crate::args::{Exec, Process, Run};
use crate::client::{Client, Parts};
use crate::failure::Failure;

/// Bytes of standard input that are sent at once.
const INPUT_BYTES: usize = 64 << 10;

/// `dsec run`.
pub(crate) async fn run(client: &Client, run: Run, json: bool) -> Result<ExitCode, Failure> {
    let stdin = sends_stdin(&run.process)?;
    let sandbox = CreateRequest {
        image: run.image,
        idempotency_key: None,
        limits: limits(&run.sandbox),
        env: Vec::new(),
        hostname: run.sandbox.hostname.clone(),
        labels: labels(&run.sandbox),
    };
    let request = RunRequest { sandbox, exec: request(run.process, run.argv, stdin) };
    let response = client.send_json(Method::POST, "/v1/run", &request).await.map_err(vanished)?;
    follow(client, response, stdin, json).await
}

/// `dsec exec`.
pub(crate) async fn exec(client: &Client, exec: Exec, json: bool) -> Result<ExitCode, Failure> {
    let stdin = sends_stdin(&exec.process)?;
    let path = format!("/v1/sandboxes/{}/execs", crate::client::escape(&exec.id));
    let request = request(exec.process, exec.argv, stdin);
    let response = client.send_json(Method::POST, &path, &request).await.map_err(vanished)?;
    follow(client, response, stdin, json).await
}

/// An edge that takes a command and goes away before its answer begins: the command may have run, as with one that goes
/// away later.
fn vanished(failure: Failure) -> Failure {
    match failure {
        Failure::Broken(_) => Failure::Vanished,
        other => other,
    }
}

fn request(process: Process, argv: Vec<String>, stdin: bool) -> ExecRequest {
    ExecRequest {
        argv,
        env: process.env,
        working_dir: process.working_dir,
        user: process.user,
        stdin,
        timeout_ms: process.timeout,
        attach: Attach::Kill,
    }
}

/// Whether standard input is sent: when asked for, or when it is a pipe, a file or a socket.
fn sends_stdin(process: &Process) -> Result<bool, Failure> {
    if process.tty {
        return Err(Failure::Usage { what: "terminals (-t) are not there yet; use -i for plain standard input" });
    }
    if process.no_stdin {
        return Ok(false);
    }
    let stdin = std::io::stdin();
    let piped = rustix::fs::fstat(stdin.as_fd()).is_ok_and(|stat| {
        matches!(FileType::from_raw_mode(stat.st_mode), FileType::Fifo | FileType::RegularFile | FileType::Socket)
    });
    Ok(process.interactive || (piped && !stdin.is_terminal()))
}

async fn follow(client: &Client, response: Response<Incoming>, stdin: bool, json: bool) -> Result<ExitCode, Failure> {
    let name = |header: &str| {
        let value = response.headers().get(header).and_then(|value| value.to_str().ok());
        value.map(str::to_owned).ok_or_else(|| Failure::Unexpected { what: format!("no header {header}") })
    };
    let (sandbox, exec) = (name(SANDBOX_HEADER)?, name(EXEC_HEADER)?);
    if stdin {
        send_stdin(client, format!("/v1/sandboxes/{sandbox}/execs/{exec}/stdin"));
    }
    stream::show(response.into_body(), sandbox, exec, json).await
}

/// Sends standard input beside everything else. How that goes shows in what the command does with it: one that stops
/// reading is no failure.
fn send_stdin(client: &Client, path: String) {
    let (sender, body) = Parts::channel();
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        loop {
            let mut part = vec![0; INPUT_BYTES];
            let part = match stdin.read(&mut part) {
                Ok(0) => return,
                Ok(count) => {
                    part.truncate(count);
                    Ok(Bytes::from(part))
                }
                Err(error) => Err(error),
            };
            let failed = part.is_err();
            if sender.blocking_send(part).is_err() || failed {
                return;
            }
        }
    });
    let client = client.clone();
    tokio::spawn(async move { client.send(Method::POST, &path, body).await.map(|_| ()) });
}
