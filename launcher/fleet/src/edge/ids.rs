//! Names and id ranges of sandboxes: unique on the node while they live.
//!
//! A sandbox's id is `TAG-RANDOM`; the tag is the edge's own, drawn once per root directory, so that the id says whose
//! it is and two edges on one node never release what the other holds.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use dsec_sandbox::IDS;

/// Letters of ids: no vowels, so no words; no look-alikes. 28 of them.
const ALPHABET: &[u8; 28] = b"23456789bcdfghjkmnpqrstvwxyz";
/// Random letters of a sandbox id: 28^12, about 57 bits.
const SANDBOX_LETTERS: usize = 12;
/// Letters of an edge's tag.
pub(crate) const TAG_LETTERS: usize = 5;

/// Why ids cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tag cannot be read or written.
    #[error("the edge's tag cannot be kept")]
    Tag(#[source] std::io::Error),
    /// The tag is there and is none.
    #[error("{} holds {text:?}, which is no tag", path.display())]
    BadTag {
        /// The file.
        path: PathBuf,
        /// What it holds, cut.
        text: String,
    },
    /// The kernel gives no random numbers.
    #[error("no random numbers")]
    Random(#[source] std::io::Error),
    /// The range of ranges is not one.
    #[error("id ranges from {base} on, {count} of them, are not multiples of {IDS} between {IDS} and 2^32")]
    Bounds {
        /// First id.
        base: u32,
        /// How many ranges.
        count: u32,
    },
    /// Another user of the node may use the same ids.
    #[error("ids {base} to {end} overlap those that {} gives to {user}", path.display())]
    Overlap {
        /// The file that says so.
        path: PathBuf,
        /// Whose they are.
        user: String,
        /// First id of the edge.
        base: u64,
        /// Last id of the edge.
        end: u64,
    },
    /// Every range belongs to a sandbox.
    #[error("all {count} id ranges are in use")]
    Exhausted {
        /// How many there are.
        count: u32,
    },
}

/// Random letters, all of them good in names.
pub(crate) fn random_letters(count: usize) -> Result<String, Error> {
    let mut text = String::with_capacity(count);
    let mut bytes = [0u8; 32];
    let mut random = fs_err::File::open("/dev/urandom").map_err(Error::Random)?;
    while text.len() < count {
        random.read_exact(&mut bytes).map_err(Error::Random)?;
        // 252 is the largest multiple of 28 in a byte: what is above it would favour some letters.
        let letters = bytes.iter().filter(|byte| **byte < 252);
        text.extend(letters.filter_map(|byte| ALPHABET.get(usize::from(byte % 28))).map(|letter| char::from(*letter)));
    }
    text.truncate(count);
    Ok(text)
}

/// Whether a text is as long as a tag and made of the same letters.
pub(crate) fn is_letters(text: &str) -> bool {
    text.len() == TAG_LETTERS && text.bytes().all(|byte| ALPHABET.contains(&byte))
}

/// The edge's own mark on the names it gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag(String);

impl Tag {
    /// The tag of a root directory, drawn when it has none.
    ///
    /// # Errors
    /// [`Error::Tag`], [`Error::BadTag`], [`Error::Random`].
    pub fn load_or_draw(root: &Path) -> Result<Self, Error> {
        let path = root.join("tag");
        match fs_err::read_to_string(&path) {
            Ok(text) => {
                let tag = text.trim_end();
                let cut = || text.chars().take(80).collect();
                if is_letters(tag) { Ok(Self(tag.to_owned())) } else { Err(Error::BadTag { path, text: cut() }) }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let tag = random_letters(TAG_LETTERS)?;
                let new = root.join("tag.new");
                fs_err::write(&new, format!("{tag}\n")).map_err(Error::Tag)?;
                fs_err::rename(&new, &path).map_err(Error::Tag)?;
                Ok(Self(tag))
            }
            Err(error) => Err(Error::Tag(error)),
        }
    }

    /// A new sandbox's id.
    ///
    /// # Errors
    /// [`Error::Random`].
    pub fn draw_id(&self) -> Result<String, Error> {
        Ok(format!("{}-{}", self.0, random_letters(SANDBOX_LETTERS)?))
    }

    /// Whether an id was given by this edge.
    #[must_use]
    pub fn owns(&self, id: &str) -> bool {
        id.strip_prefix(self.0.as_str()).is_some_and(|rest| rest.starts_with('-'))
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which user and group ids the sandboxes of an edge get, [`IDS`] each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The first id.
    pub base: u32,
    /// How many ranges.
    pub count: u32,
}

impl Default for Bounds {
    /// Above what systemd gives to containers (524288 to 1879048191) and below its "foreign" ids and 2^31, from where on
    /// some programs see negative numbers: 4,094 ranges.
    fn default() -> Self {
        Self { base: 0x7000_0000, count: 0x0ffe }
    }
}

impl Bounds {
    fn end(self) -> u64 {
        u64::from(self.base) + u64::from(self.count) * u64::from(IDS)
    }

    /// Checks that the bounds are ranges, and that nobody in `files` (as `/etc/subuid`: `USER:FIRST:COUNT` a line) has a
    /// part of them. A file that does not exist gives nothing to anybody.
    ///
    /// # Errors
    /// [`Error::Bounds`], [`Error::Overlap`], [`Error::Tag`] for a file that cannot be read.
    pub fn check(self, files: &[PathBuf]) -> Result<(), Error> {
        if self.base < IDS || !self.base.is_multiple_of(IDS) || self.count == 0 || self.end() > u64::from(u32::MAX) {
            return Err(Error::Bounds { base: self.base, count: self.count });
        }
        for path in files {
            let text = match fs_err::read_to_string(path) {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::Tag(error)),
            };
            for line in text.lines() {
                let Some((user, first, end)) = parse_subid(line) else { continue };
                if first < self.end() && end > u64::from(self.base) {
                    let (base, end) = (u64::from(self.base), self.end() - 1);
                    return Err(Error::Overlap { path: path.clone(), user: user.to_owned(), base, end });
                }
            }
        }
        Ok(())
    }
}

fn parse_subid(line: &str) -> Option<(&str, u64, u64)> {
    let mut fields = line.trim().split(':');
    let (user, first, count) = (fields.next()?, fields.next()?, fields.next()?);
    let (first, count): (u64, u64) = (first.parse().ok()?, count.parse().ok()?);
    Some((user, first, first.saturating_add(count)))
}

/// Gives each sandbox a range that no other living one has.
#[derive(Debug)]
pub(super) struct Ranges {
    bounds: Bounds,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: BTreeSet<u32>,
    next: u32,
}

impl Ranges {
    /// All ranges of `bounds` are free, but for the `used` ones (by their first ids).
    #[must_use]
    pub(super) fn new(bounds: Bounds, used: impl IntoIterator<Item = u32>) -> Self {
        Self { bounds, state: Mutex::new(State { used: used.into_iter().collect(), next: 0 }) }
    }

    /// Takes a range: its first id. The one that was given back longest ago comes last, so that what a removed
    /// sandbox may have left on a disk is not soon another's.
    ///
    /// # Errors
    /// [`Error::Exhausted`].
    pub(super) fn take(&self) -> Result<u32, Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..self.bounds.count {
            let base = self.bounds.base + state.next * IDS;
            state.next = (state.next + 1) % self.bounds.count;
            if state.used.insert(base) {
                return Ok(base);
            }
        }
        Err(Error::Exhausted { count: self.bounds.count })
    }

    /// Gives a range back.
    pub(super) fn give_back(&self, base: u32) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).used.remove(&base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_unique_until_given_back() {
        let bounds = Bounds { base: IDS * 3, count: 4 };
        let ranges = Ranges::new(bounds, [IDS * 4]);
        let taken: BTreeSet<_> = (0..3).map(|_| ranges.take().unwrap()).collect();
        assert_eq!(taken, BTreeSet::from([IDS * 3, IDS * 5, IDS * 6]));
        assert!(matches!(ranges.take(), Err(Error::Exhausted { count: 4 })));
        ranges.give_back(IDS * 5);
        assert_eq!(ranges.take().unwrap(), IDS * 5);
    }

    #[test]
    fn overlaps_with_other_users_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let subuid = directory.path().join("subuid");
        fs_err::write(&subuid, "# comment\nalice:100000:65536\nbob:1879048192:1\n").unwrap();
        let files = [subuid, directory.path().join("absent")];
        let error = Bounds::default().check(&files).unwrap_err();
        assert!(matches!(&error, Error::Overlap { user, .. } if user == "bob"), "{error}");
        Bounds { base: 0x7001_0000, count: 100 }.check(&files).unwrap();
        for bounds in [
            Bounds { base: 1, count: 1 },
            Bounds { base: 0, count: 1 },
            Bounds { base: IDS, count: 0 },
            Bounds { base: IDS, count: u32::MAX },
        ] {
            assert!(matches!(bounds.check(&[]), Err(Error::Bounds { .. })), "{bounds:?}");
        }
    }

    #[test]
    fn a_tag_stays_and_marks_its_ids() {
        let directory = tempfile::tempdir().unwrap();
        let tag = Tag::load_or_draw(directory.path()).unwrap();
        assert_eq!(Tag::load_or_draw(directory.path()).unwrap(), tag);
        let id = tag.draw_id().unwrap();
        assert!(tag.owns(&id) && id.parse::<dsec_sandbox::Id>().is_ok(), "{id}");
        assert!(!tag.owns("other-id") && !tag.owns(&tag.to_string()));
        fs_err::write(directory.path().join("tag"), "not a tag").unwrap();
        assert!(matches!(Tag::load_or_draw(directory.path()), Err(Error::BadTag { .. })));
    }
}
