//! Paths in images: bytes, not text.

use std::fmt;

/// A path as errors show it: what is not printable is escaped.
#[derive(Clone, PartialEq, Eq)]
pub struct Shown(Vec<u8>);

impl Shown {
    /// Of a path without a slash in front; the root is shown as `.`.
    #[must_use]
    pub fn new(path: &[u8]) -> Self {
        Self(if path.is_empty() { b".".to_vec() } else { path.to_vec() })
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                if character.is_control() {
                    write!(f, "{}", character.escape_default())?
                } else {
                    write!(f, "{character}")?
                }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

/// `directory/name`; the root has the empty path.
#[must_use]
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_paths_are_one_printable_line() {
        assert_eq!(Shown::new(b"a b/\xc3\xa9\xff\n").to_string(), "a b/é\\xff\\n");
        assert_eq!(Shown::new(b"").to_string(), ".");
    }
}
