//! Addresses on the data device of a layer: there are 16 TiB of them, and files with many holes may take more than they
//! have data (`dsec_erofs::device_bytes`).

use std::ops::Range;

use dsec_format::extents::MAX_DEVICE_BYTES;

use super::Error;
use crate::paths::Shown;

/// Files of more bytes are looked at when they are met, so that what has no room is refused before anything is read.
/// Smaller ones reach the limit only with more data than a disk has; the pipeline sees that.
const VAST_BYTES: u64 = 64 << 30;

/// What the vast files of a layer take.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    taken_bytes: u64,
}

impl Addresses {
    /// Whether [`Addresses::take`] has to be told of a file of `bytes` bytes.
    pub(crate) fn is_vast(bytes: u64) -> bool {
        bytes > VAST_BYTES
    }

    /// Takes what the file at `path` needs: `bytes` bytes with data in these ranges, whole blocks of it.
    pub(crate) fn take(&mut self, path: &[u8], bytes: u64, data: &[Range<u64>]) -> Result<(), Error> {
        self.taken_bytes = self.taken_bytes.saturating_add(dsec_erofs::device_bytes(bytes, data));
        if self.taken_bytes > MAX_DEVICE_BYTES { Err(Error::NoRoom { path: Shown::new(path) }) } else { Ok(()) }
    }
}
