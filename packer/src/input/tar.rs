//! A tar archive as input: v7, ustar, GNU and PAX; plain, gzip or zstd; from a file or from standard input.
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

use std::io::Read;
use std::path::Path;

use dsec_erofs::{InodeId, Tree};
use fs_err as fs;

pub(super) use self::assembly::{Assembly, Whiteouts};
pub use self::error::Error;
pub(super) use self::supply::Supply;

use self::reader::Reader;
use super::stream::{self, Compression};
use super::{Location, Part, Surroundings};
use crate::monitor::Stage;

/// Reads the archive at `location`. With `forced`, also one that looks like an image in an archive.
pub(super) fn open(
    location: &Location,
    forced: bool,
    surroundings: Surroundings<'_>,
) -> Result<Part<'static>, super::Error> {
    surroundings.monitor.begin(Stage::Walk, None);
    let supply = match location {
        Location::Path(path) => open_file(path, surroundings)?,
        Location::Stdin => Supply::spooled(decompressed(std::io::stdin())?, surroundings)?,
    };
    let (part, _) = assemble(supply, Assembly::new(Whiteouts::AreFiles)?, surroundings)?;
    if !forced && looks_like_an_image(&part.tree) {
        return Err(Error::ImageArchive.into());
    }
    Ok(part)
}

/// Puts all entries into `assembly`; gives the directories that have no entry of their own as well.
pub(super) fn assemble(
    supply: Supply<'_>,
    mut assembly: Assembly,
    surroundings: Surroundings<'_>,
) -> Result<(Part<'static>, Vec<InodeId>), super::Error> {
    let mut reader = Reader::new(supply);
    while let Some(entry) = reader.next_entry()? {
        surroundings.cancel.check()?;
        assembly.place(entry)?;
        surroundings.monitor.advance(1);
    }
    let store = reader.finish()?;
    let assembled = assembly.finish()?;
    let contents = Box::new(data::Data::new(store, assembled.places));
    Ok((Part { tree: assembled.tree, contents }, assembled.implicit))
}

fn open_file<'a>(path: &Path, surroundings: Surroundings<'a>) -> Result<Supply<'a>, super::Error> {
    let file = fs::File::open(path).map_err(super::Error::Open)?;
    let metadata = file.metadata().map_err(super::Error::Open)?;
    if metadata.is_file() {
        let mut first = [0; stream::MAGIC_BYTES];
        let length = stream::read_first(&mut &file, &mut first).map_err(Error::Read)?;
        let file = fs::File::open(path).map_err(super::Error::Open)?;
        if Compression::of(&first[..length])? == Compression::None {
            return Ok(Supply::in_place(file, surroundings.cancel)?);
        }
        return Ok(Supply::spooled(decompressed(file)?, surroundings)?);
    }
    Ok(Supply::spooled(decompressed(file)?, surroundings)?)
}

fn decompressed(reader: impl Read + Send + 'static) -> Result<Box<dyn Read + Send>, Error> {
    stream::decompress(Box::new(reader))
}

/// An archive of an image, not of a root file system: what `docker save` and `skopeo copy … oci-archive:` write.
fn looks_like_an_image(tree: &Tree) -> bool {
    let has = |name: &[u8]| tree.lookup(Tree::ROOT, name).is_some();
    let is_oci = has(b"oci-layout") && has(b"index.json") && has(b"blobs");
    let is_docker = has(b"manifest.json") && !has(b"etc") && !has(b"usr") && !has(b"bin");
    is_oci || is_docker
}
