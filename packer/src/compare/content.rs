//! Whether a file has the bytes and the holes of a list of pieces.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use dsec_format::ChunkDigest;
use dsec_format::chunk::MAX_CHUNK_BYTES;

use crate::chunks::ChunkReader;
use crate::tree::Error as TreeError;
use crate::view::{Piece, Pieces};
use crate::{Cancel, Cancelled};

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Offset of the first piece or hole with other bytes.
    pub(super) differs_at: Option<u64>,
    /// The data ranges of both, when they are not the same.
    pub(super) holes: Option<Data>,
}

/// Where each side has data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) image: Vec<Range<u64>>,
    pub(super) directory: Vec<Range<u64>>,
}

pub(super) enum Error {
    Image(TreeError),
    Directory(TreeError),
    Cancelled(Cancelled),
}

impl From<Cancelled> for Error {
    fn from(cancelled: Cancelled) -> Self {
        Self::Cancelled(cancelled)
    }
}

/// Ranges for people.
pub(super) fn ranges_text(ranges: &[Range<u64>]) -> String {
    const SHOWN: usize = 4;
    if ranges.is_empty() {
        return "no data".to_owned();
    }
    let shown: Vec<String> = ranges.iter().take(SHOWN).map(|range| format!("{}-{}", range.start, range.end)).collect();
    let more = if ranges.len() > SHOWN { format!(" and {} more", ranges.len() - SHOWN) } else { String::new() };
    format!("data at {}{more}", shown.join(", "))
}

fn extend(ranges: &mut Vec<Range<u64>>, piece: &Piece) {
    match ranges.last_mut() {
        Some(last) if last.end == piece.file_offset => last.end = piece.file_end(),
        _ => ranges.push(piece.file_offset..piece.file_end()),
    }
}

/// Two lists of pieces: the same chunks at the same places. Where chunks end is part of the format, so the same bytes are
/// the same chunks.
pub(super) fn compare_stored(ours: Pieces<'_>, theirs: Pieces<'_>) -> Result<Verdict, Error> {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut differs_at = None;
    let (mut ours, mut theirs) = (ours.fuse(), theirs.fuse());
    loop {
        let (ours, theirs) = (ours.next().transpose(), theirs.next().transpose());
        let (ours, theirs) = (ours.map_err(Error::Image)?, theirs.map_err(Error::Directory)?);
        ours.iter().for_each(|piece| extend(&mut left, piece));
        theirs.iter().for_each(|piece| extend(&mut right, piece));
        match (ours, theirs) {
            (None, None) => break,
            (Some(ours), Some(theirs)) if same_bytes(&ours, &theirs) => {}
            (ours, theirs) => {
                let at = ours.or(theirs).map(|piece| piece.file_offset);
                differs_at = differs_at.or(at);
            }
        }
    }
    let holes = (left != right).then_some(Data { image: left, directory: right });
    Ok(Verdict { differs_at, holes })
}

fn same_bytes(ours: &Piece, theirs: &Piece) -> bool {
    (ours.file_offset, ours.chunk, ours.chunk_offset, ours.bytes)
        == (theirs.file_offset, theirs.chunk, theirs.chunk_offset, theirs.bytes)
}

/// A list of pieces and a file of `bytes` bytes with data at `data`.
pub(super) fn compare_file(
    pieces: Pieces<'_>,
    file: &File,
    data: &[Range<u64>],
    bytes: u64,
    chunks: &ChunkReader<'_>,
    cancel: &Cancel,
) -> Result<Verdict, Error> {
    let mut ranges = Vec::new();
    let mut differs_at = None;
    let mut buffer = vec![0; MAX_CHUNK_BYTES.min(u32::try_from(bytes).unwrap_or(MAX_CHUNK_BYTES)) as usize];
    for piece in pieces {
        cancel.check()?;
        let piece = piece.map_err(Error::Image)?;
        extend(&mut ranges, &piece);
        if differs_at.is_none() && !has_piece(file, &piece, &mut buffer, chunks)? {
            differs_at = Some(piece.file_offset);
        }
    }
    if ranges == data {
        return Ok(Verdict { differs_at, holes: None });
    }
    // Where only the file has data, it must read as the zeros of the image's hole.
    for hole in between(&ranges, bytes) {
        for range in data.iter().filter_map(|range| intersection(range, &hole)) {
            if differs_at.is_none() && !is_zero(file, range.clone(), cancel)? {
                differs_at = Some(range.start);
            }
        }
    }
    Ok(Verdict { differs_at, holes: Some(Data { image: ranges, directory: data.to_vec() }) })
}

fn has_piece(file: &File, piece: &Piece, buffer: &mut [u8], chunks: &ChunkReader<'_>) -> Result<bool, Error> {
    // A piece never leaves its file: its segment does not.
    let Some(buffer) = buffer.get_mut(..piece.bytes as usize) else { return Ok(false) };
    match file.read_exact_at(buffer, piece.file_offset) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(error) => return Err(Error::Directory(TreeError::std_io("read it")(error))),
    }
    if piece.is_whole() {
        return Ok(ChunkDigest::of(buffer) == piece.chunk);
    }
    let bytes = chunks.piece(piece).map_err(|error| Error::Image(error.into()))?;
    Ok(*bytes == *buffer)
}

/// What lies between ranges, up to `end`.
fn between(ranges: &[Range<u64>], end: u64) -> Vec<Range<u64>> {
    let starts = std::iter::once(0).chain(ranges.iter().map(|range| range.end));
    let ends = ranges.iter().map(|range| range.start).chain(std::iter::once(end));
    starts.zip(ends).map(|(start, end)| start..end).filter(|range| !range.is_empty()).collect()
}

fn intersection(left: &Range<u64>, right: &Range<u64>) -> Option<Range<u64>> {
    let range = left.start.max(right.start)..left.end.min(right.end);
    (!range.is_empty()).then_some(range)
}

fn is_zero(file: &File, range: Range<u64>, cancel: &Cancel) -> Result<bool, Error> {
    let mut buffer = vec![0; 64 * 1024];
    let mut at = range.start;
    while at < range.end {
        cancel.check()?;
        let want = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(buffer.len());
        let read = file.read_at(&mut buffer[..want], at);
        let read = read.map_err(|error| Error::Directory(TreeError::std_io("read it")(error)))?;
        if read == 0 {
            return Ok(false);
        }
        if buffer[..read].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += read as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps() {
        let text = |ranges: &[Range<u64>], end| ranges_text(&between(ranges, end));
        assert_eq!(text(&[], 10), "data at 0-10");
        assert_eq!(text(&[0..4, 6..10], 10), "data at 4-6");
        assert_eq!(text(&[2..4, 8..10], 12), "data at 0-2, 4-8, 10-12");
        assert!(between(&[], 0).is_empty());
    }

    #[test]
    fn ranges_for_people() {
        assert_eq!(ranges_text(&[]), "no data");
        let many: Vec<_> = (0..6).map(|n| n * 10..n * 10 + 5).collect();
        assert_eq!(ranges_text(&many), "data at 0-5, 10-15, 20-25, 30-35 and 2 more");
    }
}
