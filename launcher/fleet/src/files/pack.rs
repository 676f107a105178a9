//! From a tree to a tar archive.

use std::io::{self, Read, Write};

use tar::{Builder, EntryType, Header};

use super::{Error, Info, Kind, Tree, join, last_step, text};

/// Writes what is at `path` as an archive whose entries begin with the path's last step (`.` for the root).
///
/// # Errors
/// As [`Error`]; [`Error::Contents`] also when a file gets shorter while it is read, as the archive cannot be right then.
pub fn pack(tree: &impl Tree, path: &str, to: impl Write) -> Result<(), Error> {
    let mut archive = Builder::new(to);
    let name = last_step(path).unwrap_or(".").to_owned();
    // What is still to be written, the next one last; so that the depth of a tree costs no stack.
    let mut waiting = vec![(path.to_owned(), name)];
    while let Some((path, name)) = waiting.pop() {
        let info = match tree.look(&path) {
            Ok(info) => info,
            // Removed since its directory was listed; what was asked for has to be there.
            Err(error) if error.is_absent() && name.contains('/') => continue,
            Err(error) => return Err(error),
        };
        match info.kind {
            Kind::Directory => {
                append(&mut archive, &name, &info, EntryType::Directory)?;
                for child in tree.list(&path)?.into_iter().rev() {
                    let child = text(child)?;
                    waiting.push((join(&path, &child), join(&name, &child)));
                }
            }
            Kind::File => file(tree, &mut archive, &path, &name)?,
            Kind::Link => {
                let target = text(tree.read_link(&path)?)?;
                let mut header = header(&info, EntryType::Symlink, 0);
                archive.append_link(&mut header, &name, &target).map_err(|error| contents(&name, error))?;
            }
            Kind::Special("socket") => {}
            Kind::Special(what) => return Err(Error::Special { name, what }),
        }
    }
    archive.finish().map_err(|error| contents("the archive", error))
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
