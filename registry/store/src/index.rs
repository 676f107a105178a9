//! Which pack of a local store holds a chunk.
//!
//! Derived from the tables of the packs, kept in memory, 16 bytes a chunk: the first bytes of its digest and the number
//! of its pack. Sorted runs are merged as they grow (a log-structured merge in memory), so adding a pack costs what the
//! pack has, and a look-up is a few binary searches. A hit is checked against the pack's own table before it counts,
//! so neither a collision of prefixes nor a pack that was removed leads astray.
//!
//! A pack whose tables cannot be read is left out, with a warning: its chunks are missing, and a push brings them again.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dsec_format::pack::{Place, Tables};
use dsec_format::{ChunkDigest, PackDigest};
use fs_err as fs;
use lru::LruCache;

use crate::layout::{Kind, Object};
use crate::pack;

const PREFIX_BYTES: usize = 12;
/// Tables that are kept decoded. A pack of the usual size has some 20 KiB of them.
const TABLES_CACHED: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");
/// A directory that changed less than this before it was listed may change again without a new time stamp.
const RACY: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    prefix: [u8; PREFIX_BYTES],
    pack: u32,
}

const _: () = assert!(size_of::<Entry>() == 16);

fn prefix(digest: &ChunkDigest) -> [u8; PREFIX_BYTES] {
    *digest.as_bytes().first_chunk().expect("a digest is longer than a prefix")
}

/// How eagerly new packs are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refresh {
    /// Where time stamps say that something changed.
    Changed,
    /// Everywhere: time stamps of network file systems may be old.
    All,
}

pub(crate) struct Index {
    root: PathBuf,
    packs: Vec<PackDigest>,
    numbers: HashMap<PackDigest, u32>,
    runs: Vec<Vec<Entry>>,
    /// When each of the 256 directories was changed, as far as that can be trusted.
    listed: Vec<Option<SystemTime>>,
    tables: LruCache<u32, Arc<Tables>>,
}

impl Index {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            packs: Vec::new(),
            numbers: HashMap::new(),
            runs: Vec::new(),
            listed: vec![None; 256],
            tables: LruCache::new(TABLES_CACHED),
        }
    }

    /// Takes in packs that appeared since the last time.
    pub(crate) fn refresh(&mut self, how: Refresh) -> io::Result<()> {
        for shard in 0..self.listed.len() {
            let directory = self.root.join(Kind::Pack.directory()).join(format!("{shard:02x}"));
            let now = SystemTime::now();
            let changed = match fs::metadata(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?.modified()?,
            };
            if how == Refresh::Changed && self.listed[shard] == Some(changed) {
                continue;
            }
            self.list(&directory)?;
            let settled = now.duration_since(changed).is_ok_and(|age| age > RACY);
            self.listed[shard] = settled.then_some(changed);
        }
        Ok(())
    }

    fn list(&mut self, directory: &Path) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(digest) = name.to_str().and_then(|name| PackDigest::from_hex(name).ok()) else { continue };
            if self.numbers.contains_key(&digest) {
                continue;
            }
            match pack::read_tables(&entry.path()) {
                Ok(tables) => self.add(digest, Arc::new(tables)),
                Err(error) => tracing::warn!(pack = %digest, %error, "pack is left out of the index"),
            }
        }
        Ok(())
    }

    /// Takes in a pack whose tables are known.
    pub(crate) fn add(&mut self, digest: PackDigest, tables: Arc<Tables>) {
        if self.numbers.contains_key(&digest) {
            return;
        }
        let number =
            u32::try_from(self.packs.len()).expect("no store has 2^32 packs of at least 96 bytes and a file each");
        self.packs.push(digest);
        self.numbers.insert(digest, number);
        let run = tables.chunks().iter().map(|chunk| Entry { prefix: prefix(&chunk.digest), pack: number }).collect();
        self.runs.push(run);
        self.tables.put(number, tables);
        self.merge();
    }

    /// Keeps every run at least twice as long as the next one.
    fn merge(&mut self) {
        while let [.., before, last] = self.runs.as_slice() {
            if before.len() >= 2 * last.len() {
                return;
            }
            let (last, before) = (self.runs.pop().unwrap_or_default(), self.runs.pop().unwrap_or_default());
            self.runs.push(merge(&before, &last));
        }
    }

    /// The numbers of the packs that may hold a chunk.
    fn candidates(&self, chunk: &ChunkDigest) -> Vec<u32> {
        let wanted = prefix(chunk);
        let mut candidates = Vec::new();
        for run in &self.runs {
            let first = run.partition_point(|entry| entry.prefix < wanted);
            candidates.extend(run[first..].iter().take_while(|entry| entry.prefix == wanted).map(|entry| entry.pack));
        }
        candidates
    }

    /// Where a chunk lies, wherever it does.
    pub(crate) fn find_all(&mut self, chunk: &ChunkDigest) -> io::Result<Vec<(PackDigest, Place)>> {
        let mut found = Vec::new();
        for number in self.candidates(chunk) {
            let place = self.tables_of(number)?.and_then(|tables| tables.find(chunk));
            found.extend(place.map(|place| (self.packs[number as usize], place)));
        }
        Ok(found)
    }

    /// The tables of a pack; `None` when it is not there, or its tables are damaged.
    pub(crate) fn tables(&mut self, pack: &PackDigest) -> io::Result<Option<Arc<Tables>>> {
        match self.numbers.get(pack) {
            Some(number) => self.tables_of(*number),
            None => Ok(None),
        }
    }

    /// Where a chunk lies.
    pub(crate) fn find(&mut self, chunk: &ChunkDigest) -> io::Result<Option<(PackDigest, Place)>> {
        for number in self.candidates(chunk) {
            if let Some(place) = self.tables_of(number)?.and_then(|tables| tables.find(chunk)) {
                return Ok(Some((self.packs[number as usize], place)));
            }
        }
        Ok(None)
    }

    fn tables_of(&mut self, number: u32) -> io::Result<Option<Arc<Tables>>> {
        if let Some(tables) = self.tables.get(&number) {
            return Ok(Some(Arc::clone(tables)));
        }
        let digest = self.packs[number as usize];
        match pack::read_tables(&Object::pack(&digest).path(&self.root)) {
            Ok(tables) => {
                let tables = Arc::new(tables);
                self.tables.put(number, Arc::clone(&tables));
                Ok(Some(tables))
            }
            Err(pack::ReadError::Io(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Err(error) => {
                tracing::warn!(pack = %digest, %error, "indexed pack can no longer be read");
                Ok(None)
            }
        }
    }

    /// Forgets decoded tables of a pack, so that the next look-up reads them again.
    pub(crate) fn forget_tables(&mut self, digest: &PackDigest) {
        if let Some(number) = self.numbers.get(digest) {
            self.tables.pop(number);
        }
    }
}

fn merge(left: &[Entry], right: &[Entry]) -> Vec<Entry> {
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
    loop {
        let next = match (left.peek(), right.peek()) {
            (Some(a), Some(b)) if a <= b => left.next(),
            (_, Some(_)) => right.next(),
            (Some(_), None) => left.next(),
            (None, None) => return merged,
        };
        merged.extend(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsec_format::pack::{ChunkEntry, FrameEntry};
    use zerocopy::little_endian::{U32, U64};

    fn tables(numbers: std::ops::Range<u32>) -> Arc<Tables> {
        let frame = FrameEntry {
            offset: U64::new(32),
            stored_bytes: U32::new(4),
            plain_bytes: U32::new(4),
            codec: 0,
            reserved: [0; 7],
        };
        let chunk = |number: u32| ChunkEntry {
            digest: ChunkDigest::of(&number.to_le_bytes()),
            frame: U32::ZERO,
            offset: U32::ZERO,
            bytes: U32::new(4),
            reserved: U32::ZERO,
        };
        Arc::new(Tables::new(vec![frame], numbers.map(chunk).collect()))
    }

    #[test]
    fn everything_added_is_found_and_runs_stay_few() {
        let mut index = Index::new(Path::new("/nowhere"));
        for pack in 0..200 {
            index.add(PackDigest::of(&[pack]), tables(u32::from(pack) * 10..u32::from(pack) * 10 + 12));
        }
        assert!(index.runs.len() < 12, "{}", index.runs.len());
        assert_eq!(index.runs.iter().map(Vec::len).sum::<usize>(), 200 * 12);
        for number in 0..2002u32 {
            let found = index.find(&ChunkDigest::of(&number.to_le_bytes())).unwrap();
            assert!(found.is_some(), "{number}");
        }
        assert!(index.find(&ChunkDigest::of(b"absent")).unwrap().is_none());
    }

    #[test]
    fn an_indexed_pack_that_is_gone_is_no_hit() {
        let mut index = Index::new(Path::new("/nowhere"));
        let pack = PackDigest::of(b"p");
        index.add(pack, tables(0..5));
        let chunk = ChunkDigest::of(&3u32.to_le_bytes());
        assert!(index.find(&chunk).unwrap().is_some());
        index.forget_tables(&pack);
        assert!(index.find(&chunk).unwrap().is_none());
    }
}
