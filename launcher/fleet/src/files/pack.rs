//! From a tree to a tar archive.

use std::io::{self, Read, Write};

use tar::{Builder, EntryType, Header};

use super::{Error, Info, Kind, Names, Tree, join, last_step, text};

/// The most directories on the way from the top of a copy to a file: each is held open while what is in it is copied.
const DEPTH_MAX: usize = 256;

/// A directory that is being copied.
struct Level {
    path: String,
    name: String,
    names: Names,
}

/// Writes what is at `path` as an archive whose entries begin with the path's last step (`.` for the root), each directory
/// before what is in it. Directories are read piece by piece, so that one of any width costs no memory.
///
/// # Errors
/// As [`Error`]; [`Error::Contents`] also when a file gets shorter while it is read, as the archive cannot be right then.
pub fn pack(tree: &impl Tree, path: &str, to: impl Write) -> Result<(), Error> {
    let mut archive = Builder::new(to);
    let name = last_step(path).unwrap_or(".").to_owned();
    let mut levels: Vec<Level> = Vec::new();
    levels.extend(one(tree, &mut archive, path.to_owned(), name)?);
    while let Some(level) = levels.last_mut() {
        let Some(child) = level.names.next() else {
            levels.pop();
            continue;
        };
        let child = text(child?, &level.path)?;
        let (path, name) = (join(&level.path, &child), join(&level.name, &child));
        if let Some(below) = one(tree, &mut archive, path, name)? {
            if levels.len() == DEPTH_MAX {
                return Err(Error::Deep { name: below.name, directories_max: DEPTH_MAX });
            }
            levels.push(below);
        }
    }
    archive.finish().map_err(|error| contents("the archive", error))
}

/// Writes one entry; a directory's names are still to be read.
fn one(
    tree: &impl Tree,
    archive: &mut Builder<impl Write>,
    path: String,
    name: String,
) -> Result<Option<Level>, Error> {
    // What was asked for has to be there; what its directory has listed may be removed meanwhile.
    let below_top = name.contains('/');
    let info = match tree.look(&path) {
        Err(error) if error.is_absent() && below_top => return Ok(None),
        other => other?,
    };
    match info.kind {
        Kind::Directory => {
            append(archive, &name, &info, EntryType::Directory)?;
            match tree.names(&path) {
                Err(error) if (error.is_absent() || error.is_other_mount()) && below_top => return Ok(None),
                names => return Ok(Some(Level { names: names?, path, name })),
            }
        }
        Kind::File => file(tree, archive, &path, &name)?,
        Kind::Link => {
            let target = text(tree.read_link(&path)?, &path)?;
            let mut header = header(&info, EntryType::Symlink, 0);
            archive.append_link(&mut header, &name, &target).map_err(|error| contents(&name, error))?;
        }
        Kind::Special("socket") => {}
        Kind::Special(what) => return Err(Error::Special { name, what }),
    }
    Ok(None)
}

fn file(tree: &impl Tree, archive: &mut Builder<impl Write>, path: &str, name: &str) -> Result<(), Error> {
    let (file, info) = tree.open(path)?;
    let mut header = header(&info, EntryType::Regular, info.bytes);
    let exact = Exact { file, left: info.bytes };
    archive.append_data(&mut header, name, exact).map_err(|error| contents(name, error))
}

fn append(archive: &mut Builder<impl Write>, name: &str, info: &Info, kind: EntryType) -> Result<(), Error> {
    let mut header = header(info, kind, 0);
    archive.append_data(&mut header, name, io::empty()).map_err(|error| contents(name, error))
}

fn header(info: &Info, kind: EntryType, bytes: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(info.mode);
    header.set_uid(info.uid.into());
    header.set_gid(info.gid.into());
    header.set_mtime(info.mtime_secs);
    header.set_size(bytes);
    header
}

fn contents(path: &str, source: io::Error) -> Error {
    Error::Contents { path: path.to_owned(), source }
}

/// As many bytes as the header promises: of a file that grows the first ones, of one that shrinks an error.
struct Exact<R> {
    file: R,
    left: u64,
}

impl<R: Read> Read for Exact<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read(buffer.get_mut(..most).unwrap_or_default())?;
        if read == 0 && most > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file got shorter while it was copied"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}
