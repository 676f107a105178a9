//! An object as a stream that survives lost connections: it goes on where it was, with a ranged request.
//!
//! All of it is bounded: a source that goes on, but more slowly than a least rate, is given up.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use reqwest::Response;

use super::http::{Failure, Http, Lost};
use crate::error::{Damage, Error, Result};
use crate::layout::Object;

pub(super) struct Reader {
    http: Arc<Http>,
    path: String,
    object: Object,
    offset: u64,
    total: u64,
    response: Option<Response>,
    /// What has arrived and was not read yet.
    piece: Bytes,
    /// Failures since there was progress.
    failures: u32,
    /// Time that was spent on waiting for the registry; what the caller does meanwhile does not count.
    waited: Duration,
}

impl Reader {
    /// Opens the stream: an object that is not there is an error here, not in the first read.
    pub(super) fn open(http: Arc<Http>, path: &str, object: Object) -> Result<Self> {
        let mut reader = Self {
            http,
            path: path.to_owned(),
            object,
            offset: 0,
            total: 0,
            response: None,
            piece: Bytes::new(),
            failures: 0,
            waited: Duration::ZERO,
        };
        reader.timed(Self::reconnect)?;
        Ok(reader)
    }

    /// Bytes of the whole object.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    fn timed<T>(&mut self, wait: impl FnOnce(&mut Self) -> T) -> T {
        let start = Instant::now();
        let result = wait(self);
        self.waited = self.waited.saturating_add(start.elapsed());
        result
    }

    /// How much longer may be waited, at the least rate.
    fn left(&self) -> Duration {
        self.http.allowed(self.offset).saturating_sub(self.waited)
    }

    fn reconnect(&mut self) -> Result<()> {
        let deadline = Instant::now() + self.left();
        loop {
            match self.connect(deadline) {
                Ok(()) => return Ok(()),
                Err(failure) => {
                    self.failures += 1;
                    self.http.pause(failure, self.failures, deadline)?;
                }
            }
        }
    }

    fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        let call = self.http.get(&self.path).of(self.object.to_string());
        // From the first byte the plain request: an empty object has no range.
        let call = if self.offset > 0 { call.from(self.offset) } else { call };
        let mut answer = self.http.once(&call, deadline)?;
        let total = if self.offset > 0 { answer.check_range(self.offset)? } else { answer.stated_bytes()? };
        if self.offset > 0 && total != self.total {
            return Err(call.malformed(&"the object has another size than before"));
        }
        self.total = total;
        self.response = Some(answer.response);
        Ok(())
    }

    fn unreachable(&self, source: Box<dyn std::error::Error + Send + Sync>) -> Error {
        Error::Unreachable { url: format!("{}/{}", self.http.url(), self.path), source }
    }

    fn lost(&mut self, source: Box<dyn std::error::Error + Send + Sync>) -> Result<()> {
        self.response = None;
        self.failures += 1;
        let failure = Failure::passing(self.unreachable(source));
        self.http.pause(failure, self.failures, Instant::now() + self.left())?;
        self.reconnect()
    }

    /// Waits for the next piece, after as many reconnections as it takes; it is empty at the end.
    fn next(&mut self) -> Result<()> {
        while self.piece.is_empty() && self.offset < self.total {
            let deadline = Instant::now() + self.left();
            let Some(response) = &mut self.response else {
                self.reconnect()?;
                continue;
            };
            let lost = match self.http.next(response, deadline) {
                Ok(None) => Damage::Length { need_bytes: self.total, have_bytes: self.offset }.into(),
                Ok(Some(piece)) => {
                    self.offset += piece.len() as u64;
                    self.failures = 0;
                    self.piece = piece;
                    continue;
                }
                Err(Lost::Connection(source)) => source,
                Err(Lost::Interrupted) => return Err(Error::Interrupted),
            };
            self.lost(lost)?;
        }
        Ok(())
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() {
            if self.left().is_zero() {
                return Err(io::Error::other(self.unreachable("the answer comes too slowly".into())));
            }
            self.timed(Self::next).map_err(io::Error::other)?;
        }
        let count = self.piece.len().min(buffer.len());
        self.piece.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}
