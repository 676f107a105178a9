//! Extended headers: the records of PAX, with those of GNU, star and libarchive that mean something to a file.

use std::collections::BTreeMap;

use dsec_erofs::Timestamp;

use super::{Error, acl};
use crate::paths::Shown;

/// Full names and values of extended attributes.
pub(super) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Where a sparse map stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sparse {
    /// 0.0, 0.1: the map itself.
    pub(super) map: Vec<(u64, u64)>,
    /// 1.0: the map comes first in the data.
    pub(super) map_in_data: bool,
    /// Size of the file with its holes.
    pub(super) bytes: Option<u64>,
    /// Whether there is any of it.
    pub(super) present: bool,
}

/// What the extended headers before an entry say, global ones first.
#[derive(Debug, Clone, Default)]
pub(super) struct Extended {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<Timestamp>,
    pub(super) device_major: Option<u64>,
    pub(super) device_minor: Option<u64>,
    pub(super) sparse: Sparse,
    /// The path of a sparse file; its header has a made-up one.
    pub(super) sparse_path: Option<Vec<u8>>,
    schily_xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    libarchive_xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    selinux: Option<Vec<u8>>,
    acl_access: Option<Vec<u8>>,
    acl_default: Option<Vec<u8>>,
    /// A record that means data we do not know how to read.
    unsupported: Option<&'static str>,
}

impl Extended {
    /// Adds the records of one extended header whose data is `bytes`.
    pub(super) fn read(&mut self, mut bytes: &[u8], offset: u64) -> Result<(), Error> {
        while !bytes.is_empty() {
            let (record, rest) = split_record(bytes).map_err(|reason| Error::Extended { offset, reason })?;
            let (key, value) = record;
            self.set(key, value).ok_or_else(|| Error::Record {
                path: Shown::new(self.path.as_deref().unwrap_or_default()),
                key: String::from_utf8_lossy(key).into_owned(),
            })?;
            bytes = rest;
        }
        Ok(())
    }

    /// An empty value takes back what an earlier header said. `None` when the value is malformed.
    fn set(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"path" => self.path = text(value),
            b"linkpath" => self.link = text(value),
            b"size" => self.size = number(value)?,
            b"uid" => self.uid = number(value)?,
            b"gid" => self.gid = number(value)?,
            b"mtime" => self.mtime = if value.is_empty() { None } else { Some(parse_time(value)?) },
            b"SCHILY.devmajor" => self.device_major = number(value)?,
            b"SCHILY.devminor" => self.device_minor = number(value)?,
            b"SCHILY.acl.access" => self.acl_access = text(value),
            b"SCHILY.acl.default" => self.acl_default = text(value),
            b"SCHILY.acl.ace" => self.unsupported = Some("a file with an NFSv4 ACL"),
            b"SCHILY.realsize" => self.unsupported = Some("a sparse file of star"),
            b"GNU.dumpdir" => self.unsupported = Some("a directory of a GNU incremental archive"),
            b"RHT.security.selinux" => self.selinux = text(value).map(|label| [&label[..], b"\0"].concat()),
            _ => return self.set_prefixed(key, value),
        }
        Some(())
    }

    fn set_prefixed(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
            return self.set_sparse(key, value);
        }
        if key.starts_with(b"GNU.volume.") {
            self.unsupported = Some("a part of a file of a multi-volume archive");
        }
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            self.schily_xattrs.insert(unescape_gnu(name), value.to_vec());
        }
        if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            self.libarchive_xattrs.insert(unescape_url(name)?, decode_base64(value)?);
        }
        Some(())
    }

    fn set_sparse(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let sparse = &mut self.sparse;
        sparse.present = true;
        match key {
            b"name" => self.sparse_path = text(value),
            b"size" | b"realsize" => sparse.bytes = number(value)?,
            b"major" => sparse.map_in_data = number(value)? == Some(1),
            b"minor" | b"numblocks" => {
                number(value)?;
            }
            b"offset" => sparse.map.push((number(value)??, 0)),
            b"numbytes" => sparse.map.last_mut()?.1 = number(value)??,
            b"map" => {
                let numbers: Vec<u64> =
                    value.split(|byte| *byte == b',').map(number).collect::<Option<Option<_>>>()??;
                sparse.map = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
                if !numbers.len().is_multiple_of(2) {
                    return None;
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// What makes the entry one that cannot be kept.
    pub(super) fn unsupported(&self) -> Option<&'static str> {
        self.unsupported
    }

    /// The extended attributes of the entry at `path`, ACLs among them.
    ///
    /// libarchive writes each attribute twice; only one of the two has a name that can hold any byte.
    pub(super) fn xattrs(&self, path: &[u8]) -> Result<Xattrs, Error> {
        let raw = if self.libarchive_xattrs.is_empty() { &self.schily_xattrs } else { &self.libarchive_xattrs };
        let mut xattrs = raw.clone();
        for (name, text) in [(acl::ACCESS, &self.acl_access), (acl::DEFAULT, &self.acl_default)] {
            // The attribute itself, where it was written as well, needs no interpretation.
            if let Some(text) = text
                && !xattrs.contains_key(name)
                && let Some(value) = acl::encode(text, name == acl::ACCESS, path)?
            {
                xattrs.insert(name.to_vec(), value);
            }
        }
        if let Some(label) = &self.selinux {
            xattrs.entry(b"security.selinux".to_vec()).or_insert_with(|| label.clone());
        }
        Ok(xattrs.into_iter().collect())
    }
}

/// Key and value.
type Record<'a> = (&'a [u8], &'a [u8]);

/// `LENGTH KEY=VALUE\n`, where the length counts all of it; and what follows.
fn split_record(bytes: &[u8]) -> Result<(Record<'_>, &[u8]), &'static str> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ').ok_or("a record has no length")?;
    let length = number(&bytes[..space]).flatten().ok_or("the length of a record is no number")?;
    let length = usize::try_from(length).ok().filter(|length| *length <= bytes.len() && *length > space + 1);
    let length = length.ok_or("the length of a record is wrong")?;
    let record = bytes[space + 1..length].strip_suffix(b"\n").ok_or("a record does not end in a newline")?;
    let equals = record.iter().position(|byte| *byte == b'=').ok_or("a record has no value")?;
    Ok(((&record[..equals], &record[equals + 1..]), &bytes[length..]))
}

fn text(value: &[u8]) -> Option<Vec<u8>> {
    (!value.is_empty()).then(|| value.to_vec())
}

/// Decimal digits; nothing for nothing.
#[allow(clippy::option_option)]
fn number(value: &[u8]) -> Option<Option<u64>> {
    if value.is_empty() {
        return Some(None);
    }
    let digits = value.iter().try_fold(0_u64, |number, digit| match digit {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    });
    digits.map(Some)
}

/// `[-]SECONDS[.FRACTION]`; what is finer than a nanosecond is cut off towards the past. Python writes small numbers as
/// `1e-09`, so there may be an exponent.
fn parse_time(value: &[u8]) -> Option<Timestamp> {
    let (negative, value) = match value.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let mut parts = value.splitn(2, |byte| matches!(byte, b'e' | b'E'));
    let mut number_parts = parts.next()?.splitn(2, |byte| *byte == b'.');
    let (whole, fraction) = (number_parts.next()?, number_parts.next().unwrap_or_default());
    let (whole, fraction) = shift(whole, fraction, parts.next())?;
    let secs = i64::try_from(number(&whole)?.unwrap_or(0)).ok()?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanos = digits.fold(0_u32, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    let finer = fraction.iter().skip(9).any(|digit| *digit != b'0');
    match (negative, nanos + u32::from(negative && finer)) {
        (false, nanos) => Some(Timestamp { secs, nanos }),
        (true, 0) => Some(Timestamp { secs: -secs, nanos: 0 }),
        (true, 1_000_000_000) => Some(Timestamp { secs: (-secs).checked_sub(1)?, nanos: 0 }),
        (true, nanos) => Some(Timestamp { secs: (-secs).checked_sub(1)?, nanos: 1_000_000_000 - nanos }),
    }
}

/// Moves the decimal point by an exponent of at most two digits.
fn shift(whole: &[u8], fraction: &[u8], exponent: Option<&[u8]>) -> Option<(Vec<u8>, Vec<u8>)> {
    let Some(exponent) = exponent else { return Some((whole.to_vec(), fraction.to_vec())) };
    let (to_left, digits) = match exponent {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    let places = usize::try_from(number(digits)??).ok().filter(|places| *places < 100)?;
    let mut all = [whole, fraction].concat();
    let point = if to_left {
        let missing = places.saturating_sub(whole.len());
        all.splice(0..0, std::iter::repeat_n(b'0', missing));
        whole.len() + missing - places
    } else {
        all.resize(all.len().max(whole.len() + places), b'0');
        whole.len() + places
    };
    let rest = all.split_off(point);
    Some((all, rest))
}

/// GNU tar writes `=` and `%` in the name of an attribute as `%3D` and `%25`.
fn unescape_gnu(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, after)) = rest.split_first() {
        let (byte, next) = match rest {
            [b'%', b'3', b'D', next @ ..] => (b'=', next),
            [b'%', b'2', b'5', next @ ..] => (b'%', next),
            _ => (first, after),
        };
        plain.push(byte);
        rest = next;
    }
    plain
}

/// `%XX` for any byte.
fn unescape_url(name: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let [high, low, next @ ..] = after else { return None };
            plain.push(digit(*high)? << 4 | digit(*low)?);
            rest = next;
        } else {
            plain.push(first);
            rest = after;
        }
    }
    Some(plain)
}

/// RFC 4648, with or without padding.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let mut plain = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for &digit in group {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        let bytes = match group.len() {
            4 => 3,
            3 => 2,
            2 => 1,
            _ => return None,
        };
        bits <<= 6 * (4 - u32::try_from(group.len()).ok()?);
        plain.extend_from_slice(&bits.to_be_bytes()[1..=bytes]);
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let time = |secs, nanos| Some(Timestamp { secs, nanos });
        for (text, expected) in [
            ("0", time(0, 0)),
            ("1700000000.123456789", time(1_700_000_000, 123_456_789)),
            ("1.5", time(1, 500_000_000)),
            ("1.0000000019", time(1, 1)),
            ("-1", time(-1, 0)),
            ("-1.25", time(-2, 750_000_000)),
            ("-0.0000000001", time(-1, 999_999_999)),
            ("-0.9999999999", time(-1, 0)),
            ("1e-09", time(0, 1)),
            ("-2.5E-1", time(-1, 750_000_000)),
            ("1.7000000005e+09", time(1_700_000_000, 500_000_000)),
            ("1e", None),
            ("1e-x", None),
            ("1.x", None),
            ("x", None),
        ] {
            assert_eq!(parse_time(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn base64() {
        for (text, plain) in [("", &b""[..]), ("Zg", b"f"), ("Zg==", b"f"), ("Zm8", b"fo"), ("Zm9v/+8", b"foo\xff\xef")]
        {
            assert_eq!(decode_base64(text.as_bytes()).unwrap(), plain, "{text}");
        }
        assert_eq!(decode_base64(b"Z"), None);
        assert_eq!(decode_base64(b"Zm9v!"), None);
    }

    fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
        let rest = [b" ", key, b"=", value, b"\n"].concat();
        let length = (1..).find(|length| length.to_string().len() + rest.len() == *length).unwrap();
        [length.to_string().as_bytes(), &rest].concat()
    }

    #[test]
    fn records() {
        let mut extended = Extended::default();
        let records = [
            record(b"path", b"a\xff\n"),
            record(b"SCHILY.xattr.user.a", b""),
            record(b"SCHILY.xattr.user.%3D%25x", b"1=2"),
            record(b"GNU.sparse.size", b"7"),
            record(b"comment", b"anything"),
        ];
        extended.read(&records.concat(), 0).unwrap();
        assert_eq!(extended.path.as_deref(), Some(&b"a\xff\n"[..]));
        assert_eq!(extended.sparse.bytes, Some(7));
        let xattrs = [(b"user.=%x".to_vec(), b"1=2".to_vec()), (b"user.a".to_vec(), b"".to_vec())];
        assert_eq!(extended.xattrs(b"").unwrap(), xattrs);
        extended.read(&record(b"path", b""), 0).unwrap();
        assert_eq!(extended.path, None, "an empty value takes back");

        extended.read(&record(b"LIBARCHIVE.xattr.user.%41%25", b"/w"), 0).unwrap();
        assert_eq!(extended.xattrs(b"").unwrap(), [(b"user.A%".to_vec(), b"\xff".to_vec())]);

        let bad = [&b"5 a=b"[..], b"8 path=a\n", b"x path=a\n", b"7 path\n", b"999999999999999999999 a=b\n"];
        let bad = bad.into_iter().map(<[u8]>::to_vec).chain([
            record(b"size", b"-1"),
            record(b"mtime", b"noon"),
            record(b"GNU.sparse.map", b"1,2,3"),
            record(b"GNU.sparse.unheard", b"1"),
            record(b"LIBARCHIVE.xattr.user.a", b"!"),
        ]);
        for bad in bad {
            assert!(Extended::default().read(&bad, 0).is_err(), "{}", bad.escape_ascii());
        }
    }
}
