//! The xattrs of a tree, interned twice: each distinct (name, value) once, and each distinct set of them once.
//!
//! A set is sorted by prefix index and then by the bytes of the rest of the name: the order in which it is written.
//! Most trees have a handful of sets for all their inodes, and an inode holds the number of its set.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::Error;
use crate::format;

/// EROFS's namespaces: index, prefix of the full name, and whether something has to follow it.
pub(crate) const PREFIXES: [(u8, &str, bool); 5] = [
    (1, "user.", true),
    (2, "system.posix_acl_access", false),
    (3, "system.posix_acl_default", false),
    (4, "trusted.", true),
    (6, "security.", true),
];

/// The prefix of an index.
pub(crate) fn prefix_of(index: u8) -> Option<(&'static str, bool)> {
    PREFIXES.iter().find(|(other, ..)| *other == index).map(|&(_, prefix, rest)| (prefix, rest))
}

/// An extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xattr<'a> {
    pub(crate) index: u8,
    pub(crate) suffix: &'a [u8],
    /// Its value. ACLs are in the form in which Linux passes them: version 2, entries of 8 bytes.
    pub value: &'a [u8],
}

impl<'a> Xattr<'a> {
    /// Splits and checks a full name.
    pub(crate) fn new(name: &'a [u8], value: &'a [u8]) -> Result<Xattr<'a>, Error> {
        let (index, suffix) = split_name(name).ok_or_else(|| Error::XattrNamespace { name: name.to_vec() })?;
        let (_, wants_suffix) = prefix_of(index).unwrap_or(("", true));
        let legal = name.len() <= format::XATTR_NAME_MAX_BYTES && !name.contains(&0);
        if !legal || (wants_suffix && suffix.is_empty()) {
            return Err(Error::XattrName { name: name.to_vec() });
        }
        if value.len() > format::XATTR_VALUE_MAX_BYTES {
            return Err(Error::XattrValue { name: name.to_vec(), bytes: value.len() });
        }
        Ok(Xattr { index, suffix, value })
    }

    /// The namespace with its dot, such as `user.`, or the whole name of an ACL.
    pub fn prefix(&self) -> &'static str {
        prefix_of(self.index).map_or("", |(prefix, _)| prefix)
    }

    /// What follows the prefix; empty for ACLs.
    pub fn suffix(&self) -> &'a [u8] {
        self.suffix
    }

    /// The full name, such as `user.mime_type`.
    pub fn name(&self) -> Vec<u8> {
        [self.prefix().as_bytes(), self.suffix].concat()
    }

    pub(crate) fn key(&self) -> (u8, &'a [u8]) {
        (self.index, self.suffix)
    }

    /// Bytes of its entry on disk.
    pub(crate) fn entry_bytes(&self) -> u64 {
        let bytes = format::XATTR_ENTRY_BYTES + self.suffix.len() as u64 + self.value.len() as u64;
        bytes.next_multiple_of(format::XATTR_ENTRY_BYTES)
    }
}

/// The prefix index of a full name and the rest of it.
pub(crate) fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|&(index, prefix, wants_suffix)| {
        let suffix = name.strip_prefix(prefix.as_bytes())?;
        (wants_suffix || suffix.is_empty()).then_some((index, suffix))
    })
}

#[derive(Debug, Clone, Copy)]
struct Stored {
    /// Where suffix and value lie in the arena.
    at: usize,
    value_bytes: u16,
    suffix_bytes: u8,
    index: u8,
}

#[derive(Debug)]
pub(super) struct Xattrs {
    bytes: Vec<u8>,
    items: Vec<Stored>,
    items_index: HashTable<u32>,
    /// Item ids of all sets, one after the other.
    members: Vec<u32>,
    /// Where each set ends in `members`. Set 0 is the empty one.
    ends: Vec<u32>,
    sets_index: HashTable<u32>,
    hasher: RandomState,
}

impl Xattrs {
    pub(super) fn new() -> Xattrs {
        Xattrs {
            bytes: Vec::new(),
            items: Vec::new(),
            items_index: HashTable::new(),
            members: Vec::new(),
            ends: vec![0],
            sets_index: HashTable::new(),
            hasher: RandomState::new(),
        }
    }

    pub(super) fn sets(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn items(&self) -> usize {
        self.items.len()
    }

    /// The members of a set, in order.
    pub(super) fn members(&self, set: u32) -> &[u32] {
        let set = set as usize;
        let start = if set == 0 { 0 } else { self.ends[set - 1] };
        &self.members[start as usize..self.ends[set] as usize]
    }

    pub(super) fn item(&self, id: u32) -> Xattr<'_> {
        Self::read(&self.bytes, self.items[id as usize])
    }

    fn read(bytes: &[u8], stored: Stored) -> Xattr<'_> {
        let at = stored.at;
        let middle = at + usize::from(stored.suffix_bytes);
        Xattr {
            index: stored.index,
            suffix: &bytes[at..middle],
            value: &bytes[middle..middle + usize::from(stored.value_bytes)],
        }
    }

    /// The set of these xattrs, which are checked; sorts them.
    pub(super) fn intern(&mut self, xattrs: &mut [Xattr<'_>]) -> Result<u32, Error> {
        if xattrs.is_empty() {
            return Ok(0);
        }
        xattrs.sort_unstable_by_key(Xattr::key);
        if let Some(pair) = xattrs.windows(2).find(|pair| pair[0].key() == pair[1].key()) {
            return Err(Error::XattrTwice { name: pair[0].name() });
        }
        let members = xattrs.iter().map(|xattr| self.intern_item(xattr)).collect::<Result<Vec<u32>, Error>>()?;
        let hash = self.hasher.hash_one(&members);
        if let Some(&set) = self.sets_index.find(hash, |&set| self.members(set) == members) {
            return Ok(set);
        }
        let full = |_| Error::Full { what: "xattr sets" };
        let set = u32::try_from(self.ends.len()).map_err(full)?;
        let end = u32::try_from(self.members.len() + members.len()).map_err(full)?;
        self.members.extend_from_slice(&members);
        self.ends.push(end);
        let (ends, all, hasher) = (&self.ends, &self.members, &self.hasher);
        self.sets_index.insert_unique(hash, set, |&set| {
            let set = set as usize;
            hasher.hash_one(&all[ends[set - 1] as usize..ends[set] as usize])
        });
        Ok(set)
    }

    fn intern_item(&mut self, xattr: &Xattr<'_>) -> Result<u32, Error> {
        let hash = self.hasher.hash_one((xattr.index, xattr.suffix, xattr.value));
        if let Some(&id) = self.items_index.find(hash, |&id| self.item(id) == *xattr) {
            return Ok(id);
        }
        let id = u32::try_from(self.items.len()).ok().filter(|&id| id != u32::MAX);
        let id = id.ok_or(Error::Full { what: "xattrs" })?;
        let too_long = || Error::XattrValue { name: xattr.name(), bytes: xattr.value.len() };
        let stored = Stored {
            at: self.bytes.len(),
            value_bytes: u16::try_from(xattr.value.len()).map_err(|_| too_long())?,
            suffix_bytes: u8::try_from(xattr.suffix.len()).map_err(|_| Error::XattrName { name: xattr.name() })?,
            index: xattr.index,
        };
        self.bytes.extend_from_slice(xattr.suffix);
        self.bytes.extend_from_slice(xattr.value);
        self.items.push(stored);
        let (items, bytes, hasher) = (&self.items, &self.bytes, &self.hasher);
        self.items_index.insert_unique(hash, id, |&id| {
            let item = Self::read(bytes, items[id as usize]);
            hasher.hash_one((item.index, item.suffix, item.value))
        });
        Ok(id)
    }
}
