//! The directory entries of a tree: one flat table, linked into a list per directory and found by one hash index.
//!
//! An entry is 20 bytes, plus its name in a byte arena that all names share, plus 4 to 10 bytes in the index. Adding,
//! finding and removing an entry costs the same whatever the size of its directory. The hash is keyed at random, so
//! that no archive can choose its names to collide; nothing that is written depends on it.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::{Error, InodeId};

/// No entry.
const NONE: u32 = u32::MAX;

/// Index of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryId(pub(crate) u32);

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Directory inode.
    dir: u32,
    child: u32,
    /// Where the name lies in the arena: a length byte, then the bytes.
    name: u32,
    next: u32,
    previous: u32,
}

/// The list of one directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    head: u32,
    pub(super) count: u32,
}

impl List {
    pub(super) const EMPTY: List = List { head: NONE, count: 0 };
}

#[derive(Debug, Default)]
pub(super) struct Entries {
    table: Vec<Entry>,
    names: Vec<u8>,
    index: HashTable<u32>,
    hasher: RandomState,
    /// First of the removed entries, linked by `next`, to be used again.
    free: Option<u32>,
}

impl Entries {
    fn hash(&self, dir: u32, name: &[u8]) -> u64 {
        self.hasher.hash_one((dir, name))
    }

    fn name_at(names: &[u8], at: u32) -> &[u8] {
        let at = at as usize;
        &names[at + 1..at + 1 + usize::from(names[at])]
    }

    pub(super) fn find(&self, dir: InodeId, name: &[u8]) -> Option<EntryId> {
        let found = self.index.find(self.hash(dir.0, name), |&id| {
            let entry = self.table[id as usize];
            entry.dir == dir.0 && Self::name_at(&self.names, entry.name) == name
        });
        found.copied().map(EntryId)
    }

    pub(super) fn name(&self, id: EntryId) -> &[u8] {
        Self::name_at(&self.names, self.table[id.0 as usize].name)
    }

    pub(super) fn child(&self, id: EntryId) -> InodeId {
        InodeId(self.table[id.0 as usize].child)
    }

    pub(super) fn dir(&self, id: EntryId) -> InodeId {
        InodeId(self.table[id.0 as usize].dir)
    }

    /// Adds an entry whose name is checked and new in its directory.
    pub(super) fn insert(
        &mut self,
        list: &mut List,
        dir: InodeId,
        name: &[u8],
        child: InodeId,
    ) -> Result<EntryId, Error> {
        let at = u32::try_from(self.names.len()).map_err(|_| Error::Full { what: "names" })?;
        let length = u8::try_from(name.len()).map_err(|_| Error::NameTooLong { bytes: name.len() })?;
        let entry = Entry { dir: dir.0, child: child.0, name: at, next: list.head, previous: NONE };
        let id = match self.free {
            Some(id) => {
                let next = self.table[id as usize].next;
                self.free = (next != NONE).then_some(next);
                self.table[id as usize] = entry;
                id
            }
            None => {
                let id = u32::try_from(self.table.len()).ok().filter(|&id| id != NONE);
                let id = id.ok_or(Error::Full { what: "entries" })?;
                self.table.push(entry);
                id
            }
        };
        self.names.push(length);
        self.names.extend_from_slice(name);
        if list.head != NONE {
            self.table[list.head as usize].previous = id;
        }
        *list = List { head: id, count: list.count + 1 };
        let hash = self.hash(dir.0, name);
        let (table, names, hasher) = (&self.table, &self.names, &self.hasher);
        self.index.insert_unique(hash, id, |&other| {
            let other = table[other as usize];
            hasher.hash_one((other.dir, Self::name_at(names, other.name)))
        });
        Ok(EntryId(id))
    }

    /// Removes an entry. The bytes of its name stay until the tree goes.
    pub(super) fn remove(&mut self, list: &mut List, id: EntryId) {
        let entry = self.table[id.0 as usize];
        let hash = self.hash(entry.dir, Self::name_at(&self.names, entry.name));
        if let Ok(found) = self.index.find_entry(hash, |&other| other == id.0) {
            found.remove();
        }
        match entry.previous {
            NONE => list.head = entry.next,
            previous => self.table[previous as usize].next = entry.next,
        }
        if entry.next != NONE {
            self.table[entry.next as usize].previous = entry.previous;
        }
        list.count -= 1;
        self.table[id.0 as usize].next = self.free.unwrap_or(NONE);
        self.free = Some(id.0);
    }

    /// The entries of a list in no particular order.
    pub(super) fn iter(&self, list: List) -> impl Iterator<Item = EntryId> {
        let start = (list.head != NONE).then_some(list.head);
        std::iter::successors(start, |&id| Some(self.table[id as usize].next).filter(|&next| next != NONE)).map(EntryId)
    }
}
