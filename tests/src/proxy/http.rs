//! As much of HTTP/1.1 (RFC 9112) as a relay needs: where a message ends.

use std::io::{BufRead, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

/// No head is longer.
const MAX_HEAD_BYTES: u64 = 64 * 1024;

/// Result of a step of a relay.
pub(super) type Result<T> = std::result::Result<T, Error>;

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// A peer went away.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A peer sent what is no HTTP/1.1.
    #[error("malformed message: {part}")]
    Malformed {
        /// Which part.
        part: &'static str,
    },
}

/// How the end of a body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// There is none.
    None,
    /// After this many bytes.
    Length(u64),
    /// After the last chunk.
    Chunked,
    /// At the end of the connection.
    UntilClose,
}

/// The lines before a body, as they came.
#[derive(Debug)]
pub(super) struct Head {
    bytes: Vec<u8>,
    text: String,
}

impl Head {
    /// Reads a head; `None` when the peer has closed the connection instead.
    pub(super) fn read(from: &mut impl BufRead) -> Result<Option<Self>> {
        let mut bytes = Vec::new();
        let mut limited = from.take(MAX_HEAD_BYTES);
        loop {
            let start = bytes.len();
            if limited.read_until(b'\n', &mut bytes)? == 0 {
                return if bytes.is_empty() { Ok(None) } else { Err(Error::Malformed { part: "head" }) };
            }
            if matches!(&bytes[start..], b"\r\n" | b"\n") {
                break;
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Some(Self { bytes, text }))
    }

    /// Reads the head of the final response; those of interim ones (1xx) are passed on.
    pub(super) fn read_final(from: &mut impl BufRead, to: &mut impl Write) -> Result<Self> {
        loop {
            let head = Self::read(from)?.ok_or(Error::Malformed { part: "response" })?;
            if !(100..200).contains(&head.status()?) {
                return Ok(head);
            }
            to.write_all(head.bytes())?;
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The target of a request.
    pub(super) fn target(&self) -> Option<&str> {
        self.text.split(' ').nth(1)
    }

    fn status(&self) -> Result<u16> {
        let status = self.text.split(' ').nth(1).and_then(|word| word.trim_end().parse().ok());
        status.ok_or(Error::Malformed { part: "status line" })
    }

    fn field(&self, name: &str) -> Option<&str> {
        let fields = self.text.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }

    /// Whether the sender will close the connection.
    pub(super) fn closes(&self) -> bool {
        self.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    fn stated_body(&self) -> Result<Option<Body>> {
        if self.field("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return Ok(Some(Body::Chunked));
        }
        let length = self.field("content-length").map(str::parse).transpose();
        Ok(length.map_err(|_| Error::Malformed { part: "content-length" })?.map(Body::Length))
    }

    /// Where the body of this request ends.
    pub(super) fn request_body(&self) -> Result<Body> {
        Ok(self.stated_body()?.unwrap_or(Body::None))
    }

    /// Where the body of this response to `request` ends.
    pub(super) fn response_body(&self, request: &Self) -> Result<Body> {
        if request.text.starts_with("HEAD ") || matches!(self.status()?, 204 | 304) {
            return Ok(Body::None);
        }
        Ok(self.stated_body()?.unwrap_or(Body::UntilClose))
    }
}

impl Body {
    /// Passes the body on, and adds its bytes to `count` as they pass.
    pub(super) fn relay(self, from: &mut impl BufRead, to: &mut impl Write, count: &AtomicU64) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Length(bytes) => copy_exactly(from, to, bytes, count),
            Self::Chunked => copy_chunks(from, to, count),
            Self::UntilClose => copy(from, to, u64::MAX, count).map(drop),
        }
    }
}

fn copy(from: &mut impl BufRead, to: &mut impl Write, bytes: u64, count: &AtomicU64) -> Result<u64> {
    let mut left = bytes;
    while left > 0 {
        let buffer = from.fill_buf()?;
        if buffer.is_empty() {
            break;
        }
        let take = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        to.write_all(&buffer[..take])?;
        from.consume(take);
        left -= take as u64;
        count.fetch_add(take as u64, Ordering::Relaxed);
    }
    Ok(bytes - left)
}

fn copy_exactly(from: &mut impl BufRead, to: &mut impl Write, bytes: u64, count: &AtomicU64) -> Result<()> {
    if copy(from, to, bytes, count)? == bytes { Ok(()) } else { Err(Error::Malformed { part: "body" }) }
}

fn copy_line(from: &mut impl BufRead, to: &mut impl Write) -> Result<String> {
    let mut line = Vec::new();
    from.take(MAX_HEAD_BYTES).read_until(b'\n', &mut line)?;
    to.write_all(&line)?;
    Ok(String::from_utf8_lossy(&line).trim().to_owned())
}

fn copy_chunks(from: &mut impl BufRead, to: &mut impl Write, count: &AtomicU64) -> Result<()> {
    loop {
        let line = copy_line(from, to)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let bytes = u64::from_str_radix(size, 16).map_err(|_| Error::Malformed { part: "chunk size" })?;
        copy_exactly(from, to, bytes, count)?;
        if bytes == 0 {
            // Trailer fields, up to the empty line.
            while !copy_line(from, to)?.is_empty() {}
            return Ok(());
        }
        copy_line(from, to)?;
    }
}
