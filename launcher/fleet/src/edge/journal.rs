//! The journal: one JSON file per sandbox, written before anything is acquired for it.
//!
//! `ROOT/sandboxes/ID/state.json` holds a [`Record`]. Every resource of a sandbox (mountd's holder, cgroups, mounts, its
//! directory) is named after its id, so the record of a reservation alone is enough to take down whatever a dead edge
//! may have made. The steps:
//!
//! | step       | on the disk                  | a restarted edge                                   |
//! |------------|------------------------------|----------------------------------------------------|
//! | reserved   | id, request, id range        | removes it                                         |
//! | running    | and its image and process 1  | adopts it, if the process is the same; else removes |
//! | destroying | the same                     | removes it                                         |
//! | gone       | no directory                 | -                                                  |
//!
//! A record is replaced by rename, so a killed edge leaves the old one or the new one. Nothing is synced: after a crash of
//! the machine no sandbox lives, so nothing needs the content of the file. The boot id in a record says so, and whatever
//! lies in `sandboxes` after a power cut, empty or torn, is removed.

use std::path::{Path, PathBuf};

use dsec_format::image::Config;
use dsec_format::protocol::edge::CreateRequest;
use dsec_format::{ImageDigest, LayerDigest};
use dsec_sandbox::{Id, Limits};
use serde::{Deserialize, Serialize};

/// Version of [`Record`].
const VERSION: u32 = 1;
/// Name of the record in a sandbox's directory.
const STATE: &str = "state.json";
/// Name of the record that takes its place.
const STATE_NEW: &str = "state.json.new";

/// Where a sandbox is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "at")]
pub(crate) enum Step {
    /// Its names are taken; anything may have been made.
    Reserved,
    /// It stands.
    Running(Box<Standing>),
    /// It is being removed.
    Destroying,
}

/// What is known of a sandbox that stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// The image, resolved.
    pub image: ImageDigest,
    /// How to run it.
    pub config: Config,
    /// Its layers, the base first.
    pub layers: Vec<LayerDigest>,
    /// How the sandbox crate finds it again.
    pub handle: dsec_sandbox::State,
}

/// One sandbox in the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Version of this record.
    pub version: u32,
    /// The boot it belongs to.
    pub boot: String,
    /// The sandbox.
    pub id: Id,
    /// What was asked for.
    pub request: CreateRequest,
    /// Its limits, defaults filled in.
    pub limits: Limits,
    /// It lives as long as one request: a restarted edge removes it whatever its step.
    pub ephemeral: bool,
    /// First id of its range.
    pub id_base: u32,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// Where it is.
    pub step: Step,
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk refuses.
    #[error("the journal cannot be written")]
    Io(#[source] std::io::Error),
    /// A record cannot be put in words.
    #[error("the record of sandbox {id} cannot be encoded")]
    Encode {
        /// Whose.
        id: Id,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// The journal of one edge.
#[derive(Debug)]
pub(super) struct Journal {
    directory: PathBuf,
    boot: String,
}

/// What a dead edge left under one name.
#[derive(Debug)]
pub(crate) enum Found {
    /// A record of this boot.
    Record(Box<Record>),
    /// A name without a readable record of this boot: to be removed.
    Remains(String),
}

impl Journal {
    /// The journal below `root`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn open(root: &Path) -> Result<Self, Error> {
        let directory = root.join("sandboxes");
        fs_err::create_dir_all(&directory)?;
        let boot = fs_err::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(Self { directory, boot })
    }

    /// A first record.
    #[must_use]
    pub(super) fn reserve(
        &self,
        id: Id,
        request: CreateRequest,
        limits: Limits,
        id_base: u32,
        created_ms: u64,
    ) -> Record {
        let (version, boot) = (VERSION, self.boot.clone());
        Record { version, boot, id, request, limits, ephemeral: false, id_base, created_ms, step: Step::Reserved }
    }

    /// A sandbox's directory.
    #[must_use]
    pub(super) fn directory(&self, id: &Id) -> PathBuf {
        self.directory.join(id.as_str())
    }

    /// Where a sandbox's own files are, for the sandbox crate to make and remove.
    #[must_use]
    pub(super) fn disk(&self, id: &Id) -> PathBuf {
        self.directory(id).join("disk")
    }

    /// Writes a record. The first one makes the sandbox's directory.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Encode`].
    pub(super) fn write(&self, record: &Record) -> Result<(), Error> {
        let directory = self.directory(&record.id);
        let bytes = serde_json::to_vec(record).map_err(|source| Error::Encode { id: record.id.clone(), source })?;
        if record.step == Step::Reserved {
            // Its name is new: until the file is whole the directory is remains, and removed as such.
            fs_err::create_dir(&directory)?;
            fs_err::write(directory.join(STATE), bytes)?;
            return Ok(());
        }
        fs_err::write(directory.join(STATE_NEW), bytes)?;
        fs_err::rename(directory.join(STATE_NEW), directory.join(STATE))?;
        Ok(())
    }

    /// Forgets a sandbox: the last step of its removal. What is not there is no error.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn forget(&self, name: &str) -> Result<(), Error> {
        let directory = self.directory.join(name);
        for file in [STATE_NEW, STATE] {
            ignore_absent(fs_err::remove_file(directory.join(file)))?;
        }
        ignore_absent(fs_err::remove_dir(directory))?;
        Ok(())
    }

    /// All that is in the journal.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn load(&self) -> Result<Vec<Found>, Error> {
        let mut all = Vec::new();
        for entry in fs_err::read_dir(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let record =
                fs_err::read(self.directory.join(&name).join(STATE)).ok().and_then(|bytes| self.decode(&bytes));
            all.push(match record {
                Some(record) if record.id.as_str() == name => Found::Record(Box::new(record)),
                _ => Found::Remains(name),
            });
        }
        Ok(all)
    }

    fn decode(&self, bytes: &[u8]) -> Option<Record> {
        let record: Record = serde_json::from_slice(bytes).ok()?;
        (record.version == VERSION && record.boot == self.boot).then_some(record)
    }
}

fn ignore_absent(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
