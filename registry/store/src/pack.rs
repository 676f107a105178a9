//! Writing and checking packs.
//!
//! Writing has two parts. [`FrameBuilder`] collects chunks and compresses them: pure, so a pipeline runs many of them
//! side by side. [`PackWriter`] appends encoded frames, in the order it is given them, to pack files; what it keeps in
//! memory is the tables of the one open pack. A [`FinishedPack`] can only come from a writer of this process, so a store
//! takes it without reading it again; any other file goes through [`verify`].

use std::collections::HashSet;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dsec_format::frame::{self, Codec, MAX_FRAME_PLAIN_BYTES, TARGET_FRAME_PLAIN_BYTES};
use dsec_format::pack::{
    ChunkEntry, FOOTER_BYTES, Footer, FrameEntry, MAGIC, MAX_PACK_CHUNKS, TARGET_PACK_BYTES, Tables, check_preamble,
};
use dsec_format::preamble::{PREAMBLE_BYTES, Preamble};
use dsec_format::{ChunkDigest, PackDigest};
use fs_err as fs;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::error::Damage;

/// One chunk of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameChunk {
    /// Its name.
    pub digest: ChunkDigest,
    /// Offset in the plain frame.
    pub offset: u32,
    /// Plain bytes.
    pub bytes: u32,
}

/// A frame ready to be appended to a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedFrame {
    codec: Codec,
    stored: Vec<u8>,
    plain_bytes: u32,
    chunks: Vec<FrameChunk>,
}

impl EncodedFrame {
    /// A frame that was encoded elsewhere; `plain` are its decoded bytes. Every chunk is checked against them.
    ///
    /// # Errors
    /// [`Damage::Chunk`] for a chunk that is not where it is said to be.
    pub fn copied(codec: Codec, stored: Vec<u8>, plain: &[u8], chunks: Vec<FrameChunk>) -> Result<Self, Damage> {
        for chunk in &chunks {
            check_chunk(plain, chunk)?;
        }
        let plain_bytes = u32::try_from(plain.len()).unwrap_or(u32::MAX);
        if plain_bytes == 0 || plain_bytes > MAX_FRAME_PLAIN_BYTES {
            return Err(frame::Error::Size { plain_bytes }.into());
        }
        Ok(Self { codec, stored, plain_bytes, chunks })
    }

    /// Bytes in the pack.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.stored.len() as u64
    }

    /// Bytes before compression.
    #[must_use]
    pub fn plain_bytes(&self) -> u32 {
        self.plain_bytes
    }

    /// The chunks in it.
    #[must_use]
    pub fn chunks(&self) -> &[FrameChunk] {
        &self.chunks
    }
}

fn check_chunk(plain: &[u8], chunk: &FrameChunk) -> Result<(), Damage> {
    let range = chunk.offset as usize..chunk.offset as usize + chunk.bytes as usize;
    match plain.get(range) {
        Some(bytes) if ChunkDigest::of(bytes) == chunk.digest => Ok(()),
        _ => Err(Damage::Chunk { chunk: chunk.digest }),
    }
}

/// Collects chunks for one frame.
#[derive(Debug, Default)]
pub struct FrameBuilder {
    plain: Vec<u8>,
    chunks: Vec<FrameChunk>,
}

impl FrameBuilder {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a chunk of `bytes` still belongs into this frame: always into an empty one, else up to
    /// [`TARGET_FRAME_PLAIN_BYTES`].
    #[must_use]
    pub fn takes(&self, bytes: usize) -> bool {
        self.plain.is_empty() || self.plain.len() + bytes <= TARGET_FRAME_PLAIN_BYTES as usize
    }

    /// Adds a chunk. Its name is the caller's word. [`FrameBuilder::takes`] is a target; the limit is checked by
    /// [`FrameBuilder::encode`].
    pub fn push(&mut self, digest: ChunkDigest, bytes: &[u8]) {
        let length = |bytes: usize| u32::try_from(bytes).expect("no frame in memory comes near 4 GiB");
        self.chunks.push(FrameChunk { digest, offset: length(self.plain.len()), bytes: length(bytes.len()) });
        self.plain.extend_from_slice(bytes);
    }

    /// Whether no chunk was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Plain bytes so far.
    #[must_use]
    pub fn plain_bytes(&self) -> usize {
        self.plain.len()
    }

    /// Compresses the frame at a zstd `level`.
    ///
    /// # Errors
    /// [`frame::Error::Size`] when it is empty, or holds a chunk over the limit.
    pub fn encode(self, level: i32) -> Result<EncodedFrame, frame::Error> {
        let (codec, stored) = frame::encode(&self.plain, level)?;
        let plain_bytes = u32::try_from(self.plain.len()).expect("encode has checked the size");
        Ok(EncodedFrame { codec, stored, plain_bytes, chunks: self.chunks })
    }
}

/// A pack that a [`PackWriter`] of this process has written. Not yet durable.
#[derive(Debug)]
pub struct FinishedPack {
    path: PathBuf,
    digest: PackDigest,
    bytes: u64,
    tables: Arc<Tables>,
}

impl FinishedPack {
    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name.
    #[must_use]
    pub fn digest(&self) -> PackDigest {
        self.digest
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its tables.
    #[must_use]
    pub fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }
}

/// Writes frames into packs of about [`TARGET_PACK_BYTES`], as files of a directory.
#[derive(Debug)]
pub struct PackWriter {
    directory: PathBuf,
    open: Option<OpenPack>,
    written: u64,
    target_bytes: u64,
}

impl PackWriter {
    /// A writer into `directory`, which is the caller's to remove.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self::with_target(directory, TARGET_PACK_BYTES)
    }

    /// As [`PackWriter::new`], with packs of another size.
    #[must_use]
    pub fn with_target(directory: &Path, target_bytes: u64) -> Self {
        Self { directory: directory.to_owned(), open: None, written: 0, target_bytes }
    }

    /// Whether the open pack has a chunk. Packs that were given out are not asked.
    #[must_use]
    pub fn contains(&self, chunk: &ChunkDigest) -> bool {
        self.open.as_ref().is_some_and(|open| open.names.contains(chunk))
    }

    /// Appends a frame; gives out the pack when that has filled it. A frame that brings nothing new is left out.
    ///
    /// # Errors
    /// Writing failed; the writer must not be used any more.
    pub fn append(&mut self, frame: EncodedFrame) -> io::Result<Option<FinishedPack>> {
        if !frame.chunks.is_empty() && frame.chunks.iter().all(|chunk| self.contains(&chunk.digest)) {
            return Ok(None);
        }
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let path = self.directory.join(format!("pack-{:06}", self.written));
                self.written += 1;
                none.insert(OpenPack::create(path)?)
            }
        };
        open.append(frame)?;
        if open.bytes >= self.target_bytes || open.chunks.len() >= MAX_PACK_CHUNKS as usize / 2 {
            return self.close();
        }
        Ok(None)
    }

    /// Ends the open pack, if there is one.
    ///
    /// # Errors
    /// Writing failed.
    pub fn close(&mut self) -> io::Result<Option<FinishedPack>> {
        self.open.take().map(OpenPack::finish).transpose()
    }
}

#[derive(Debug)]
struct OpenPack {
    path: PathBuf,
    file: fs::File,
    hasher: blake3::Hasher,
    bytes: u64,
    frames: Vec<FrameEntry>,
    chunks: Vec<ChunkEntry>,
    names: HashSet<ChunkDigest>,
}

impl OpenPack {
    fn create(path: PathBuf) -> io::Result<Self> {
        let mut open = Self {
            file: fs::File::create(&path)?,
            path,
            hasher: blake3::Hasher::new(),
            bytes: 0,
            frames: Vec::new(),
            chunks: Vec::new(),
            names: HashSet::new(),
        };
        open.write(Preamble::new(MAGIC).as_bytes())?;
        Ok(open)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn append(&mut self, frame: EncodedFrame) -> io::Result<()> {
        let number = u32::try_from(self.frames.len()).expect("a pack is closed long before 2^32 frames");
        self.frames.push(FrameEntry {
            offset: U64::new(self.bytes),
            stored_bytes: U32::new(u32::try_from(frame.stored.len()).expect("stored is at most plain")),
            plain_bytes: U32::new(frame.plain_bytes),
            codec: frame.codec as u8,
            reserved: [0; 7],
        });
        for chunk in frame.chunks {
            if self.names.insert(chunk.digest) {
                self.chunks.push(ChunkEntry {
                    digest: chunk.digest,
                    frame: U32::new(number),
                    offset: U32::new(chunk.offset),
                    bytes: U32::new(chunk.bytes),
                    reserved: U32::ZERO,
                });
            }
        }
        self.write(&frame.stored)
    }

    fn finish(mut self) -> io::Result<FinishedPack> {
        let tables = Tables::new(std::mem::take(&mut self.frames), std::mem::take(&mut self.chunks));
        self.write(&tables.encode(self.bytes))?;
        let digest = PackDigest::from_bytes(*self.hasher.finalize().as_bytes());
        Ok(FinishedPack { path: self.path, digest, bytes: self.bytes, tables: Arc::new(tables) })
    }
}

/// Why a pack file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read; the message of the source names the path.
    #[error("pack file cannot be read")]
    Io(#[from] io::Error),
    /// It is no pack, or not the pack it should be.
    #[error("pack file is damaged")]
    Damaged(#[from] Damage),
}

impl From<dsec_format::pack::Error> for ReadError {
    fn from(error: dsec_format::pack::Error) -> Self {
        Self::Damaged(error.into())
    }
}

/// Reads the tables of a pack file: first and last bytes, and the tables against the footer's digest. No frame is read.
///
/// # Errors
/// As [`ReadError`].
pub fn read_tables(path: &Path) -> Result<Tables, ReadError> {
    let (_, tables, _) = read_tables_of(&mut fs::File::open(path)?)?;
    Ok(tables)
}

/// The raw bytes of preamble and tables with footer, beside the decoded tables.
fn read_tables_of(file: &mut fs::File) -> Result<([u8; PREAMBLE_BYTES], Tables, Vec<u8>), ReadError> {
    let pack_bytes = file.metadata()?.len();
    let mut first = [0; PREAMBLE_BYTES];
    let mut last = [0; FOOTER_BYTES];
    if pack_bytes < (PREAMBLE_BYTES + FOOTER_BYTES) as u64 {
        return Err(dsec_format::pack::Error::Size { pack_bytes }.into());
    }
    file.read_exact(&mut first)?;
    check_preamble(&first)?;
    file.seek(SeekFrom::Start(pack_bytes - FOOTER_BYTES as u64))?;
    file.read_exact(&mut last)?;
    let footer = Footer::decode(&last, pack_bytes)?;
    let tables_bytes = usize::try_from(footer.tables_bytes()).expect("bounded by MAX_PACK_BYTES");
    let mut tail = vec![0; tables_bytes + FOOTER_BYTES];
    file.seek(SeekFrom::Start(footer.tables_offset.get()))?;
    file.read_exact(&mut tail)?;
    let tables = Tables::decode(&tail[..tables_bytes], &footer)?;
    Ok((first, tables, tail))
}

/// Checks a whole pack file: its digest, its tables, and every chunk in every frame.
///
/// # Errors
/// As [`ReadError`]: the first thing that is wrong. Memory is bounded by the tables and one frame.
pub fn verify(path: &Path, expected: &PackDigest) -> Result<Tables, ReadError> {
    let mut file = fs::File::open(path)?;
    let (first, tables, tail) = read_tables_of(&mut file)?;
    file.seek(SeekFrom::Start(PREAMBLE_BYTES as u64))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&first);

    let mut by_frame: Vec<&ChunkEntry> = tables.chunks().iter().collect();
    by_frame.sort_unstable_by_key(|chunk| (chunk.frame.get(), chunk.offset.get()));
    let mut chunks = by_frame.into_iter().peekable();
    let mut stored = Vec::new();
    let mut wrong = None;
    for (number, entry) in (0..).zip(tables.frames()) {
        stored.resize(entry.stored_bytes.get() as usize, 0);
        file.read_exact(&mut stored)?;
        hasher.update(&stored);
        let mut of_frame = Vec::new();
        while let Some(chunk) = chunks.next_if(|chunk| chunk.frame.get() == number) {
            of_frame.push(chunk);
        }
        if wrong.is_none() {
            wrong = check_frame(entry, &stored, &of_frame).err();
        }
    }
    hasher.update(&tail);
    let found = PackDigest::from_bytes(*hasher.finalize().as_bytes());
    if let Some(damage) = wrong {
        return Err(damage.into());
    }
    if found != *expected {
        return Err(Damage::Digest { found: found.to_string() }.into());
    }
    Ok(tables)
}

fn check_frame(entry: &FrameEntry, stored: &[u8], chunks: &[&ChunkEntry]) -> Result<(), Damage> {
    let plain = frame::decode(Codec::from_number(entry.codec)?, stored, entry.plain_bytes.get())?;
    for chunk in chunks {
        let place = FrameChunk { digest: chunk.digest, offset: chunk.offset.get(), bytes: chunk.bytes.get() };
        check_chunk(&plain, &place)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(texts: &[&[u8]]) -> EncodedFrame {
        let mut builder = FrameBuilder::new();
        for text in texts {
            builder.push(ChunkDigest::of(text), text);
        }
        builder.encode(3).unwrap()
    }

    #[test]
    fn what_is_written_verifies_and_same_input_gives_same_digest() {
        let digests: Vec<_> = (0..2)
            .map(|_| {
                let directory = tempfile::tempdir().unwrap();
                let mut writer = PackWriter::new(directory.path());
                assert!(writer.append(frame(&[b"one", b"two"])).unwrap().is_none());
                assert!(writer.append(frame(&[b"two", b"three"])).unwrap().is_none());
                assert!(writer.append(frame(&[b"one"])).unwrap().is_none(), "brings nothing new");
                let pack = writer.close().unwrap().unwrap();
                let tables = verify(pack.path(), &pack.digest()).unwrap();
                assert_eq!(tables, **pack.tables());
                assert_eq!((tables.chunks().len(), tables.frames().len()), (3, 2));
                assert_eq!(fs::metadata(pack.path()).unwrap().len(), pack.bytes());
                pack.digest()
            })
            .collect();
        assert_eq!(digests[0], digests[1]);
    }

    #[test]
    fn packs_are_closed_at_their_target() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = PackWriter::with_target(directory.path(), 100);
        let noise = *blake3::hash(b"noise").as_bytes();
        let full = (0..10u8).filter_map(|n| writer.append(frame(&[&[&noise[..], &[n]].concat()])).unwrap()).count();
        assert_eq!(full, 3);
        assert!(writer.close().unwrap().is_some());
        assert!(writer.close().unwrap().is_none());
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = PackWriter::new(directory.path());
        writer.append(frame(&[b"some text some text some text", b"more"])).unwrap();
        let pack = writer.close().unwrap().unwrap();
        let bytes = fs::read(pack.path()).unwrap();
        let path = directory.path().join("bad");
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bad).unwrap();
            assert!(matches!(verify(&path, &pack.digest()), Err(ReadError::Damaged(_))), "bit {bit}");
        }
    }
}
