//! Where in the layers below the counterpart of a directory or file is.
//!
//! A path is kept as a name behind that of the directory above: what a way down costs grows with its depth, not with the
//! square of it.

use std::sync::Arc;

use super::Error;

/// A path in the layers below.
#[derive(Debug, Clone)]
pub(super) struct Lower(Arc<Part>);

#[derive(Debug)]
struct Part {
    above: Option<Lower>,
    /// A name; without anything above, a path.
    path: Vec<u8>,
}

impl Lower {
    /// The root.
    pub(super) fn root() -> Self {
        Self::at(Vec::new())
    }

    fn at(path: Vec<u8>) -> Self {
        Self(Arc::new(Part { above: None, path }))
    }

    /// What is called `name` in it.
    pub(super) fn join(&self, name: &[u8]) -> Self {
        Self(Arc::new(Part { above: Some(self.clone()), path: name.to_vec() }))
    }

    /// Where a redirect leads: an absolute path, or a name beside the lower counterpart of the parent.
    pub(super) fn redirected(parent: Option<&Self>, target: &[u8]) -> Result<Self, Error> {
        let malformed = || Error::Malformed { name: "overlay.redirect".to_owned() };
        let absolute = target.strip_prefix(b"/");
        let path = absolute.unwrap_or(target);
        let names = || path.split(|byte| *byte == b'/');
        let is_sound = names().all(|name| !matches!(name, b"" | b"." | b".."));
        if !is_sound || (absolute.is_none() && names().count() > 1) {
            return Err(malformed());
        }
        match absolute {
            Some(absolute) => Ok(Self::at(absolute.to_vec())),
            None => Ok(parent.ok_or_else(malformed)?.join(target)),
        }
    }

    /// The whole path, without a slash in front; empty for the root.
    pub(super) fn path(&self) -> Vec<u8> {
        let parts = std::iter::successors(Some(self), |lower| lower.0.above.as_ref());
        let mut parts: Vec<&[u8]> =
            parts.map(|lower| lower.0.path.as_slice()).filter(|part| !part.is_empty()).collect();
        parts.reverse();
        parts.join(&b'/')
    }
}

impl Drop for Part {
    /// Not recursive: depth costs no stack.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(Lower(part)) = above {
            above = Arc::into_inner(part).and_then(|mut part| part.above.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_names() {
        let usr = Lower::root().join(b"usr");
        assert_eq!(Lower::root().path(), b"");
        assert_eq!(usr.join(b"lib").path(), b"usr/lib");
        let moved = |target: &[u8]| Lower::redirected(Some(&usr), target).map(|lower| lower.join(b"x").path());
        assert_eq!(moved(b"/var/old").unwrap(), b"var/old/x");
        assert_eq!(moved(b"old").unwrap(), b"usr/old/x");
        for malformed in [&b"a/b"[..], b"", b"/", b"..", b"/a/../b", b"/a//b", b"."] {
            assert!(moved(malformed).is_err(), "{}", malformed.escape_ascii());
        }
        assert!(Lower::redirected(None, b"old").is_err());
    }

    #[test]
    fn depth_costs_no_stack() {
        let deep = (0..1_000_000).fold(Lower::root(), |lower, _| lower.join(b"d"));
        assert_eq!(deep.path().len(), 2 * 1_000_000 - 1);
    }
}
