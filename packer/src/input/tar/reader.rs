//! From the bytes of an archive to its members.

use dsec_erofs::{Attributes, Device, Timestamp};

use super::entry::{Body, Entry, EntryPath, Place};
use super::header::{BLOCK_BYTES, Header};
use super::pax::Extended;
use super::sparse;
use super::supply::{DataStore, Supply};
use super::{Error, acl};
use crate::paths::Shown;

/// No extended header or long name is larger. An attribute of 64 KiB takes 88 KiB in an archive of libarchive.
const MAX_EXTENDED_BYTES: u64 = 64 << 20;

/// Reads an archive front to back.
pub(super) struct Reader<'a> {
    supply: Supply<'a>,
    global: Extended,
    members: u64,
    ended: bool,
}

/// GNU's own long names.
#[derive(Debug, Default)]
struct GnuNames {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(supply: Supply<'a>) -> Self {
        Self { supply, global: Extended::default(), members: 0, ended: false }
    }

    /// The next member; `None` after the last.
    pub(super) fn next_entry(&mut self) -> Result<Option<Entry>, Error> {
        let mut local: Option<Extended> = None;
        let mut names = GnuNames::default();
        loop {
            let Some(header) = self.header()? else {
                let dangling = local.is_some() || names.path.is_some() || names.link.is_some();
                return if dangling { Err(Error::Truncated { offset: self.supply.position() }) } else { Ok(None) };
            };
            match header.type_flag() {
                b'g' => {
                    let records = self.extended_data(&header)?;
                    self.global.read(&records, header.offset)?;
                }
                b'x' | b'X' => {
                    let records = self.extended_data(&header)?;
                    local.get_or_insert_with(|| self.global.clone()).read(&records, header.offset)?;
                }
                b'L' => names.path = Some(until_nul(self.extended_data(&header)?)),
                b'K' => names.link = Some(until_nul(self.extended_data(&header)?)),
                // The label of a volume: it is about the archive, and has no data.
                b'V' => {}
                _ => {
                    let extended = local.unwrap_or_else(|| self.global.clone());
                    let entry = self.member(&header, &extended, names)?;
                    self.supply.align()?;
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// Ends the reading, after the last member.
    pub(super) fn finish(self) -> Result<DataStore, Error> {
        self.supply.finish()
    }

    /// The next header; `None` at the end marker, after which there are only zeros.
    ///
    /// An archive that just stops is one that was cut off: the marker is what tells.
    fn header(&mut self) -> Result<Option<Header>, Error> {
        if self.ended {
            return Ok(None);
        }
        let offset = self.supply.position();
        let block = self.supply.block().map_err(|error| match error {
            Error::Truncated { .. } if self.members == 0 => Error::NotATar,
            error => error,
        })?;
        let Some(block) = block else {
            return Err(if self.members == 0 { Error::NotATar } else { Error::Truncated { offset } });
        };
        if block == [0; BLOCK_BYTES] {
            self.supply.expect_zeros()?;
            self.ended = true;
            return Ok(None);
        }
        let header = Header::new(block, offset);
        let header = if self.members == 0 { header.map_err(|_| Error::NotATar)? } else { header? };
        self.members += 1;
        Ok(Some(header))
    }

    fn extended_data(&mut self, header: &Header) -> Result<Vec<u8>, Error> {
        let bytes = header.size()?;
        if bytes > MAX_EXTENDED_BYTES {
            return Err(Error::Extended { offset: header.offset, reason: "it is larger than 64 MiB" });
        }
        let data = self.supply.take(bytes)?;
        self.supply.align()?;
        Ok(data)
    }

    fn member(&mut self, header: &Header, extended: &Extended, names: GnuNames) -> Result<Entry, Error> {
        let raw = extended.sparse_path.clone().or_else(|| extended.path.clone()).or(names.path);
        let raw = raw.unwrap_or_else(|| header.path());
        if raw.is_empty() {
            return Err(Error::NoName { offset: header.offset });
        }
        let path = EntryPath::new(&raw)?;
        let unsupported = |what: &str| Error::Unsupported { path: path.shown(), what: what.to_owned() };
        if let Some(what) = extended.unsupported() {
            return Err(unsupported(what));
        }
        let link = extended.link.clone().or(names.link).unwrap_or_else(|| header.link().to_vec());
        let size = extended.size.map_or_else(|| header.size(), Ok)?;
        let body = match header.type_flag() {
            // Before POSIX, and in some archives since, a directory was a file whose name ends in a slash.
            b'0' | 0 | b'7' if raw.ends_with(b"/") && size == 0 => Body::Directory,
            b'0' | 0 | b'7' if raw.ends_with(b"/") => return Err(unsupported("a directory with data")),
            b'0' | 0 | b'7' => self.file(&path, extended, size)?,
            b'S' => self.gnu_sparse_file(&path, header, size)?,
            // POSIX lets a link have the data of its target again; other programs state a size and write none.
            b'1' if size > 0 => return Err(unsupported("a hard link with data of its own")),
            b'1' => Body::HardLink(EntryPath::new(&link)?),
            b'2' => Body::Symlink(link),
            b'3' => Body::CharDevice(device(header, extended, &path)?),
            b'4' => Body::BlockDevice(device(header, extended, &path)?),
            b'5' => Body::Directory,
            b'6' => Body::Fifo,
            b'D' => return Err(unsupported("a directory of a GNU incremental archive")),
            b'M' | b'N' => return Err(unsupported("a part of a multi-volume archive")),
            b'A' => return Err(unsupported("a Solaris ACL")),
            other => return Err(unsupported(&format!("of the unknown type {:?}", char::from(other)))),
        };
        let xattrs = extended.xattrs(path.as_bytes())?;
        let mut attributes = attributes(header, extended, &path)?;
        let access = xattrs.iter().find(|(name, _)| name == acl::ACCESS);
        if let Some(permissions) = access.and_then(|(_, value)| acl::permissions(value)) {
            attributes.mode = attributes.mode & !0o777 | permissions;
        }
        Ok(Entry { attributes, path, xattrs, body })
    }

    fn file(&mut self, path: &EntryPath, extended: &Extended, size: u64) -> Result<Body, Error> {
        let sparse = &extended.sparse;
        if !sparse.present {
            let at = self.supply.keep(size)?;
            return Ok(Body::File { bytes: size, place: Place::Whole { at } });
        }
        let malformed = || Error::SparseMap { path: path.shown() };
        let bytes = sparse.bytes.ok_or_else(malformed)?;
        let (map, taken) = if sparse.map_in_data {
            sparse::read_pax(&mut self.supply, path.as_bytes(), size)?
        } else {
            (sparse.map.clone(), 0)
        };
        let stored_bytes = size - taken;
        let at = self.supply.keep(stored_bytes)?;
        Ok(Body::File { bytes, place: sparse::place(&map, bytes, stored_bytes, at, path.as_bytes())? })
    }

    fn gnu_sparse_file(&mut self, path: &EntryPath, header: &Header, size: u64) -> Result<Body, Error> {
        let (bytes, map) = sparse::read_gnu(header, &mut self.supply)?;
        let at = self.supply.keep(size)?;
        Ok(Body::File { bytes, place: sparse::place(&map, bytes, size, at, path.as_bytes())? })
    }
}

/// GNU tar ends long names with a NUL.
fn until_nul(mut name: Vec<u8>) -> Vec<u8> {
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    name.truncate(length);
    name
}

fn attributes(header: &Header, extended: &Extended, path: &EntryPath) -> Result<Attributes, Error> {
    let id = |pax: Option<u64>, plain: Result<i64, Error>, key: &'static str| {
        let value = pax.map_or_else(|| plain.map(i128::from), |value| Ok(i128::from(value)))?;
        u32::try_from(value).map_err(|_| Error::Record { path: Shown::new(path.as_bytes()), key: key.to_owned() })
    };
    let mtime = match extended.mtime {
        Some(mtime) => mtime,
        None => Timestamp { secs: header.mtime_secs()?, nanos: 0 },
    };
    Ok(Attributes {
        mode: header.mode()?,
        uid: id(extended.uid, header.uid(), "uid")?,
        gid: id(extended.gid, header.gid(), "gid")?,
        mtime,
    })
}

fn device(header: &Header, extended: &Extended, path: &EntryPath) -> Result<Device, Error> {
    let (major, minor) = header.device()?;
    let part = |pax: Option<u64>, plain: u64| {
        u32::try_from(pax.unwrap_or(plain)).map_err(|_| Error::Unsupported {
            path: path.shown(),
            what: "a device whose number has more than 32 bits".to_owned(),
        })
    };
    Ok(Device { major: part(extended.device_major, major)?, minor: part(extended.device_minor, minor)? })
}
