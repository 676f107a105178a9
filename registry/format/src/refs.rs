//! Refs: mutable names of images and environments.
//!
//! A name is validated once, into a [`RefName`]; what is valid can be a path below a directory without escaping it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::json::{self, Object};
use crate::{EnvironmentDigest, ImageDigest};

/// The `format` key of a ref.
pub const FORMAT: &str = "dsec.ref.v1";
/// Longest name, tag not counted.
pub const MAX_NAME_BYTES: usize = 200;
/// Longest tag.
pub const MAX_TAG_BYTES: usize = 128;
/// The tag of a name without one.
pub const DEFAULT_TAG: &str = "latest";

/// A validated name: `component[/component…]:tag`.
///
/// A component is lower-case letters and digits with single `.`, `_`, `-` or `__` or several `-` between them, as in the
/// OCI distribution specification; a tag is `[A-Za-z0-9_][A-Za-z0-9._-]*`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefName {
    name: String,
    tag: String,
}

/// Why a text is not a ref name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a ref name: {reason}")]
pub struct NameError {
    /// The text, cut to 80 characters.
    pub text: String,
    /// What is wrong.
    pub reason: &'static str,
}

fn component_is_valid(component: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    if !alphanumeric(*first) || !alphanumeric(*last) {
        return false;
    }
    bytes
        .split(|byte| alphanumeric(*byte))
        .all(|separator| matches!(separator, b"" | b"." | b"_" | b"__") || separator.iter().all(|byte| *byte == b'-'))
}

fn tag_is_valid(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.bytes().next().is_some_and(word) && tag.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

impl RefName {
    /// The name without its tag.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tag.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }
}

impl FromStr for RefName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let error = |reason| NameError { text: text.chars().take(80).collect(), reason };
        let (name, tag) = text.rsplit_once(':').unwrap_or((text, DEFAULT_TAG));
        if name.len() > MAX_NAME_BYTES {
            return Err(error("the name is longer than 200 bytes"));
        }
        if tag.len() > MAX_TAG_BYTES {
            return Err(error("the tag is longer than 128 bytes"));
        }
        if !name.split('/').all(component_is_valid) {
            return Err(error("its parts are lower-case letters and digits, with . _ - between them, joined by /"));
        }
        if !tag_is_valid(tag) {
            return Err(error("a tag is letters, digits, . _ and -, and starts with a letter, a digit or _"));
        }
        Ok(Self { name: name.to_owned(), tag: tag.to_owned() })
    }
}

impl fmt::Display for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.tag)
    }
}

impl fmt::Debug for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RefName({self})")
    }
}

impl Serialize for RefName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RefName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What a ref names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// An image.
    Image(ImageDigest),
    /// An environment.
    Environment(EnvironmentDigest),
}

/// The stored form of a ref: canonical JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ref {
    /// [`FORMAT`].
    pub format: String,
    /// The name itself, so that a file moved by hand is noticed.
    pub name: RefName,
    /// What it names.
    pub target: Target,
    /// Milliseconds since 1970 of the last change, by the clock of the store that made it.
    pub updated_ms: u64,
}

impl Object for Ref {
    const OBJECT: &'static str = "ref";
    const FORMAT: &'static str = FORMAT;
}

impl Ref {
    /// A ref.
    #[must_use]
    pub fn new(name: RefName, target: Target, updated_ms: u64) -> Self {
        Self { format: FORMAT.to_owned(), name, target, updated_ms }
    }

    /// The canonical bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        json::encode(self)
    }

    /// Decodes a stored ref.
    ///
    /// # Errors
    /// As [`json::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, json::Error> {
        json::decode(bytes)
    }
}

/// How a user names an image: by ref or by digest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Spec {
    /// By ref.
    Name(RefName),
    /// By digest.
    Digest(ImageDigest),
}

impl FromStr for Spec {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.starts_with(crate::digest::PREFIX) {
            return text.parse().map(Self::Digest).map_err(|_| NameError {
                text: text.chars().take(80).collect(),
                reason: "a digest is blake3: and 64 lower-case hexadecimal digits",
            });
        }
        text.parse().map(Self::Name)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Digest(digest) => digest.fmt(f),
        }
    }
}

impl Serialize for Spec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Spec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (text, shown) in [
            ("debian", "debian:latest"),
            ("debian:12", "debian:12"),
            ("a/b-c/d_e:v1.2-RC", "a/b-c/d_e:v1.2-RC"),
            ("x--y", "x--y:latest"),
        ] {
            assert_eq!(text.parse::<RefName>().unwrap().to_string(), shown);
        }
        for bad in ["", "/", "a//b", "../x", "a/..", "A", "a:", "a:.x", "a b", "-a", "a-", "a..b", "a:b:c", "a\0"] {
            assert!(bad.parse::<RefName>().is_err(), "{bad:?}");
        }
        assert!("x".repeat(201).parse::<RefName>().is_err());
    }

    #[test]
    fn stored_form_round_trips() {
        let name: RefName = "a/b:c".parse().unwrap();
        let record = Ref::new(name, Target::Image(ImageDigest::of(b"i")), 5);
        assert_eq!(Ref::decode(&record.encode()).unwrap(), record);
        let text = String::from_utf8(record.encode()).unwrap();
        assert!(text.starts_with(r#"{"format":"dsec.ref.v1","name":"a/b:c","target":{"image":"blake3:"#), "{text}");
    }
}
