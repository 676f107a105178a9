//! The kernel mounts what is written and shows exactly the tree: file-backed, with the device as a regular file.
//!
//! These tests need root, and Linux 6.12 or later with `CONFIG_EROFS_FS_BACKED_BY_FILE`.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use dsec_erofs::{Device, InodeId, Kind, Segment, Tree};
use proptest::prelude::*;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::round_trip::{any_operations, build, links};
use crate::sample::{Sample, attributes, data_of, oddities, vast_files};

/// A mounted image, unmounted when it goes.
pub(crate) struct Mounted {
    dir: tempfile::TempDir,
}

impl Mounted {
    pub(crate) fn new(sample: &Sample) -> Mounted {
        let dir = tempfile::tempdir().unwrap();
        let (image, device) = sample.store(dir.path());
        Mounted::of_files(dir, &image, &device).expect("mounting needs root and file-backed EROFS (Linux 6.12)")
    }

    /// Mounts an image that lies in the directory.
    pub(crate) fn of_files(dir: tempfile::TempDir, image: &Path, device: &Path) -> Result<Mounted, Errno> {
        fs_err::create_dir(dir.path().join("mnt")).unwrap();
        let options = CString::new(format!("device={}", device.display())).unwrap();
        let flags = MountFlags::RDONLY | MountFlags::NODEV;
        rustix::mount::mount(image, dir.path().join("mnt"), "erofs", flags, Some(options.as_c_str()))?;
        Ok(Mounted { dir })
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        rustix::mount::unmount(self.root(), UnmountFlags::DETACH).expect("unmount");
    }
}

/// Whether Linux has xattrs of this name on inodes of this kind: symlinks have no ACL, and `user.` is for files and
/// directories.
fn is_shown(name: &[u8], kind: Kind<'_>) -> bool {
    match kind {
        Kind::Regular { .. } | Kind::Directory => true,
        Kind::Symlink(_) => !name.starts_with(b"user.") && !name.starts_with(b"system."),
        _ => !name.starts_with(b"user."),
    }
}

fn read_xattrs(path: &Path, kind: Kind<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap();
    let names = names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty() && is_shown(name, kind));
    let mut xattrs: Vec<_> = names
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value).unwrap();
            value.truncate(length);
            (name.to_vec(), value)
        })
        .collect();
    xattrs.sort();
    xattrs
}

/// The ranges of an open file that are data, by `SEEK_DATA` and `SEEK_HOLE`.
fn data_ranges(file: &fs_err::File) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    let mut at = 0;
    loop {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return ranges,
            Err(error) => panic!("{}: {error}", file.path().display()),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap();
        ranges.push((start, at));
    }
}

/// What `SEEK_DATA` and `SEEK_HOLE` should show: segments that touch in the file are one range.
fn expected_ranges(segments: &[Segment]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for segment in segments {
        let end = segment.file_offset + segment.bytes;
        match ranges.last_mut() {
            Some(last) if last.1 == segment.file_offset => last.1 = end,
            _ => ranges.push((segment.file_offset, end)),
        }
    }
    ranges
}

fn compare_file(path: &Path, bytes: u64, segments: &[Segment]) {
    let file = fs_err::File::open(path).unwrap();
    assert_eq!(data_ranges(&file), expected_ranges(segments), "{}", path.display());
    for segment in segments {
        let mut read = vec![0; usize::try_from(segment.bytes).unwrap()];
        std::os::unix::fs::FileExt::read_exact_at(file.file(), &mut read, segment.file_offset).unwrap();
        assert!(read == data_of(segment), "{} at {}", path.display(), segment.file_offset);
    }
    if bytes < 1 << 24 {
        let content = fs_err::read(path).unwrap();
        let mut expected = vec![0; usize::try_from(bytes).unwrap()];
        for segment in segments {
            let start = usize::try_from(segment.file_offset).unwrap();
            expected[start..start + usize::try_from(segment.bytes).unwrap()].copy_from_slice(&data_of(segment));
        }
        assert!(content == expected, "{}", path.display());
    }
}

fn compare_kind(tree: &Tree, inode: InodeId, path: &Path, metadata: &Metadata) {
    let file_type = metadata.file_type();
    let rdev = |device: Device| rustix::fs::makedev(device.major, device.minor);
    match tree.kind(inode) {
        Kind::Directory => assert!(file_type.is_dir()),
        Kind::Regular { bytes } => {
            assert!(file_type.is_file());
            assert_eq!(metadata.len(), bytes);
            compare_file(path, bytes, &tree.segments(inode).collect::<Vec<_>>());
        }
        Kind::Symlink(target) => {
            assert!(file_type.is_symlink());
            assert_eq!(fs_err::read_link(path).unwrap().as_os_str().as_bytes(), target);
        }
        Kind::CharDevice(device) => {
            assert!(file_type.is_char_device());
            assert_eq!(metadata.rdev(), rdev(device));
        }
        Kind::BlockDevice(device) => {
            assert!(file_type.is_block_device());
            assert_eq!(metadata.rdev(), rdev(device));
        }
        Kind::Fifo => assert!(file_type.is_fifo()),
        Kind::Socket => assert!(file_type.is_socket()),
    }
}

/// Compares everything that a mounted path shows with its inode in the tree.
fn compare_inode(tree: &Tree, inode: InodeId, path: &Path) -> Metadata {
    let metadata = fs_err::symlink_metadata(path).unwrap();
    let attributes = tree.attributes(inode);
    let at = path.display();
    assert_eq!(metadata.mode() & 0o7777, u32::from(attributes.mode), "{at}");
    assert_eq!((metadata.uid(), metadata.gid()), (attributes.uid, attributes.gid), "{at}");
    let nanos = i64::from(attributes.mtime.nanos);
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (attributes.mtime.secs, nanos), "{at}");
    compare_kind(tree, inode, path, &metadata);
    let xattrs = tree.xattrs(inode).map(|xattr| (xattr.name(), xattr.value.to_vec()));
    let mut xattrs: Vec<_> = xattrs.filter(|(name, _)| is_shown(name, tree.kind(inode))).collect();
    xattrs.sort();
    assert!(read_xattrs(path, tree.kind(inode)) == xattrs, "{at}");
    metadata
}

/// Compares a mounted tree with the one that was written, name by name, in both directions.
fn compare(sample: &Sample, root: &Path) {
    let tree = &sample.tree;
    compare_inode(tree, Tree::ROOT, root);
    let links = links(tree);
    let mut numbers: HashMap<InodeId, u64> = HashMap::new();
    let mut names: HashMap<InodeId, usize> = HashMap::from([(Tree::ROOT, 0)]);
    let mut walk = tree.walk();
    while let Some(step) = walk.advance() {
        let path = root.join(OsStr::from_bytes(step.path));
        let metadata = compare_inode(tree, step.inode, &path);
        assert_eq!(metadata.nlink(), u64::from(links[&step.inode]), "{}", path.display());
        assert_eq!(*numbers.entry(step.inode).or_insert(metadata.ino()), metadata.ino(), "{}", path.display());
        *names.entry(step.dir).or_default() += 1;
        if metadata.is_dir() {
            names.entry(step.inode).or_default();
            let listed = fs_err::read_dir(&path).unwrap().map(|entry| {
                let entry = entry.unwrap();
                let child = tree.lookup(step.inode, entry.file_name().as_bytes()).expect("a name of the tree");
                // The type comes from the entry, not from the inode.
                assert_eq!(entry.file_type().unwrap().is_dir(), tree.kind(child) == Kind::Directory);
            });
            assert_eq!(listed.count(), tree.entry_count(step.inode));
        }
    }
    assert_eq!(numbers.len(), numbers.values().collect::<std::collections::HashSet<_>>().len());
}

#[test]
fn privileged_the_kernel_shows_every_oddity_as_written() {
    let sample = oddities();
    let mounted = Mounted::new(&sample);
    compare(&sample, &mounted.root());
}

#[test]
fn privileged_a_directory_of_100_000_entries() {
    let mut sample = Sample::new();
    let dir = sample.dir(Tree::ROOT, b"large");
    for number in 0..100_000 {
        sample.add(dir, format!("{number}").as_bytes(), attributes(0o644), Kind::Fifo);
    }
    let mounted = Mounted::new(&sample);
    let root = mounted.root().join("large");
    assert_eq!(fs_err::read_dir(&root).unwrap().count(), 100_000);
    for number in (0..100_000).step_by(997) {
        assert!(fs_err::symlink_metadata(root.join(number.to_string())).is_ok(), "{number}");
    }
    assert!(fs_err::symlink_metadata(root.join("100000")).is_err());
}

#[test]
fn privileged_holes_of_vast_files_are_exact() {
    let sample = vast_files();
    let mounted = Mounted::new(&sample);
    compare(&sample, &mounted.root());
}

#[test]
fn privileged_overlay_knows_our_whiteouts_and_opaque_directories() {
    let mut below = Sample::new();
    for name in [&b"gone"[..], b"kept"] {
        below.file(Tree::ROOT, name, 10);
    }
    let dir = below.dir(Tree::ROOT, b"opaque");
    below.file(dir, b"hidden", 10);
    let mut above = Sample::new();
    let nothing = Kind::CharDevice(Device { major: 0, minor: 0 });
    above.add(Tree::ROOT, b"gone", attributes(0), nothing);
    let dir = above.dir(Tree::ROOT, b"opaque");
    above.file(dir, b"new", 10);
    above.tree.add_xattr(dir, b"trusted.overlay.opaque", b"y").unwrap();

    let (above, below) = (Mounted::new(&above), Mounted::new(&below));
    let merged = tempfile::tempdir().unwrap();
    let options = format!("lowerdir={}:{}", above.root().display(), below.root().display());
    let options = CString::new(options).unwrap();
    rustix::mount::mount("none", merged.path(), "overlay", MountFlags::RDONLY, Some(options.as_c_str()))
        .expect("mounting overlay needs root");
    let list = |path: &Path| {
        let entries = fs_err::read_dir(path).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let names = (list(merged.path()), list(&merged.path().join("opaque")));
    rustix::mount::unmount(merged.path(), UnmountFlags::DETACH).unwrap();
    assert_eq!(names.0, ["kept", "opaque"]);
    assert_eq!(names.1, ["new"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn privileged_the_kernel_shows_any_tree_as_written(operations in any_operations()) {
        let sample = build(&operations);
        let mounted = Mounted::new(&sample);
        compare(&sample, &mounted.root());
    }
}
