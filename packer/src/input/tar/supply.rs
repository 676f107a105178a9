//! The bytes of an archive, in order; and a place where the data of its files can be read again.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use super::Error;
use super::header::BLOCK_BYTES;
use crate::cancel::Cancel;
use crate::input::{Surroundings, stream};

pub(super) const BUFFER_BYTES: usize = 256 * 1024;

/// See the [module](self).
pub(crate) struct Supply<'a> {
    reader: Reader,
    /// Bytes of the archive that were taken.
    position: u64,
    cancel: &'a Cancel,
}

enum Reader {
    InPlace { reader: BufReader<File>, before: Status },
    Spooled { reader: Box<dyn Read + Send>, spool: File, end: u64 },
}

/// Where data can be read once the archive has been gone through.
#[derive(Debug)]
pub(crate) struct DataStore {
    file: File,
    /// Status of a file that is not ours, and may change.
    foreign: Option<Status>,
}

/// Size, mtime, ctime.
type Status = (u64, i64, i64, i64, i64);

fn status(file: &File) -> io::Result<Status> {
    let metadata = file.metadata()?;
    Ok((metadata.len(), metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()))
}

impl DataStore {
    /// Fills `buffer` from `offset` on.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        self.file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Error::Changed,
            _ => Error::Read(error),
        })
    }

    /// An error when the archive is no longer what it was.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.foreign {
            Some(before) if status(&self.file).map_err(Error::Read)? != before => Err(Error::Changed),
            _ => Ok(()),
        }
    }
}

impl<'a> Supply<'a> {
    /// A plain archive in a file, from its beginning.
    pub(crate) fn in_place(file: fs_err::File, cancel: &'a Cancel) -> Result<Self, Error> {
        let file = file.into_file();
        let before = status(&file).map_err(Error::Read)?;
        let reader = Reader::InPlace { reader: BufReader::with_capacity(BUFFER_BYTES, file), before };
        Ok(Self { reader, position: 0, cancel })
    }

    /// An archive that can be read once; data goes to a temporary file in `scratch`.
    pub(crate) fn spooled(reader: Box<dyn Read + Send>, surroundings: Surroundings<'a>) -> Result<Self, Error> {
        let spool = tempfile::tempfile_in(surroundings.scratch).map_err(Error::Spool)?;
        let reader = Reader::Spooled { reader, spool, end: 0 };
        Ok(Self { reader, position: 0, cancel: surroundings.cancel })
    }

    /// How far the archive was read.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The next block; `None` when the archive ends before it.
    pub(super) fn block(&mut self) -> Result<Option<[u8; BLOCK_BYTES]>, Error> {
        let mut block = [0; BLOCK_BYTES];
        let length = stream::read_first(self.as_read(), &mut block).map_err(Error::read)?;
        self.position += length as u64;
        match length {
            0 => Ok(None),
            BLOCK_BYTES => Ok(Some(block)),
            _ => Err(Error::Truncated { offset: self.position }),
        }
    }

    /// The next `bytes` bytes, which the caller has bounded.
    pub(super) fn take(&mut self, bytes: u64) -> Result<Vec<u8>, Error> {
        let mut taken = Vec::new();
        let read = self.as_read().take(bytes).read_to_end(&mut taken).map_err(Error::read)? as u64;
        self.position += read;
        if read == bytes { Ok(taken) } else { Err(Error::Truncated { offset: self.position }) }
    }

    /// Puts the next `bytes` bytes where they can be read again, and says where in the [`DataStore`] they begin.
    pub(super) fn keep(&mut self, bytes: u64) -> Result<u64, Error> {
        match &mut self.reader {
            Reader::InPlace { reader, before } => {
                let start = self.position;
                let end = start.checked_add(bytes).filter(|end| *end <= before.0);
                let end = end.ok_or(Error::Truncated { offset: before.0 })?;
                // The distance fits: it lies inside a file.
                reader.seek_relative(bytes.cast_signed()).map_err(Error::Read)?;
                self.position = end;
                Ok(start)
            }
            Reader::Spooled { reader, spool, end } => {
                let start = *end;
                let copied = copy(reader, spool, bytes, self.cancel)?;
                *end += copied;
                self.position += copied;
                if copied == bytes { Ok(start) } else { Err(Error::Truncated { offset: self.position }) }
            }
        }
    }

    /// Goes to the next block boundary.
    pub(super) fn align(&mut self) -> Result<(), Error> {
        let over = self.position % BLOCK_BYTES as u64;
        if over > 0 { self.take(BLOCK_BYTES as u64 - over).map(|_| ()) } else { Ok(()) }
    }

    /// Reads what is left, which has to be zeros.
    pub(super) fn expect_zeros(&mut self) -> Result<(), Error> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let length = stream::read_first(self.as_read(), &mut buffer).map_err(Error::read)?;
            if buffer[..length].iter().any(|byte| *byte != 0) {
                return Err(Error::Trailing { offset: self.position });
            }
            self.position += length as u64;
            if length < buffer.len() {
                return Ok(());
            }
        }
    }

    /// Ends the reading.
    pub(super) fn finish(self) -> Result<DataStore, Error> {
        match self.reader {
            Reader::InPlace { reader, before } => Ok(DataStore { file: reader.into_inner(), foreign: Some(before) }),
            Reader::Spooled { spool, .. } => Ok(DataStore { file: spool, foreign: None }),
        }
    }

    fn as_read(&mut self) -> &mut dyn Read {
        match &mut self.reader {
            Reader::InPlace { reader, .. } => reader,
            Reader::Spooled { reader, .. } => reader,
        }
    }
}

/// Copies up to `bytes`; tells errors of the one side from those of the other.
fn copy(reader: &mut dyn Read, spool: &mut File, bytes: u64, cancel: &Cancel) -> Result<u64, Error> {
    let mut buffer = vec![0; usize::try_from(bytes).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES)];
    let mut copied = 0;
    while copied < bytes {
        cancel.check()?;
        let want = usize::try_from(bytes - copied).unwrap_or(BUFFER_BYTES).min(buffer.len());
        let length = stream::read_first(reader, &mut buffer[..want]).map_err(Error::read)?;
        spool.write_all(&buffer[..length]).map_err(Error::Spool)?;
        copied += length as u64;
        if length < want {
            break;
        }
    }
    Ok(copied)
}
