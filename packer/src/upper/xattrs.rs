//! What the xattrs of an upper directory mean, and which of them a layer keeps.
//!
//! An overlay mount has one namespace for its marks. In it nobody inside can write: what programs set there, the kernel
//! stores with `overlay.` put once more behind the prefix. In the other namespace everything is theirs, whatever it looks
//! like. A layer is always in the terms of [`Namespace::Trusted`].

use super::{Error, IdRange};
use crate::tree::directory;
use crate::tree::xattrs::xattrs_of;
use crate::tree::{Error as TreeError, Xattrs};
use crate::view::{ESCAPED, OPAQUE, stored_name};

/// The name under which a layer keeps that a directory is opaque.
const KEPT_OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// Overlay's notes that mean nothing in another mount.
const NOTES: [&[u8]; 5] = [b"origin", b"impure", b"upper", b"uuid", b"protattr"];

const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
const CAPABILITY: &[u8] = b"security.capability";

/// Where an overlay mount has its marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// `trusted.overlay.`: mounts of root, a sandbox's among them.
    Trusted,
    /// `user.overlay.`: mounts with the option `userxattr`.
    User,
}

impl Namespace {
    fn prefix(self) -> &'static [u8] {
        match self {
            Self::Trusted => b"trusted.overlay.",
            Self::User => b"user.overlay.",
        }
    }

    /// What follows overlay's prefix in the name of an xattr of its own.
    fn own_name(self, name: &[u8]) -> Option<&[u8]> {
        name.strip_prefix(self.prefix())
    }

    /// The name that programs inside know an xattr by; `None` for overlay's own.
    fn name_inside(self, name: Vec<u8>) -> Option<Vec<u8>> {
        let Some(rest) = self.own_name(&name) else { return Some(name) };
        rest.strip_prefix(ESCAPED).map(|inner| [self.prefix(), inner].concat())
    }
}

/// What overlay says of an inode by xattrs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) opaque: bool,
    /// A directory whose whiteouts may be empty files.
    pub(super) xattr_whiteouts: bool,
    /// An empty file that is a whiteout, when its directory says so.
    pub(super) whiteout: bool,
    pub(super) redirect: Option<Vec<u8>>,
    pub(super) metacopy: bool,
    /// What `whiteout` and the rest come to; set by who knows the directory.
    pub(super) is_whiteout: bool,
}

impl Marks {
    pub(super) fn of(handle: &directory::Handle, namespace: Namespace) -> Result<Self, TreeError> {
        Ok(Self::among(&xattrs_of(handle.fd()?)?, namespace)?)
    }

    fn among(xattrs: &Xattrs, namespace: Namespace) -> Result<Self, Error> {
        let mut marks = Self::default();
        for (name, value) in xattrs {
            match namespace.own_name(name) {
                Some(rest) if rest == OPAQUE => {
                    marks.opaque |= value == b"y";
                    marks.xattr_whiteouts |= value == b"x";
                }
                Some(b"whiteout") => marks.whiteout = true,
                Some(b"redirect") => marks.redirect = Some(value.clone()),
                Some(b"metacopy") => marks.metacopy = true,
                Some(b"nlink") => return Err(Error::Indexed),
                Some(rest) if NOTES.contains(&rest) || rest.starts_with(ESCAPED) => {}
                Some(_) => {
                    return Err(Error::Attribute { name: name.escape_ascii().to_string() });
                }
                None => {}
            }
        }
        Ok(marks)
    }
}

/// The xattrs that a layer keeps: all but overlay's own, with ids as inside, and that the directory is opaque.
pub(super) fn kept(xattrs: Xattrs, opaque: bool, namespace: Namespace, ids: IdRange) -> Result<Xattrs, Error> {
    let mut kept = Xattrs::new();
    for (name, value) in xattrs {
        let Some(name) = namespace.name_inside(name).map(stored_name) else { continue };
        let value = if ACLS.contains(&name.as_slice()) {
            acl_inside(value, ids).map_err(|error| named(error, &name))?
        } else if name == CAPABILITY {
            capability_inside(value, ids)?
        } else {
            value
        };
        kept.push((name, value));
    }
    if opaque {
        kept.push((KEPT_OPAQUE.to_vec(), b"y".to_vec()));
    }
    kept.sort_unstable();
    Ok(kept)
}

/// An ACL error with the name of the ACL.
fn named(error: Error, name: &[u8]) -> Error {
    match error {
        Error::Malformed { .. } => Error::Malformed { name: name.escape_ascii().to_string() },
        other => other,
    }
}

/// An ACL as Linux passes it (`include/uapi/linux/posix_acl_xattr.h`): a version, then entries of tag, permissions, id.
fn acl_inside(mut acl: Vec<u8>, ids: IdRange) -> Result<Vec<u8>, Error> {
    const HEADER_BYTES: usize = 4;
    const ENTRY_BYTES: usize = 8;
    const USER: u16 = 0x02;
    const GROUP: u16 = 0x08;
    let malformed = || Error::Malformed { name: String::new() };
    let entries = acl.get_mut(HEADER_BYTES..).ok_or_else(malformed)?;
    if entries.len() % ENTRY_BYTES != 0 {
        return Err(malformed());
    }
    for entry in entries.chunks_exact_mut(ENTRY_BYTES) {
        if matches!(u16::from_le_bytes([entry[0], entry[1]]), USER | GROUP) {
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            entry[4..].copy_from_slice(&ids.inside(id)?.to_le_bytes());
        }
    }
    // The kernel keeps entries of one tag sorted by id; a constant offset leaves them so.
    Ok(acl)
}

/// A file capability (`include/uapi/linux/capability.h`). Version 3 names the root user of the namespace that it is good
/// for: for the sandbox's own root it becomes version 2, which has no such field.
fn capability_inside(capability: Vec<u8>, ids: IdRange) -> Result<Vec<u8>, Error> {
    const REVISION_MASK: u32 = 0xff00_0000;
    const REVISION_2: u32 = 0x0200_0000;
    const REVISION_3: u32 = 0x0300_0000;
    const REVISION_2_BYTES: usize = 20;
    const REVISION_3_BYTES: usize = 24;
    let malformed = || Error::Malformed { name: CAPABILITY.escape_ascii().to_string() };
    let magic: [u8; 4] = capability.get(..4).and_then(|bytes| bytes.try_into().ok()).ok_or_else(malformed)?;
    let magic = u32::from_le_bytes(magic);
    if magic & REVISION_MASK != REVISION_3 {
        return Ok(capability);
    }
    let root: [u8; 4] = match capability.get(REVISION_2_BYTES..) {
        Some(rest) if capability.len() == REVISION_3_BYTES => rest.try_into().map_err(|_| malformed())?,
        _ => return Err(malformed()),
    };
    let root = ids.inside(u32::from_le_bytes(root))?;
    if root != 0 {
        let mut inside = capability;
        inside[REVISION_2_BYTES..].copy_from_slice(&root.to_le_bytes());
        return Ok(inside);
    }
    let mut inside = capability;
    inside.truncate(REVISION_2_BYTES);
    inside[..4].copy_from_slice(&(magic & !REVISION_MASK | REVISION_2).to_le_bytes());
    Ok(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xattrs(pairs: &[(&str, &[u8])]) -> Xattrs {
        pairs.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec())).collect()
    }

    #[test]
    fn the_namespace_of_the_mount_and_only_known_marks() {
        use Namespace::{Trusted, User};
        for (namespace, prefix, other) in
            [(Trusted, "trusted.overlay.", "user.overlay."), (User, "user.overlay.", "trusted.overlay.")]
        {
            let under = |prefix: &str, name: &str, value: &[u8]| {
                Marks::among(&xattrs(&[(&format!("{prefix}{name}"), value)]), namespace)
            };
            for name in ["opaque", "redirect", "metacopy", "nlink", "whiteout", "novelty"] {
                assert_eq!(under(other, name, b"y").unwrap(), Marks::default(), "{name}");
            }
            let of = |name: &str, value: &[u8]| under(prefix, name, value);
            assert!(of("opaque", b"y").unwrap().opaque);
            assert!(!of("opaque", b"x").unwrap().opaque);
            assert!(of("opaque", b"x").unwrap().xattr_whiteouts);
            assert_eq!(of("redirect", b"/a").unwrap().redirect.as_deref(), Some(&b"/a"[..]));
            assert!(of("metacopy", b"").unwrap().metacopy);
            assert_eq!(of("origin", b"..").unwrap(), Marks::default());
            assert_eq!(of("overlay.opaque", b"y").unwrap(), Marks::default());
            assert!(matches!(of("nlink", b"U-1"), Err(Error::Indexed)));
            assert!(of("novelty", b"").is_err());
        }
    }

    #[test]
    fn overlays_own_are_dropped_and_others_kept() {
        let all = xattrs(&[
            ("security.x", b"1"),
            ("trusted.overlay.opaque", b"y"),
            ("trusted.overlay.origin", b"o"),
            ("trusted.overlay.overlay.opaque", b"y"),
            ("trusted.other", b"2"),
            ("user.overlay.redirect", b"/a"),
        ]);
        let rest = [
            ("security.x", &b"1"[..]),
            ("trusted.other", b"2"),
            ("trusted.overlay.overlay.opaque", b"y"),
            ("user.overlay.redirect", b"/a"),
        ];
        let kept_of = |all: &Xattrs, opaque| kept(all.clone(), opaque, Namespace::Trusted, IdRange::IDENTITY).unwrap();
        assert_eq!(kept_of(&all, false), xattrs(&rest));
        let mut with_opaque = xattrs(&rest);
        with_opaque.push((KEPT_OPAQUE.to_vec(), b"y".to_vec()));
        with_opaque.sort_unstable();
        assert_eq!(kept_of(&all, true), with_opaque);
    }

    #[test]
    fn marks_of_a_userxattr_mount_become_those_of_a_privileged_one() {
        let all = xattrs(&[
            ("trusted.overlay.opaque", b"theirs"),
            ("trusted.overlay.overlay.redirect", b"theirs too"),
            ("user.overlay.impure", b"y"),
            ("user.overlay.overlay.opaque", b"nested"),
            ("user.overlay.overlay.overlay.opaque", b"twice"),
        ]);
        let expected = xattrs(&[
            ("trusted.overlay.opaque", b"y"),
            ("trusted.overlay.overlay.opaque", b"theirs"),
            ("trusted.overlay.overlay.overlay.redirect", b"theirs too"),
            ("user.overlay.opaque", b"nested"),
            ("user.overlay.overlay.opaque", b"twice"),
        ]);
        assert_eq!(kept(all, true, Namespace::User, IdRange::IDENTITY).unwrap(), expected);
    }

    #[test]
    fn ids_inside_acls_and_capabilities_are_mapped() {
        let range = IdRange::from_base(100_000);
        let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &7u16.to_le_bytes(), &id.to_le_bytes()].concat();
        let acl =
            |user: u32| [2u32.to_le_bytes().to_vec(), entry(1, u32::MAX), entry(2, user), entry(8, user)].concat();
        assert_eq!(acl_inside(acl(100_007), range).unwrap(), acl(7));
        assert!(acl_inside(acl(7), range).is_err());
        assert!(acl_inside(vec![2, 0, 0, 0, 1], range).is_err());

        let capability = |revision: u32, root: Option<u32>| {
            let mut bytes = [&(revision << 24 | 1).to_le_bytes()[..], &[5; 16]].concat();
            bytes.extend(root.iter().flat_map(|root| root.to_le_bytes()));
            bytes
        };
        assert_eq!(capability_inside(capability(3, Some(100_000)), range).unwrap(), capability(2, None));
        assert_eq!(capability_inside(capability(3, Some(101_000)), range).unwrap(), capability(3, Some(1000)));
        assert_eq!(capability_inside(capability(2, None), range).unwrap(), capability(2, None));
        assert!(capability_inside(capability(3, Some(5)), range).is_err());
        assert!(capability_inside(vec![0, 0, 0, 3], range).is_err());
        assert!(capability_inside(vec![1], range).is_err());
    }
}
