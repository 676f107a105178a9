//! The tree as a file system: names, links, replacement, and what it refuses.

use super::*;
use crate::grain::Chunks;

fn attributes(mode: u16) -> Attributes {
    Attributes { mode, uid: 1000, gid: u32::MAX - 1, mtime: Timestamp { secs: -5, nanos: 999_999_999 } }
}

fn tree() -> Tree {
    Tree::new(attributes(0o755)).unwrap()
}

fn names(tree: &Tree, dir: InodeId) -> Vec<String> {
    tree.entries(dir).unwrap().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
}

#[test]
fn an_inode_record_stays_small() {
    assert!(size_of::<Record>() <= 48, "{}", size_of::<Record>());
}

#[test]
fn entries_are_sorted_by_bytes() {
    let mut tree = tree();
    for name in [&b"b"[..], b"a", b"-", b"B", b"\xff", b"aa"] {
        let file = tree.add(attributes(0o644), Kind::Fifo).unwrap();
        tree.link(Tree::ROOT, name, file).unwrap();
    }
    let sorted: Vec<_> = tree.entries(Tree::ROOT).unwrap().map(|(name, _)| name.to_vec()).collect();
    assert_eq!(sorted, [&b"-"[..], b"B", b"a", b"aa", b"b", b"\xff"]);
    assert_eq!(tree.entry_count(Tree::ROOT), 6);
}

#[test]
fn hard_links_of_any_kind_are_counted() {
    let mut tree = tree();
    for kind in [Kind::Symlink(b"t"), Kind::Fifo, Kind::CharDevice(Device { major: 0, minor: 0 })] {
        let inode = tree.add(attributes(0o644), kind).unwrap();
        assert_eq!(tree.nlink(inode), 0);
        tree.replace(Tree::ROOT, b"x", inode).unwrap();
        tree.replace(Tree::ROOT, b"y", inode).unwrap();
        assert_eq!(tree.nlink(inode), 2);
        assert_eq!(tree.kind(inode), kind);
    }
}

#[test]
fn a_replaced_directory_takes_everything_below_it_along() {
    let mut tree = tree();
    let dir = tree.add(attributes(0o755), Kind::Directory).unwrap();
    let sub = tree.add(attributes(0o755), Kind::Directory).unwrap();
    let file = tree.add(attributes(0o644), Kind::Regular { bytes: 0 }).unwrap();
    tree.link(Tree::ROOT, b"dir", dir).unwrap();
    tree.link(dir, b"sub", sub).unwrap();
    tree.link(sub, b"file", file).unwrap();
    tree.link(Tree::ROOT, b"kept", file).unwrap();
    assert_eq!((tree.nlink(Tree::ROOT), tree.nlink(dir), tree.nlink(file)), (3, 3, 2));
    assert_eq!(tree.directory_path(sub), b"dir/sub");

    let other = tree.add(attributes(0o644), Kind::Socket).unwrap();
    assert_eq!(tree.replace(Tree::ROOT, b"dir", other).unwrap(), Some(dir));
    assert_eq!((tree.nlink(Tree::ROOT), tree.nlink(dir), tree.nlink(file)), (2, 2, 1));
    assert_eq!(names(&tree, Tree::ROOT), ["dir", "kept"]);
    assert_eq!(tree.parent(sub), None);
    tree.link(Tree::ROOT, b"again", sub).unwrap();
    assert_eq!(names(&tree, sub), [""; 0]);
}

#[test]
fn a_name_can_be_taken_and_given_again_and_again() {
    let mut tree = tree();
    let file = tree.add(attributes(0o644), Kind::Fifo).unwrap();
    for _ in 0..1000 {
        tree.link(Tree::ROOT, b"name", file).unwrap();
        assert_eq!(tree.unlink(Tree::ROOT, b"name").unwrap(), Some(file));
        assert_eq!(tree.unlink(Tree::ROOT, b"name").unwrap(), None);
    }
    assert_eq!(tree.lookup(Tree::ROOT, b"name"), None);
    assert_eq!(tree.entry_count(Tree::ROOT), 0);
}

#[test]
fn directories_have_one_parent_and_no_cycles() {
    let mut tree = tree();
    let top = tree.add(attributes(0o755), Kind::Directory).unwrap();
    let low = tree.add(attributes(0o755), Kind::Directory).unwrap();
    tree.link(top, b"low", low).unwrap();
    assert_eq!(tree.link(low, b"top", top), Err(Error::Cycle { inode: top }));
    assert_eq!(tree.link(top, b"self", top), Err(Error::Cycle { inode: top }));
    assert_eq!(tree.link(Tree::ROOT, b"low", low), Err(Error::SecondParent { inode: low }));
    assert_eq!(tree.link(top, b"root", Tree::ROOT), Err(Error::SecondParent { inode: Tree::ROOT }));
    assert_eq!(tree.link(top, b"low", low), Err(Error::SecondParent { inode: low }));
    let file = tree.add(attributes(0o644), Kind::Fifo).unwrap();
    assert_eq!(tree.link(top, b"low", file), Err(Error::Exists { dir: top, name: b"low".to_vec() }));
    assert_eq!(tree.link(file, b"x", low), Err(Error::NotADirectory { inode: file }));
}

#[test]
fn bad_names_targets_and_numbers_are_refused() {
    let mut tree = tree();
    let file = tree.add(attributes(0o644), Kind::Fifo).unwrap();
    let mut link = |name: &[u8]| tree.link(Tree::ROOT, name, file);
    assert_eq!(link(b""), Err(Error::EmptyName));
    assert_eq!(link(b"."), Err(Error::DotName { name: "." }));
    assert_eq!(link(b".."), Err(Error::DotName { name: ".." }));
    assert!(matches!(link(b"a/b"), Err(Error::IllegalName { .. })));
    assert!(matches!(link(b"a\0b"), Err(Error::IllegalName { .. })));
    assert_eq!(link(&[b'x'; 256]), Err(Error::NameTooLong { bytes: 256 }));
    assert_eq!(link(&[b'x'; 255]), Ok(()));
    let mut add = |kind: Kind<'_>| tree.add(attributes(0o644), kind).map(drop);
    assert_eq!(add(Kind::Symlink(b"")), Err(Error::EmptyTarget));
    assert_eq!(add(Kind::Symlink(b"a\0")), Err(Error::NulInTarget));
    assert_eq!(add(Kind::Symlink(&[b'x'; 4096])), Err(Error::TargetTooLong { bytes: 4096 }));
    assert_eq!(add(Kind::Symlink(&[b'x'; 4095])), Ok(()));
    assert_eq!(add(Kind::Regular { bytes: 1 << 63 }), Err(Error::FileTooLarge { bytes: 1 << 63 }));
    let device = Device { major: 4096, minor: 0 };
    assert_eq!(add(Kind::BlockDevice(device)), Err(Error::DeviceNumber { major: 4096, minor: 0 }));
    assert_eq!(tree.add(attributes(0o10000), Kind::Fifo), Err(Error::Mode { mode: 0o10000 }));
    let nobody = Attributes { gid: u32::MAX, ..attributes(0) };
    assert_eq!(tree.set_attributes(file, nobody), Err(Error::Id { id: u32::MAX }));
    let late = Attributes { mtime: Timestamp { secs: 0, nanos: 1_000_000_000 }, ..attributes(0) };
    assert_eq!(tree.set_attributes(file, late), Err(Error::Nanoseconds { nanos: 1_000_000_000 }));
}

#[test]
fn xattrs_are_interned_sorted_and_checked() {
    let mut tree = tree();
    let file = tree.add(attributes(0o644), Kind::Fifo).unwrap();
    let big = vec![7; format::XATTR_VALUE_MAX_BYTES];
    tree.set_xattrs(file, &[(b"security.capability", &big), (b"user.b", b""), (b"user.a", b"1")]).unwrap();
    tree.set_xattrs(Tree::ROOT, &[(b"user.a", b"1"), (b"user.b", b""), (b"security.capability", &big)]).unwrap();
    assert_eq!(tree.xattr_set(file), tree.xattr_set(Tree::ROOT));
    tree.add_xattr(file, b"system.posix_acl_access", b"acl").unwrap();
    tree.add_xattr(file, b"user.b", b"2").unwrap();
    let names: Vec<_> = tree.xattrs(file).map(|xattr| String::from_utf8(xattr.name()).unwrap()).collect();
    assert_eq!(names, ["user.a", "user.b", "system.posix_acl_access", "security.capability"]);
    assert_eq!(tree.xattr(file, b"user.b"), Some(&b"2"[..]));
    assert_eq!(tree.xattr(Tree::ROOT, b"user.b"), Some(&b""[..]));
    assert_eq!(tree.xattr(file, b"user.none"), None);

    let mut add = |name: &[u8], value: &[u8]| tree.add_xattr(file, name, value);
    assert!(matches!(add(b"system.nfs4_acl", b""), Err(Error::XattrNamespace { .. })));
    assert!(matches!(add(b"system.posix_acl_access2", b""), Err(Error::XattrNamespace { .. })));
    assert!(matches!(add(b"user.", b""), Err(Error::XattrName { .. })));
    assert!(matches!(add(&[&b"user."[..], &[b'x'; 251]].concat(), b""), Err(Error::XattrName { .. })));
    assert!(matches!(add(b"user.x", &[0; 65_536]), Err(Error::XattrValue { bytes: 65_536, .. })));
    let twice = tree.set_xattrs(file, &[(b"user.a", b""), (b"user.a", b"")]);
    assert!(matches!(twice, Err(Error::XattrTwice { .. })));
}

#[test]
fn segments_are_joined_and_checked() {
    let mut tree = tree();
    let file = tree.add(attributes(0o644), Kind::Regular { bytes: 10_000 }).unwrap();
    let segment = |file_offset, bytes, device_offset| Segment { file_offset, bytes, device_offset };
    tree.set_segments(file, &[segment(0, 4096, 8192), segment(4096, 5904, 12_288)]).unwrap();
    assert_eq!(tree.segments(file).collect::<Vec<_>>(), [segment(0, 10_000, 8192)]);
    tree.set_segments(file, &[segment(4096, 4096, 0)]).unwrap();
    assert_eq!(tree.segments(file).collect::<Vec<_>>(), [segment(4096, 4096, 0)]);
    tree.set_segments(file, &[]).unwrap();
    assert_eq!(tree.segments(file).count(), 0);

    let mut set = |segments: &[Segment]| tree.set_segments(file, segments);
    assert!(matches!(set(&[segment(0, 100, 0)]), Err(Error::Unaligned { .. })));
    assert!(matches!(set(&[segment(0, 4096, 1)]), Err(Error::Unaligned { .. })));
    assert!(matches!(set(&[segment(0, 0, 0)]), Err(Error::Unaligned { .. })));
    assert!(matches!(set(&[segment(8192, 4096, 0)]), Err(Error::SegmentOrder { .. })));
    assert!(matches!(set(&[segment(4096, 4096, 0), segment(0, 4096, 0)]), Err(Error::SegmentOrder { .. })));
    assert!(matches!(set(&[segment(0, 4096, (1 << 44) - 4096)]), Err(Error::DeviceOffset { .. })));
    assert_eq!(set(&[segment(0, 4096, (1 << 44) - 8192)]), Ok(()));
    let vast = tree.add(attributes(0o644), Kind::Regular { bytes: 1 << 40 }).unwrap();
    let scattered = tree.set_segments(vast, &[segment(4096, 4096, 0)]);
    assert_eq!(scattered, Err(Error::TooScattered { indexes: 1 << 28 }));
}

#[test]
fn chunks_are_as_large_as_the_holes_allow() {
    let run = |file_block, blocks| Run { file_block, device_block: 0, blocks };
    let chunks = |bytes, runs: &[Run]| {
        let Chunks { bits, count } = chunks_of(bytes, runs);
        (bits, count)
    };
    assert_eq!(chunks(0, &[]), (0, 0));
    assert_eq!(chunks(1, &[run(0, 1)]), (0, 1));
    assert_eq!(chunks(3 * 4096, &[run(0, 3)]), (2, 1));
    assert_eq!(chunks(1 << 40, &[]), (28, 1));
    assert_eq!(chunks(i64::MAX as u64, &[]), (31, 1 << 20));
    assert_eq!(chunks(40 * 4096, &[run(8, 8), run(32, 8)]), (3, 5));
    assert_eq!(chunks(40 * 4096, &[run(8, 7), run(32, 8)]), (0, 40));
}

#[test]
fn the_walk_meets_every_name_in_path_order() {
    let mut tree = tree();
    let dir = tree.add(attributes(0o755), Kind::Directory).unwrap();
    let file = tree.add(attributes(0o644), Kind::Fifo).unwrap();
    tree.link(dir, b"z", file).unwrap();
    tree.link(dir, b"a", file).unwrap();
    tree.link(Tree::ROOT, b"m", dir).unwrap();
    tree.link(Tree::ROOT, b"m.x", file).unwrap();
    tree.link(Tree::ROOT, b"a", file).unwrap();
    let mut walk = tree.walk();
    let mut met = Vec::new();
    while let Some(step) = walk.advance() {
        met.push((String::from_utf8_lossy(step.path).into_owned(), step.dir, step.inode));
    }
    let root = Tree::ROOT;
    let expected = [("a", root, file), ("m", root, dir), ("m/a", dir, file), ("m/z", dir, file), ("m.x", root, file)];
    assert_eq!(met, expected.map(|(path, dir, inode)| (path.to_owned(), dir, inode)));
}
