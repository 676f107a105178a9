//! Refs of a local store: read without a lock, changed under one.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use dsec_format::json::MAX_JSON_BYTES;
use dsec_format::protocol::registry::{Expected, RefList};
use dsec_format::refs::{Ref, RefName, Target};
use fs_err as fs;

use super::LocalStore;
use crate::disk::{Access, Lock};
use crate::error::{Damage, Error, Result};
use crate::layout::{LOCKS, REFS, TAG_PREFIX, ref_path};

/// Held while a ref changes.
const REFS_LOCK: &str = "refs";

impl LocalStore {
    pub(super) fn ref_or_none(&self, name: &RefName) -> Result<Option<Ref>> {
        let path = ref_path(&self.root, name);
        let bytes = match fs::metadata(&path)
            .and_then(|metadata| if metadata.len() > MAX_JSON_BYTES as u64 { Ok(Vec::new()) } else { fs::read(&path) })
        {
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(self.io(error)),
        };
        let damaged = |source: Damage| Error::Damaged {
            object: format!("ref {name}"),
            store: path.display().to_string(),
            source,
        };
        let record = Ref::decode(&bytes).map_err(|error| damaged(error.into()))?;
        if record.name != *name {
            return Err(damaged(Damage::Name { found: record.name }));
        }
        Ok(Some(record))
    }

    pub(super) fn list_refs_of(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<RefList> {
        let page = self.page_of(prefix, after, limit)?.names;
        let mut list = RefList::default();
        for name in page.values().take(limit) {
            match self.ref_or_none(name) {
                // One that was removed meanwhile is not listed.
                Ok(record) => list.refs.extend(record),
                Err(Error::Damaged { .. }) => list.damaged.push(name.clone()),
                Err(error) => return Err(error),
            }
        }
        if page.len() > limit {
            list.next = page.keys().take(limit).next_back().cloned();
        }
        Ok(list)
    }

    fn page_of<'a>(&self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> Result<Page<'a>> {
        let page = RefCell::new(Page { prefix, after, limit, names: BTreeMap::new(), directories: 0 });
        let enters = |directory: &str| page.borrow_mut().enters(directory);
        self.walk_refs(&enters, &mut |name| page.borrow_mut().take(name), &mut |_| {})?;
        let page = page.into_inner();
        tracing::trace!(directories = page.directories, names = page.names.len(), "refs listed");
        Ok(page)
    }

    /// Calls `found` with the name of each ref, roughly in their order, and `foreign` with each file that is none. Only
    /// directories (their path below `refs`) for which `enters` holds are read.
    pub(crate) fn walk_refs(
        &self,
        enters: &dyn Fn(&str) -> bool,
        found: &mut dyn FnMut(RefName),
        foreign: &mut dyn FnMut(PathBuf),
    ) -> Result<()> {
        let top = self.root.join(REFS);
        let mut directories: Vec<PathBuf> = vec![top.clone()];
        while let Some(directory) = directories.pop() {
            let name = directory.strip_prefix(&top).ok().and_then(Path::to_str);
            // One whose name is no text has nothing but foreign files in it.
            if name.is_some_and(|name| !name.is_empty() && !enters(name)) {
                continue;
            }
            let entries = match fs::read_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.map_err(|error| self.io(error))?,
            };
            let below = directories.len();
            for entry in entries {
                let entry = entry.map_err(|error| self.io(error))?;
                let path = entry.path();
                if entry.file_type().map_err(|error| self.io(error))?.is_dir() {
                    directories.push(path);
                } else if let Some(name) = name_of(&top, &path) {
                    found(name);
                } else {
                    foreign(path);
                }
            }
            // The first one is taken from the end.
            directories[below..]
                .sort_by_cached_key(|path| Reverse([path.as_os_str().as_encoded_bytes(), b"/"].concat()));
        }
        Ok(())
    }

    pub(super) fn change_ref(&self, name: &RefName, target: Option<Target>, expected: Expected) -> Result<Option<Ref>> {
        let locks = self.root.join(LOCKS);
        self.disk.make_directories(&locks).map_err(|error| self.io(error))?;
        let scratch = self.scratch()?;
        let _lock = Lock::take(&locks.join(REFS_LOCK), Access::Alone).map_err(|error| self.io(error))?;
        let path = ref_path(&self.root, name);
        let present = self.ref_or_none(name)?;
        if let Err(conflict) = check_expected(name, present.as_ref(), expected) {
            // Whoever asks again, because it did not hear the answer, takes what it wanted for done.
            self.settle_ref(&path)?;
            return Err(conflict);
        }
        let Some(target) = target else {
            if present.is_none() {
                self.settle_ref(&path)?;
                return Err(Error::NotFound { object: format!("ref {name}"), store: self.root.display().to_string() });
            }
            self.disk.remove(&path).map_err(|error| self.io(error))?;
            return Ok(None);
        };
        let record = Ref::new(name.clone(), target, now_ms());
        let temporary = scratch.path().join("ref");
        self.disk
            .write(&temporary, &record.encode())
            .and_then(|()| self.disk.publish(&temporary, &path))
            .map_err(|error| self.io(error))?;
        Ok(Some(record))
    }

    /// Makes durable that a ref is there, or is not: its writer may have been killed.
    fn settle_ref(&self, path: &Path) -> Result<()> {
        let settle = || match self.disk.settle(&[path.to_owned()])? {
            None => Ok(()),
            Some(_) => self.disk.settle_name(path),
        };
        settle().map_err(|error| self.io(error))
    }
}

/// The names of one page. One more than asked for tells whether there is a next one; memory is bounded by the page.
struct Page<'a> {
    prefix: &'a str,
    after: Option<&'a str>,
    limit: usize,
    names: BTreeMap<String, RefName>,
    /// Directories that were read for it.
    directories: usize,
}

impl Page<'_> {
    fn take(&mut self, name: RefName) {
        let text = name.to_string();
        if text.starts_with(self.prefix) && self.after.is_none_or(|after| text.as_str() > after) {
            self.names.insert(text, name);
            if self.names.len() > self.limit.saturating_add(1) {
                self.names.pop_last();
            }
        }
    }

    /// Whether a directory may hold names of this page. All names in it start with its own and `/` or `:`.
    fn enters(&mut self, directory: &str) -> bool {
        let starts = [format!("{directory}/"), format!("{directory}:")];
        let has_prefix =
            starts.iter().any(|start| start.starts_with(self.prefix) || self.prefix.starts_with(start.as_str()));
        // `/` is less than `:`, and `;` is the next after it.
        let is_after = self.after.is_none_or(|after| after < format!("{directory};").as_str());
        let is_before =
            self.names.len() <= self.limit || self.names.last_key_value().is_none_or(|(last, _)| starts[0] < *last);
        let enters = has_prefix && is_after && is_before;
        self.directories += usize::from(enters);
        enters
    }
}

fn check_expected(name: &RefName, present: Option<&Ref>, expected: Expected) -> Result<()> {
    let holds = match (expected, present) {
        (Expected::Anything, _) | (Expected::Absent, None) => true,
        (Expected::Absent, Some(_)) | (Expected::Is(_), None) => false,
        (Expected::Is(target), Some(present)) => present.target == target,
    };
    if holds {
        return Ok(());
    }
    let present = match present.map(|present| present.target) {
        None => "nothing".to_owned(),
        Some(Target::Image(digest)) => format!("image {digest}"),
        Some(Target::Environment(digest)) => format!("environment {digest}"),
    };
    Err(Error::Conflict { name: name.clone(), present })
}

/// The name that a file below `refs` stands for; `None` for a file that no store has written.
fn name_of(top: &Path, path: &Path) -> Option<RefName> {
    let name = path.parent()?.strip_prefix(top).ok()?.to_str()?;
    let tag = path.file_name()?.to_str()?.strip_prefix(TAG_PREFIX)?;
    format!("{name}:{tag}").parse().ok()
}

fn now_ms() -> u64 {
    // A clock before 1970 is shown as 1970: the time is for people only.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsec_format::ImageDigest;

    /// The names of all pages, and how many directories were read for them.
    fn list(store: &LocalStore, prefix: &str, limit: usize) -> (Vec<String>, usize) {
        let (mut names, mut directories, mut after): (Vec<String>, _, Option<String>) = (Vec::new(), 0, None);
        loop {
            let page = store.page_of(prefix, after.as_deref(), limit).unwrap();
            directories += page.directories;
            names.extend(page.names.keys().take(limit).cloned());
            if page.names.len() <= limit {
                return (names, directories);
            }
            after = names.last().cloned();
        }
    }

    #[test]
    fn a_page_reads_only_the_directories_that_it_may_need() {
        let directory = tempfile::tempdir().unwrap();
        let store = LocalStore::create(directory.path()).unwrap();
        let parts = ["a", "a-b", "a.b", "a0", "a_b", "b"];
        let mut names: Vec<String> = parts
            .iter()
            .flat_map(|top| parts.iter().flat_map(move |part| (0..4).map(move |tag| format!("{top}/{part}:{tag}"))))
            .chain(parts.iter().map(|top| format!("{top}:latest")))
            .collect();
        for name in &names {
            let name: RefName = name.parse().unwrap();
            let path = ref_path(directory.path(), &name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, Ref::new(name, Target::Image(ImageDigest::of(b"")), 0).encode()).unwrap();
        }
        names.sort();
        let all = parts.len() * (parts.len() + 1);
        for limit in [1, 5, 1000] {
            for prefix in ["", "a", "a/", "a0/a-", "a:", "b/b:3", "c"] {
                let wanted: Vec<_> = names.iter().filter(|name| name.starts_with(prefix)).cloned().collect();
                let (found, directories) = list(&store, prefix, limit);
                assert_eq!(found, wanted, "prefix {prefix:?}, limit {limit}");
                let pages = wanted.len() / limit + 1;
                assert!(directories <= all + 6 * pages, "{directories} for {pages} pages of {prefix:?}");
            }
        }
    }
}
