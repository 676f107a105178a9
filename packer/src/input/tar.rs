//! A tar archive as input: v7, ustar, GNU and PAX; plain, gzip, zstd or xz; from a file or from standard input.
//!
//! The archive is read once from front to back. A plain archive in a file keeps its data where it is; of any other, the
//! data of regular files goes into an unlinked temporary file. The order of entries does not matter, except that of two
//! entries with one path the last counts. What is malformed, leads out of the root or cannot be kept is an error: no
//! entry is skipped.

mod acl;
mod assembly;
mod data;
mod entry;
mod error;
mod header;
mod pax;
mod reader;
mod sparse;
mod supply;

use std::io::{BufReader, Read};
use std::path::Path;

use dsec_erofs::{InodeId, Tree};
use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt;
use rustix::fs::OFlags;

pub(super) use self::assembly::{Assembly, Whiteouts};
use self::entry::EntryPath;
pub use self::error::Error;
use self::supply::BUFFER_BYTES;
pub(super) use self::supply::Supply;

pub(super) use self::data::MemberReader;

use self::data::Data;
use self::reader::Reader;
use super::interruptible::Interruptible;
use super::stream::{self, Compression};
use super::{Kind, Location, Part, Surroundings};
use crate::monitor::Stage;

/// Symbolic links that lead to a member of an archive of an image, one after the other.
const MAX_SYMLINKS: usize = 8;

/// An archive that was gone through: its members, and where their data is.
pub(super) struct Archive {
    tree: Tree,
    data: Data,
}

impl Archive {
    /// Goes through the archive at `location`.
    pub(super) fn open(location: &Location, surroundings: Surroundings<'_>) -> Result<Self, super::Error> {
        surroundings.monitor.begin(Stage::Walk, None);
        let supply = match location {
            Location::Path(path) => open_file(path, surroundings)?,
            Location::Stdin => {
                let input = Interruptible::stdin(surroundings.cancel).map_err(super::Error::Open)?;
                Supply::spooled(decompressed(input)?, surroundings)?
            }
        };
        Ok(assemble(supply, Assembly::new(Whiteouts::AreFiles)?, surroundings)?.0)
    }

    /// As a root file system.
    pub(super) fn into_part(self) -> Part<'static> {
        Part { tree: self.tree, contents: Box::new(self.data) }
    }

    /// What kind of image it holds, rather than a root file system: what `docker save` and `skopeo copy … oci-archive:`
    /// write. One that is both is taken for OCI's, where everything is checked against digests.
    pub(super) fn image_kind(&self) -> Option<Kind> {
        let has = |name: &[u8]| self.tree.lookup(Tree::ROOT, name).is_some();
        if has(b"oci-layout") && has(b"index.json") && has(b"blobs") {
            return Some(Kind::OciArchive);
        }
        let is_docker = has(b"manifest.json") && !has(b"etc") && !has(b"usr") && !has(b"bin");
        is_docker.then_some(Kind::DockerArchive)
    }

    /// The bytes of a member, also through symbolic links among the members.
    pub(super) fn file(&self, path: &[u8]) -> Option<MemberReader> {
        let mut path = path.to_vec();
        for _ in 0..=MAX_SYMLINKS {
            let entry = EntryPath::new(&path).ok()?;
            let parts = entry.as_bytes().split(|byte| *byte == b'/').filter(|part| !part.is_empty());
            let inode = parts.into_iter().try_fold(Tree::ROOT, |inode, part| self.tree.lookup(inode, part))?;
            match self.tree.kind(inode) {
                dsec_erofs::Kind::Regular { bytes } => return Some(self.data.reader(inode, bytes)),
                dsec_erofs::Kind::Symlink(target) => path = beside(entry.split()?.0, target)?,
                _ => return None,
            }
        }
        None
    }
}

/// Where a symbolic link in `directory` leads, without leaving the archive.
fn beside(directory: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let mut parts: Vec<&[u8]> = directory.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    if target.starts_with(b"/") {
        return None;
    }
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join(&b'/'))
}

/// Puts all entries into `assembly`; gives the directories that have no entry of their own as well.
pub(super) fn assemble(
    supply: Supply<'_>,
    mut assembly: Assembly,
    surroundings: Surroundings<'_>,
) -> Result<(Archive, Vec<InodeId>), super::Error> {
    let mut reader = Reader::new(supply);
    while let Some(entry) = reader.next_entry()? {
        surroundings.cancel.check()?;
        assembly.place(entry)?;
        surroundings.monitor.advance(1);
    }
    let store = reader.finish()?;
    let assembled = assembly.finish()?;
    let data = Data::new(store, assembled.places);
    Ok((Archive { tree: assembled.tree, data }, assembled.implicit))
}

fn open_file<'a>(path: &Path, surroundings: Surroundings<'a>) -> Result<Supply<'a>, super::Error> {
    let open = |flags: OFlags| {
        let mut options = fs::OpenOptions::new();
        options.read(true).custom_flags(flags.bits().cast_signed()).open(path).map_err(super::Error::Open)
    };
    let is_file = fs::metadata(path).map_err(super::Error::Open)?.is_file();
    let spooled = |input| Ok(Supply::spooled(decompressed(input)?, surroundings)?);
    // Opening a pipe would wait for somebody to write to it.
    let file = open(if is_file { OFlags::empty() } else { OFlags::NONBLOCK })?;
    if is_file {
        let mut first = [0; stream::MAGIC_BYTES];
        let length = stream::read_first(&mut &file, &mut first).map_err(Error::Read)?;
        let file = open(OFlags::empty())?;
        if Compression::of(&first[..length])? == Compression::None {
            return Ok(Supply::in_place(file, surroundings.cancel)?);
        }
        return spooled(Interruptible::new(file.into_file(), surroundings.cancel));
    }
    spooled(Interruptible::new(file.into_file(), surroundings.cancel))
}

fn decompressed(input: Interruptible) -> Result<Box<dyn Read + Send>, Error> {
    stream::decompress(Box::new(BufReader::with_capacity(BUFFER_BYTES, input)))
}
