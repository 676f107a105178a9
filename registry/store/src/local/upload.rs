//! Unfinished uploads of a local store: files below `uploads`, each as long as what has arrived of it.
//!
//! They belong to no process, so an upload goes on after a restart, or at another server of the same store. One writer
//! at a time holds the file locked. What has arrived is trusted for nothing before it is checked as a whole.

use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use dsec_format::{LayerDigest, PackDigest};
use fs_err as fs;

use super::LocalStore;
use crate::error::{Error, Result, is_full};
use crate::layout::UPLOADS;

/// Characters of an id.
pub const ID_BYTES: usize = 24;

/// A checked upload id: letters and digits only, so it cannot lead out of the directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UploadId(String);

impl UploadId {
    /// Checks a text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let sound = text.len() == ID_BYTES && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        sound.then(|| Self(text.to_owned()))
    }
}

impl std::fmt::Display for UploadId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What becomes of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A pack.
    Pack(PackDigest),
    /// A layer in stored form.
    Layer(LayerDigest),
}

/// An upload that is open for appending, and locked until this is dropped.
#[derive(Debug)]
pub struct UploadWriter {
    file: fs::File,
    path: PathBuf,
    store: String,
    offset: u64,
}

impl UploadWriter {
    /// Bytes that have arrived.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Appends bytes. When that fails, what arrived before stays; but when the disk is full, the upload is removed, so
    /// that it does not keep the disk full.
    ///
    /// # Errors
    /// The store's failure.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let Err(error) = self.file.write_all(bytes) else {
            self.offset += bytes.len() as u64;
            return Ok(());
        };
        if is_full(&error) {
            // Failing that, it expires like any other.
            let _ = fs::remove_file(&self.path);
            return Err(Error::Full { store: self.store.clone() });
        }
        // A part may have been written: cut it, so that the length says what is there. When even that fails the length
        // is longer than what the sender believes, and its next request is refused.
        let _ = self.file.set_len(self.offset);
        Err(Error::Io(error))
    }
}

impl LocalStore {
    /// Begins an upload.
    ///
    /// # Errors
    /// The store's failure.
    pub fn begin_upload(&self) -> Result<UploadId> {
        let directory = self.root.join(UPLOADS);
        self.disk.make_directories(&directory).map_err(|error| self.io(error))?;
        let file = tempfile::Builder::new()
            .prefix("")
            .rand_bytes(ID_BYTES)
            .permissions(PermissionsExt::from_mode(0o666))
            .tempfile_in(&directory)
            .and_then(|file| file.keep().map_err(|error| error.error))
            .map_err(|error| self.io(error))?;
        let name = file.1.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        Ok(UploadId::parse(name).expect("the name was made of letters and digits above"))
    }

    /// How many unfinished uploads there are, and how many bytes have arrived of them.
    ///
    /// # Errors
    /// The store's failure.
    pub fn unfinished_uploads(&self) -> Result<(usize, u64)> {
        let entries = match fs::read_dir(self.root.join(UPLOADS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, 0)),
            entries => entries.map_err(|error| self.io(error))?,
        };
        let (mut count, mut bytes) = (0, 0u64);
        for entry in entries {
            match entry.and_then(|entry| entry.metadata()) {
                Ok(metadata) => (count, bytes) = (count + 1, bytes.saturating_add(metadata.len())),
                // It was finished meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(self.io(error)),
            }
        }
        Ok((count, bytes))
    }

    fn upload_path(&self, id: &UploadId) -> PathBuf {
        self.root.join(UPLOADS).join(&id.0)
    }

    fn upload_error(&self, id: &UploadId, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::NotFound {
            return Error::NotFound { object: format!("upload {id}"), store: self.root.display().to_string() };
        }
        self.io(error)
    }

    /// Bytes that have arrived of an upload.
    ///
    /// # Errors
    /// [`Error::NotFound`], or the store's failure.
    pub fn upload_offset(&self, id: &UploadId) -> Result<u64> {
        fs::metadata(self.upload_path(id)).map(|metadata| metadata.len()).map_err(|error| self.upload_error(id, error))
    }

    /// Opens an upload for appending. `None` while somebody else has it open.
    ///
    /// # Errors
    /// [`Error::NotFound`], or the store's failure.
    pub fn open_upload(&self, id: &UploadId) -> Result<Option<UploadWriter>> {
        let path = self.upload_path(id);
        let open = || -> io::Result<Option<UploadWriter>> {
            let mut file = fs::OpenOptions::new().write(true).open(&path)?;
            match file.file().try_lock() {
                Ok(()) => {}
                Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
                Err(std::fs::TryLockError::Error(error)) => return Err(error),
            }
            // Who had it locked before may have ended it: then this file is a pack by now, and must not be touched.
            if fs::metadata(&path)?.ino() != file.metadata()?.ino() {
                return Err(io::ErrorKind::NotFound.into());
            }
            let offset = file.seek(SeekFrom::End(0))?;
            Ok(Some(UploadWriter { file, path: path.clone(), store: self.root.display().to_string(), offset }))
        };
        open().map_err(|error| self.upload_error(id, error))
    }

    /// Ends an upload: what has arrived is checked and becomes a pack or a layer. When it is not that, it is removed.
    ///
    /// # Errors
    /// As [`crate::Store::put_pack`] and [`crate::Store::put_layer`].
    pub fn finish_upload(&self, upload: UploadWriter, what: Finish) -> Result<()> {
        let result = match what {
            Finish::Pack(digest) => self.take_pack(&digest, &upload.path),
            Finish::Layer(digest) => self.take_layer(&digest, &upload.path),
        };
        if matches!(result, Err(Error::Damaged { .. })) {
            self.disk.remove(&upload.path).map_err(|error| self.io(error))?;
        }
        result
    }

    /// Uploads that nothing was added to for `idle` and that nobody has open, with the bytes of each; with `remove` they
    /// are removed.
    ///
    /// # Errors
    /// The store's failure.
    pub fn idle_uploads(&self, idle: Duration, remove: bool) -> Result<Vec<(UploadId, u64)>> {
        let entries = match fs::read_dir(self.root.join(UPLOADS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| self.io(error))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| self.io(error))?;
            let Some(id) = entry.file_name().to_str().and_then(UploadId::parse) else { continue };
            match self.idle_upload(&id, idle, remove) {
                Ok(bytes) => found.extend(bytes.map(|bytes| (id, bytes))),
                // It was finished meanwhile.
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn idle_upload(&self, id: &UploadId, idle: Duration, remove: bool) -> Result<Option<u64>> {
        let Some(upload) = self.open_upload(id)? else { return Ok(None) };
        let modified = upload.file.metadata()?.modified()?;
        let age = SystemTime::now().duration_since(modified).unwrap_or_default();
        if age < idle {
            return Ok(None);
        }
        if remove {
            self.disk.remove(&upload.path).map_err(|error| self.upload_error(id, error))?;
        }
        Ok(Some(upload.offset))
    }
}
