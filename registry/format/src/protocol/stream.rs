//! Framing of a command's output: `kind (1) | reserved, zero (3) | length (4, little-endian) | payload`.
//!
//! Payloads of one kind, put together, are the bytes that the command wrote, from the offset that was asked for. Where
//! bytes are missing because they were over the cap and nobody read them in time, a payload of kind [`Kind::Skipped`]
//! stands in their place, so that offsets stay exact.

use serde::{Deserialize, Serialize};

use crate::preamble;

/// Bytes before a payload.
pub const HEADER_BYTES: usize = 8;
/// No payload is longer.
pub const MAX_PAYLOAD_BYTES: u32 = 1 << 20;

/// What a payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Bytes of standard output.
    Stdout = 1,
    /// Bytes of standard error.
    Stderr = 2,
    /// The last one: JSON of the [`super::edge::Outcome`].
    Outcome = 3,
    /// Instead of it: JSON of an [`super::edge::ErrorBody`].
    Error = 4,
    /// Bytes that are no longer kept: JSON of a [`Skipped`].
    Skipped = 5,
}

/// Which of the two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Output {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Bytes of one output that the stream leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Whose.
    pub output: Output,
    /// Offset of the first one.
    pub from: u64,
    /// How many.
    pub bytes: u64,
}

/// The head of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// Its length.
    pub bytes: u32,
}

/// Why bytes are no header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer than [`HEADER_BYTES`].
    #[error(transparent)]
    Truncated(#[from] preamble::Error),
    /// An unknown kind, non-zero reserved bytes, or a payload over the limit.
    #[error("output stream is malformed: header {header:02x?}")]
    Malformed {
        /// The bytes.
        header: [u8; HEADER_BYTES],
    },
}

impl Header {
    /// The header as bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = self.kind as u8;
        header[4..].copy_from_slice(&self.bytes.to_le_bytes());
        header
    }

    /// Decodes the header in front of `bytes`.
    ///
    /// # Errors
    /// As [`Error`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let header: [u8; HEADER_BYTES] = preamble::read("output stream header", bytes)?;
        let [kind, r0, r1, r2, length @ ..] = header;
        let kind = match kind {
            1 => Kind::Stdout,
            2 => Kind::Stderr,
            3 => Kind::Outcome,
            4 => Kind::Error,
            5 => Kind::Skipped,
            _ => return Err(Error::Malformed { header }),
        };
        let bytes = u32::from_le_bytes(length);
        if [r0, r1, r2] != [0; 3] || bytes > MAX_PAYLOAD_BYTES {
            return Err(Error::Malformed { header });
        }
        Ok(Self { kind, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let header = Header { kind: Kind::Stderr, bytes: 77 };
        assert_eq!(Header::decode(&header.encode()).unwrap(), header);
        assert!(Header::decode(&[9, 0, 0, 0, 1, 0, 0, 0]).is_err());
        assert!(Header::decode(&[1, 0, 0, 0, 1, 0, 0, 9]).is_err());
        assert!(Header::decode(&[1, 0, 0]).is_err());
    }
}
