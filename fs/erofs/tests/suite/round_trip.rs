//! What is written is read back, by our own reader, from any tree.

use std::collections::HashMap;

use dsec_erofs::image::Extent;
use dsec_erofs::{Attributes, Device, FileType, Image, Inode, InodeId, Kind, Nid, Segment, Timestamp, Tree, check};
use proptest::prelude::*;

use crate::fsck::fsck;
use crate::sample::{Sample, acl, attributes, oddities, vast_files};

/// Compares everything that the reader shows with the tree. Links groups too: one inode, one node id.
pub(crate) fn compare(tree: &Tree, image: &Image<Vec<u8>>) {
    let root = image.inode(image.root_nid()).unwrap();
    compare_inode(tree, Tree::ROOT, image, &root);
    assert_eq!(root.nlink, tree.nlink(Tree::ROOT));
    let mut met: HashMap<InodeId, Nid> = HashMap::from([(Tree::ROOT, root.nid)]);
    let mut pending = vec![(Tree::ROOT, root, root.nid)];
    let mut names = 0;
    let links = links(tree);
    while let Some((id, dir, parent)) = pending.pop() {
        compare_listing(tree, id, image, &dir, parent);
        for (name, child) in tree.entries(id).unwrap() {
            let entry = image.lookup(&dir, name).unwrap().expect("the name is in the image");
            let inode = image.inode(entry.nid).unwrap();
            names += 1;
            if met.insert(child, entry.nid).is_none() {
                compare_inode(tree, child, image, &inode);
                assert_eq!(inode.nlink, links[&child]);
                if inode.file_type == FileType::Directory {
                    pending.push((child, inode, dir.nid));
                }
            } else {
                assert_eq!(met[&child], entry.nid);
            }
        }
    }
    let mut nids: Vec<_> = met.values().collect();
    nids.sort();
    nids.dedup();
    assert_eq!(nids.len(), met.len(), "an inode for two");
    assert_eq!(image.inode_count(), met.len() as u64);
    let checked = check(image.bytes()).unwrap();
    assert_eq!((checked.inodes, checked.names), (met.len() as u64, names));
}

/// Link counts by what is linked below the root.
pub(crate) fn links(tree: &Tree) -> HashMap<InodeId, u32> {
    let mut links = HashMap::new();
    let mut walk = tree.walk();
    while let Some(step) = walk.advance() {
        match tree.kind(step.inode) {
            Kind::Directory => drop(links.insert(step.inode, tree.nlink(step.inode))),
            _ => *links.entry(step.inode).or_default() += 1,
        }
    }
    links
}

fn compare_listing(tree: &Tree, id: InodeId, image: &Image<Vec<u8>>, dir: &Inode, parent: Nid) {
    let listed: Vec<_> = image.read_dir(dir, 0).map(Result::unwrap).collect();
    let mut expected: Vec<&[u8]> = tree.entries(id).unwrap().map(|(name, _)| name).collect();
    expected.extend([&b"."[..], b".."]);
    expected.sort_unstable();
    assert_eq!(listed.iter().map(|entry| entry.name).collect::<Vec<_>>(), expected);
    for entry in &listed {
        match entry.name {
            b"." => assert_eq!(entry.nid, dir.nid),
            b".." => assert_eq!(entry.nid, parent),
            name => assert_eq!(entry.file_type, tree.file_type(tree.lookup(id, name).unwrap())),
        }
    }
    // Iteration goes on behind any entry.
    let step = listed.len() / 7 + 1;
    for (index, entry) in listed.iter().enumerate().step_by(step) {
        let rest: Vec<_> = image.read_dir(dir, entry.next_offset).map(Result::unwrap).collect();
        assert_eq!(rest, listed[index + 1..]);
    }
    for absent in [&b""[..], b"\0", b"zz-absent", b"\xff\xff\xff", b"-absent"] {
        assert_eq!(image.lookup(dir, absent).unwrap().is_some(), tree.lookup(id, absent).is_some());
    }
}

fn compare_inode(tree: &Tree, id: InodeId, image: &Image<Vec<u8>>, inode: &Inode) {
    assert_eq!(inode.attributes, tree.attributes(id));
    assert_eq!(image.kind(inode).unwrap(), tree.kind(id));
    let mut read: Vec<_> = image.xattrs(inode).unwrap().map(Result::unwrap).collect();
    read.sort_by_key(|xattr| (xattr.prefix(), xattr.suffix()));
    let mut expected: Vec<_> = tree.xattrs(id).collect();
    expected.sort_by_key(|xattr| (xattr.prefix(), xattr.suffix()));
    assert!(read == expected);
    for xattr in expected {
        assert_eq!(image.xattr(inode, &xattr.name()).unwrap(), Some(xattr.value));
    }
    assert_eq!(image.xattr(inode, b"user.absent").unwrap(), None);
    assert_eq!(image.xattr(inode, b"system.unknown").unwrap(), None);
    if let Kind::Regular { bytes } = tree.kind(id) {
        let segments: Vec<Segment> = tree.segments(id).collect();
        assert_eq!(image.segments(inode).map(Result::unwrap).collect::<Vec<_>>(), segments);
        compare_map(image, inode, bytes, &segments);
    }
}

/// Small steps through a file meet the same places as the segments.
fn compare_map(image: &Image<Vec<u8>>, inode: &Inode, bytes: u64, segments: &[Segment]) {
    let step = (bytes / 50).max(777);
    let mut offset = 0;
    while offset < bytes {
        let Extent { file_offset, bytes: mapped, device_offset } = image.map(inode, offset, 1).unwrap().unwrap();
        assert_eq!(file_offset, offset);
        assert!(mapped > 0 && offset + mapped <= bytes);
        let inside = |segment: &&Segment| (segment.file_offset..segment.file_offset + segment.bytes).contains(&offset);
        let expected = segments.iter().find(inside).map(|segment| segment.device_offset + offset - segment.file_offset);
        assert_eq!(device_offset, expected, "at {offset}");
        offset += step;
    }
    assert_eq!(image.map(inode, bytes, 1).unwrap(), None);
}

fn round_trip(sample: &Sample) {
    let bytes = sample.image();
    assert!(bytes == sample.image(), "the second image differs");
    compare(&sample.tree, &Image::open(bytes).unwrap());
}

#[test]
fn every_oddity_is_read_back() {
    round_trip(&oddities());
}

#[test]
fn vast_files_are_read_back() {
    round_trip(&vast_files());
}

#[test]
fn directory_of_100_000_entries_is_read_back() {
    let mut sample = Sample::new();
    let dir = sample.dir(Tree::ROOT, b"large");
    for number in 0..100_000_u64 {
        let name = format!("{:x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        sample.file(dir, name.as_bytes(), number % 3);
    }
    round_trip(&sample);
}

#[test]
fn what_a_reader_gives_owns_nothing() {
    fn is_copied<T: Copy>(_: &T) {}
    let mut sample = Sample::new();
    let dir = sample.dir(Tree::ROOT, b"large");
    for number in 0..200_000 {
        let file = sample.add(dir, format!("{number}").as_bytes(), attributes(0o644), Kind::Regular { bytes: 1 << 20 });
        sample.tree.set_xattrs(file, &[(b"user.note", b"the same")]).unwrap();
    }
    let bytes = sample.image();
    drop(sample);
    // Over bytes that are borrowed, as a memory map is.
    let image = Image::open(bytes.as_slice()).unwrap();
    fs_err::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak_kib();
    let root = image.inode(image.root_nid()).unwrap();
    let large = image.inode(image.lookup(&root, b"large").unwrap().unwrap().nid).unwrap();
    let mut met = 0;
    for entry in image.read_dir(&large, 0).map(Result::unwrap).filter(|entry| !entry.name.starts_with(b".")) {
        let inode = image.inode(entry.nid).unwrap();
        let xattr = image.xattrs(&inode).unwrap().next().unwrap().unwrap();
        let extent = image.map(&inode, 0, 1).unwrap().unwrap();
        is_copied(&entry);
        is_copied(&inode);
        is_copied(&xattr);
        is_copied(&extent);
        met += 1;
    }
    assert_eq!(met, 200_000);
    let more = peak_kib() - before;
    assert!(more < 1024, "{more} KiB for reading 200,000 inodes");
}

/// The most memory that this process has had since it was asked to count anew.
fn peak_kib() -> u64 {
    let status = fs_err::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn shared_xattrs_are_stored_once_behind_the_inodes_and_others_with_theirs() {
    let mut sample = Sample::new();
    for name in [&b"a"[..], b"b", b"c"] {
        let file = sample.file(Tree::ROOT, name, 10);
        let own = [b"own value of ", name].concat();
        let pairs: [(&[u8], &[u8]); 2] = [(b"user.own", &own), (b"user.shared", b"value of all three")];
        sample.tree.set_xattrs(file, &pairs).unwrap();
    }
    round_trip(&sample);
    let bytes = sample.image();
    let block = u32::from_le_bytes(bytes[1024 + 44..1024 + 48].try_into().unwrap()) as usize;
    let places = |value: &[u8]| -> Vec<usize> {
        (0..bytes.len() - value.len()).filter(|at| bytes[*at..].starts_with(value)).collect()
    };
    let shared = places(b"value of all three");
    assert!(block > 0 && shared.len() == 1 && shared[0] > block * 4096, "{shared:?}");
    for name in ["a", "b", "c"] {
        let own = places(format!("own value of {name}").as_bytes());
        assert!(own.len() == 1 && own[0] < block * 4096, "{own:?}");
    }
}

#[test]
fn wrong_kinds_are_errors() {
    let sample = oddities();
    let image = Image::open(sample.image()).unwrap();
    let root = image.inode(image.root_nid()).unwrap();
    let find = |dir: &Inode, name: &[u8]| image.inode(image.lookup(dir, name).unwrap().unwrap().nid).unwrap();
    let fifo = find(&find(&root, b"kinds"), b"fifo");
    assert!(image.lookup(&fifo, b"x").is_err());
    assert_eq!(image.read_dir(&fifo, 0).filter(Result::is_err).count(), 1);
    assert!(image.read_link(&fifo).is_err() && image.map(&root, 0, 1).is_err());
    assert_eq!(image.segments(&root).filter(Result::is_err).count(), 1);
    assert!(find(&find(&root, b"kinds"), b"whiteout").is_whiteout());
    for nid in [0, 1, 127, u64::MAX, u64::MAX / 32, image.bytes().len() as u64 / 32] {
        assert!(image.inode(Nid(nid)).is_err(), "{nid}");
    }
}

/// A step in building a random tree; numbers choose among what is there.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Add { dir: usize, name: Vec<u8>, attributes: Attributes, kind: NewKind },
    HardLink { dir: usize, name: Vec<u8>, inode: usize },
    Unlink { dir: usize, entry: usize },
    Xattr { inode: usize, name: Vec<u8>, value: Vec<u8> },
    SetAttributes { inode: usize, attributes: Attributes },
}

#[derive(Debug, Clone)]
pub(crate) enum NewKind {
    Directory,
    /// Blocks alternate: so many of data, then so many of hole.
    Regular {
        runs: Vec<(u8, u8)>,
        tail: u16,
    },
    Symlink(Vec<u8>),
    Char(Device),
    Block(Device),
    Fifo,
    Socket,
}

fn any_name() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("legal", |byte| !matches!(byte, 0 | b'/'));
    let short = prop::collection::vec(prop::sample::select(b"-.!abcXYZ~\xff".to_vec()), 1..4);
    let long = prop::collection::vec(byte, 1..=255);
    prop_oneof![3 => short, 1 => long].prop_filter("legal", |name| name != b"." && name != b"..")
}

fn any_attributes() -> impl Strategy<Value = Attributes> {
    (0..=0o7777_u16, 0..u32::MAX, 0..u32::MAX, any::<i64>(), 0..1_000_000_000_u32)
        .prop_map(|(mode, uid, gid, secs, nanos)| Attributes { mode, uid, gid, mtime: Timestamp { secs, nanos } })
}

fn any_kind() -> impl Strategy<Value = NewKind> {
    let device = || (0..4096_u32, 0..1_048_576_u32).prop_map(|(major, minor)| Device { major, minor });
    prop_oneof![
        3 => Just(NewKind::Directory),
        4 => (prop::collection::vec((0..5_u8, 0..5_u8), 0..4), 0..4096_u16)
            .prop_map(|(runs, tail)| NewKind::Regular { runs, tail }),
        2 => prop::collection::vec(1..=255_u8, 1..=4095).prop_map(NewKind::Symlink),
        1 => prop::collection::vec(1..=255_u8, 1..=50).prop_map(NewKind::Symlink),
        1 => device().prop_map(NewKind::Char),
        1 => device().prop_map(NewKind::Block),
        1 => Just(NewKind::Fifo),
        1 => Just(NewKind::Socket),
    ]
}

fn any_xattr() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let prefixes = [&b"user."[..], b"trusted.", b"security.", b"trusted.overlay.overlay."];
    let name = (prop::sample::select(prefixes.to_vec()), any_name())
        .prop_map(|(prefix, rest)| [prefix, &rest[..rest.len().min(200)]].concat());
    let acl_name = prop::sample::select(vec![&b"system.posix_acl_access"[..], b"system.posix_acl_default"]);
    let acl = (acl_name.prop_map(<[u8]>::to_vec), (0..3_u32).prop_map(acl));
    let short = prop::sample::select(vec![&b""[..], b"1", b"y", b"value"]).prop_map(<[u8]>::to_vec);
    let value = prop_oneof![3 => short, 1 => prop::collection::vec(any::<u8>(), 0..2000)];
    prop_oneof![4 => (name, value), 1 => acl]
}

fn any_operation() -> impl Strategy<Value = Operation> {
    let index = any::<usize>;
    prop_oneof![
        8 => (index(), any_name(), any_attributes(), any_kind())
            .prop_map(|(dir, name, attributes, kind)| Operation::Add { dir, name, attributes, kind }),
        2 => (index(), any_name(), index()).prop_map(|(dir, name, inode)| Operation::HardLink { dir, name, inode }),
        1 => (index(), index()).prop_map(|(dir, entry)| Operation::Unlink { dir, entry }),
        3 => (index(), any_xattr()).prop_map(|(inode, (name, value))| Operation::Xattr { inode, name, value }),
        1 => (index(), any_attributes())
            .prop_map(|(inode, attributes)| Operation::SetAttributes { inode, attributes }),
    ]
}

/// Builds a tree of operations; those that the tree refuses are left out.
pub(crate) fn build(operations: &[Operation]) -> Sample {
    let mut sample = Sample::new();
    let mut inodes = vec![Tree::ROOT];
    let mut dirs = vec![Tree::ROOT];
    for operation in operations {
        match operation {
            Operation::Add { dir, name, attributes, kind } => {
                let inode = add(&mut sample, *attributes, kind);
                let dir = dirs[dir % dirs.len()];
                if matches!(kind, NewKind::Directory) {
                    dirs.push(inode);
                }
                inodes.push(inode);
                sample.tree.replace(dir, name, inode).unwrap();
            }
            Operation::HardLink { dir, name, inode } => {
                // Directories refuse a second name.
                let _ = sample.tree.replace(dirs[dir % dirs.len()], name, inodes[inode % inodes.len()]);
            }
            Operation::Unlink { dir, entry } => {
                let dir = dirs[dir % dirs.len()];
                let names: Vec<Vec<u8>> = sample.tree.entries(dir).unwrap().map(|(name, _)| name.to_vec()).collect();
                if !names.is_empty() {
                    sample.tree.unlink(dir, &names[entry % names.len()]).unwrap();
                }
            }
            Operation::Xattr { inode, name, value } => {
                sample.tree.add_xattr(inodes[inode % inodes.len()], name, value).unwrap();
            }
            Operation::SetAttributes { inode, attributes } => {
                sample.tree.set_attributes(inodes[inode % inodes.len()], *attributes).unwrap();
            }
        }
    }
    sample
}

fn add(sample: &mut Sample, attributes: Attributes, kind: &NewKind) -> InodeId {
    let kind = match kind {
        NewKind::Directory => Kind::Directory,
        NewKind::Symlink(target) => Kind::Symlink(target),
        NewKind::Char(device) => Kind::CharDevice(*device),
        NewKind::Block(device) => Kind::BlockDevice(*device),
        NewKind::Fifo => Kind::Fifo,
        NewKind::Socket => Kind::Socket,
        NewKind::Regular { runs, tail } => return add_file(sample, attributes, runs, u64::from(*tail)),
    };
    sample.tree.add(attributes, kind).unwrap()
}

fn add_file(sample: &mut Sample, attributes: Attributes, runs: &[(u8, u8)], tail: u64) -> InodeId {
    let mut segments = Vec::new();
    let mut bytes = 0;
    let mut place = |file_offset, length: u64, device_bytes: &mut u64| {
        if length != 0 {
            segments.push(Segment { file_offset, bytes: length, device_offset: *device_bytes });
            *device_bytes += length.next_multiple_of(4096);
        }
    };
    for &(data, hole) in runs {
        place(bytes, u64::from(data) * 4096, &mut sample.device_bytes);
        bytes += (u64::from(data) + u64::from(hole)) * 4096;
    }
    place(bytes, tail, &mut sample.device_bytes);
    let file = sample.tree.add(attributes, Kind::Regular { bytes: bytes + tail }).unwrap();
    sample.tree.set_segments(file, &segments).unwrap();
    file
}

pub(crate) fn any_operations() -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(any_operation(), 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_is_read_back(operations in any_operations()) {
        round_trip(&build(&operations));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn fsck_accepts_any_tree(operations in any_operations()) {
        prop_assert!(fsck(&build(&operations)).contains("No errors found"));
    }
}
