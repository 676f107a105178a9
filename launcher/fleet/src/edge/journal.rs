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
    /// A record is there and cannot be read, so nobody can tell whether its sandbox runs.
    #[error("record {} cannot be read", path.display())]
    Read {
        /// The record.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A record of this boot that another edge wrote.
    #[error("record {} has version {found}, this edge reads version {VERSION}; start the edge that wrote it", path.display())]
    Version {
        /// The record.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A record is whole and says what none of this version says.
    #[error("record {} is not one of this edge", path.display())]
    Foreign {
        /// The record.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// A record lies under the name of another sandbox.
    #[error("record {} is that of sandbox {id}", path.display())]
    Misplaced {
        /// The record.
        path: PathBuf,
        /// Whose it is.
        id: Id,
    },
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

/// What of a record can be read whatever its version.
#[derive(Debug, Deserialize)]
struct Head {
    version: u32,
    boot: String,
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
    /// A name with no record, a torn one, or one of another boot: to be removed.
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

    /// All that is in the journal. Only what certainly belongs to no running sandbox is [`Found::Remains`].
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Read`], [`Error::Version`], [`Error::Foreign`], [`Error::Misplaced`] when a sandbox may
    /// run whose record this edge does not understand.
    pub(super) fn load(&self) -> Result<Vec<Found>, Error> {
        let mut all = Vec::new();
        for entry in fs_err::read_dir(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let path = self.directory.join(&name).join(STATE);
            all.push(match self.read(&path)? {
                Some(record) if record.id.as_str() == name => Found::Record(Box::new(record)),
                Some(record) => return Err(Error::Misplaced { path, id: record.id }),
                None => Found::Remains(name),
            });
        }
        Ok(all)
    }

    /// A record of this boot, if there is one.
    fn read(&self, path: &Path) -> Result<Option<Record>, Error> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        let bytes = match fs_err::read(path) {
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(None),
            other => other.map_err(|source| Error::Read { path: path.to_owned(), source })?,
        };
        let foreign = |source| Error::Foreign { path: path.to_owned(), source };
        let head: Head = match serde_json::from_slice(&bytes) {
            // Torn: the first record of a sandbox, which is written in place, or any after a crash of the machine.
            Err(error) if error.is_eof() || error.is_syntax() => return Ok(None),
            other => other.map_err(foreign)?,
        };
        if head.boot != self.boot {
            return Ok(None);
        }
        if head.version != VERSION {
            return Err(Error::Version { path: path.to_owned(), found: head.version });
        }
        serde_json::from_slice(&bytes).map(Some).map_err(foreign)
    }
}

fn ignore_absent(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> (tempfile::TempDir, Journal, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let journal = Journal::open(root.path()).unwrap();
        let request = serde_json::from_str(r#"{"image":"base"}"#).unwrap();
        let record = journal.reserve("aaaaa-bbbb".parse().unwrap(), request, Limits::default(), 1 << 16, 0);
        journal.write(&record).unwrap();
        let path = journal.directory(&record.id).join(STATE);
        (root, journal, path)
    }

    fn with(path: &Path, change: impl FnOnce(&mut serde_json::Value)) {
        let mut record = serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap();
        change(&mut record);
        fs_err::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
    }

    #[test]
    fn what_is_torn_or_of_another_boot_is_remains() {
        let (_root, journal, path) = journal();
        assert!(matches!(journal.load().unwrap().as_slice(), [Found::Record(_)]));
        let whole = fs_err::read(&path).unwrap();
        for cut in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs_err::write(&path, &whole[..cut]).unwrap();
            assert!(matches!(journal.load().unwrap().as_slice(), [Found::Remains(_)]), "{cut}");
        }
        fs_err::write(&path, [0; 100]).unwrap();
        assert!(matches!(journal.load().unwrap().as_slice(), [Found::Remains(_)]));
        fs_err::write(&path, &whole).unwrap();
        with(&path, |record| record["boot"] = "another".into());
        with(&path, |record| record["version"] = 7.into());
        assert!(matches!(journal.load().unwrap().as_slice(), [Found::Remains(_)]));
        fs_err::remove_file(&path).unwrap();
        assert!(matches!(journal.load().unwrap().as_slice(), [Found::Remains(_)]));
    }

    #[test]
    fn what_may_be_a_running_sandbox_stops_the_start() {
        let (_root, journal, path) = journal();
        let whole = fs_err::read(&path).unwrap();
        with(&path, |record| record["version"] = 2.into());
        let error = journal.load().unwrap_err();
        assert!(
            matches!(error, Error::Version { found: 2, .. }) && error.to_string().contains("state.json"),
            "{error}"
        );
        fs_err::write(&path, &whole).unwrap();
        with(&path, |record| record["step"] = serde_json::json!({"at": "floating"}));
        assert!(matches!(journal.load(), Err(Error::Foreign { .. })));
        fs_err::write(&path, &whole).unwrap();
        with(&path, |record| record["id"] = "aaaaa-cccc".into());
        assert!(matches!(journal.load(), Err(Error::Misplaced { .. })));
        fs_err::remove_file(&path).unwrap();
        fs_err::create_dir(&path).unwrap();
        assert!(matches!(journal.load(), Err(Error::Read { .. })));
        fs_err::remove_dir(&path).unwrap();
    }
}
