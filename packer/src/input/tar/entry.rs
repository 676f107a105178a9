//! One member of an archive, with everything that the headers before it say.

use dsec_erofs::{Attributes, Device};

use super::Error;
use crate::content::Ranges;
use crate::paths::Shown;

/// What is in an archive under one path.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(super) path: EntryPath,
    pub(super) attributes: Attributes,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) body: Body,
}

/// What is particular to the type of a member.
#[derive(Debug, Clone)]
pub(super) enum Body {
    Directory,
    File { bytes: u64, place: Place },
    Symlink(Vec<u8>),
    HardLink(EntryPath),
    CharDevice(Device),
    BlockDevice(Device),
    Fifo,
}

/// Where the data of a file is in the [`super::supply::DataStore`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// All of it in one piece.
    Whole { at: u64 },
    /// These pieces, in order; the rest are holes.
    Pieces(Box<[Piece]>),
}

impl Place {
    /// Where a file of `bytes` bytes has data.
    pub(super) fn ranges(&self, bytes: u64) -> Ranges {
        match self {
            Self::Whole { .. } => Ranges::whole(bytes),
            Self::Pieces(pieces) => {
                let mut ranges = Ranges::default();
                pieces.iter().for_each(|piece| ranges.add(piece.file_offset..piece.file_offset + piece.bytes, bytes));
                ranges
            }
        }
    }
}

/// A piece of a sparse file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) file_offset: u64,
    pub(super) bytes: u64,
    pub(super) at: u64,
}

/// A path from the root: components that are neither empty nor `.` nor `..`, joined by single slashes; empty for the
/// root itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct EntryPath(Vec<u8>);

impl EntryPath {
    /// Checks and normalises a path as it stands in an archive.
    pub(super) fn new(raw: &[u8]) -> Result<Self, Error> {
        let escapes = |how| Error::Escapes { path: Shown::new(raw), how };
        if raw.starts_with(b"/") {
            return Err(escapes("is an absolute path"));
        }
        let mut path = Vec::with_capacity(raw.len());
        for part in raw.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => continue,
                b".." => return Err(escapes("contains `..`")),
                _ => {}
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(part);
        }
        Ok(Self(path))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn shown(&self) -> Shown {
        Shown::new(&self.0)
    }

    /// Directory and name; `None` for the root.
    pub(super) fn split(&self) -> Option<(&[u8], &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => Some((&self.0[..slash], &self.0[slash + 1..])),
            None => Some((b"", &self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalised_or_refused() {
        for (raw, path) in [("./a//b/", "a/b"), (".", ""), ("a/./b", "a/b"), ("a..b/...", "a..b/..."), ("", "")] {
            assert_eq!(EntryPath::new(raw.as_bytes()).unwrap().as_bytes(), path.as_bytes(), "{raw}");
        }
        for raw in ["/a", "..", "a/../b", "a/..", "./../a", "//"] {
            assert!(matches!(EntryPath::new(raw.as_bytes()), Err(Error::Escapes { .. })), "{raw}");
        }
        assert_eq!(EntryPath::new(b"a/b/c").unwrap().split(), Some((&b"a/b"[..], &b"c"[..])));
        assert_eq!(EntryPath::new(b"c").unwrap().split(), Some((&b""[..], &b"c"[..])));
        assert_eq!(EntryPath::new(b"./").unwrap().split(), None);
    }
}
