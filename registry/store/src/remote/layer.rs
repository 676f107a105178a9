//! A layer as a stream that survives lost connections: it goes on where it was, with a ranged request.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Instant;

use reqwest::blocking::Response;

use super::http::{Failure, Http};
use crate::error::{Damage, Error, Result};
use crate::layout::Object;

pub(super) struct Reader {
    http: Arc<Http>,
    path: String,
    object: Object,
    offset: u64,
    total: u64,
    response: Option<Response>,
    /// Failures since there was progress.
    failures: u32,
}

impl Reader {
    /// Opens the stream: an object that is not there is an error here, not in the first read.
    pub(super) fn open(http: Arc<Http>, path: &str, object: Object) -> Result<Self> {
        let mut reader = Self { http, path: path.to_owned(), object, offset: 0, total: 0, response: None, failures: 0 };
        reader.reconnect()?;
        Ok(reader)
    }

    fn reconnect(&mut self) -> Result<()> {
        loop {
            let deadline = Instant::now() + self.http.options.overall_timeout;
            match self.connect(deadline) {
                Ok(()) => return Ok(()),
                Err(failure) => {
                    self.failures += 1;
                    if !self.http.pause(&failure, self.failures, deadline) {
                        return Err(*failure.error);
                    }
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

    fn lost(&mut self, source: Box<dyn std::error::Error + Send + Sync>) -> Result<()> {
        self.response = None;
        self.failures += 1;
        let url = format!("{}/{}", self.http.url(), self.path);
        let failure = Failure::passing(Error::Unreachable { url, source });
        let deadline = Instant::now() + self.http.options.overall_timeout;
        if !self.http.pause(&failure, self.failures, deadline) {
            return Err(*failure.error);
        }
        self.reconnect()
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.offset < self.total && !buffer.is_empty() {
            let Some(response) = &mut self.response else {
                self.reconnect().map_err(io::Error::other)?;
                continue;
            };
            let lost = match response.read(buffer) {
                Ok(0) => Damage::Length { need_bytes: self.total, have_bytes: self.offset }.into(),
                Ok(count) => {
                    self.offset += count as u64;
                    self.failures = 0;
                    return Ok(count);
                }
                Err(error) => error.into(),
            };
            self.lost(lost).map_err(io::Error::other)?;
        }
        Ok(0)
    }
}
