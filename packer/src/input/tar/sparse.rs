//! Maps of sparse members: which pieces of the file are stored, one after the other.

use super::Error;
use super::entry::{Piece, Place};
use super::header::{BLOCK_BYTES, Header};
use super::supply::Supply;
use crate::paths::Shown;

/// No map has more pieces: it bounds the memory that a hostile archive can ask for.
const MAX_PIECES: usize = 1 << 22;

/// Offset in the file and length of each stored piece.
pub(super) type Map = Vec<(u64, u64)>;

/// The rest of the map of an old GNU sparse member, which stands in blocks after its header.
pub(super) fn read_gnu(header: &Header, supply: &mut Supply<'_>) -> Result<(u64, Map), Error> {
    let (file_bytes, mut map, mut more) = header.gnu_sparse()?;
    while more {
        let offset = supply.position();
        let block = supply.block()?.ok_or(Error::Truncated { offset })?;
        let (pairs, again) = Header::gnu_sparse_more(block, offset)?;
        map.extend(pairs);
        if map.len() > MAX_PIECES {
            return Err(Error::Field { offset: header.offset, field: "sparse map" });
        }
        more = again;
    }
    Ok((file_bytes, map))
}

/// The map of a PAX 1.0 sparse member: decimal numbers, each on a line, in whole blocks before the data. Gives the bytes
/// that it took as well.
pub(super) fn read_pax(supply: &mut Supply<'_>, path: &[u8], stored_bytes: u64) -> Result<(Map, u64), Error> {
    let malformed = || Error::SparseMap { path: Shown::new(path) };
    let mut lines = Lines { supply, text: Vec::new(), at: 0, left: stored_bytes };
    let count = lines.number(path)?;
    let count = usize::try_from(count).ok().filter(|count| *count <= MAX_PIECES).ok_or_else(malformed)?;
    let mut map = Vec::new();
    for _ in 0..count {
        map.push((lines.number(path)?, lines.number(path)?));
    }
    let taken = stored_bytes - lines.left;
    Ok((map, taken))
}

struct Lines<'a, 'b> {
    supply: &'a mut Supply<'b>,
    text: Vec<u8>,
    at: usize,
    /// Bytes of the member that were not read.
    left: u64,
}

impl Lines<'_, '_> {
    fn number(&mut self, path: &[u8]) -> Result<u64, Error> {
        let malformed = || Error::SparseMap { path: Shown::new(path) };
        let mut number = 0_u64;
        for digits in 0.. {
            match self.byte(path)? {
                b'\n' if digits > 0 => return Ok(number),
                digit @ b'0'..=b'9' => {
                    let next = number.checked_mul(10).and_then(|ten| ten.checked_add(u64::from(digit - b'0')));
                    number = next.ok_or_else(malformed)?;
                }
                _ => break,
            }
        }
        Err(malformed())
    }

    fn byte(&mut self, path: &[u8]) -> Result<u8, Error> {
        if self.at == self.text.len() {
            if self.left < BLOCK_BYTES as u64 {
                return Err(Error::SparseMap { path: Shown::new(path) });
            }
            self.text = self.supply.take(BLOCK_BYTES as u64)?;
            self.left -= BLOCK_BYTES as u64;
            self.at = 0;
        }
        self.at += 1;
        Ok(self.text[self.at - 1])
    }
}

/// Checks a map against the sizes of file and data, and says where each piece is when the data begins at `at`.
pub(super) fn place(map: &Map, file_bytes: u64, stored_bytes: u64, at: u64, path: &[u8]) -> Result<Place, Error> {
    let malformed = || Error::SparseMap { path: Shown::new(path) };
    if map.len() > MAX_PIECES {
        return Err(malformed());
    }
    let mut pieces = Vec::with_capacity(map.len());
    let (mut file_end, mut stored) = (0, 0_u64);
    for &(file_offset, bytes) in map {
        let end = file_offset.checked_add(bytes).filter(|end| *end <= file_bytes).ok_or_else(malformed)?;
        if file_offset < file_end {
            return Err(malformed());
        }
        if bytes > 0 {
            pieces.push(Piece { file_offset, bytes, at: at + stored });
        }
        stored = stored.checked_add(bytes).ok_or_else(malformed)?;
        file_end = end;
    }
    if stored == stored_bytes { Ok(Place::Pieces(pieces.into())) } else { Err(malformed()) }
}
