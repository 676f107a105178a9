//! `dsec cp`: trees as tar streams, with the blocking half of a copy on a thread of its own.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use bytes::{Buf, Bytes};
use dsec_fleet::files::{self, Local, Owner, pack, unpack};
use dsec_format::protocol::edge::{ERROR_TRAILER, ErrorBody, Unpacked};
use http_body_util::BodyExt;
use hyper::Method;
use tokio::sync::{mpsc, oneshot};

use crate::args::Cp;
use crate::client::{self, Client, Parts, escape};
use crate::failure::Failure;
use crate::print;

/// Bytes that are sent at once.
const PART_BYTES: usize = 64 << 10;

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Side<'a> {
    Here(&'a str),
    There { id: &'a str, path: String },
}

impl<'a> Side<'a> {
    /// `ID:PATH` is in a sandbox; a path with a `/` before its first `:` is here.
    fn of(text: &'a str) -> Self {
        match text.split_once(':') {
            Some((id, path)) if !id.is_empty() && !id.contains('/') && !id.starts_with('.') => {
                Self::There { id, path: format!("/{}", path.trim_start_matches('/')) }
            }
            _ => Self::Here(text),
        }
    }
}

/// `dsec cp`.
pub(crate) async fn cp(client: &Client, cp: Cp, json: bool) -> Result<ExitCode, Failure> {
    let unpacked = match (Side::of(&cp.source), Side::of(&cp.target)) {
        (Side::Here(source), Side::There { id, path }) => {
            upload(client, source, id, &path, cp.owner.as_deref()).await?
        }
        (Side::There { id, path }, Side::Here(target)) => {
            if cp.owner.is_some() {
                return Err(Failure::Usage { what: "--owner is for copies into a sandbox" });
            }
            download(client, id, &path, target).await?
        }
        (Side::Here(_), Side::Here(_)) => {
            return Err(Failure::Usage { what: "one side of cp is ID:PATH, a path in a sandbox" });
        }
        (Side::There { .. }, Side::There { .. }) => {
            return Err(Failure::Usage { what: "cp from sandbox to sandbox goes through a directory here" });
        }
    };
    if json { print::json(&unpacked) } else { Ok(ExitCode::SUCCESS) }
}

/// The directory that a path is in, and its name there. What has no name of its own (`.`, `..`, `/`) gets the one that
/// it has from the root.
fn split(path: &str) -> Result<(Local, String), Failure> {
    let whole;
    let path = Path::new(path);
    let path = match path.file_name() {
        Some(_) => path,
        None => {
            whole = fs_err::canonicalize(path).map_err(|source| Failure::Local { what: "find the path", source })?;
            &whole
        }
    };
    let name = path.file_name().unwrap_or_default();
    let name = name
        .to_str()
        .ok_or_else(|| files::Error::Name {
            name: name.as_encoded_bytes().escape_ascii().to_string(),
            place: path.display().to_string(),
        })?
        .to_owned();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((Local::open(parent)?, name))
}

async fn upload(client: &Client, source: &str, id: &str, path: &str, owner: Option<&str>) -> Result<Unpacked, Failure> {
    let (directory, name) = split(source)?;
    // So that a path that is not there is told before a sandbox is touched.
    files::Tree::look(&directory, &name)?;
    let (sender, body) = Parts::channel();
    let (result, packed) = oneshot::channel();
    std::thread::spawn(move || {
        let errors = sender.clone();
        let mut to = io::BufWriter::with_capacity(PART_BYTES, ToRequest(sender));
        let flushed = |source| files::Error::Contents { path: name.clone(), source };
        let packed = pack(&directory, &name, &mut to).and_then(|()| to.flush().map_err(flushed));
        if packed.is_err() {
            // The edge sees a stream that breaks, not one that ends.
            let _ = errors.blocking_send(Err(io::ErrorKind::Other.into()));
        }
        // Nobody waits for it when the edge has said no already.
        let _ = result.send(packed);
    });
    let owner = owner.map(|owner| format!("&owner={}", escape(owner))).unwrap_or_default();
    let target = format!("/v1/sandboxes/{}/files?path={}{owner}", escape(id), escape(path));
    let answer = client.send(Method::PUT, &target, body).await;
    match (answer, packed.await) {
        (Ok(response), Ok(Ok(()))) => client::json(response).await,
        // A failure here breaks the stream; the edge's answer to that is of no use.
        (Ok(_) | Err(Failure::Broken(_)), Ok(Err(error))) => Err(error.into()),
        (Err(failure), _) => Err(failure),
        (Ok(_), Err(_)) => Err(Failure::Unexpected { what: "an answer before the end".to_owned() }),
    }
}

async fn download(client: &Client, id: &str, path: &str, target: &str) -> Result<Unpacked, Failure> {
    let (directory, name) =
        if Path::new(target).is_dir() { (Local::open(Path::new(target))?, String::new()) } else { split(target)? };
    let source = format!("/v1/sandboxes/{}/files?path={}", escape(id), escape(path));
    let mut body = client.send_empty(Method::GET, &source).await?.into_body();
    let (sender, receiver) = mpsc::channel(4);
    let (result, unpacked) = oneshot::channel();
    std::thread::spawn(move || {
        let from = FromAnswer { parts: receiver, part: Bytes::new() };
        // The owner of what arrives is whoever runs this.
        let _ = result.send(unpack(&directory, &name, Owner::Is(0, 0), from));
    });
    let mut cut_short = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::Broken(error.into()))?;
        cut_short = cut_short.or(frame.trailers_ref().and_then(|trailers| trailers.get(ERROR_TRAILER)).cloned());
        if sender.send(frame.into_data().unwrap_or_default()).await.is_err() {
            break;
        }
    }
    drop(sender);
    if let Some(why) = cut_short {
        // What it has sent is whole as far as it goes, and is let come to its end.
        let _ = unpacked.await;
        let error = serde_json::from_slice::<ErrorBody>(why.as_bytes());
        let ErrorBody { kind, message } = error.map_err(|error| Failure::Unexpected { what: error.to_string() })?;
        return Err(Failure::Refused { kind, message });
    }
    match unpacked.await {
        Ok(unpacked) => Ok(unpacked?),
        Err(_) => Err(Failure::Unexpected { what: "the copy ended early".to_owned() }),
    }
}

/// Where an upload's bytes go.
struct ToRequest(mpsc::Sender<io::Result<Bytes>>);

impl Write for ToRequest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes))).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where a download's bytes come from.
struct FromAnswer {
    parts: mpsc::Receiver<Bytes>,
    part: Bytes,
}

impl Read for FromAnswer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            match self.parts.blocking_recv() {
                Some(part) => self.part = part,
                None => return Ok(0),
            }
        }
        let count = self.part.len().min(buffer.len());
        self.part.copy_to_slice(buffer.get_mut(..count).unwrap_or_default());
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides() {
        let there = |id, path: &str| Side::There { id, path: path.to_owned() };
        assert_eq!(Side::of("abc-1:/srv/x"), there("abc-1", "/srv/x"));
        assert_eq!(Side::of("abc-1:srv"), there("abc-1", "/srv"));
        assert_eq!(Side::of("abc-1:"), there("abc-1", "/"));
        for here in ["./a:b", "/a:b", "plain", "../x:y", ":x"] {
            assert_eq!(Side::of(here), Side::Here(here));
        }
    }
}
