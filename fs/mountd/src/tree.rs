//! Whole trees of layers, read from mapped metadata: what a layer looks like to who cannot mount EROFS.
//!
//! One name space for all layers: a directory of layers by the hexadecimal digits of their digest, below each its tree.
//! An inode number is the layer's slot and the node id in its metadata, so it is stable for ever and nothing is kept for
//! an inode. Knows nothing of FUSE.

use std::sync::Arc;

use dsec_erofs::{FileType, Inode, Nid, image};

use crate::device::{Range, Reader};
use crate::fetch::{Done, ReadError};
use crate::layer::Layer;
use crate::served::Served;

/// The directory of layers.
pub const ROOT: Ino = Ino(1);
/// Node ids have fewer bits: metadata is at most 16 GiB, in units of 32 bytes.
const NID_BITS: u32 = 32;

/// An inode number: slot of the layer, then node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ino(pub u64);

impl Ino {
    fn new(slot: u32, nid: Nid) -> Self {
        Self(u64::from(slot) << NID_BITS | nid.0)
    }

    /// The slot of its layer; 0 for [`ROOT`].
    pub fn slot(self) -> u32 {
        // What is left has 32 bits.
        u32::try_from(self.0 >> NID_BITS).unwrap_or(0)
    }

    fn nid(self) -> Nid {
        Nid(self.0 & ((1 << NID_BITS) - 1))
    }
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such inode (any more).
    #[error("inode {:#x} is not there", ino.0)]
    Stale {
        /// Which.
        ino: Ino,
    },
    /// The metadata, which was checked, cannot be read after all.
    #[error("metadata of inode {:#x} cannot be read", ino.0)]
    Metadata {
        /// Which.
        ino: Ino,
        /// What is wrong.
        #[source]
        source: image::Error,
    },
    /// It is no regular file.
    #[error("inode {:#x} has no data", ino.0)]
    NotAFile {
        /// Which.
        ino: Ino,
    },
    /// It is no directory.
    #[error("inode {:#x} is no directory", ino.0)]
    NotADirectory {
        /// Which.
        ino: Ino,
    },
    /// The data cannot be had.
    #[error("data of inode {:#x} cannot be read", ino.0)]
    Data {
        /// Which.
        ino: Ino,
        /// Why.
        #[source]
        source: ReadError,
    },
}

/// An inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// The directory of layers.
    Root,
    /// An inode of a layer.
    Inode(Ino, Inode),
}

/// What to look for in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// Data.
    Data,
    /// A hole.
    Hole,
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// What it names.
    pub ino: Ino,
    /// The type of what it names.
    pub file_type: FileType,
    /// Where reading goes on behind it.
    pub next_offset: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Trees {
    served: Arc<Served>,
    reader: Arc<Reader>,
}

impl Trees {
    /// The trees of what is served.
    pub fn new(served: Arc<Served>, reader: Arc<Reader>) -> Self {
        Self { served, reader }
    }

    /// The layers, whose uses the caller counts.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// The inode of a number.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Metadata`].
    pub fn node(&self, ino: Ino) -> Result<Node, Error> {
        if ino == ROOT { Ok(Node::Root) } else { self.inode(ino).map(|(_, inode)| Node::Inode(ino, inode)) }
    }

    /// What a name in a directory names.
    ///
    /// # Errors
    /// As [`Trees::node`], and [`Error::NotADirectory`].
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Option<Node>, Error> {
        if parent == ROOT {
            let layer = std::str::from_utf8(name).ok().and_then(|name| self.served.find(name));
            return layer.map(|layer| self.node(Ino::new(layer.slot(), layer.image().root_nid()))).transpose();
        }
        let (layer, inode) = self.directory(parent)?;
        let found = layer.image().lookup(&inode, name).map_err(metadata(parent))?;
        found.map(|entry| self.node(Ino::new(layer.slot(), entry.nid))).transpose()
    }

    /// Hands out the entries of a directory from `offset` on, until `visit` says that it is enough.
    ///
    /// # Errors
    /// As [`Trees::lookup`].
    pub fn read_dir(&self, dir: Ino, offset: u64, mut visit: impl FnMut(Entry<'_>) -> bool) -> Result<(), Error> {
        if dir == ROOT {
            self.read_root(offset, visit);
            return Ok(());
        }
        let (layer, inode) = self.directory(dir)?;
        for entry in layer.image().read_dir(&inode, offset) {
            let entry = entry.map_err(metadata(dir))?;
            let ino = Ino::new(layer.slot(), entry.nid);
            let enough =
                visit(Entry { name: entry.name, ino, file_type: entry.file_type, next_offset: entry.next_offset });
            if enough {
                break;
            }
        }
        Ok(())
    }

    fn read_root(&self, offset: u64, mut visit: impl FnMut(Entry<'_>) -> bool) {
        let layers = self.served.offered();
        let dots = [(ROOT, ".".to_owned()), (ROOT, "..".to_owned())];
        let trees = layers.iter().map(|layer| (Ino::new(layer.slot(), layer.image().root_nid()), layer.digest().hex()));
        for (next_offset, (ino, name)) in (1..).zip(dots.into_iter().chain(trees)) {
            let entry = Entry { name: name.as_bytes(), ino, file_type: FileType::Directory, next_offset };
            if next_offset > offset && visit(entry) {
                break;
            }
        }
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// As [`Trees::node`].
    pub fn read_link<T>(&self, ino: Ino, then: impl FnOnce(&[u8]) -> T) -> Result<T, Error> {
        let (layer, inode) = self.inode(ino)?;
        layer.image().read_link(&inode).map(then).map_err(metadata(ino))
    }

    /// The value of an xattr, by its full name; None if the inode has none of this name.
    ///
    /// # Errors
    /// As [`Trees::node`].
    pub fn xattr<T>(&self, ino: Ino, name: &[u8], then: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Error> {
        if ino == ROOT {
            return Ok(None);
        }
        let (layer, inode) = self.inode(ino)?;
        layer.image().xattr(&inode, name).map(|value| value.map(then)).map_err(metadata(ino))
    }

    /// The names of all xattrs, each followed by a NUL.
    ///
    /// # Errors
    /// As [`Trees::node`].
    pub fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>, Error> {
        let mut names = Vec::new();
        if ino == ROOT {
            return Ok(names);
        }
        let (layer, inode) = self.inode(ino)?;
        for xattr in layer.image().xattrs(&inode).map_err(metadata(ino))? {
            let xattr = xattr.map_err(metadata(ino))?;
            names.extend_from_slice(xattr.prefix().as_bytes());
            names.extend_from_slice(xattr.suffix());
            names.push(0);
        }
        Ok(names)
    }

    /// Reads a file, cut at its end, and answers `done`, perhaps later and from another thread.
    ///
    /// # Errors
    /// `done` is given back when the read cannot even begin.
    pub fn read(&self, ino: Ino, offset: u64, bytes: u64, done: Done) -> Result<(), (Error, Done)> {
        match self.ranges(ino, offset, bytes) {
            Ok((layer, ranges, bytes)) => {
                self.reader.read_ranges(&layer, &ranges, bytes, done);
                Ok(())
            }
            Err(error) => Err((error, done)),
        }
    }

    /// Where the next data, or the next hole, of a file begins at or behind an offset; behind its end there is one hole,
    /// which counts. None when there is no more, as at and behind the end of the file.
    ///
    /// # Errors
    /// As [`Trees::node`], and [`Error::NotAFile`].
    pub fn seek(&self, ino: Ino, offset: u64, want: Seek) -> Result<Option<u64>, Error> {
        let (layer, inode) = self.inode(ino)?;
        if inode.file_type != FileType::Regular {
            return Err(Error::NotAFile { ino });
        }
        let mut at = offset;
        while let Some(extent) = layer.image().map(&inode, at, u64::MAX).map_err(metadata(ino))? {
            if extent.device_offset.is_some() == (want == Seek::Data) {
                return Ok(Some(at));
            }
            at = extent.file_offset.saturating_add(extent.bytes);
        }
        Ok((want == Seek::Hole && offset < inode.bytes).then_some(inode.bytes))
    }

    /// Where `[offset, offset + bytes)` of a file lies, and how much of it the file has.
    fn ranges(&self, ino: Ino, offset: u64, bytes: u64) -> Result<(Arc<Layer>, Vec<Range>, u64), Error> {
        let (layer, inode) = self.inode(ino)?;
        if inode.file_type != FileType::Regular {
            return Err(Error::NotAFile { ino });
        }
        let bytes = bytes.min(inode.bytes.saturating_sub(offset));
        let mut ranges = Vec::new();
        let mut done = 0;
        while done < bytes {
            let extent = layer.image().map(&inode, offset + done, bytes - done).map_err(metadata(ino))?;
            let Some(extent) = extent.filter(|extent| extent.bytes > 0) else { break };
            let part = extent.bytes.min(bytes - done);
            if let Some(device_offset) = extent.device_offset {
                ranges.push(Range { device_offset, bytes: part, target: done });
            }
            done += part;
        }
        Ok((layer, ranges, bytes))
    }

    fn inode(&self, ino: Ino) -> Result<(Arc<Layer>, Inode), Error> {
        let layer = self.served.known(ino.slot()).ok_or(Error::Stale { ino })?;
        let inode = layer.image().inode(ino.nid()).map_err(metadata(ino))?;
        Ok((layer, inode))
    }

    fn directory(&self, ino: Ino) -> Result<(Arc<Layer>, Inode), Error> {
        let (layer, inode) = self.inode(ino)?;
        if inode.file_type == FileType::Directory { Ok((layer, inode)) } else { Err(Error::NotADirectory { ino }) }
    }
}

fn metadata(ino: Ino) -> impl Fn(image::Error) -> Error {
    move |source| Error::Metadata { ino, source }
}
