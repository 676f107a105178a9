//! Segment files: chunks one after the other, and beside them a table of what lies where.
//!
//! A batch of chunks is written byte to byte from a page boundary, padded to the next. The table is appended to after
//! the data is written; each record carries a check of its own, so a torn tail is seen. Neither is synced: what a power
//! cut leaves is judged by the digest of each chunk when it is read.
//!
//! ```text
//! record: digest (32) | offset u32 | bytes u32 | first 8 bytes of BLAKE3 of the 40 before
//! ```

use std::cell::RefCell;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dsec_format::ChunkDigest;
use dsec_format::chunk::MAX_CHUNK_BYTES;
use fs_err::os::unix::fs::OpenOptionsExt;
use rustix::fs::OFlags;

use super::aligned::{ALIGN_BYTES, Aligned};
use super::directory::Directory;
use super::index::{Index, Place};
use super::lock;

const RECORD_BYTES: usize = 48;

/// A chunk of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) digest: ChunkDigest,
    pub(super) offset: u32,
    pub(super) bytes: u32,
}

/// Bytes that a batch takes in the data file.
fn batch_bytes(batch: &[&(ChunkDigest, Arc<[u8]>)]) -> u64 {
    batch.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>().next_multiple_of(u64::from(ALIGN_BYTES))
}

/// Bytes that a batch takes on the disk.
pub(super) fn disk_bytes(batch: &[&(ChunkDigest, Arc<[u8]>)]) -> u64 {
    batch_bytes(batch) + (batch.len() * RECORD_BYTES) as u64
}

/// Removes both files of a segment. One that is not there is no error.
pub(super) fn remove_files(directory: &Directory, number: u32) -> std::io::Result<()> {
    for extension in ["index", "data"] {
        match fs_err::remove_file(directory.segment(number, extension)) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct Segment {
    number: u32,
    data: fs_err::File,
    /// End of what is reserved in the data file; a multiple of the alignment.
    tail: AtomicU32,
    disk_bytes: AtomicU64,
    table: Mutex<Table>,
    /// Where the last read ended.
    read_end: AtomicU32,
}

#[derive(Debug)]
struct Table {
    /// None for a segment of an earlier process: it is not written any more.
    file: Option<fs_err::File>,
    /// Sorted by offset.
    entries: Vec<Entry>,
}

fn open_data(directory: &Directory, number: u32, create: bool) -> std::io::Result<fs_err::File> {
    let path = directory.segment(number, "data");
    let open = |flags: OFlags| {
        let mut options = fs_err::OpenOptions::new();
        options.read(true).write(create).create_new(create).custom_flags(flags.bits().cast_signed());
        options.open(&path)
    };
    match open(OFlags::DIRECT) {
        // The file was made before the flag was refused.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            if create {
                fs_err::remove_file(&path).or_else(ignore_absent)?;
            }
            open(OFlags::empty())
        }
        other => other,
    }
}

fn ignore_absent(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

thread_local! {
    static BUFFER: RefCell<Aligned> = const { RefCell::new(Aligned::new()) };
}

impl Segment {
    pub(super) fn create(directory: &Directory, number: u32) -> std::io::Result<Self> {
        let data = open_data(directory, number, true)?;
        let mut options = fs_err::OpenOptions::new();
        let table = options.append(true).create_new(true).open(directory.segment(number, "index"));
        let table = table.inspect_err(|_| {
            // The first error is the one to tell.
            let _ = remove_files(directory, number);
        })?;
        Ok(Self::new(number, data, Table { file: Some(table), entries: Vec::new() }, 0))
    }

    /// Opens a segment of an earlier process and tells the index of its chunks. What the table says beyond the data, or
    /// in a record that fails its check, is ignored.
    pub(super) fn load(directory: &Directory, number: u32, index: &Index) -> std::io::Result<Self> {
        let data = open_data(directory, number, false)?;
        let data_bytes = data.metadata()?.len();
        let table = match fs_err::read(directory.segment(number, "index")) {
            Ok(table) => table,
            Err(error) => ignore_absent(error).map(|()| Vec::new())?,
        };
        let mut entries: Vec<Entry> = table.chunks_exact(RECORD_BYTES).filter_map(decode).collect();
        entries.retain(|entry| u64::from(entry.offset) + u64::from(entry.bytes) <= data_bytes);
        entries.sort_unstable_by_key(|entry| entry.offset);
        for entry in &entries {
            index.insert(entry.digest, Place { segment: number, offset: entry.offset, bytes: entry.bytes });
        }
        let segment = Self::new(number, data, Table { file: None, entries }, data_bytes + table.len() as u64);
        segment.tail.store(u32::MAX, Ordering::Relaxed);
        Ok(segment)
    }

    fn new(number: u32, data: fs_err::File, table: Table, disk_bytes: u64) -> Self {
        Self {
            number,
            data,
            tail: AtomicU32::new(0),
            disk_bytes: AtomicU64::new(disk_bytes),
            table: Mutex::new(table),
            read_end: AtomicU32::new(0),
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Whether its data has a name in the directory, so that the next process finds it.
    pub(super) fn is_linked(&self) -> bool {
        self.data.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        lock(&self.table).entries.clone()
    }

    /// Takes room for a batch at the end, if that stays below the limit. Called with the writer's lock held.
    pub(super) fn reserve(&self, batch: &[&(ChunkDigest, Arc<[u8]>)], limit_bytes: u64) -> Option<u32> {
        let tail = self.tail.load(Ordering::Relaxed);
        let end = u64::from(tail) + batch_bytes(batch);
        let new_tail = u32::try_from(end).ok().filter(|_| end <= limit_bytes)?;
        self.tail.store(new_tail, Ordering::Relaxed);
        self.disk_bytes.fetch_add(disk_bytes(batch), Ordering::Relaxed);
        Some(tail)
    }

    /// Writes a batch where room was reserved for it, then its records, then tells the index.
    pub(super) fn write(&self, offset: u32, batch: &[&(ChunkDigest, Arc<[u8]>)], index: &Index) -> std::io::Result<()> {
        let data_bytes = batch_bytes(batch);
        let mut entries = Vec::with_capacity(batch.len());
        BUFFER.with_borrow_mut(|buffer| {
            let length = usize::try_from(data_bytes).map_err(std::io::Error::other)?;
            let target = buffer.bytes_mut(length);
            let mut at = 0;
            for (digest, bytes) in batch {
                if let Some(part) = target.get_mut(at..at + bytes.len()) {
                    part.copy_from_slice(bytes);
                }
                let (place, length) = (u32::try_from(at), u32::try_from(bytes.len()));
                let (place, length) = (place.map_err(std::io::Error::other)?, length.map_err(std::io::Error::other)?);
                entries.push(Entry { digest: *digest, offset: offset + place, bytes: length });
                at += bytes.len();
            }
            if let Some(padding) = target.get_mut(at..) {
                padding.fill(0);
            }
            self.data.file().write_all_at(target, u64::from(offset))
        })?;
        self.publish(&entries, index)
    }

    fn publish(&self, entries: &[Entry], index: &Index) -> std::io::Result<()> {
        let records: Vec<u8> = entries.iter().flat_map(encode).collect();
        let mut table = lock(&self.table);
        if let Some(file) = &mut table.file {
            file.write_all(&records)?;
        }
        // Batches end in another order than they began.
        let first = entries.first().map_or(0, |entry| entry.offset);
        let at = table.entries.partition_point(|entry| entry.offset < first);
        table.entries.splice(at..at, entries.iter().copied());
        drop(table);
        for entry in entries {
            index.insert(entry.digest, Place { segment: self.number, offset: entry.offset, bytes: entry.bytes });
        }
        Ok(())
    }

    /// Whether a read at an offset goes on where the last one ended.
    pub(super) fn goes_on(&self, offset: u32, gap_bytes: u32) -> bool {
        let last_end = self.read_end.load(Ordering::Relaxed);
        offset.checked_sub(last_end).is_some_and(|gap| gap <= gap_bytes)
    }

    /// The first chunk at or behind an offset.
    pub(super) fn next_entry(&self, offset: u32) -> Option<Entry> {
        let table = lock(&self.table);
        table.entries.get(table.entries.partition_point(|entry| entry.offset < offset)).copied()
    }

    /// Reads the chunks at and behind an offset that end within `want_bytes` of it; always one, if there is one at that
    /// place. Nothing is verified here.
    pub(super) fn read(&self, offset: u32, want_bytes: u32) -> std::io::Result<Vec<(Entry, Arc<[u8]>)>> {
        let entries: Vec<Entry> = {
            let table = lock(&self.table);
            let first = table.entries.partition_point(|entry| entry.offset < offset);
            let rest = table.entries.get(first..).unwrap_or_default().iter().enumerate();
            let fits = |(number, entry): &(usize, &Entry)| {
                *number == 0 || (entry.offset - offset).saturating_add(entry.bytes) <= want_bytes
            };
            rest.take_while(fits).map(|(_, entry)| *entry).collect()
        };
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(Vec::new()) };
        let end = last.offset + last.bytes;
        self.read_end.store(end, Ordering::Relaxed);
        self.read_range(first.offset, end, |start, bytes| {
            let cut = |entry: &Entry| {
                let from = (entry.offset - start) as usize;
                let chunk = bytes.get(from..from + entry.bytes as usize)?;
                Some((*entry, Arc::from(chunk)))
            };
            entries.iter().filter_map(cut).collect()
        })
    }

    /// Reads one chunk and verifies it.
    pub(super) fn read_chunk(&self, entry: &Entry) -> Option<Arc<[u8]>> {
        let loaded = self.read(entry.offset, entry.bytes).ok()?;
        let (_, bytes) = loaded.into_iter().find(|(found, _)| found == entry)?;
        (ChunkDigest::of(&bytes) == entry.digest).then_some(bytes)
    }

    /// Hands `[start, end)`, read in aligned form, to `then`, together with the offset of its first byte. A file that is
    /// shorter gives fewer bytes.
    fn read_range<T>(&self, start: u32, end: u32, then: impl FnOnce(u32, &[u8]) -> T) -> std::io::Result<T> {
        let align = ALIGN_BYTES;
        let first = start / align * align;
        BUFFER.with_borrow_mut(|buffer| {
            let target = buffer.bytes_mut((end - first) as usize);
            let mut have = 0;
            while let Some(rest) = target.get_mut(have..).filter(|rest| !rest.is_empty()) {
                match self.data.file().read_at(rest, u64::from(first) + have as u64) {
                    Ok(0) => break,
                    Ok(bytes) => have += bytes,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
                if !have.is_multiple_of(align as usize) {
                    break;
                }
            }
            Ok(then(first, target.get(..have).unwrap_or_default()))
        })
    }
}

fn check(record: &[u8]) -> [u8; 8] {
    let digest = blake3::hash(record);
    let mut first = [0; 8];
    first.copy_from_slice(digest.as_bytes().split_at(8).0);
    first
}

fn encode(entry: &Entry) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    let (body, sum) = record.split_at_mut(RECORD_BYTES - 8);
    let (digest, numbers) = body.split_at_mut(32);
    digest.copy_from_slice(entry.digest.as_bytes());
    let (offset, bytes) = numbers.split_at_mut(4);
    offset.copy_from_slice(&entry.offset.to_le_bytes());
    bytes.copy_from_slice(&entry.bytes.to_le_bytes());
    sum.copy_from_slice(&check(body));
    record
}

fn decode(record: &[u8]) -> Option<Entry> {
    let (body, sum) = record.split_at_checked(RECORD_BYTES - 8)?;
    if check(body) != sum {
        return None;
    }
    let (digest, numbers) = body.split_at_checked(32)?;
    let (offset, bytes) = numbers.split_at_checked(4)?;
    let entry = Entry {
        digest: ChunkDigest::from_bytes(digest.try_into().ok()?),
        offset: u32::from_le_bytes(offset.try_into().ok()?),
        bytes: u32::from_le_bytes(bytes.try_into().ok()?),
    };
    let sound = (1..=MAX_CHUNK_BYTES).contains(&entry.bytes) && entry.offset.checked_add(entry.bytes).is_some();
    sound.then_some(entry)
}
