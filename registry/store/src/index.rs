//! Which pack of a local store holds a chunk.
//!
//! Derived from the tables of the packs, kept in memory, 16 bytes a chunk: the first bytes of its digest and the number
//! of its pack. Sorted runs are merged as they grow (a log-structured merge in memory), so adding a pack costs what the
//! pack has, and a look-up is a few binary searches. A hit is checked against the pack's own table before it counts,
//! so neither a collision of prefixes nor a pack that was removed leads astray.
//!
//! No lock is held while the disk is read: look-ups of many chunks go pack by pack, each table being read once, and wait
//! neither for one another's reads nor for a search for new packs.
//!
//! A pack whose tables cannot be read is left out, with a warning: its chunks are missing, and a push brings them again.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

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

/// Size and time of a file, to tell whether it was replaced.
type Stamp = (u64, SystemTime);

pub(crate) struct Index {
    root: PathBuf,
    known: RwLock<Known>,
    tables: Mutex<LruCache<u32, Arc<Tables>>>,
    /// Held by whoever looks for new packs.
    search: Mutex<Search>,
    #[cfg(test)]
    reads: std::sync::atomic::AtomicUsize,
}

/// The packs, and which chunks they may hold.
#[derive(Default)]
struct Known {
    packs: Vec<PackDigest>,
    numbers: HashMap<PackDigest, u32>,
    runs: Vec<Vec<Entry>>,
}

/// What was seen when new packs were looked for.
struct Search {
    /// When each of the 256 directories was changed, as far as that can be trusted.
    listed: Vec<Option<SystemTime>>,
    /// Packs whose tables cannot be read.
    bad: HashMap<PackDigest, Stamp>,
    /// When the last search began.
    last: Option<(Instant, Refresh)>,
}

impl Index {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            known: RwLock::default(),
            tables: Mutex::new(LruCache::new(TABLES_CACHED)),
            search: Mutex::new(Search { listed: vec![None; 256], bad: HashMap::new(), last: None }),
            #[cfg(test)]
            reads: Default::default(),
        }
    }

    /// Takes in packs that appeared since the last time.
    pub(crate) fn refresh(&self, how: Refresh) -> io::Result<()> {
        let asked = Instant::now();
        let mut search = lock(&self.search);
        // Somebody else may have looked while this one waited.
        if search.last.is_some_and(|(began, last)| began >= asked && (how == Refresh::Changed || last == how)) {
            return Ok(());
        }
        let began = Instant::now();
        for shard in 0..search.listed.len() {
            let directory = self.root.join(Kind::Pack.directory()).join(format!("{shard:02x}"));
            let now = SystemTime::now();
            let changed = match fs::metadata(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?.modified()?,
            };
            if how == Refresh::Changed && search.listed[shard] == Some(changed) {
                continue;
            }
            self.list(&directory, &mut search.bad)?;
            let settled = now.duration_since(changed).is_ok_and(|age| age > RACY);
            search.listed[shard] = settled.then_some(changed);
        }
        search.last = Some((began, how));
        Ok(())
    }

    fn list(&self, directory: &Path, bad: &mut HashMap<PackDigest, Stamp>) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(digest) = name.to_str().and_then(|name| PackDigest::from_hex(name).ok()) else { continue };
            if self.number(&digest).is_some() {
                continue;
            }
            let metadata = entry.metadata()?;
            let stamp = (metadata.len(), metadata.modified()?);
            if bad.get(&digest) == Some(&stamp) {
                continue;
            }
            match pack::read_tables(&entry.path()) {
                Ok(tables) => self.add(digest, Arc::new(tables)),
                Err(error) => {
                    tracing::warn!(pack = %digest, %error, "pack is left out of the index");
                    bad.insert(digest, stamp);
                }
            }
        }
        Ok(())
    }

    /// Takes in a pack whose tables are known.
    pub(crate) fn add(&self, digest: PackDigest, tables: Arc<Tables>) {
        let number = self.known.write().unwrap_or_else(PoisonError::into_inner).add(digest, &tables);
        if let Some(number) = number {
            lock(&self.tables).put(number, tables);
        }
    }

    fn number(&self, digest: &PackDigest) -> Option<u32> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).numbers.get(digest).copied()
    }

    /// Where a chunk lies.
    pub(crate) fn find(&self, chunk: &ChunkDigest) -> io::Result<Option<(PackDigest, Place)>> {
        Ok(self.find_many(std::slice::from_ref(chunk))?.pop().flatten())
    }

    /// Where each of many chunks lies. The table of a pack is read once at most.
    pub(crate) fn find_many(&self, chunks: &[ChunkDigest]) -> io::Result<Vec<Option<(PackDigest, Place)>>> {
        // Pairs of a pack and the number of a chunk that it may hold.
        let mut wanted: Vec<(u32, usize)> = Vec::new();
        {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            for (index, chunk) in chunks.iter().enumerate() {
                known.candidates(chunk, |pack| wanted.push((pack, index)));
            }
        }
        wanted.sort_unstable();
        let mut found = vec![None; chunks.len()];
        for of_pack in wanted.chunk_by(|left, right| left.0 == right.0) {
            if of_pack.iter().all(|(_, index)| found[*index].is_some()) {
                continue;
            }
            let Some((pack, tables)) = self.tables_of(of_pack[0].0)? else { continue };
            for (_, index) in of_pack {
                if found[*index].is_none() {
                    found[*index] = tables.find(&chunks[*index]).map(|place| (pack, place));
                }
            }
        }
        Ok(found)
    }

    /// Where a chunk lies, wherever it does.
    pub(crate) fn find_all(&self, chunk: &ChunkDigest) -> io::Result<Vec<(PackDigest, Place)>> {
        let mut numbers = Vec::new();
        self.known.read().unwrap_or_else(PoisonError::into_inner).candidates(chunk, |number| numbers.push(number));
        let mut found = Vec::new();
        for number in numbers {
            let place = self.tables_of(number)?.and_then(|(pack, tables)| Some((pack, tables.find(chunk)?)));
            found.extend(place);
        }
        Ok(found)
    }

    /// The tables of a pack; `None` when it is not there, or its tables are damaged.
    pub(crate) fn tables(&self, pack: &PackDigest) -> io::Result<Option<Arc<Tables>>> {
        match self.number(pack) {
            Some(number) => Ok(self.tables_of(number)?.map(|(_, tables)| tables)),
            None => Ok(None),
        }
    }

    fn tables_of(&self, number: u32) -> io::Result<Option<(PackDigest, Arc<Tables>)>> {
        let digest = self.known.read().unwrap_or_else(PoisonError::into_inner).packs[number as usize];
        if let Some(tables) = lock(&self.tables).get(&number) {
            return Ok(Some((digest, Arc::clone(tables))));
        }
        #[cfg(test)]
        self.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        match pack::read_tables(&Object::pack(&digest).path(&self.root)) {
            Ok(tables) => {
                let tables = Arc::new(tables);
                lock(&self.tables).put(number, Arc::clone(&tables));
                Ok(Some((digest, tables)))
            }
            Err(pack::ReadError::Io(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Err(error) => {
                tracing::warn!(pack = %digest, %error, "indexed pack can no longer be read");
                Ok(None)
            }
        }
    }

    /// Forgets decoded tables of a pack, so that the next look-up reads them again.
    pub(crate) fn forget_tables(&self, digest: &PackDigest) {
        if let Some(number) = self.number(digest) {
            lock(&self.tables).pop(&number);
        }
    }
}

impl Known {
    /// Takes in a pack; gives its number when it is new.
    fn add(&mut self, digest: PackDigest, tables: &Tables) -> Option<u32> {
        if self.numbers.contains_key(&digest) {
            return None;
        }
        let number =
            u32::try_from(self.packs.len()).expect("no store has 2^32 packs of at least 96 bytes and a file each");
        self.packs.push(digest);
        self.numbers.insert(digest, number);
        let run = tables.chunks().iter().map(|chunk| Entry { prefix: prefix(&chunk.digest), pack: number }).collect();
        self.runs.push(run);
        self.merge();
        Some(number)
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

    /// Calls `found` with the number of each pack that may hold a chunk.
    fn candidates(&self, chunk: &ChunkDigest, mut found: impl FnMut(u32)) {
        let wanted = prefix(chunk);
        for run in &self.runs {
            let first = run.partition_point(|entry| entry.prefix < wanted);
            run[first..].iter().take_while(|entry| entry.prefix == wanted).for_each(|entry| found(entry.pack));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // All of it is derived, and every hit is checked: a panic elsewhere leaves nothing that could mislead.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        let index = Index::new(Path::new("/nowhere"));
        for pack in 0..200 {
            index.add(PackDigest::of(&[pack]), tables(u32::from(pack) * 10..u32::from(pack) * 10 + 12));
        }
        let known = index.known.read().unwrap();
        assert!(known.runs.len() < 12, "{}", known.runs.len());
        assert_eq!(known.runs.iter().map(Vec::len).sum::<usize>(), 200 * 12);
        for number in 0..2002u32 {
            let found = index.find(&ChunkDigest::of(&number.to_le_bytes())).unwrap();
            assert!(found.is_some(), "{number}");
        }
        assert!(index.find(&ChunkDigest::of(b"absent")).unwrap().is_none());
    }

    #[test]
    fn an_indexed_pack_that_is_gone_is_no_hit() {
        let index = Index::new(Path::new("/nowhere"));
        let pack = PackDigest::of(b"p");
        index.add(pack, tables(0..5));
        let chunk = ChunkDigest::of(&3u32.to_le_bytes());
        assert!(index.find(&chunk).unwrap().is_some());
        index.forget_tables(&pack);
        assert!(index.find(&chunk).unwrap().is_none());
    }

    /// Writes a pack of one chunk for each text into the store at `root`; gives its file.
    fn write_pack(root: &Path, texts: &[String]) -> PathBuf {
        let mut writer = pack::PackWriter::new(root);
        let mut frame = pack::FrameBuilder::new();
        texts.iter().for_each(|text| frame.push(ChunkDigest::of(text.as_bytes()), text.as_bytes()));
        writer.append(frame.encode(1).unwrap()).unwrap();
        let finished = writer.close().unwrap().unwrap();
        let path = Object::pack(&finished.digest()).path(root);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::rename(finished.path(), &path).unwrap();
        path
    }

    #[test]
    fn many_look_ups_read_each_table_once() {
        const PACKS: usize = TABLES_CACHED.get() + 50;
        let root = tempfile::tempdir().unwrap();
        let texts: Vec<Vec<String>> =
            (0..PACKS).map(|pack| (0..4).map(|chunk| format!("{pack} {chunk}")).collect()).collect();
        texts.iter().for_each(|texts| drop(write_pack(root.path(), texts)));
        let index = Index::new(root.path());
        index.refresh(Refresh::All).unwrap();
        // Neighbours lie in different packs.
        let chunks: Vec<_> =
            (0..4).flat_map(|chunk| texts.iter().map(move |texts| ChunkDigest::of(texts[chunk].as_bytes()))).collect();
        let found = index.find_many(&chunks).unwrap();
        assert!(found.iter().all(Option::is_some));
        let reads = index.reads.load(std::sync::atomic::Ordering::Relaxed);
        assert!(reads <= PACKS, "{reads} reads of {PACKS} tables");
    }

    #[test]
    fn a_look_up_does_not_wait_for_the_disk_of_another() {
        let root = tempfile::tempdir().unwrap();
        let stuck = write_pack(root.path(), &["stuck".to_owned()]);
        write_pack(root.path(), &["free".to_owned()]);
        let index = Arc::new(Index::new(root.path()));
        index.refresh(Refresh::All).unwrap();
        // Opening a pipe waits for a writer, as a dead disk would.
        index.forget_tables(&PackDigest::from_hex(stuck.file_name().unwrap().to_str().unwrap()).unwrap());
        fs::remove_file(&stuck).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &stuck, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let waiting = {
            let index = Arc::clone(&index);
            std::thread::spawn(move || index.find(&ChunkDigest::of(b"stuck")))
        };
        let (done, outcome) = std::sync::mpsc::channel();
        {
            let index = Arc::clone(&index);
            std::thread::spawn(move || {
                // The other one is at its pipe by then.
                std::thread::sleep(Duration::from_millis(200));
                index.refresh(Refresh::All).unwrap();
                done.send(index.find(&ChunkDigest::of(b"free")).unwrap().is_some()).unwrap();
            });
        }
        assert_eq!(outcome.recv_timeout(Duration::from_secs(10)), Ok(true), "it waits");
        assert!(!waiting.is_finished(), "nothing was in the way");
        drop(fs::OpenOptions::new().write(true).open(&stuck).unwrap());
        assert!(waiting.join().unwrap().is_ok_and(|found| found.is_none()));
    }

    #[test]
    fn a_bad_pack_is_read_again_only_when_it_was_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = write_pack(root.path(), &["text".to_owned()]);
        let good = fs::read(&path).unwrap();
        fs::write(&path, b"bad").unwrap();
        let index = Index::new(root.path());
        let chunk = ChunkDigest::of(b"text");
        index.refresh(Refresh::All).unwrap();
        assert_eq!(lock(&index.search).bad.len(), 1);
        assert!(index.find(&chunk).unwrap().is_none());
        fs::write(&path, good).unwrap();
        index.refresh(Refresh::All).unwrap();
        assert!(index.find(&chunk).unwrap().is_some());
    }
}
