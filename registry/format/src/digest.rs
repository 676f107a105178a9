//! Content names: BLAKE3 digests, one type per kind of object.
//!
//! Invariant: two kinds are never mixed up, because each kind has its own type. The text form is `blake3:` and 64
//! lower-case hexadecimal digits, everywhere: files, URLs, JSON, errors.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes in a digest.
pub const DIGEST_BYTES: usize = 32;
/// What every digest in text form starts with.
pub const PREFIX: &str = "blake3:";

/// Why a text is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text does not start with [`PREFIX`].
    #[error("digest {text:?} does not start with \"blake3:\"")]
    Prefix {
        /// The offending text, cut to 80 bytes.
        text: String,
    },
    /// What follows the prefix is not 64 lower-case hexadecimal digits.
    #[error("digest {text:?} is not 64 lower-case hexadecimal digits after \"blake3:\"")]
    Hex {
        /// The offending text, cut to 80 bytes.
        text: String,
    },
}

fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

fn parse_hex(hex: &str) -> Option<[u8; DIGEST_BYTES]> {
    let digits = hex.as_bytes();
    if digits.len() != 2 * DIGEST_BYTES {
        return None;
    }
    let mut bytes = [0; DIGEST_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

macro_rules! digest {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name([u8; DIGEST_BYTES]);

        impl $name {
            /// The name of `bytes`.
            #[must_use]
            pub fn of(bytes: &[u8]) -> Self {
                Self(*blake3::hash(bytes).as_bytes())
            }

            /// A name that was computed elsewhere.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; DIGEST_BYTES]) -> Self {
                Self(bytes)
            }

            /// The 32 bytes.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; DIGEST_BYTES] {
                &self.0
            }

            /// The 64 hexadecimal digits without the prefix: what file names are made of.
            #[must_use]
            pub fn hex(&self) -> String {
                use fmt::Write;
                self.0.iter().fold(String::with_capacity(2 * DIGEST_BYTES), |mut text, byte| {
                    let _ = write!(text, "{byte:02x}");
                    text
                })
            }

            /// Parses what [`Self::hex`] gives.
            ///
            /// # Errors
            /// [`Error::Hex`] when the text is anything but 64 lower-case hexadecimal digits.
            pub fn from_hex(text: &str) -> Result<Self, Error> {
                parse_hex(text).map(Self).ok_or_else(|| Error::Hex { text: shorten(text) })
            }

            /// The first twelve hexadecimal digits, for people.
            #[must_use]
            pub fn short(&self) -> String {
                self.hex()[..12].to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{PREFIX}{}", self.hex())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.hex())
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                let hex = text.strip_prefix(PREFIX).ok_or_else(|| Error::Prefix { text: shorten(text) })?;
                Self::from_hex(hex)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

digest! {
    /// Names a chunk: BLAKE3 of its plain bytes.
    ChunkDigest
}
digest! {
    /// Names a pack: BLAKE3 of the whole pack, preamble to footer.
    PackDigest
}
digest! {
    /// Names a layer: BLAKE3 of its 160-byte identity record ([`crate::layer::Identity`]).
    LayerDigest
}
digest! {
    /// Names an image: BLAKE3 of its canonical JSON.
    ImageDigest
}
digest! {
    /// Names an environment: BLAKE3 of its canonical JSON.
    EnvironmentDigest
}
digest! {
    /// Names a blob inside a layer (its plain metadata or its plain extent map) or the index of a pack.
    BlobDigest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        let digest = ChunkDigest::of(b"abc");
        assert_eq!(digest.to_string().parse::<ChunkDigest>().unwrap(), digest);
        assert_eq!(digest.to_string(), "blake3:6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "sha256:00", "blake3:", "blake3:zz", &format!("blake3:{}", "A".repeat(64))] {
            assert!(text.parse::<ChunkDigest>().is_err(), "{text}");
        }
    }
}
