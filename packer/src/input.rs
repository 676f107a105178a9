//! What an image can be built from: a directory, a tar archive, an OCI layout directory or archive, a docker-archive.
//!
//! Every input becomes the same thing: one or more trees without file data, the lowest first, each with somewhere to
//! read its data from, and how to run the whole. Nothing is left out in silence: what a tree cannot hold is an error
//! that names the entry. `docs/semantics.md` says what is kept and by which rules.

mod addresses;
mod directory;
mod error;
mod interruptible;
pub mod oci;
mod stream;
pub mod tar;

use std::path::{Path, PathBuf};

use dsec_erofs::Tree;
use dsec_format::image::Config;
use fs_err as fs;

use crate::cancel::Cancel;
use crate::content::Contents;
use crate::monitor::Monitor;

pub(crate) use addresses::Addresses;
pub use error::Error;

/// What kind of input something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A directory whose entries become the root.
    Directory,
    /// A tar archive of a root file system: plain, gzip, zstd or xz.
    Tar,
    /// An OCI image layout directory.
    Oci,
    /// The same in a tar archive.
    OciArchive,
    /// What `docker save` writes.
    DockerArchive,
}

/// Where the input is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A path.
    Path(PathBuf),
    /// Standard input: an archive of any kind.
    Stdin,
}

/// An input and how to understand it.
#[derive(Debug, Clone)]
pub struct Input {
    /// Where it is.
    pub location: Location,
    /// What it is; `None` finds it out.
    pub kind: Option<Kind>,
    /// Whether a directory is followed into other file systems mounted below it. Otherwise a mount point below it is an
    /// error.
    pub cross_mounts: bool,
    /// Which image of an OCI layout, when it has several: the `org.opencontainers.image.ref.name`; of a docker-archive the
    /// `NAME:TAG` that it has there.
    pub oci_ref: Option<String>,
    /// Which machine's image of a multi-platform OCI index, in OCI's words: `amd64`, `arm64`.
    pub architecture: String,
}

/// What reading an input needs of its caller.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// A directory for temporary files as large as the uncompressed input, removed by the caller.
    pub scratch: &'a Path,
    /// Told of progress.
    pub monitor: &'a dyn Monitor,
    /// Asked whether to stop.
    pub cancel: &'a Cancel,
}

/// One layer of an input.
pub(crate) struct Part<'a> {
    pub(crate) tree: Tree,
    pub(crate) contents: Box<dyn Contents + 'a>,
}

/// A whole input, read but for the file data.
pub(crate) struct Opened {
    /// The layers, the lowest first.
    pub(crate) parts: Vec<Part<'static>>,
    /// How to run it; empty but for OCI.
    pub(crate) config: Config,
    /// What it was found to be.
    pub(crate) kind: Kind,
    /// What the input says about the machine, when it does.
    pub(crate) architecture: Option<String>,
}

impl Input {
    /// Reads everything but the file data.
    pub(crate) fn open(&self, surroundings: Surroundings<'_>) -> Result<Opened, Error> {
        let kind = self.find_kind()?;
        match (&self.location, kind) {
            (Location::Path(path), Kind::Directory) => {
                let part = directory::open(path, self.cross_mounts, surroundings)?;
                Ok(Opened { parts: vec![part], config: Config::default(), kind, architecture: None })
            }
            (location, Kind::Tar) => {
                let archive = tar::Archive::open(location, surroundings)?;
                match archive.image_kind() {
                    Some(kind) if self.kind.is_none() => {
                        self.image(oci::Files::Archive(Box::new(archive)), kind, surroundings)
                    }
                    _ => {
                        let parts = vec![archive.into_part()];
                        Ok(Opened { parts, config: Config::default(), kind, architecture: None })
                    }
                }
            }
            (location, Kind::OciArchive | Kind::DockerArchive) => {
                let archive = tar::Archive::open(location, surroundings)?;
                self.image(oci::Files::Archive(Box::new(archive)), kind, surroundings)
            }
            (Location::Path(path), Kind::Oci) => self.image(oci::Files::Directory(path.clone()), kind, surroundings),
            (Location::Stdin, Kind::Directory | Kind::Oci) => Err(Error::NotFromStdin),
        }
    }

    fn image(&self, files: oci::Files, kind: Kind, surroundings: Surroundings<'_>) -> Result<Opened, Error> {
        oci::open(files, kind, self.oci_ref.as_deref(), &self.architecture, surroundings)
    }

    fn find_kind(&self) -> Result<Kind, Error> {
        if let Some(kind) = self.kind {
            return Ok(kind);
        }
        let Location::Path(path) = &self.location else { return Ok(Kind::Tar) };
        let metadata = fs::metadata(path).map_err(Error::Open)?;
        if metadata.is_dir() {
            let is_layout = path.join("oci-layout").is_file() && path.join("index.json").is_file();
            return Ok(if is_layout { Kind::Oci } else { Kind::Directory });
        }
        if !metadata.is_file() && !stream::is_pipe(&metadata) {
            return Err(Error::NotAnInput { path: path.clone() });
        }
        Ok(Kind::Tar)
    }
}
