//! Requests with deadlines and repetitions, and answers that are whole or failures.

use std::error::Error as StdError;
use std::fmt::Display;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dsec_format::protocol::registry::{ErrorBody, ErrorKind, OFFSET_HEADER};
use dsec_format::refs::RefName;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, HeaderValue, RANGE, RETRY_AFTER};
use reqwest::{Client, Method, Response, StatusCode, Url, redirect};

use super::waits::{Ended, Waits};
use super::{Options, parse_url};
use crate::error::{Damage, Error, Result};

/// Idle connections are dropped before the registry drops them.
const IDLE_CONNECTION: Duration = Duration::from_secs(20);
/// No pause is longer, whatever a registry asks for.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// Least rate of what takes longer than [`Options::overall_timeout`]: a slower source is given up.
const LEAST_BYTES_PER_SECOND: u64 = 64 * 1024;
/// Longest body of an error that is read, and longest message that is shown.
const ERROR_BYTES: u64 = 64 * 1024;
const MESSAGE_CHARS: usize = 300;

/// Sends requests to one registry.
pub(super) struct Http {
    url: Url,
    shown: String,
    authorization: Option<HeaderValue>,
    client: Client,
    waits: Waits,
    pub(super) options: Options,
    requests: AtomicU64,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").field("url", &self.shown).field("options", &self.options).finish_non_exhaustive()
    }
}

/// A request, to be sent once or several times.
#[derive(Debug)]
pub(super) struct Call {
    method: Method,
    url: Url,
    pub(super) query: Vec<(&'static str, String)>,
    range: Option<(u64, u64)>,
    pub(super) offset: Option<u64>,
    body: Option<Bytes>,
    /// What is not there when the registry says so, if it does not say what.
    object: Option<String>,
    /// The ref that a conflict is about.
    pub(super) name: Option<RefName>,
}

impl Call {
    pub(super) fn of(mut self, object: String) -> Self {
        self.object = Some(object);
        self
    }

    pub(super) fn with(mut self, body: Bytes) -> Self {
        self.body = Some(body);
        self
    }

    /// Asks for `bytes` bytes (at least one) from `offset`.
    pub(super) fn range(mut self, offset: u64, bytes: u64) -> Self {
        self.range = Some((offset, offset.saturating_add(bytes - 1)));
        self
    }

    /// Asks for everything from `offset`.
    pub(super) fn from(mut self, offset: u64) -> Self {
        self.range = Some((offset, u64::MAX));
        self
    }

    /// The failure for an answer that a registry does not give.
    pub(super) fn malformed(&self, what: &dyn Display) -> Failure {
        let message = format!("the answer is malformed: {what}");
        Failure::last(Error::Refused { url: self.url.to_string(), status: 200, message })
    }

    fn unreachable(&self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error::Unreachable { url: self.url.to_string(), source: source.into() }
    }
}

/// Why one try failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Box<Error>,
    /// Whether another try may succeed.
    again: bool,
    /// Pause that the registry asked for.
    after: Option<Duration>,
    /// Where an upload is, when that was the problem.
    pub(super) offset: Option<u64>,
    /// The registry is there, and has not done yet what was asked for.
    pub(super) unfinished: bool,
}

impl Failure {
    pub(super) fn last(error: Error) -> Self {
        Self { error: Box::new(error), again: false, after: None, offset: None, unfinished: false }
    }

    pub(super) fn passing(error: Error) -> Self {
        Self { again: true, ..Self::last(error) }
    }
}

/// Why a body does not go on.
pub(super) enum Lost {
    Connection(Box<dyn StdError + Send + Sync>),
    Interrupted,
}

/// An answer with a good status; its body is still on the wire.
pub(super) struct Answer<'a> {
    http: &'a Http,
    call: &'a Call,
    pub(super) response: Response,
    deadline: Instant,
}

impl Http {
    pub(super) fn new(url: &str, token: Option<&str>, options: Options) -> Result<Self> {
        let mut parsed = parse_url(url)?;
        // A path is a directory: what is joined comes below it.
        if !parsed.path().ends_with('/') {
            parsed.set_path(&format!("{}/", parsed.path()));
        }
        let shown = parsed.as_str().trim_end_matches('/').to_owned();
        let unusable = |reason| Error::Url { url: url.to_owned(), reason };
        let authorization = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}"))).transpose();
        let mut authorization = authorization.map_err(|_| unusable("its token has characters that no header takes"))?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        let client = Client::builder()
            // Nothing from the environment, nothing the caller does not see.
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(options.connect_timeout)
            .pool_idle_timeout(IDLE_CONNECTION)
            .tcp_nodelay(true)
            .build()
            .map_err(|source| Error::Unreachable { url: shown.clone(), source: source.into() })?;
        let waits = Waits::new(options.interrupt.clone())?;
        Ok(Self { url: parsed, shown, authorization, client, waits, options, requests: AtomicU64::new(0) })
    }

    pub(super) fn url(&self) -> &str {
        &self.shown
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(super) fn get(&self, path: &str) -> Call {
        self.request(Method::GET, path)
    }

    pub(super) fn request(&self, method: Method, path: &str) -> Call {
        let mut url = self.url.clone();
        url.set_path(&format!("{}{path}", self.url.path()));
        Call { method, url, query: Vec::new(), range: None, offset: None, body: None, object: None, name: None }
    }

    /// How long something of `bytes` bytes may take in all.
    pub(super) fn allowed(&self, bytes: u64) -> Duration {
        self.options.overall_timeout.saturating_add(Duration::from_secs(bytes / LEAST_BYTES_PER_SECOND))
    }

    /// Sends a call, again when that may help, until `read` has made something of the answer.
    pub(super) fn call<T>(&self, call: &Call, read: impl FnMut(&mut Answer<'_>) -> Result<T, Failure>) -> Result<T> {
        self.call_counted(call, read).0
    }

    /// As [`Http::call`], with the number of tries.
    pub(super) fn call_counted<T>(
        &self,
        call: &Call,
        mut read: impl FnMut(&mut Answer<'_>) -> Result<T, Failure>,
    ) -> (Result<T>, u32) {
        let deadline = Instant::now() + self.options.overall_timeout;
        let mut tries = 0;
        loop {
            tries += 1;
            let failure = match self.once(call, deadline).and_then(|mut answer| read(&mut answer)) {
                Ok(value) => return (Ok(value), tries),
                Err(failure) => failure,
            };
            if let Err(error) = self.pause(failure, tries, deadline) {
                return (Err(error), tries);
            }
        }
    }

    /// Waits before another try; gives the error when there shall be none.
    pub(super) fn pause(&self, failure: Failure, tries: u32, deadline: Instant) -> Result<()> {
        if !failure.again || tries >= self.options.attempts {
            return Err(*failure.error);
        }
        let doubled = self.options.pause.saturating_mul(1 << tries.min(16).saturating_sub(1));
        let pause = failure.after.unwrap_or_default().max(jittered(doubled)).min(MAX_PAUSE);
        if Instant::now() + pause >= deadline {
            return Err(*failure.error);
        }
        tracing::debug!(tries, error = %failure.error, "trying again");
        self.waits.pause(pause).map_err(|_| Error::Interrupted)
    }

    /// How long the next wait may be: until there should be progress, or until `deadline`.
    fn patience(&self, deadline: Instant) -> Duration {
        deadline.saturating_duration_since(Instant::now()).min(self.options.progress_timeout)
    }

    /// The next bytes of a body; none at its end.
    pub(super) fn next(&self, response: &mut Response, deadline: Instant) -> Result<Option<Bytes>, Lost> {
        match self.waits.wait(self.patience(deadline), response.chunk()) {
            Ok(Ok(piece)) => Ok(piece),
            Ok(Err(error)) => Err(Lost::Connection(error.without_url().into())),
            Err(Ended::Late) => Err(Lost::Connection("nothing more of the answer came in time".into())),
            Err(Ended::Interrupted) => Err(Lost::Interrupted),
        }
    }

    /// Sends a call once; an answer with a bad status is a failure.
    pub(super) fn once<'a>(&'a self, call: &'a Call, deadline: Instant) -> Result<Answer<'a>, Failure> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut url = call.url.clone();
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        let mut request = self.client.request(call.method.clone(), url);
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value.clone());
        }
        if let Some((first, last)) = call.range {
            let last = if last == u64::MAX { String::new() } else { last.to_string() };
            request = request.header(RANGE, format!("bytes={first}-{last}"));
        }
        if let Some(offset) = call.offset {
            request = request.header(OFFSET_HEADER, offset);
        }
        if let Some(body) = &call.body {
            request = request.body(body.clone());
        }
        let response = match self.waits.wait(self.patience(deadline), request.send()) {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(Failure::passing(call.unreachable(error.without_url()))),
            Err(Ended::Late) => {
                let failure = Failure::passing(call.unreachable("no answer came in time"));
                return Err(Failure { unfinished: true, ..failure });
            }
            Err(Ended::Interrupted) => return Err(Failure::last(Error::Interrupted)),
        };
        let mut answer = Answer { http: self, call, response, deadline };
        if answer.response.status().is_success() { Ok(answer) } else { Err(answer.refusal(&self.shown)) }
    }
}

/// Between half of a pause and all of it, so that those who failed together do not come back together.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 1024;
    pause / 2 + pause.mul_f64(f64::from(u32::try_from(random).unwrap_or_default()) / 2048.0)
}

impl Answer<'_> {
    fn header(&self, name: impl reqwest::header::AsHeaderName) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// The length that the answer states.
    pub(super) fn stated_bytes(&mut self) -> Result<u64, Failure> {
        // Not `content_length()`: for an answer to HEAD that is the length of the body, which is none.
        let stated = self.header(CONTENT_LENGTH).and_then(|text| text.parse().ok());
        stated.ok_or_else(|| self.call.malformed(&"it states no length"))
    }

    /// The `dsec-offset` of the answer.
    pub(super) fn offset(&mut self) -> Result<u64, Failure> {
        let stated = self.header(OFFSET_HEADER).and_then(|text| text.parse().ok());
        stated.ok_or_else(|| self.call.malformed(&"it states no offset"))
    }

    /// The whole body, of at most `allowed_bytes`.
    pub(super) fn bytes(&mut self, allowed_bytes: u64) -> Result<Vec<u8>, Failure> {
        let stated: Option<u64> = self.header(CONTENT_LENGTH).and_then(|text| text.parse().ok());
        if let Some(have_bytes) = stated.filter(|stated| *stated > allowed_bytes) {
            let object = self.call.object.clone().unwrap_or_else(|| "the answer".to_owned());
            return Err(Failure::last(Error::TooLarge { object, have_bytes, allowed_bytes }));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(stated.unwrap_or_default()).unwrap_or_default());
        while let Some(piece) = self.next()? {
            bytes.extend_from_slice(&piece);
            if bytes.len() as u64 > allowed_bytes {
                return Err(self.call.malformed(&format_args!("it is longer than {allowed_bytes} bytes")));
            }
            if Instant::now() > self.deadline {
                return Err(Failure::last(self.call.unreachable("the answer took too long")));
            }
        }
        match stated {
            Some(need_bytes) if need_bytes != bytes.len() as u64 => Err(self.short(need_bytes, bytes.len() as u64)),
            _ => Ok(bytes),
        }
    }

    fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        self.http.next(&mut self.response, self.deadline).map_err(|lost| match lost {
            Lost::Connection(source) => Failure::passing(self.call.unreachable(source)),
            Lost::Interrupted => Failure::last(Error::Interrupted),
        })
    }

    fn short(&self, need_bytes: u64, have_bytes: u64) -> Failure {
        Failure::passing(self.call.unreachable(Damage::Length { need_bytes, have_bytes }))
    }

    /// Exactly the range that was asked for.
    pub(super) fn range(&mut self, offset: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
        let total = self.check_range(offset)?;
        let have_bytes = total.saturating_sub(offset).min(bytes);
        if have_bytes < bytes {
            return Err(self.beyond(bytes, have_bytes));
        }
        let expected = format!("bytes {offset}-{}/{total}", offset + bytes - 1);
        if self.header(CONTENT_RANGE) != Some(&expected) {
            return Err(self.call.malformed(&"it is another range than was asked for"));
        }
        let body = self.bytes(bytes)?;
        if body.len() as u64 == bytes { Ok(body) } else { Err(self.short(bytes, body.len() as u64)) }
    }

    /// The object ends before the range does.
    fn beyond(&self, need_bytes: u64, have_bytes: u64) -> Failure {
        Failure::last(Error::Damaged {
            object: self.call.object.clone().unwrap_or_else(|| "the object".to_owned()),
            store: self.call.url.to_string(),
            source: Damage::Length { need_bytes, have_bytes },
        })
    }

    /// Checks that the answer is a part that begins at `offset`; gives the size of the whole.
    pub(super) fn check_range(&mut self, offset: u64) -> Result<u64, Failure> {
        if self.response.status() != StatusCode::PARTIAL_CONTENT {
            return Err(self.call.malformed(&"a part was asked for, and it is not one"));
        }
        let stated = self.header(CONTENT_RANGE).and_then(|text| {
            let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
            let (first, _) = range.split_once('-')?;
            (first.parse() == Ok(offset)).then(|| total.parse().ok())?
        });
        stated.ok_or_else(|| self.call.malformed(&"its Content-Range is not what was asked for"))
    }

    /// The failure that a bad status stands for.
    fn refusal(&mut self, store: &str) -> Failure {
        let (status, after) = (self.response.status(), self.header(RETRY_AFTER).and_then(|text| text.parse().ok()));
        let (offset, total) = (self.offset().ok(), self.header(CONTENT_RANGE).map(str::to_owned));
        let body = self.bytes(ERROR_BYTES).unwrap_or_default();
        let told: Option<ErrorBody> = serde_json::from_slice(&body).ok();
        if let (StatusCode::RANGE_NOT_SATISFIABLE, Some((first, last))) = (status, self.call.range) {
            let total: Option<u64> = total.and_then(|text| text.strip_prefix("bytes */")?.parse().ok());
            if let Some(total) = total {
                return self.beyond(last.saturating_sub(first).saturating_add(1), total.saturating_sub(first));
            }
        }
        let again = matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504);
        Failure {
            error: Box::new(self.error(status, store, told, &body)),
            again,
            after: after.map(Duration::from_secs),
            offset,
            unfinished: matches!(status.as_u16(), 429 | 503),
        }
    }

    fn error(&self, status: StatusCode, store: &str, told: Option<ErrorBody>, body: &[u8]) -> Error {
        let is = |kind| told.as_ref().is_none_or(|told| told.kind == kind);
        let object = told.as_ref().and_then(|told| told.object.clone()).or_else(|| self.call.object.clone());
        let present = told.as_ref().and_then(|told| told.present.clone());
        match (status.as_u16(), object, &self.call.name, present) {
            (404, Some(object), _, _) if is(ErrorKind::NotFound) => Error::NotFound { object, store: store.to_owned() },
            (409, _, Some(name), Some(present)) => Error::Conflict { name: name.clone(), present },
            (507, ..) => {
                let message = told.map_or_else(|| first_line(body), |told| told.message);
                Error::RegistryFull { store: store.to_owned(), message: message.chars().take(MESSAGE_CHARS).collect() }
            }
            (status, ..) => {
                let message = told.map_or_else(|| first_line(body), |told| told.message);
                let message = message.chars().take(MESSAGE_CHARS).collect();
                Error::Refused { url: self.call.url.to_string(), status, message }
            }
        }
    }
}

fn first_line(body: &[u8]) -> String {
    String::from_utf8_lossy(body).lines().next().unwrap_or("no message").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_jittered_within_bounds() {
        let pause = Duration::from_millis(100);
        for _ in 0..100 {
            let jittered = jittered(pause);
            assert!((pause / 2..=pause).contains(&jittered), "{jittered:?}");
        }
    }
}
