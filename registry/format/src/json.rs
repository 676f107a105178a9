//! Canonical JSON: the stored form of images, environments and refs.
//!
//! Canonical means: UTF-8, the keys of an object in the order of the format document, map keys sorted by bytes, no
//! white space, no absent optional keys, integers only. A digest covers exactly these bytes; a decoder refuses bytes
//! that it would itself have written differently, so one value has one name.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// No JSON object is larger.
pub const MAX_JSON_BYTES: usize = 4 << 20;

/// Why bytes are not a canonical JSON object of a kind.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Over [`MAX_JSON_BYTES`].
    #[error("{object} has {have_bytes} bytes, allowed are {MAX_JSON_BYTES}")]
    Size {
        /// What was decoded.
        object: &'static str,
        /// Its size.
        have_bytes: usize,
    },
    /// Not JSON, an unknown key, a missing key or a malformed value.
    #[error("not a valid {object}")]
    Syntax {
        /// What was decoded.
        object: &'static str,
        /// Where and what.
        #[source]
        source: serde_json::Error,
    },
    /// The `format` key says something else: another kind of object, or another version.
    #[error("not a {object} that this program reads: its format is {found:?}, expected {expected:?}")]
    Format {
        /// What was decoded.
        object: &'static str,
        /// What the object says.
        found: String,
        /// What this program reads.
        expected: &'static str,
    },
    /// Valid, but not in canonical form.
    #[error("{object} is not in canonical form")]
    NotCanonical {
        /// What was decoded.
        object: &'static str,
    },
}

/// A type that is stored as canonical JSON.
pub trait Object: Serialize + DeserializeOwned {
    /// What errors call it.
    const OBJECT: &'static str;
    /// The value of its `format` key.
    const FORMAT: &'static str;
}

/// The canonical bytes of `value`.
#[must_use]
pub fn encode<T: Object>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("the formats hold only strings, integers, lists and string maps")
}

/// Decodes canonical bytes.
///
/// # Errors
/// Size, then format and version, then syntax, then form.
pub fn decode<T: Object>(bytes: &[u8]) -> Result<T, Error> {
    let object = T::OBJECT;
    if bytes.len() > MAX_JSON_BYTES {
        return Err(Error::Size { object, have_bytes: bytes.len() });
    }
    #[derive(serde::Deserialize)]
    struct Probe {
        format: String,
    }
    let probe: Probe = serde_json::from_slice(bytes).map_err(|source| Error::Syntax { object, source })?;
    if probe.format != T::FORMAT {
        let found = probe.format.chars().take(80).collect();
        return Err(Error::Format { object, found, expected: T::FORMAT });
    }
    let value: T = serde_json::from_slice(bytes).map_err(|source| Error::Syntax { object, source })?;
    if encode(&value) != bytes {
        return Err(Error::NotCanonical { object });
    }
    Ok(value)
}
