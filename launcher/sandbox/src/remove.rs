//! Removing a tree that a tenant has filled.
//!
//! Every step is relative to a descriptor and follows no link, so nothing outside is touched. Depth is bounded: what lies
//! deeper is moved up first, so neither the stack nor the number of descriptors grows with what the tenant has built. Nor
//! does memory: no directory is listed as a whole. Modes do not hold root up; flags (immutable, append-only) are cleared where they do.

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, IFlags, Mode, OFlags, RenameFlags, ResolveFlags, ioctl_getflags, ioctl_setflags,
    openat2, renameat_with, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why something of a tree is still there.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove {name:?} below {}", tree.display())]
pub struct Error {
    /// The tree.
    pub tree: PathBuf,
    /// The entry, or the tree's own name.
    pub name: CString,
    /// The kernel's answer.
    #[source]
    pub errno: Errno,
}

/// How deep the walk goes before it moves directories up.
const DEPTH_MAX: usize = 64;

type Failed = (CString, Errno);

/// Removes a directory with everything in it. One that is not there is no error.
///
/// # Errors
/// [`Error`] names the first entry that stays.
pub(crate) fn tree(path: &Path) -> Result<(), Error> {
    remove(path).map_err(|(name, errno)| Error { tree: path.to_owned(), name, errno })
}

fn remove(path: &Path) -> Result<(), Failed> {
    let name = |text: &[u8]| CString::new(text).unwrap_or_default();
    let own = name(path.file_name().map(OsStrExt::as_bytes).unwrap_or_default());
    let parent = path.parent().unwrap_or(Path::new("/"));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match rustix::fs::openat(CWD, parent, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.map_err(|errno| (own.clone(), errno))?,
    };
    let root = match open_directory(parent.as_fd(), &own) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.map_err(|errno| (own.clone(), errno))?,
    };
    let mut walk = Walk { root: root.as_fd(), moved: 0 };
    let mut list = Dir::read_from(&root).map_err(|errno| (own.clone(), errno))?;
    walk.empty(&mut list, 0)?;
    unlink(parent.as_fd(), &own, AtFlags::REMOVEDIR).map_err(|errno| (own, errno))
}

struct Walk<'a> {
    root: BorrowedFd<'a>,
    /// How many directories have been moved up so far; their names come from it.
    moved: u64,
}

impl Walk<'_> {
    /// Removes what is in a directory, name by name as the kernel lists them: there may be more than fit into memory. What
    /// a pass has missed, or moved up into the root meanwhile, is the next one's; the last one finds nothing.
    fn empty(&mut self, directory: &mut Dir, depth: usize) -> Result<(), Failed> {
        let failed = |errno| (c".".to_owned(), errno);
        loop {
            let mut found = false;
            while let Some(entry) = directory.read() {
                let entry = entry.map_err(failed)?;
                if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                    found = true;
                    let directory = directory.fd().map_err(failed)?;
                    self.remove(directory, entry.file_name(), entry.file_type(), depth)?;
                }
            }
            if !found {
                return Ok(());
            }
            directory.rewind();
        }
    }

    fn remove(&mut self, directory: BorrowedFd<'_>, name: &CStr, kind: FileType, depth: usize) -> Result<(), Failed> {
        let failed = |errno| (name.to_owned(), errno);
        if kind != FileType::Directory {
            match unlink(directory, name, AtFlags::empty()) {
                Err(Errno::ISDIR) => {}
                other => return other.map_err(failed),
            }
        }
        if depth < DEPTH_MAX {
            self.descend(directory, name, depth)
        } else {
            self.move_up(directory, name).map_err(failed)
        }
    }

    fn descend(&mut self, directory: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<(), Failed> {
        let failed = |errno| (name.to_owned(), errno);
        match unlink(directory, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            other => return other.map_err(failed),
        }
        let mut child = open_directory(directory, name).and_then(Dir::new).map_err(failed)?;
        self.empty(&mut child, depth + 1)?;
        unlink(directory, name, AtFlags::REMOVEDIR).map_err(failed)
    }

    fn move_up(&mut self, directory: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
        loop {
            self.moved += 1;
            let place = format!(".deep-{}", self.moved);
            let moved = || renameat_with(directory, name, self.root, place.as_str(), RenameFlags::NOREPLACE);
            match moved().or_else(|errno| retry(directory, name, errno, moved)) {
                Err(Errno::EXIST) => {}
                other => return other,
            }
        }
    }
}

fn open_directory(directory: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(directory, name, flags, Mode::empty(), resolve)
}

/// Removes one entry, clearing flags that forbid it. What is gone is no error.
fn unlink(directory: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> rustix::io::Result<()> {
    let removed = || unlinkat(directory, name, flags);
    match removed().or_else(|errno| retry(directory, name, errno, removed)) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn retry(
    directory: BorrowedFd<'_>,
    name: &CStr,
    errno: Errno,
    again: impl FnOnce() -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    if errno != Errno::PERM {
        return Err(errno);
    }
    clear_flags(directory);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    if let Ok(entry) = rustix::fs::openat(directory, name, flags, Mode::empty()) {
        clear_flags(entry.as_fd());
    }
    again()
}

/// Clears the flags that forbid removal. Where that does not work, the removal that follows says why.
fn clear_flags(file: BorrowedFd<'_>) {
    let fixed = IFlags::IMMUTABLE | IFlags::APPEND;
    if let Ok(flags) = ioctl_getflags(file)
        && flags.intersects(fixed)
    {
        let _ = ioctl_setflags(file, flags - fixed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn removes_what_is_deep_wide_linked_and_locked() {
        let parent = tempfile::tempdir().unwrap();
        let outside = parent.path().join("outside");
        fs_err::write(&outside, "stays").unwrap();
        let root = parent.path().join("tree");
        fs_err::create_dir(&root).unwrap();
        let mut at = open_directory(open_path(&root).as_fd(), c".").unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "a-rather-long-name-for-a-directory", Mode::from_raw_mode(0o700)).unwrap();
            at = open_directory(at.as_fd(), c"a-rather-long-name-for-a-directory").unwrap();
        }
        for number in 0..300 {
            fs_err::write(root.join(format!("file-{number}")), "").unwrap();
        }
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        std::os::unix::fs::symlink(parent.path(), root.join("link-to-directory")).unwrap();
        let closed = root.join("closed");
        fs_err::create_dir(&closed).unwrap();
        fs_err::write(closed.join("file"), "").unwrap();
        fs_err::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
        tree(&root).unwrap();
        assert!(!root.exists());
        assert_eq!(fs_err::read_to_string(&outside).unwrap(), "stays");
        tree(&root).unwrap();
    }

    #[test]
    fn wide_directories_are_removed_in_bounded_memory() {
        const NAMES: u32 = 60_000;
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("tree");
        fs_err::create_dir_all(root.join("a/b")).unwrap();
        fs_err::write(root.join("file"), "").unwrap();
        let (top, wide) = (open_path(&root), open_path(&root.join("a/b")));
        for number in 0..NAMES {
            // Links to one file are the cheapest names; as long as they may be, 15 MB of them.
            rustix::fs::linkat(&top, "file", &wide, format!("{number:0>250}"), AtFlags::empty()).unwrap();
        }
        let before = resident_bytes();
        let peak = std::thread::scope(|scope| {
            let removing = scope.spawn(|| tree(&root).unwrap());
            let mut peak = 0;
            while !removing.is_finished() {
                peak = peak.max(resident_bytes());
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            peak
        });
        assert!(!root.exists());
        let grown = peak.saturating_sub(before);
        assert!(grown < 8 << 20, "memory has grown by {grown} bytes");
    }

    fn resident_bytes() -> u64 {
        let statm = fs_err::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    fn open_path(path: &Path) -> OwnedFd {
        rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn a_link_in_place_of_the_tree_is_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let victim = parent.path().join("victim");
        fs_err::create_dir(&victim).unwrap();
        fs_err::write(victim.join("file"), "").unwrap();
        let link = parent.path().join("tree");
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert!(tree(&link).is_err());
        assert!(victim.join("file").exists());
    }
}
