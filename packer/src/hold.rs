//! Asks the edge to freeze a sandbox for as long as this process reads its upper directory.
//!
//! The hold is an HTTP request over the edge's socket whose answer does not end: the sandbox stays frozen while the
//! connection lives, and whatever ends this process (kill, crash) thaws it. [`Hold::check`] finds out that the *edge*
//! went away, after which the upper directory may have changed.
//!
//! This speaks as much HTTP/1.1 as one request needs, because the socket itself has to stay in hand for that check.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dsec_format::protocol::edge::{self, ErrorBody};

/// How long the edge may take to freeze the sandbox and answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// No answer that is understood is longer.
const MAX_ANSWER_BYTES: u64 = 4 << 20;

/// Why there is no hold.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The edge does not answer.
    #[error("the edge at {} does not answer", socket.display())]
    Edge {
        /// Its socket.
        socket: PathBuf,
        /// What happened.
        #[source]
        source: io::Error,
    },
    /// The edge refused.
    #[error("the edge refused to hold sandbox {sandbox}: {message}")]
    Refused {
        /// The sandbox.
        sandbox: String,
        /// Status of the answer.
        status: u16,
        /// In its words.
        message: String,
    },
    /// The edge says something else than the protocol has.
    #[error("the edge at {} answered something unknown: {what}", socket.display())]
    Protocol {
        /// Its socket.
        socket: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// The sandbox's id cannot be one.
    #[error("{sandbox:?} is not a sandbox id")]
    Id {
        /// As given.
        sandbox: String,
    },
    /// The edge ended the hold.
    #[error("the edge ended the hold of sandbox {sandbox}: its files may have changed meanwhile")]
    Lost {
        /// The sandbox.
        sandbox: String,
    },
}

/// A frozen sandbox. Thawed on drop.
#[derive(Debug)]
pub struct Hold {
    answer: edge::Hold,
    stream: UnixStream,
}

impl Hold {
    /// Freezes a sandbox of the edge that listens at `socket`.
    ///
    /// # Errors
    /// The edge does not answer, does not know the sandbox, or refuses.
    pub fn take(socket: &Path, sandbox: &str) -> Result<Self, Error> {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if sandbox.is_empty() || !sandbox.bytes().all(is_word) {
            return Err(Error::Id { sandbox: sandbox.to_owned() });
        }
        let failed = |source| Error::Edge { socket: socket.to_owned(), source };
        let mut stream = UnixStream::connect(socket).map_err(failed)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
        let request = format!("POST /v1/sandboxes/{sandbox}/hold HTTP/1.1\r\nhost: edge\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(failed)?;

        let mut reader = BufReader::new(stream.try_clone().map_err(failed)?.take(MAX_ANSWER_BYTES));
        let answer = Answer::read(&mut reader).map_err(|error| match error {
            ReadError::Io(source) => failed(source),
            ReadError::Protocol(what) => Error::Protocol { socket: socket.to_owned(), what },
        })?;
        if answer.status != 200 {
            let message = serde_json::from_slice::<ErrorBody>(&answer.line).map(|body| body.message);
            let message = message.unwrap_or_else(|_| format!("status {}", answer.status));
            return Err(Error::Refused { sandbox: sandbox.to_owned(), status: answer.status, message });
        }
        // What came in one piece with the line is seen here or never: the socket does not give it a second time.
        if answer.ended || !reader.buffer().is_empty() {
            return Err(Error::Lost { sandbox: sandbox.to_owned() });
        }
        let answer = serde_json::from_slice(&answer.line)
            .map_err(|_| Error::Protocol { socket: socket.to_owned(), what: "the body is no hold" })?;
        Ok(Self { answer, stream })
    }

    /// What the edge says of the sandbox.
    #[must_use]
    pub fn answer(&self) -> &edge::Hold {
        &self.answer
    }

    /// Whether the sandbox has been frozen all the time up to now.
    ///
    /// # Errors
    /// [`Error::Lost`] when it has not, or that cannot be known.
    pub fn check(&self) -> Result<(), Error> {
        let lost = || Error::Lost { sandbox: self.answer.id.clone() };
        self.stream.set_nonblocking(true).map_err(|_| lost())?;
        let mut rest = [0; 64];
        match (&self.stream).read(&mut rest) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            // The end of the answer, of the connection, or bytes that nobody has asked for.
            _ => Err(lost()),
        }
    }
}

/// The part of an HTTP answer that matters here.
struct Answer {
    status: u16,
    /// The first line of the body, without its end.
    line: Vec<u8>,
    /// Whether more than that line was read of the body: its end, or bytes that no hold has.
    ended: bool,
}

enum ReadError {
    Io(io::Error),
    Protocol(&'static str),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// How the body of an answer is delimited.
enum Body {
    Chunked,
    Length(u64),
    ToTheEnd,
}

impl Answer {
    fn read(reader: &mut impl BufRead) -> Result<Self, ReadError> {
        let status_line = read_line(reader)?;
        let status = status_line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.ok_or(ReadError::Protocol("no HTTP/1.1 status line"))?;
        let mut body = Body::ToTheEnd;
        loop {
            let header = read_line(reader)?;
            if header.is_empty() {
                break;
            }
            let (name, value) = header.split_once(':').ok_or(ReadError::Protocol("a malformed header"))?;
            let value = value.trim();
            if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
                body = Body::Chunked;
            } else if name.eq_ignore_ascii_case("content-length") {
                body = Body::Length(value.parse().map_err(|_| ReadError::Protocol("a malformed length"))?);
            }
        }
        let (line, ended) = match body {
            Body::Chunked => read_chunked_line(reader)?,
            // A body of a known length is whole already.
            Body::Length(bytes) => (first_line(reader.take(bytes))?.0, true),
            Body::ToTheEnd => first_line(reader)?,
        };
        Ok(Self { status, line, ended })
    }
}

fn read_line(reader: &mut impl BufRead) -> Result<String, ReadError> {
    const MAX_LINE_BYTES: u64 = 16 << 10;
    let mut line = Vec::new();
    reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\r\n").map(std::str::from_utf8) {
        Some(Ok(text)) => Ok(text.to_owned()),
        _ if line.is_empty() => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        _ => Err(ReadError::Protocol("a malformed line in the head")),
    }
}

/// Up to the first line feed or the end, and whether it was the end.
fn first_line(mut reader: impl BufRead) -> Result<(Vec<u8>, bool), ReadError> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    let ended = line.pop_if(|byte| *byte == b'\n').is_none();
    Ok((line, ended))
}

/// The same of a chunked body, reading no further than the chunk that has it.
fn read_chunked_line(reader: &mut impl BufRead) -> Result<(Vec<u8>, bool), ReadError> {
    let mut line = Vec::new();
    loop {
        let size = read_line(reader)?;
        let digits = size.split(';').next().unwrap_or_default().trim();
        let bytes = u64::from_str_radix(digits, 16).map_err(|_| ReadError::Protocol("a malformed chunk size"))?;
        if bytes == 0 {
            return Ok((line, true));
        }
        if bytes > MAX_ANSWER_BYTES {
            return Err(ReadError::Protocol("a chunk that is too long"));
        }
        let before = line.len();
        reader.by_ref().take(bytes).read_to_end(&mut line)?;
        // The end of the chunk is read too: whatever comes after it says that the hold is over.
        if !read_line(reader)?.is_empty() {
            return Err(ReadError::Protocol("a malformed end of a chunk"));
        }
        if let Some(end) = line[before..].iter().position(|byte| *byte == b'\n') {
            let more = line.len() > before + end + 1;
            line.truncate(before + end);
            return Ok((line, more));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(answer: &str) -> Option<(u16, String)> {
        let answer = Answer::read(&mut answer.as_bytes()).ok()?;
        Some((answer.status, String::from_utf8(answer.line).unwrap()))
    }

    /// What is made of an answer that comes in one piece on a connection that stays open.
    fn hold_on(answer: &str) -> Result<(), Error> {
        use std::os::unix::net::UnixListener;
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("edge.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::scope(|scope| {
            let edge = scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                assert!(stream.read(&mut request).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
                stream
            });
            let hold = Hold::take(&socket, "s-1");
            let connection = edge.join().unwrap();
            let held = hold.and_then(|hold| hold.check());
            drop(connection);
            held
        })
    }

    #[test]
    fn an_end_that_comes_together_with_the_line_is_noticed() {
        let digest = dsec_format::ImageDigest::of(b"image");
        let line = format!(
            "{}\n",
            serde_json::json!({"id": "s-1", "upper": "/u", "image": digest, "layers": [], "id_base": 0})
        );
        let bytes = line.len();
        let chunked = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{bytes:x}\r\n{line}\r\n");
        hold_on(&chunked).unwrap();
        let over = [
            format!("{chunked}0\r\n\r\n"),
            format!("{chunked}1\r\n"),
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{line}x\r\n", bytes + 1),
            format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n{line}"),
            format!("HTTP/1.1 200 OK\r\n\r\n{line}more"),
        ];
        for answer in over {
            let held = hold_on(&answer);
            assert!(matches!(held, Err(Error::Lost { .. })), "{answer:?}: {held:?}");
        }
    }

    #[test]
    fn every_way_to_delimit_a_body_is_understood() {
        let head = "HTTP/1.1 200 OK\r\n";
        for rest in [
            "Content-Length: 6\r\n\r\n{\"a\"}\nmore",
            "content-length: 5\r\n\r\n{\"a\"}",
            "Transfer-Encoding: chunked\r\n\r\n2\r\n{\"\r\n4;x=y\r\na\"}\n\r\n",
            "transfer-encoding: chunked\r\n\r\n5\r\n{\"a\"}\r\n0\r\n\r\n",
            "\r\n{\"a\"}\n",
        ] {
            assert_eq!(line_of(&format!("{head}{rest}")), Some((200, "{\"a\"}".to_owned())), "{rest:?}");
        }
    }

    #[test]
    fn malformed_answers_are_refused() {
        for bad in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/2 200\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabc",
            "HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        ] {
            assert!(line_of(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn ids_that_are_no_ids_are_refused_before_anything_is_sent() {
        for bad in ["", "a/b", "x y", "a\r\nb", "é"] {
            assert!(matches!(Hold::take(Path::new("/nonexistent"), bad), Err(Error::Id { .. })), "{bad:?}");
        }
    }
}
