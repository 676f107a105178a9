//! Damaged and hostile images: the reader and the checker never panic, and what the checker accepts is sound.

use std::path::Path;

use dsec_erofs::{FileType, Image, Inode, InodeId, Kind, Nid, Segment, Tree, check};
use proptest::prelude::*;

use crate::mount::Mounted;
use crate::round_trip::compare;
use crate::sample::{Sample, frozen, oddities};

/// Inodes that a look around visits, and xattrs, entries and segments that it takes of each.
const LOOKS: usize = 400;

/// Uses every function of the reader on whatever can be reached, as a FUSE daemon might. It may get errors, no more.
fn look_around(bytes: &[u8]) {
    let Ok(image) = Image::open(bytes) else { return };
    let mut pending = vec![image.root_nid(), Nid(129), Nid(bytes.len() as u64 / 64)];
    for _ in 0..LOOKS {
        let Some(nid) = pending.pop() else { return };
        let Ok(inode) = image.inode(nid) else { continue };
        let _ = (image.kind(&inode), image.read_link(&inode), image.xattr(&inode, b"user.shared"), inode.device());
        if let Ok(xattrs) = image.xattrs(&inode) {
            for xattr in xattrs.take(LOOKS).flatten() {
                assert!(xattr.name().len() <= 255);
            }
        }
        for name in [&b"dir"[..], b"entry-with-a-name-0100", b"..", b"\xff"] {
            let _ = image.lookup(&inode, name);
        }
        let _ = image.read_dir(&inode, 5000).take(LOOKS).count();
        pending.extend(image.read_dir(&inode, 0).take(LOOKS).flatten().map(|entry| entry.nid));
        look_at_data(&image, &inode);
    }
}

fn look_at_data(image: &Image<&[u8]>, inode: &Inode) {
    for offset in [0, 1, 4096, inode.bytes / 2, inode.bytes.saturating_sub(1), inode.bytes, u64::MAX] {
        if let Ok(Some(extent)) = image.map(inode, offset, 1 << 20) {
            assert!(extent.bytes > 0 && extent.file_offset + extent.bytes <= inode.bytes);
            assert!(extent.device_offset.is_none_or(|at| at + extent.bytes <= image.device_bytes() + 4096));
        }
    }
    let _ = image.segments(inode).take(LOOKS).count();
}

/// The tree of an image that passed the check. Everything in it must be what a tree accepts.
fn to_tree(bytes: &[u8]) -> Sample {
    let image = Image::open(bytes).unwrap();
    let root = image.inode(image.root_nid()).unwrap();
    let mut tree = Tree::new(root.attributes).unwrap();
    set_details(&mut tree, Tree::ROOT, &image, &root);
    let mut known = std::collections::HashMap::new();
    let mut pending = vec![(Tree::ROOT, root)];
    while let Some((id, dir)) = pending.pop() {
        for entry in image.read_dir(&dir, 0).map(Result::unwrap).filter(|entry| !matches!(entry.name, b"." | b"..")) {
            let inode = image.inode(entry.nid).unwrap();
            let child = *known.entry(entry.nid).or_insert_with(|| {
                let child = tree.add(inode.attributes, image.kind(&inode).unwrap()).unwrap();
                set_details(&mut tree, child, &image, &inode);
                child
            });
            tree.link(id, entry.name, child).unwrap();
            if inode.file_type == FileType::Directory {
                pending.push((child, inode));
            }
        }
    }
    Sample { tree, device_bytes: image.device_bytes() }
}

fn set_details(tree: &mut Tree, id: InodeId, image: &Image<&[u8]>, inode: &Inode) {
    let xattrs: Vec<_> = image.xattrs(inode).unwrap().map(Result::unwrap).collect();
    let pairs: Vec<_> = xattrs.iter().map(|xattr| (xattr.name(), xattr.value)).collect();
    let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.as_slice(), *value)).collect();
    tree.set_xattrs(id, &pairs).unwrap();
    if matches!(tree.kind(id), Kind::Regular { .. }) {
        let segments: Vec<Segment> = image.segments(inode).map(Result::unwrap).collect();
        tree.set_segments(id, &segments).unwrap();
    }
}

/// Looks around and, if the checker accepts, rebuilds the tree, writes it and reads it again.
fn examine(bytes: &[u8]) -> bool {
    look_around(bytes);
    if check(bytes).is_err() {
        return false;
    }
    let sample = to_tree(bytes);
    compare(&sample.tree, &Image::open(bytes.to_vec()).unwrap());
    compare(&sample.tree, &Image::open(sample.image()).unwrap());
    true
}

#[test]
fn every_truncation_is_refused() {
    let bytes = frozen().image();
    for length in (0..bytes.len()).step_by(97).chain((0..bytes.len()).step_by(4096)) {
        assert!(check(&bytes[..length]).is_err(), "{length}");
        look_around(&bytes[..length]);
    }
}

#[test]
fn every_flipped_bit_of_the_first_block_is_refused() {
    let bytes = frozen().image();
    for bit in 1024 * 8..4096 * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(check(&damaged).is_err(), "bit {bit}");
    }
}

#[test]
fn flipped_bits_are_refused_or_harmless() {
    let bytes = frozen().image();
    let places: Vec<usize> = (4096..bytes.len()).step_by(29).collect();
    let accepted = places.iter().filter(|&&at| {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at * 5 % 8);
        examine(&damaged)
    });
    // Times, owners, permissions, targets, names that stay sorted, values of xattrs: some, but by far not most of the bytes.
    let accepted = accepted.count();
    assert!(accepted > 50 && accepted < places.len() / 2, "{accepted} of {}", places.len());
}

/// Bytes to write over an image, at offsets that favour structures.
fn any_damage() -> impl Strategy<Value = Vec<(prop::sample::Index, u64)>> {
    let value = prop_oneof![
        any::<u64>(),
        Just(0),
        Just(u64::MAX),
        Just(i64::MAX as u64),
        (0..300_u64),
        any::<u32>().prop_map(u64::from)
    ];
    prop::collection::vec((any::<prop::sample::Index>(), value), 1..4)
}

fn any_width() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![1, 2, 4, 8])
}

fn damage(bytes: &mut [u8], damage: &[(prop::sample::Index, u64)], width: usize) {
    for (place, value) in damage {
        let at = 4096 + place.index((bytes.len() - 4096) / width) * width;
        bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn overwritten_fields_are_refused_or_harmless(writes in any_damage(), width in any_width()) {
        let mut bytes = frozen().image();
        damage(&mut bytes, &writes, width);
        examine(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

    #[test]
    fn overwritten_fields_of_a_large_image_never_panic(writes in any_damage(), width in any_width()) {
        let mut bytes = oddities().image();
        damage(&mut bytes, &writes, width);
        look_around(&bytes);
        let _ = check(&bytes);
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..10_000)) {
        prop_assert!(check(&bytes).is_err());
        look_around(&bytes);
    }
}

/// Uses all of a mounted tree, and wants no error.
fn use_all(root: &Path) {
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs_err::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs_err::symlink_metadata(&path).unwrap();
            rustix::fs::llistxattr(&path, &mut vec![0; 1 << 17]).unwrap();
            if metadata.is_dir() {
                pending.push(path);
            } else if metadata.is_symlink() {
                fs_err::read_link(&path).unwrap();
            } else if metadata.is_file() && metadata.len() < 1 << 24 {
                fs_err::read(&path).unwrap();
            }
        }
    }
}

#[test]
fn privileged_the_kernel_takes_all_that_the_checker_accepts() {
    let sample = frozen();
    let bytes = sample.image();
    let mut mounted_images = 0;
    for at in (4096..bytes.len()).step_by(19) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        if check(&damaged).is_err() {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let (image, device) = sample.store(dir.path());
        fs_err::write(&image, &damaged).unwrap();
        let mounted = Mounted::of_files(dir, &image, &device).expect("mounting needs root and file-backed EROFS");
        use_all(&mounted.root());
        mounted_images += 1;
    }
    assert!(mounted_images > 50, "{mounted_images}");
}
