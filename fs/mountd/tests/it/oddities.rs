//! A tree with one of everything that a file system can hold, and a description of a tree to compare by.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, makedev};

/// Bytes that no compressor shrinks, different for each seed.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut output = vec![0; bytes];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut output);
    output
}

/// Fills an empty directory. Needs root.
pub(crate) fn create(root: &Path) {
    for directory in ["empty", "deep/er/still", "many", "sticky"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    for number in 0..3000 {
        std::fs::write(root.join(format!("many/file-{number:05}")), number.to_string()).unwrap();
    }
    std::fs::write(root.join("empty-file"), "").unwrap();
    std::fs::write(root.join("small"), "small").unwrap();
    std::fs::write(root.join("large"), noise(1, 1_234_567)).unwrap();
    std::fs::write(root.join("text"), "the same line again\n".repeat(100_000)).unwrap();
    std::fs::write(root.join("deep/er/still/block"), noise(2, 4096)).unwrap();
    std::fs::write(root.join("deep/er/still/block-and-one"), noise(3, 4097)).unwrap();
    sparse(&root.join("sparse"));
    links(root);
    nodes(root);
    attributes(root);
}

fn sparse(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).unwrap();
    file.write_all_at(&noise(4, 150_000), 1 << 20).unwrap();
    file.write_all_at(b"end", 10 << 20).unwrap();
    file.set_len(20 << 20).unwrap();
}

fn links(root: &Path) {
    std::fs::hard_link(root.join("large"), root.join("deep/large-too")).unwrap();
    std::fs::hard_link(root.join("large"), root.join("empty/large-three")).unwrap();
    symlink("../small", root.join("deep/link")).unwrap();
    symlink("x".repeat(4000), root.join("long-link")).unwrap();
    std::fs::hard_link(root.join("deep/link"), root.join("link-to-link")).unwrap();
    symlink("/nowhere", root.join("dangling")).unwrap();
}

fn nodes(root: &Path) {
    let node = |name: &str, kind, number| {
        rustix::fs::mknodat(CWD, root.join(name), kind, Mode::from(0o640), number).unwrap();
    };
    node("fifo", FileType::Fifo, 0);
    node("socket", FileType::Socket, 0);
    node("null", FileType::CharacterDevice, makedev(1, 3));
    node("disk", FileType::BlockDevice, makedev(259, 70_000));
    node("whiteout", FileType::CharacterDevice, makedev(0, 0));
}

fn attributes(root: &Path) {
    let mode = |name: &str, bits| rustix::fs::chmod(root.join(name), Mode::from(bits)).unwrap();
    std::fs::write(root.join("set-id"), "#!/bin/sh\n").unwrap();
    std::fs::write(root.join("secret"), "secret").unwrap();
    let owner = |name: &str, uid, gid| {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(CWD, root.join(name), uid, gid, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    };
    owner("small", 1000, 65_534);
    owner("dangling", 4_000_000_000, 3_000_000_000);
    owner("set-id", 12, 34);
    mode("set-id", 0o6755);
    mode("secret", 0);
    mode("sticky", 0o1777);
    let xattr = |name: &str, key: &str, value: &[u8]| {
        rustix::fs::lsetxattr(root.join(name), key, value, XattrFlags::empty()).unwrap();
    };
    xattr("small", "user.empty", b"");
    xattr("small", "user.note", b"a value");
    xattr("small", "trusted.overlay.overlay.something", b"\0binary\xff");
    xattr("empty", "trusted.overlay.opaque", b"y");
    xattr("large", "user.long", &noise(5, 3000));
    xattr("set-id", "security.capability", &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // Version 2; owner rw, user 1000 r, group none, mask r, others none.
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 4, 1000), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        acl.extend([&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    xattr("text", "system.posix_acl_access", &acl);
    xattr("deep", "system.posix_acl_default", &acl);
    for (name, secs, nanos) in [("small", 1, 1), ("large", 4_294_967_296, 999_999_999), ("text", -5, 123_456_789)] {
        let time = Timespec { tv_sec: secs, tv_nsec: nanos };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, root.join(name), &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// Everything about each path below a root that must be the same elsewhere. Hard links are named by their first path.
pub(crate) fn describe(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut links = BTreeMap::new();
    let mut queue = vec![root.to_owned()];
    while let Some(path) = queue.pop() {
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        let mut text = format!(
            "mode {:o} owner {}:{} mtime {}.{:09} device {:x}",
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.rdev(),
        );
        if metadata.is_dir() {
            queue.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            text.push_str(&format!(" size {} links {}", metadata.len(), metadata.nlink()));
            links.entry(metadata.ino()).or_insert_with(Vec::new).push(name.clone());
        }
        if metadata.is_file() {
            text.push_str(&format!(" content {}", blake3::hash(&std::fs::read(&path).unwrap())));
            text.push_str(&format!(" data {:?}", data(&path)));
        }
        if metadata.is_symlink() {
            text.push_str(&format!(" target {:?}", std::fs::read_link(&path).unwrap()));
        }
        text.push_str(&xattrs(&path));
        found.insert(name, text);
    }
    for mut group in links.into_values().filter(|group| group.len() > 1) {
        group.sort();
        let first = group[0].clone();
        for name in group {
            found.get_mut(&name).unwrap().push_str(&format!(" is {first}"));
        }
    }
    found
}

/// Where a file says that it has data: beginnings and ends, in units of blocks, as holes are kept.
pub(crate) fn data(path: &Path) -> Vec<(u64, u64)> {
    use rustix::fs::{SeekFrom, seek};
    let file = std::fs::File::open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < length {
        let Ok(start) = seek(&file, SeekFrom::Data(at)) else { break };
        at = seek(&file, SeekFrom::Hole(start)).unwrap();
        ranges.push((start, at.next_multiple_of(4096).min(length)));
    }
    assert_eq!(seek(&file, SeekFrom::Data(length)), Err(rustix::io::Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::Hole(length)), Err(rustix::io::Errno::NXIO));
    ranges
}

fn xattrs(path: &Path) -> String {
    let mut names = vec![0; 65_536];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut names: Vec<_> = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    let mut text = String::new();
    let mut value = vec![0; 65_536];
    for name in names {
        let name = std::ffi::OsStr::from_bytes(name);
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        text.push_str(&format!(" {name:?}={:?}", value[..length].escape_ascii().to_string()));
    }
    text
}
