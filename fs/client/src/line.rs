//! Messages as lines: one JSON object a line, none longer than [`MAX_LINE_BYTES`].
//!
//! A line without an end is no message, whatever is in it: the peer was cut off, or says too much.

use std::io::{BufRead, Read, Write};

use dsec_format::protocol::mountd::MAX_LINE_BYTES;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why no message was read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed, or its time is over.
    #[error("connection failed")]
    Io(#[from] std::io::Error),
    /// The line has no end within the limit.
    #[error("a line has no end within {MAX_LINE_BYTES} bytes")]
    TooLong,
    /// The peer went away inside a line.
    #[error("the connection ended inside a line")]
    CutOff,
    /// The line is no message of the expected kind.
    #[error("a line is not a message")]
    Malformed(#[source] serde_json::Error),
}

/// Reads the next message; None at the end of the connection. After [`Error::Malformed`] the next line can be read, after any
/// other error nothing can.
///
/// # Errors
/// See [`Error`].
pub fn read<T: DeserializeOwned>(stream: &mut impl BufRead) -> Result<Option<T>, Error> {
    let mut line = Vec::new();
    let bytes = stream.take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => serde_json::from_slice(&line).map(Some).map_err(Error::Malformed),
        Some(_) if bytes == MAX_LINE_BYTES => Err(Error::TooLong),
        Some(_) => Err(Error::CutOff),
    }
}

/// Writes a message, in one piece.
///
/// # Errors
/// As [`Error`].
pub fn write(stream: &mut impl Write, message: &impl Serialize) -> Result<(), Error> {
    let mut line = serde_json::to_vec(message).map_err(Error::Malformed)?;
    line.push(b'\n');
    if line.len() > MAX_LINE_BYTES {
        return Err(Error::TooLong);
    }
    stream.write_all(&line)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsec_format::protocol::mountd::{Reply, Request};

    fn request(mut bytes: &[u8]) -> Result<Option<Request>, Error> {
        read(&mut bytes)
    }

    #[test]
    fn what_is_written_is_read() {
        let mut stream = Vec::new();
        let messages = [Request::Status, Request::Release { holder: "a\nb".to_owned() }];
        messages.iter().for_each(|message| write(&mut stream, message).unwrap());
        let mut stream = &stream[..];
        for message in messages {
            assert_eq!(read(&mut stream).unwrap(), Some(message));
        }
        assert_eq!(read::<Request>(&mut stream).unwrap(), None);
    }

    #[test]
    fn what_is_no_line_is_no_message() {
        assert!(matches!(request(b"{\"op\":\"status\"}"), Err(Error::CutOff)), "sound JSON, but cut off");
        assert!(matches!(request(b"{\"op\":\"dance\"}\n"), Err(Error::Malformed(_))));
        assert!(matches!(request(b"\n"), Err(Error::Malformed(_))));
        assert!(matches!(request(&vec![b' '; MAX_LINE_BYTES + 10]), Err(Error::TooLong)));
        let mut two = &b"nonsense\n{\"op\":\"status\"}\n"[..];
        assert!(read::<Request>(&mut two).is_err());
        assert_eq!(read(&mut two).unwrap(), Some(Request::Status), "the line after a malformed one is read");
    }

    #[test]
    fn no_line_is_written_that_would_not_be_read() {
        let mut stream = Vec::new();
        let message =
            Reply::Error { kind: dsec_format::protocol::mountd::ErrorKind::Node, message: "x".repeat(MAX_LINE_BYTES) };
        assert!(matches!(write(&mut stream, &message), Err(Error::TooLong)));
        assert!(stream.is_empty());
    }
}
