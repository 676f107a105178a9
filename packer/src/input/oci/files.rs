//! The files that make up an image: those of a directory, or the members of an archive.

use std::io::{self, Read, Seek};
use std::path::PathBuf;

use fs_err as fs;

use super::Error;
use crate::input::tar::{Archive, MemberReader};

/// See the [module](self).
pub(in crate::input) enum Files {
    /// A layout directory.
    Directory(PathBuf),
    /// An archive of an image.
    Archive(Box<Archive>),
}

impl Files {
    /// The file with this name: a relative path of ours, or one that an archive has of its own members.
    pub(super) fn open(&self, name: &str) -> Result<File, Error> {
        match self {
            Self::Directory(root) => fs::File::open(root.join(name)).map(File::Plain).map_err(Error::Read),
            Self::Archive(archive) => {
                let missing = || io::Error::new(io::ErrorKind::NotFound, format!("the archive has no file {name:?}"));
                archive.file(name.as_bytes()).map(File::Member).ok_or_else(missing).map_err(Error::Read)
            }
        }
    }
}

/// An open one.
pub(super) enum File {
    Plain(fs::File),
    Member(MemberReader),
}

impl File {
    pub(super) fn length_bytes(&self) -> io::Result<u64> {
        match self {
            Self::Plain(file) => Ok(file.metadata()?.len()),
            Self::Member(member) => Ok(member.length_bytes()),
        }
    }

    pub(super) fn rewind(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.rewind(),
            Self::Member(member) => {
                member.rewind();
                Ok(())
            }
        }
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.read(buffer),
            Self::Member(member) => member.read(buffer),
        }
    }
}
