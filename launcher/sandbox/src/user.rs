//! Who a command runs as, resolved in the image.
//!
//! The image's `/etc/passwd` and `/etc/group` are the tenant's: they are read below the sandbox's root, as regular files
//! only, up to a size, and a malformed line is skipped as libc does.

use crate::files;
use rustix::fd::OwnedFd;

/// Who a command runs as: `NAME`, `UID`, and either with `:GROUP` or `:GID`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    user: String,
    group: Option<String>,
}

/// Why there is no such user.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text does not name one.
    #[error("{text:?} names no user: NAME or UID, and :GROUP or :GID if wanted")]
    Invalid {
        /// The text.
        text: String,
    },
    /// The image has no user of that name.
    #[error("there is no user {name:?} in the sandbox's /etc/passwd")]
    NoUser {
        /// The name.
        name: String,
    },
    /// The image has no group of that name.
    #[error("there is no group {name:?} in the sandbox's /etc/group")]
    NoGroup {
        /// The name.
        name: String,
    },
    /// An id that is not the sandbox's.
    #[error("id {id} is not below {limit}, the number of ids of a sandbox", limit = crate::spec::IDS)]
    OutOfRange {
        /// The id.
        id: u32,
    },
    /// One of the two files could not be read.
    #[error(transparent)]
    File(#[from] files::Error),
}

/// The most that is read of either file.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// The most supplementary groups; the kernel takes no more.
const GROUPS_MAX: usize = 65_536;

impl std::str::FromStr for User {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let valid = |part: &str| !part.is_empty() && !part.contains([':', '\n', '\0']);
        if !valid(user) || !group.is_none_or(valid) {
            return Err(Error::Invalid { text: text.to_owned() });
        }
        Ok(Self { user: user.to_owned(), group: group.map(str::to_owned) })
    }
}

/// A user with everything that a process needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) home: String,
}

impl Resolved {
    /// Root, as it is when nothing else is asked for: without a look into the image.
    pub(crate) fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new(), home: "/root".to_owned() }
    }
}

impl User {
    /// The user as the files below `root` have it.
    pub(crate) fn resolve(&self, root: &OwnedFd) -> Result<Resolved, Error> {
        let passwd = files::read_small(root, "etc/passwd", FILE_BYTES_MAX)?;
        let group = files::read_small(root, "etc/group", FILE_BYTES_MAX)?;
        self.find(&String::from_utf8_lossy(&passwd), &String::from_utf8_lossy(&group))
    }

    fn find(&self, passwd: &str, group: &str) -> Result<Resolved, Error> {
        let number = self.user.parse::<u32>().ok();
        let entry = passwd.lines().filter_map(Entry::parse).find(|entry| match number {
            Some(uid) => entry.uid == uid,
            None => entry.name == self.user,
        });
        let (uid, own_gid, home, name) = match (entry, number) {
            (Some(entry), _) => (entry.uid, entry.gid, entry.home, Some(entry.name)),
            (None, Some(uid)) => (uid, 0, "/", None),
            (None, None) => return Err(Error::NoUser { name: self.user.clone() }),
        };
        let gid = match &self.group {
            None => own_gid,
            Some(wanted) => find_group(wanted, group)?,
        };
        let groups = if self.group.is_some() { Vec::new() } else { memberships(name, gid, group) };
        match [uid, gid].iter().chain(&groups).find(|id| **id >= crate::spec::IDS) {
            Some(id) => Err(Error::OutOfRange { id: *id }),
            None => Ok(Resolved { uid, gid, groups, home: home.to_owned() }),
        }
    }
}

/// A line of `/etc/passwd`.
struct Entry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl<'a> Entry<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let (_comment, home) = (fields.next()?, fields.next()?);
        Some(Self { name, uid, gid, home: if home.is_empty() { "/" } else { home } })
    }
}

/// Name, number and members of a line of `/etc/group`.
fn parse_group(line: &str) -> Option<(&str, u32, &str)> {
    let mut fields = line.split(':');
    let (name, _password, gid) = (fields.next()?, fields.next()?, fields.next()?.parse().ok()?);
    Some((name, gid, fields.next()?))
}

fn find_group(wanted: &str, group: &str) -> Result<u32, Error> {
    if let Ok(gid) = wanted.parse() {
        return Ok(gid);
    }
    let found = group.lines().filter_map(parse_group).find(|(name, _, _)| *name == wanted);
    found.map(|(_, gid, _)| gid).ok_or_else(|| Error::NoGroup { name: wanted.to_owned() })
}

fn memberships(user: Option<&str>, gid: u32, group: &str) -> Vec<u32> {
    let Some(user) = user else { return Vec::new() };
    let member = |(_, other, members): &(&str, u32, &str)| *other != gid && members.split(',').any(|one| one == user);
    group.lines().filter_map(parse_group).filter(member).map(|(_, gid, _)| gid).take(GROUPS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/bash\nbroken\nann:x:1000:1001:Ann:/home/ann:/bin/sh\nfar:x:70000:5::/:\n";
    const GROUP: &str = "root:x:0:\nann:x:1001:\ndisk:x:6:ann,bob\nwheel:x:10:bob\n";

    fn find(text: &str) -> Result<Resolved, Error> {
        text.parse::<User>()?.find(PASSWD, GROUP)
    }

    #[test]
    fn names_numbers_and_groups() {
        let ann = Resolved { uid: 1000, gid: 1001, groups: vec![6], home: "/home/ann".into() };
        assert_eq!(find("ann").unwrap(), ann);
        assert_eq!(find("1000").unwrap(), ann);
        assert_eq!(find("ann:wheel").unwrap(), Resolved { gid: 10, groups: vec![], ..ann.clone() });
        assert_eq!(find("ann:77").unwrap(), Resolved { gid: 77, groups: vec![], ..ann });
        let stranger = Resolved { uid: 4242, gid: 0, groups: vec![], home: "/".into() };
        assert_eq!(find("4242").unwrap(), stranger);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        assert!(matches!(find("eve"), Err(Error::NoUser { .. })));
        assert!(matches!(find("ann:eve"), Err(Error::NoGroup { .. })));
        assert!(matches!(find("far"), Err(Error::OutOfRange { id: 70000 })));
        assert!(matches!(find("4294967295"), Err(Error::OutOfRange { .. })));
        for text in ["", ":", "ann:", ":5", "a:b:c"] {
            assert!(matches!(text.parse::<User>(), Err(Error::Invalid { .. })), "{text}");
        }
    }
}
