//! Whether two file trees are the same, and if not, where and how.
//!
//! Both are walked side by side in path order; nothing is kept but the entries of the directories on the way and one
//! record per inode with several names. The first tree's content is in chunks, so a file of the second is compared by
//! hashing its bytes piece by piece: the store is read only for a piece that is a part of a chunk.
//!
//! What is compared: which names there are, kind, mode, ids, modification time with nanoseconds, size, content, symlink
//! target, device number, extended attributes, which names are one inode, holes. Not: link counts (names outside the
//! tree count there), other times, the order of a directory.

mod content;
mod links;

use std::cmp::Ordering;
use std::fmt;

use serde::Serialize;

use crate::chunks::ChunkReader;
use crate::monitor::Monitor;
use crate::tree::{Content, FileTree, Kind, Node, PathError, Xattrs, show};
use crate::{Cancel, Cancelled};
use links::Links;

/// What differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aspect {
    /// The name is only in the image.
    Missing,
    /// The name is only in the directory.
    Extra,
    /// File, directory, symlink and so on.
    Kind,
    /// Permissions, set-id and sticky bits.
    Mode,
    /// Owner or group.
    Ids,
    /// Modification time.
    Mtime,
    /// Size of a file.
    Size,
    /// Bytes of a file.
    Content,
    /// Target of a symlink.
    Target,
    /// Device number.
    Device,
    /// Extended attributes.
    Xattrs,
    /// Names that are one inode on one side and not on the other.
    Links,
    /// Where a file has holes.
    Holes,
}

impl Aspect {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Missing,
        Self::Extra,
        Self::Kind,
        Self::Mode,
        Self::Ids,
        Self::Mtime,
        Self::Size,
        Self::Content,
        Self::Target,
        Self::Device,
        Self::Xattrs,
        Self::Links,
        Self::Holes,
    ];

    /// The word that JSON and options use.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::Kind => "kind",
            Self::Mode => "mode",
            Self::Ids => "ids",
            Self::Mtime => "mtime",
            Self::Size => "size",
            Self::Content => "content",
            Self::Target => "target",
            Self::Device => "device",
            Self::Xattrs => "xattrs",
            Self::Links => "links",
            Self::Holes => "holes",
        }
    }
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Where, absolute, with what is not printable escaped.
    pub path: String,
    /// What differs.
    pub what: Aspect,
    /// What the image has.
    pub image: String,
    /// What the directory has.
    pub directory: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, what, image, directory } = self;
        match what {
            Aspect::Missing => write!(f, "{path}: missing: only in the image ({image})"),
            Aspect::Extra => write!(f, "{path}: extra: only in the directory ({directory})"),
            _ => write!(f, "{path}: {}: image {image}, directory {directory}", what.word()),
        }
    }
}

/// How much was compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Names.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Differences.
    pub differences: u64,
}

/// Why a comparison could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image side.
    #[error("cannot read the image")]
    Image(#[source] PathError),
    /// The directory side.
    #[error("cannot read the directory")]
    Directory(#[source] PathError),
    /// Asked to stop.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// What a comparison needs beside the trees.
pub struct Options<'a, 's> {
    /// Reads chunks, for pieces that are a part of one.
    pub chunks: &'a ChunkReader<'s>,
    /// Told every name.
    pub monitor: &'a dyn Monitor,
    /// Asked at every name.
    pub cancel: &'a Cancel,
    /// What is not compared.
    pub ignore: &'a [Aspect],
}

/// Compares `image` with `directory` and tells each difference to `found`, in path order.
///
/// # Errors
/// Either tree cannot be read, or somebody asked to stop.
pub fn compare<I: FileTree, D: FileTree>(
    image: &I,
    directory: &D,
    options: &Options<'_, '_>,
    found: &mut dyn FnMut(Difference),
) -> Result<Totals, Error> {
    let mut comparison = Comparison {
        image,
        directory,
        options,
        found,
        links: Links::default(),
        totals: Totals::default(),
        path: Vec::new(),
    };
    comparison.run()?;
    Ok(comparison.totals)
}

struct Comparison<'a, 's, I: FileTree, D: FileTree> {
    image: &'a I,
    directory: &'a D,
    options: &'a Options<'a, 's>,
    found: &'a mut dyn FnMut(Difference),
    links: Links,
    totals: Totals,
    /// Of what is being compared.
    path: Vec<u8>,
}

/// A pair of directories that is being walked.
struct Level<I, D> {
    image: I,
    directory: D,
    /// Length of their path.
    path_bytes: usize,
    names: Merged,
}

type LevelOf<I, D> = Level<<I as FileTree>::Handle, <D as FileTree>::Handle>;

/// Names of two directories, merged.
struct Merged {
    left: std::iter::Peekable<std::vec::IntoIter<Vec<u8>>>,
    right: std::iter::Peekable<std::vec::IntoIter<Vec<u8>>>,
}

enum Side {
    Both,
    Image,
    Directory,
}

impl Merged {
    fn new(left: Vec<Vec<u8>>, right: Vec<Vec<u8>>) -> Self {
        Self { left: left.into_iter().peekable(), right: right.into_iter().peekable() }
    }

    fn next(&mut self) -> Option<(Vec<u8>, Side)> {
        let order = match (self.left.peek(), self.right.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => left.cmp(right),
        };
        match order {
            Ordering::Less => self.left.next().map(|name| (name, Side::Image)),
            Ordering::Greater => self.right.next().map(|name| (name, Side::Directory)),
            Ordering::Equal => {
                self.right.next();
                self.left.next().map(|name| (name, Side::Both))
            }
        }
    }
}

impl<I: FileTree, D: FileTree> Comparison<'_, '_, I, D> {
    fn run(&mut self) -> Result<(), Error> {
        let roots = (self.image.root(), self.directory.root());
        let (image, directory) = (self.of_image(roots.0)?, self.of_directory(roots.1)?);
        let mut levels = Vec::new();
        levels.extend(self.compare_inodes(image, directory)?);
        while let Some(level) = levels.last_mut() {
            self.options.cancel.check()?;
            self.path.truncate(level.path_bytes);
            let Some((name, side)) = level.names.next() else {
                levels.pop();
                continue;
            };
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            self.options.monitor.advance(1);
            let below = match side {
                Side::Both => {
                    let image = self.image.child(&level.image, &name);
                    let directory = self.directory.child(&level.directory, &name);
                    let (image, directory) = (self.of_image(image)?, self.of_directory(directory)?);
                    self.compare_inodes(image, directory)?
                }
                Side::Image => {
                    let node = self.image.child(&level.image, &name).and_then(|handle| self.image.node(&handle));
                    let node = self.of_image(node)?;
                    self.report(Aspect::Missing, || (node.kind.word().to_owned(), String::new()));
                    None
                }
                Side::Directory => {
                    let node = self.directory.child(&level.directory, &name);
                    let node = node.and_then(|handle| self.directory.node(&handle));
                    let node = self.of_directory(node)?;
                    self.report(Aspect::Extra, || (String::new(), node.kind.word().to_owned()));
                    None
                }
            };
            levels.extend(below);
        }
        Ok(())
    }

    fn of_image<T>(&self, result: Result<T, crate::tree::Error>) -> Result<T, Error> {
        result.map_err(PathError::at(&self.path)).map_err(Error::Image)
    }

    fn of_directory<T>(&self, result: Result<T, crate::tree::Error>) -> Result<T, Error> {
        result.map_err(PathError::at(&self.path)).map_err(Error::Directory)
    }

    fn report(&mut self, what: Aspect, describe: impl FnOnce() -> (String, String)) {
        if self.options.ignore.contains(&what) {
            return;
        }
        let (image, directory) = describe();
        self.totals.differences += 1;
        (self.found)(Difference { path: show(&self.path), what, image, directory });
    }

    /// Compares two inodes of one name, and gives the level to walk when both are directories.
    fn compare_inodes(&mut self, image: I::Handle, directory: D::Handle) -> Result<Option<LevelOf<I, D>>, Error> {
        self.totals.entries += 1;
        let ours = self.of_image(self.image.node(&image))?;
        let theirs = self.of_directory(self.directory.node(&directory))?;
        self.compare_attributes(&ours, &theirs);
        match (&ours.kind, &theirs.kind) {
            (Kind::Directory, Kind::Directory) => {
                let ours = self.of_image(self.image.names(&image))?;
                let theirs = self.of_directory(self.directory.names(&directory))?;
                let names = Merged::new(ours, theirs);
                return Ok(Some(Level { image, directory, path_bytes: self.path.len(), names }));
            }
            (Kind::Regular { bytes }, Kind::Regular { bytes: other }) => {
                if bytes != other {
                    self.report(Aspect::Size, || (bytes.to_string(), other.to_string()));
                }
                let met = self.links.meet(&self.path, ours.links, theirs.links);
                self.report_links(met.difference);
                // One inode's content is compared once.
                if !met.again && bytes == other {
                    self.compare_content(&image, &directory, *bytes)?;
                }
                return Ok(None);
            }
            (Kind::Symlink(target), Kind::Symlink(other)) if target != other => {
                self.report(Aspect::Target, || (quoted(target), quoted(other)));
            }
            (Kind::CharDevice(device), Kind::CharDevice(other))
            | (Kind::BlockDevice(device), Kind::BlockDevice(other))
                if device != other =>
            {
                let text = |device: &dsec_erofs::Device| format!("{}:{}", device.major, device.minor);
                self.report(Aspect::Device, || (text(device), text(other)));
            }
            (left, right) if std::mem::discriminant(left) != std::mem::discriminant(right) => {
                self.report(Aspect::Kind, || (left.word().to_owned(), right.word().to_owned()));
                return Ok(None);
            }
            _ => {}
        }
        let met = self.links.meet(&self.path, ours.links, theirs.links);
        self.report_links(met.difference);
        Ok(None)
    }

    fn report_links(&mut self, difference: Option<links::Disagreement>) {
        if let Some(links::Disagreement { image, directory }) = difference {
            let text = |path: Option<Vec<u8>>| path.map_or_else(|| "alone".to_owned(), |path| show(&path));
            self.report(Aspect::Links, || (text(image), text(directory)));
        }
    }

    fn compare_attributes(&mut self, ours: &Node, theirs: &Node) {
        let (left, right) = (ours.attributes, theirs.attributes);
        // A symlink's mode is no property of it: Linux always says 0777.
        let symlinks = matches!((&ours.kind, &theirs.kind), (Kind::Symlink(_), Kind::Symlink(_)));
        if left.mode != right.mode && !symlinks {
            self.report(Aspect::Mode, || (format!("{:04o}", left.mode), format!("{:04o}", right.mode)));
        }
        if (left.uid, left.gid) != (right.uid, right.gid) {
            let text = |uid: u32, gid: u32| format!("{uid}:{gid}");
            self.report(Aspect::Ids, || (text(left.uid, left.gid), text(right.uid, right.gid)));
        }
        if left.mtime != right.mtime {
            let text = |time: dsec_erofs::Timestamp| format!("{}.{:09}", time.secs, time.nanos);
            self.report(Aspect::Mtime, || (text(left.mtime), text(right.mtime)));
        }
        if ours.xattrs != theirs.xattrs {
            self.report(Aspect::Xattrs, || describe_xattrs(&ours.xattrs, &theirs.xattrs));
        }
    }

    fn compare_content(&mut self, image: &I::Handle, directory: &D::Handle, bytes: u64) -> Result<(), Error> {
        self.totals.bytes += bytes;
        let ours = self.of_image(self.image.content(image))?;
        let theirs = self.of_directory(self.directory.content(directory))?;
        let Content::Stored(pieces) = ours else {
            return Err(self.of_image::<()>(Err(crate::tree::not_in_chunks())).expect_err("it is an error"));
        };
        let verdict = match theirs {
            Content::Stored(others) => content::compare_stored(pieces, others),
            Content::File { file, data } => {
                content::compare_file(pieces, &file, &data, bytes, self.options.chunks, self.options.cancel)
            }
        };
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(content::Error::Image(source)) => return self.of_image(Err(source)),
            Err(content::Error::Directory(source)) => return self.of_directory(Err(source)),
            Err(content::Error::Cancelled(source)) => return Err(source.into()),
        };
        if let Some(at) = verdict.differs_at {
            self.report(Aspect::Content, || {
                (format!("differs in the piece at byte {at}"), "has other bytes".to_owned())
            });
        }
        if let Some(content::Data { image, directory }) = verdict.holes {
            self.report(Aspect::Holes, || (content::ranges_text(&image), content::ranges_text(&directory)));
        }
        Ok(())
    }
}

fn quoted(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

/// The xattrs that are not the same, each side's.
fn describe_xattrs(ours: &Xattrs, theirs: &Xattrs) -> (String, String) {
    let only = |these: &Xattrs, those: &Xattrs| {
        let differing = these.iter().filter(|pair| !those.contains(pair));
        let shown: Vec<String> =
            differing.map(|(name, value)| format!("{}={}", name.escape_ascii(), cut(value))).collect();
        if shown.is_empty() { "nothing".to_owned() } else { shown.join(", ") }
    };
    (only(ours, theirs), only(theirs, ours))
}

/// A value for people, cut to 40 bytes.
fn cut(value: &[u8]) -> String {
    match value.get(..40) {
        Some(start) => format!("{}... ({} bytes)", quoted(start), value.len()),
        None => quoted(value),
    }
}
