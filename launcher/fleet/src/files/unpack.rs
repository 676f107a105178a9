//! From a tar archive into a tree.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::rc::Rc;

use dsec_format::protocol::edge::Unpacked;
use tar::{Archive, Entry, EntryType, Header};

use super::{Error, Kind, Tree, join, last_step, parent, text};

/// Whom unpacked files belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// These ids.
    Is(u32, u32),
    /// The ids in the archive.
    Kept,
}

/// Unpacks an archive. Below `path`, if that is a directory; else its first entry becomes `path`, and what lies below
/// that entry lies below `path`.
///
/// # Errors
/// As [`Error`]. What was unpacked before stays.
pub fn unpack(tree: &impl Tree, path: &str, owner: Owner, from: impl Read) -> Result<Unpacked, Error> {
    let mut place = Place::of(tree, path)?;
    let left = Rc::new(Cell::new(None));
    let mut archive = Archive::new(Metered { from, left: Rc::clone(&left) });
    let mut unpacked = Unpacked::default();
    let mut entries = archive.entries().map_err(Error::Archive)?;
    loop {
        left.set(Some(HEADERS_BYTES));
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(Error::Archive)?;
        left.set(None);
        let name = text(entry.path_bytes().into_owned(), "the archive")?;
        let steps = steps(&name)?;
        if steps.is_empty() {
            place.take_top(tree, owner, &entry)?;
        }
        let to = place.path_of(tree, &steps)?;
        unpacked.bytes += one(tree, &to, owner, &place, &mut entry, &name)?;
        unpacked.entries += 1;
        // Contents that the kind of entry has no use for must not count as headers.
        io::copy(&mut entry, &mut io::sink()).map_err(Error::Archive)?;
    }
    left.set(None);
    // Padding behind the end mark is the sender's right.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(Error::Archive)?;
    Ok(unpacked)
}

/// Most bytes of all headers of one entry: its own, long names, extensions, maps of holes. They are read into memory.
const HEADERS_BYTES: u64 = 1 << 20;

/// An archive of which only so much is read while `left` says so.
struct Metered<R> {
    from: R,
    left: Rc<Cell<Option<u64>>>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(left) = self.left.get() else { return self.from.read(buffer) };
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 && !buffer.is_empty() {
            let text = format!("the headers of an entry are longer than {HEADERS_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let read = self.from.read(buffer.get_mut(..most).unwrap_or_default())?;
        self.left.set(Some(left - read as u64));
        Ok(read)
    }
}

/// The steps of a name that stays below where it is unpacked.
fn steps(name: &str) -> Result<Vec<&str>, Error> {
    if name.starts_with('/') {
        return Err(Error::Escapes { name: name.to_owned() });
    }
    let steps: Vec<_> = name.split('/').filter(|step| !matches!(*step, "" | ".")).collect();
    if steps.contains(&"..") { Err(Error::Escapes { name: name.to_owned() }) } else { Ok(steps) }
}

/// Where entries go.
struct Place {
    directory: String,
    /// The name that the first step of every entry is replaced by.
    renamed: Option<String>,
}

impl Place {
    fn of(tree: &impl Tree, path: &str) -> Result<Self, Error> {
        let directory = |path: &str| match tree.look_through(path) {
            Ok(info) => Ok(Some(info.kind == Kind::Directory)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        };
        match (directory(path)?, last_step(path)) {
            (Some(true), _) => Ok(Self { directory: path.to_owned(), renamed: None }),
            (Some(false), _) if path.ends_with('/') => Err(Error::NotADirectory { path: path.to_owned() }),
            (_, Some(name)) => {
                let parent = parent(path);
                tree.look_through(parent)?;
                Ok(Self { directory: parent.to_owned(), renamed: Some(name.to_owned()) })
            }
            (_, None) => Err(Error::NotADirectory { path: path.to_owned() }),
        }
    }

    /// The archive's top has no name (`.`, the root of a sandbox): under another name it is a directory of that name, and
    /// all that follows is below it.
    fn take_top(&mut self, tree: &impl Tree, owner: Owner, entry: &Entry<'_, impl Read>) -> Result<(), Error> {
        let Some(name) = self.renamed.take() else { return Ok(()) };
        self.directory = join(&self.directory, &name);
        if entry.header().entry_type() != EntryType::Directory {
            return Err(Error::NotADirectory { path: self.directory.clone() });
        }
        let mode = entry.header().mode().map_err(Error::Archive)? & 0o777;
        tree.create_directory(&self.directory, mode, ids(owner, entry.header())?)
    }

    /// The path of an entry; directories on the way that the archive does not list are made.
    fn path_of(&mut self, tree: &impl Tree, steps: &[&str]) -> Result<String, Error> {
        let mut path = self.directory.clone();
        let Some((last, before)) = steps.split_last() else { return Ok(path) };
        for (index, step) in before.iter().enumerate() {
            path = join(&path, self.name(index, step));
            match tree.look_through(&path) {
                Ok(_) => {}
                Err(error) if error.is_absent() => tree.create_directory(&path, 0o755, (0, 0))?,
                Err(error) => return Err(error),
            }
        }
        Ok(join(&path, self.name(before.len(), last)))
    }

    fn name<'a>(&'a self, index: usize, step: &'a str) -> &'a str {
        match &self.renamed {
            Some(name) if index == 0 => name,
            _ => step,
        }
    }
}

/// Whom an entry will belong to.
fn ids(owner: Owner, header: &Header) -> Result<(u32, u32), Error> {
    let id = |id: io::Result<u64>| id.map(|id| u32::try_from(id).unwrap_or(65_534)).map_err(Error::Archive);
    match owner {
        Owner::Is(uid, gid) => Ok((uid, gid)),
        Owner::Kept => Ok((id(header.uid())?, id(header.gid())?)),
    }
}

/// Unpacks one entry: bytes of contents written.
fn one(
    tree: &impl Tree,
    to: &str,
    owner: Owner,
    place: &Place,
    entry: &mut Entry<'_, impl Read>,
    name: &str,
) -> Result<u64, Error> {
    let header = entry.header();
    let mode = header.mode().map_err(Error::Archive)? & 0o777;
    let owner = ids(owner, header)?;
    let special = |what| Error::Special { name: name.to_owned(), what };
    match header.entry_type() {
        EntryType::Directory => {
            // An archive's own top (`.`) is the place itself.
            if to != place.directory {
                tree.create_directory(to, mode, owner)?;
            }
            Ok(0)
        }
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            copy(entry, tree.create(to, mode, owner)?, name)
        }
        EntryType::Symlink => {
            let target = entry.link_name_bytes().unwrap_or_default().into_owned();
            tree.create_link(&text(target, name)?, to, owner)?;
            Ok(0)
        }
        EntryType::Link => {
            let target = text(entry.link_name_bytes().unwrap_or_default().into_owned(), name)?;
            let mut first = Place { directory: place.directory.clone(), renamed: place.renamed.clone() };
            let first = first.path_of(tree, &steps(&target)?)?;
            let (file, _) = tree.open(&first)?;
            copy(file, tree.create(to, mode, owner)?, name)
        }
        EntryType::Fifo => Err(special("fifo")),
        EntryType::Char | EntryType::Block => Err(special("device")),
        _ => Err(special("entry of unknown kind")),
    }
}

fn copy(mut from: impl Read, mut to: impl Write, name: &str) -> Result<u64, Error> {
    let failed = |source| Error::Contents { path: name.to_owned(), source };
    let mut buffer = vec![0; 64 << 10];
    let mut copied = 0;
    loop {
        let read = from.read(&mut buffer).map_err(failed)?;
        if read == 0 {
            return Ok(copied);
        }
        to.write_all(buffer.get(..read).unwrap_or_default()).map_err(failed)?;
        copied += read as u64;
    }
}

#[cfg(test)]
mod tests;
