//! POSIX ACLs: from the text of an archive to the value of an extended attribute.
//!
//! Text: entries `tag:qualifier:permissions[:number]` between commas or newlines. Value: version 2 of the kernel's form
//! (`include/uapi/linux/posix_acl_xattr.h`): a little-endian 32-bit version, then 8 bytes an entry, sorted.

use super::Error;
use crate::paths::Shown;

/// The attribute of an access ACL.
pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a default ACL.
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const UNDEFINED: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
enum Tag {
    UserOwner = 0x01,
    User = 0x02,
    GroupOwner = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Other = 0x20,
}

/// The value of an ACL text. `None` for an access ACL that says nothing beyond the permissions: as the kernel does it,
/// such a one is no attribute.
pub(super) fn encode(text: &[u8], is_access: bool, path: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let malformed = |part: &str| Error::Acl { path: Shown::new(path), text: part.chars().take(80).collect() };
    let text = std::str::from_utf8(text).map_err(|_| malformed("not UTF-8"))?;
    let mut entries = Vec::new();
    for part in text.split([',', '\n']) {
        let part = part.split('#').next().unwrap_or_default().trim();
        if part.is_empty() {
            continue;
        }
        let (tag, permissions, id) = match parse_entry(part) {
            Ok(entry) => entry,
            Err(Wrong::Syntax) => return Err(malformed(part)),
            Err(Wrong::Name(name)) => return Err(Error::AclName { path: Shown::new(path), name }),
        };
        entries.push((tag, id, permissions));
    }
    entries.sort_unstable();
    let has = |tag| entries.iter().filter(|entry| entry.0 == tag).count();
    let is_extended = has(Tag::User) + has(Tag::Group) > 0;
    let is_whole = [Tag::UserOwner, Tag::GroupOwner, Tag::Other].into_iter().all(|tag| has(tag) == 1);
    let is_unique = entries.windows(2).all(|pair| (pair[0].0, pair[0].1) != (pair[1].0, pair[1].1));
    if !is_whole || !is_unique || (is_extended && has(Tag::Mask) != 1) {
        return Err(malformed(text));
    }
    if is_access && !is_extended && has(Tag::Mask) == 0 {
        return Ok(None);
    }
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, id, permissions) in entries {
        value.extend_from_slice(&(tag as u16).to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    Ok(Some(value))
}

/// The permissions that a file with this access ACL has: the kernel sets them when it is given one, and some programs write
/// those of the owning group where a mask counts.
pub(super) fn permissions(value: &[u8]) -> Option<u16> {
    let entries = value.strip_prefix(&VERSION.to_le_bytes())?.chunks_exact(8);
    let find = |tag: Tag| {
        let mut bits = entries.clone().filter(|entry| entry[..2] == (tag as u16).to_le_bytes());
        bits.next().map(|entry| u16::from_le_bytes([entry[2], entry[3]]) & 7)
    };
    let group = find(Tag::Mask).or_else(|| find(Tag::GroupOwner))?;
    Some(find(Tag::UserOwner)? << 6 | group << 3 | find(Tag::Other)?)
}

enum Wrong {
    Syntax,
    Name(String),
}

fn parse_entry(part: &str) -> Result<(Tag, u16, u32), Wrong> {
    let fields: Vec<&str> = part.split(':').collect();
    // star and older GNU tar write `other:r--` and `mask:r--` too.
    let (tag, qualifier, permissions, number) = match fields.as_slice() {
        [tag @ ("mask" | "m" | "other" | "o"), permissions] => (*tag, "", *permissions, ""),
        [tag, qualifier, permissions] => (*tag, *qualifier, *permissions, ""),
        [tag, qualifier, permissions, number] => (*tag, *qualifier, *permissions, *number),
        _ => return Err(Wrong::Syntax),
    };
    let tag = match (tag, qualifier.is_empty()) {
        ("user" | "u", true) => Tag::UserOwner,
        ("user" | "u", false) => Tag::User,
        ("group" | "g", true) => Tag::GroupOwner,
        ("group" | "g", false) => Tag::Group,
        ("mask" | "m", true) => Tag::Mask,
        ("other" | "o", true) => Tag::Other,
        _ => return Err(Wrong::Syntax),
    };
    let id = match (qualifier, number) {
        ("", _) => UNDEFINED,
        (name, "") => name.parse().map_err(|_| Wrong::Name(name.to_owned()))?,
        (_, number) => number.parse().map_err(|_| Wrong::Syntax)?,
    };
    let permissions = parse_permissions(permissions).ok_or(Wrong::Syntax)?;
    Ok((tag, permissions, id))
}

fn parse_permissions(text: &str) -> Option<u16> {
    text.chars().try_fold(0, |bits, letter| match letter {
        'r' => Some(bits | 4),
        'w' => Some(bits | 2),
        'x' => Some(bits | 1),
        '-' => Some(bits),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_the_kernels_form() {
        let text = "user::rw-,user:joe:r-x:1000,user:7:r--,group::r--,mask::rwx,other::---";
        let value = encode(text.as_bytes(), true, b"f").unwrap().unwrap();
        let entries: Vec<(u16, u16, u32)> = value[4..]
            .chunks_exact(8)
            .map(|entry| {
                let short = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
                (short(0), short(2), u32::from_le_bytes(entry[4..].try_into().unwrap()))
            })
            .collect();
        assert_eq!(value[..4], [2, 0, 0, 0]);
        assert_eq!(permissions(&value), Some(0o670));
        assert_eq!(permissions(b"\x02\0\0\0"), None);
        let undefined = u32::MAX;
        assert_eq!(
            entries,
            [(1, 6, undefined), (2, 4, 7), (2, 5, 1000), (4, 4, undefined), (16, 7, undefined), (32, 0, undefined)]
        );
    }

    #[test]
    fn what_says_no_more_than_the_mode_is_no_attribute() {
        let minimal = b"user::rw-\ngroup::r--\nother::r--\n";
        assert_eq!(encode(minimal, true, b"f").unwrap(), None);
        assert!(encode(minimal, false, b"d").unwrap().is_some());
    }

    #[test]
    fn malformed_texts_are_errors() {
        for bad in ["user::rw-", "user::rwz,group::r--,other::r--", "x", "user::r--,user:1:r--,group::r--,other::r--"] {
            assert!(matches!(encode(bad.as_bytes(), true, b"f"), Err(Error::Acl { .. })), "{bad}");
        }
        let named = b"user::rw-,user:joe:r--,group::r--,mask::r--,other::r--";
        assert!(matches!(encode(named, true, b"f"), Err(Error::AclName { .. })));
    }
}
