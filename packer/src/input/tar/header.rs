//! One 512-byte header block: fields, numbers, checksum.

use super::Error;
use super::sparse::Map;

/// The unit of an archive.
pub(super) const BLOCK_BYTES: usize = 512;

/// A header whose checksum is right.
#[derive(Debug, Clone)]
pub(super) struct Header {
    block: [u8; BLOCK_BYTES],
    /// Where it is in the archive.
    pub(super) offset: u64,
}

/// Which of the dialects a header is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    V7,
    Ustar,
    Star,
    Gnu,
}

impl Header {
    /// Checks the checksum.
    pub(super) fn new(block: [u8; BLOCK_BYTES], offset: u64) -> Result<Self, Error> {
        let header = Self { block, offset };
        let stated = header.number(148..156, "checksum")?;
        let sum = |signed: bool| {
            let bytes = header.block.iter().enumerate();
            bytes.fold(0_i64, |sum, (index, &byte)| {
                let byte = if (148..156).contains(&index) { b' ' } else { byte };
                // Some old programs added the bytes up as signed ones.
                sum + if signed { i64::from(byte.cast_signed()) } else { i64::from(byte) }
            })
        };
        if stated == sum(false) || stated == sum(true) { Ok(header) } else { Err(Error::Checksum { offset }) }
    }

    fn dialect(&self) -> Dialect {
        match (&self.block[257..265], &self.block[508..512]) {
            (b"ustar  \0", _) => Dialect::Gnu,
            (magic, b"tar\0") if magic.starts_with(b"ustar\0") => Dialect::Star,
            (magic, _) if magic.starts_with(b"ustar") => Dialect::Ustar,
            _ => Dialect::V7,
        }
    }

    /// The type flag.
    pub(super) fn type_flag(&self) -> u8 {
        self.block[156]
    }

    /// Name with prefix, as it stands there.
    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(&self.block[..100]);
        let prefix = match self.dialect() {
            Dialect::Ustar => text(&self.block[345..500]),
            Dialect::Star => text(&self.block[345..476]),
            Dialect::Gnu | Dialect::V7 => b"",
        };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    /// The target of a link, as it stands there.
    pub(super) fn link(&self) -> &[u8] {
        text(&self.block[157..257])
    }

    /// Permissions.
    pub(super) fn mode(&self) -> Result<u16, Error> {
        // Some programs put the file type there as well.
        Ok(u16::try_from(self.number(100..108, "mode")? & 0o7777).expect("masked"))
    }

    pub(super) fn uid(&self) -> Result<i64, Error> {
        self.number(108..116, "uid")
    }

    pub(super) fn gid(&self) -> Result<i64, Error> {
        self.number(116..124, "gid")
    }

    /// Bytes of data that follow, unless an extended header says otherwise.
    pub(super) fn size(&self) -> Result<u64, Error> {
        self.count(124..136, "size")
    }

    pub(super) fn mtime_secs(&self) -> Result<i64, Error> {
        self.number(136..148, "mtime")
    }

    /// Major and minor number.
    pub(super) fn device(&self) -> Result<(u64, u64), Error> {
        if self.dialect() == Dialect::V7 {
            return Ok((0, 0));
        }
        Ok((self.count(329..337, "major device number")?, self.count(337..345, "minor device number")?))
    }

    /// A GNU sparse entry: size of the file, first part of its map, and whether blocks with more of it follow.
    pub(super) fn gnu_sparse(&self) -> Result<(u64, Map, bool), Error> {
        let map = self.sparse_pairs(386, 4)?;
        Ok((self.count(483..495, "size of the sparse file")?, map, self.block[482] != 0))
    }

    /// A block that follows a GNU sparse header: a part of the map, and whether more follow.
    pub(super) fn gnu_sparse_more(block: [u8; BLOCK_BYTES], offset: u64) -> Result<(Map, bool), Error> {
        let raw = Self { block, offset };
        Ok((raw.sparse_pairs(0, 21)?, block[504] != 0))
    }

    fn sparse_pairs(&self, start: usize, most: usize) -> Result<Map, Error> {
        let mut pairs = Vec::new();
        for at in (0..most).map(|index| start + 24 * index) {
            if self.block[at] == 0 {
                break;
            }
            pairs.push((self.count(at..at + 12, "sparse map")?, self.count(at + 12..at + 24, "sparse map")?));
        }
        Ok(pairs)
    }

    fn count(&self, range: std::ops::Range<usize>, field: &'static str) -> Result<u64, Error> {
        u64::try_from(self.number(range, field)?).map_err(|_| Error::Field { offset: self.offset, field })
    }

    fn number(&self, range: std::ops::Range<usize>, field: &'static str) -> Result<i64, Error> {
        parse_number(&self.block[range]).ok_or(Error::Field { offset: self.offset, field })
    }
}

/// Up to the first NUL.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Octal digits between blanks, or GNU's base 256: two's complement, big-endian, with the top bit as the mark.
fn parse_number(field: &[u8]) -> Option<i64> {
    let (&first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        // The bit below the mark is the sign.
        let start = if first & 0x40 != 0 { i128::from(first) - 256 } else { i128::from(first & 0x3f) };
        let mut value = start;
        for byte in rest {
            value = value.checked_mul(256)?.checked_add(i128::from(*byte))?;
        }
        return i64::try_from(value).ok();
    }
    let digits = text(field).trim_ascii();
    digits.iter().try_fold(0_i64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (field, number) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"77777777777\0", Some(0o77_777_777_777)),
            (b"0000648\0", None),
            (b"-000644\0", None),
            (b"\x80\0\0\0\x01\0\0\0", Some(1 << 24)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
        ] {
            assert_eq!(parse_number(field), number, "{}", field.escape_ascii());
        }
    }
}
