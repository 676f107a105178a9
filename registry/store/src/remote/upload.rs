//! Uploads in pieces: a lost connection costs what was sent of one piece, not the whole.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use dsec_format::protocol::registry::Upload;
use fs_err as fs;
use reqwest::Method;

use super::http::{Call, Failure, Http};
use crate::error::{Error, Result};

/// Uploads a file and lets it become `what` (`pack` or `layer`, and the digest). `is_there` asks whether it has.
///
/// # Errors
/// Those of the requests, and of reading the file.
pub(super) fn upload(
    http: &Http,
    file: &Path,
    what: (&'static str, String),
    is_there: impl FnOnce() -> Result<bool>,
) -> Result<()> {
    let file = fs::File::open(file)?;
    let total = file.metadata()?.len();
    let path = format!("v1/uploads/{}", begin(http)?);
    let mut offset = 0;
    while offset < total {
        offset = send_piece(http, &path, &file, offset, total)?;
    }
    let mut call = http.request(Method::PUT, &path).of(format!("{} {}", what.0, what.1)).with(Bytes::new());
    call.query.push(what);
    match finish(http, &call, total) {
        // The first try may have done it, with its answer lost: then the upload is gone and the object is there.
        (Err(error @ Error::NotFound { .. }), tries) if tries > 1 => {
            if is_there()? {
                Ok(())
            } else {
                Err(error)
            }
        }
        (result, _) => result,
    }
}

/// Lets an upload of `bytes` bytes become what it is; gives the number of tries as well. The registry checks all of it
/// before it answers: until then it is asked again, and says that somebody has the upload locked.
fn finish(http: &Http, call: &Call, bytes: u64) -> (Result<()>, u32) {
    let deadline = Instant::now() + http.allowed(bytes);
    let (mut tries, mut failures) = (0, 0);
    loop {
        tries += 1;
        let failure = match http.once(call, deadline) {
            Ok(_) => return (Ok(()), tries),
            Err(failure) => failure,
        };
        if !failure.unfinished {
            failures += 1;
        }
        if let Err(error) = http.pause(failure, failures, deadline) {
            return (Err(error), tries);
        }
    }
}

fn begin(http: &Http) -> Result<String> {
    let call = http.request(Method::POST, "v1/uploads").with(Bytes::new());
    http.call(&call, |answer| {
        let bytes = answer.bytes(64 * 1024)?;
        let upload: Upload = serde_json::from_slice(&bytes).map_err(|error| call.malformed(&error))?;
        let sound = upload.id.bytes().all(|byte| byte.is_ascii_alphanumeric()) && upload.offset == 0;
        if sound { Ok(upload.id) } else { Err(call.malformed(&"it is no new upload")) }
    })
}

/// Sends the piece at `offset`; gives the offset of the next one. After a failure the registry is asked how much has
/// arrived.
fn send_piece(http: &Http, path: &str, file: &fs::File, offset: u64, total: u64) -> Result<u64> {
    let length = usize::try_from(http.options.piece_bytes.max(1).min(total - offset)).unwrap_or(usize::MAX);
    let mut piece = vec![0; length];
    file.file().read_exact_at(&mut piece, offset).map_err(|error| {
        std::io::Error::new(error.kind(), format!("reading {} failed: {error}", file.path().display()))
    })?;
    let piece = Bytes::from(piece);
    let deadline = Instant::now() + http.options.overall_timeout;
    let (mut arrived, mut tries) = (0, 0);
    while arrived < length {
        let start = offset + arrived as u64;
        let mut call = http.request(Method::PATCH, path).with(piece.slice(arrived..));
        call.offset = Some(start);
        let failure = match http.once(&call, deadline).and_then(|mut answer| answer.offset()) {
            Ok(next) => {
                arrived = within(&call_range(offset, length), next).ok_or_else(|| odd(http, path))?;
                continue;
            }
            Err(failure) => failure,
        };
        tries += 1;
        // The registry may have told where it is: a connection that was believed lost had brought more.
        let failure = if failure.offset.is_some() { Failure::passing(*failure.error) } else { failure };
        http.pause(failure, tries, deadline)?;
        let next =
            http.call(&http.request(Method::HEAD, path).of("the upload".to_owned()), |answer| answer.offset())?;
        if next > start {
            // Slow is not broken.
            tries = 0;
        }
        arrived = within(&call_range(offset, length), next).ok_or_else(|| odd(http, path))?;
    }
    Ok(offset + length as u64)
}

fn call_range(offset: u64, length: usize) -> std::ops::RangeInclusive<u64> {
    offset..=offset + length as u64
}

/// How much of a piece has arrived when the upload has `next` bytes.
fn within(piece: &std::ops::RangeInclusive<u64>, next: u64) -> Option<usize> {
    piece.contains(&next).then(|| usize::try_from(next - piece.start()).ok())?
}

fn odd(http: &Http, path: &str) -> Error {
    Error::Refused {
        url: format!("{}/{path}", http.url()),
        status: 409,
        message: "the upload is elsewhere than this client has sent".to_owned(),
    }
}
