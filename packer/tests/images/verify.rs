//! `verify`: every kind of difference is found, and nothing else; damage in the store is found.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use dsec_format::image::Image;
use dsec_pack::{Cancel, Silent, verify};
use dsec_store::Source;

use crate::support::{Lab, need_root, sh};

/// A directory with one of each, whose times are all the same.
fn sample(lab: &Lab) -> std::path::PathBuf {
    let tree = lab.directory("tree");
    sh(
        &tree,
        "mkdir d; printf 0123456789 >d/file; head -c 200000 /dev/zero | tr '\\0' x >d/large; ln d/file d/second;
         ln -s target d/link; mkfifo d/fifo; truncate -s 1048576 d/sparse;
         printf data | dd of=d/sparse bs=1 seek=65536 conv=notrunc status=none; touch d/empty",
    );
    still(&tree);
    tree
}

/// Sets the times of everything back, so that a test changes only what it says.
fn still(tree: &Path) {
    sh(tree, "find . -exec touch -h -d @1000000000.123456789 {} +");
}

/// What `verify` says after `script` changed the tree.
fn after(script: &str) -> Vec<String> {
    let lab = Lab::new();
    let tree = sample(&lab);
    let image = lab.image(&[&tree]);
    assert_eq!(lab.differences(&image, &tree), Vec::<String>::new());
    sh(&tree, script);
    if !script.contains("touch") {
        still(&tree);
    }
    lab.differences(&image, &tree)
}

#[test]
fn a_missing_name() {
    assert_eq!(after("rm d/empty"), ["missing /d/empty"]);
}

#[test]
fn an_extra_name() {
    assert_eq!(after(": >d/new"), ["extra /d/new"]);
}

#[test]
fn another_kind() {
    assert_eq!(after("rm d/empty; mkdir d/empty; chmod 644 d/empty"), ["kind /d/empty"]);
}

#[test]
fn another_mode() {
    assert_eq!(after("chmod u+s d/file"), ["mode /d/file", "mode /d/second"]);
}

#[test]
fn another_time_by_a_nanosecond() {
    assert_eq!(after("touch -d @1000000000.123456788 d/large"), ["mtime /d/large"]);
}

#[test]
fn another_size() {
    assert_eq!(after("printf x >>d/large"), ["size /d/large"]);
}

#[test]
fn other_bytes_of_the_same_size_and_time() {
    assert_eq!(after("printf X | dd of=d/large bs=1 seek=150000 conv=notrunc status=none"), ["content /d/large"]);
}

#[test]
fn another_target() {
    assert_eq!(after("ln -sfn elsewhere d/link"), ["target /d/link"]);
}

#[test]
fn a_link_that_became_a_copy() {
    assert_eq!(after("rm d/second; cp -p d/file d/second"), ["links /d/second"]);
}

#[test]
fn a_copy_that_became_a_link() {
    let found = after("rm d/large d/empty; ln d/file d/large; ln d/file d/empty");
    assert_eq!(found, ["size /d/empty", "links /d/file", "size /d/large", "links /d/large", "links /d/second"]);
}

#[test]
fn a_hole_that_was_filled_and_one_that_was_made() {
    let filled = "dd if=/dev/zero of=d/sparse bs=4096 seek=100 count=1 conv=notrunc status=none";
    assert_eq!(after(filled), ["holes /d/sparse"]);
    // Zeros that were data and are a hole: the same bytes.
    let lab = Lab::new();
    let tree = lab.directory("tree");
    sh(&tree, "dd if=/dev/zero of=zeros bs=4096 count=4 status=none");
    let image = lab.image(&[&tree]);
    sh(&tree, "cp -p zeros ../zeros; cp --sparse=always ../zeros zeros; touch -r ../zeros zeros .");
    let found = lab.differences(&image, &tree);
    assert!(found.contains(&"holes /zeros".to_owned()), "{found:?}");
    assert!(!found.iter().any(|line| line.starts_with("content")), "{found:?}");
}

#[test]
fn data_in_a_hole_is_other_content() {
    let found = after("printf x | dd of=d/sparse bs=1 seek=409600 conv=notrunc status=none");
    assert_eq!(found, ["content /d/sparse", "holes /d/sparse"]);
}

#[test]
fn an_xattr() {
    let lab = Lab::new();
    let tree = sample(&lab);
    let image = lab.image(&[&tree]);
    let path = tree.join("d/empty");
    rustix::fs::setxattr(&path, "user.dsec", b"value", rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(lab.differences(&image, &tree), ["xattrs /d/empty"]);
    let with = lab.image(&[&tree]);
    rustix::fs::setxattr(&path, "user.dsec", b"other", rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(lab.differences(&with, &tree), ["xattrs /d/empty"]);
    rustix::fs::removexattr(&path, "user.dsec").unwrap();
    assert_eq!(lab.differences(&with, &tree), ["xattrs /d/empty"]);
}

#[test]
fn privileged_ids_and_device_numbers() {
    need_root();
    let lab = Lab::new();
    let tree = sample(&lab);
    sh(&tree, "mknod d/null c 1 3; mknod d/block b 7 99");
    still(&tree);
    let image = lab.image(&[&tree]);
    sh(&tree, "chown 4000000000 d/empty; chgrp 7 d/large; rm d/null d/block; mknod d/null c 1 5; mknod d/block b 7 98");
    still(&tree);
    assert_eq!(lab.differences(&image, &tree), ["device /d/block", "ids /d/empty", "ids /d/large", "device /d/null"]);
}

#[test]
fn a_name_that_is_no_text_and_a_tree_deeper_than_a_path_may_be_long() {
    use std::os::unix::ffi::OsStrExt;
    let lab = Lab::new();
    let tree = lab.directory("tree");
    fs_err::write(tree.join(std::ffi::OsStr::from_bytes(b"a\xff\n")), "x").unwrap();
    let mut deep = fs_err::File::open(&tree).unwrap().into_file().into();
    for _ in 0..300 {
        use rustix::fs::{Mode, OFlags, mkdirat, openat};
        mkdirat(&deep, "0123456789abcdef", Mode::RWXU).unwrap();
        deep = openat(&deep, "0123456789abcdef", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let image = lab.image(&[&tree]);
    assert_eq!(image.layers[0].inodes, 302);
    assert_eq!(lab.differences(&image, &tree), Vec::<String>::new());
    fs_err::remove_file(tree.join(std::ffi::OsStr::from_bytes(b"a\xff\n"))).unwrap();
    let found = lab.differences(&image, &tree);
    assert_eq!(found.last().map(String::as_str), Some("missing /a\\xff\\n"));
}

fn findings(lab: &Lab, image: &Image) -> Vec<String> {
    let mut found = Vec::new();
    let mut tell = |finding: verify::Finding| found.push(format!("{}: {}", finding.object, finding.what));
    let verified = verify::verify_image(&lab.store, image, &Silent, &Cancel::new(), &mut tell).unwrap();
    assert_eq!(verified.findings, found.len() as u64);
    found
}

#[test]
fn a_sound_image_has_no_findings_and_damage_is_found() {
    let lab = Lab::new();
    let tree = sample(&lab);
    let image = lab.image(&[&tree]);
    assert_eq!(findings(&lab, &image), Vec::<String>::new());

    let mut lying = image.clone();
    lying.layers[0].inodes += 1;
    assert_eq!(findings(&lab, &lying).len(), 1);

    let locations = lab.store.read_locations(&image.layers[0].digest, u64::MAX).unwrap();
    let pack = locations.packs[0];
    let path = find(&lab.path("store"), &pack.hex());
    let sound = fs_err::read(&path).unwrap();
    let mut flipped = sound.clone();
    flipped[40] ^= 1;
    replace(&path, &flipped);
    let found = findings(&lab, &image);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("chunk blake3:"), "{found:?}");

    replace(&path, &sound[..50]);
    assert!(!findings(&lab, &image).is_empty());
    fs_err::remove_file(&path).unwrap();
    assert!(findings(&lab, &image).iter().all(|line| line.contains("pack")), "a pack is missing");
    replace(&path, &sound);
    assert_eq!(findings(&lab, &image), Vec::<String>::new());

    let layer = find(&lab.path("store/layers"), &image.layers[0].digest.hex());
    let mut stored = fs_err::read(&layer).unwrap();
    stored.truncate(stored.len() - 1);
    replace(&layer, &stored);
    assert_eq!(findings(&lab, &image).len(), 1);
    fs_err::remove_file(&layer).unwrap();
    assert_eq!(findings(&lab, &image).len(), 1);
}

fn replace(path: &Path, bytes: &[u8]) {
    let _ = fs_err::remove_file(path);
    fs_err::write(path, bytes).unwrap();
}

/// The file of a store whose name is `name`.
fn find(directory: &Path, name: &str) -> std::path::PathBuf {
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs_err::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.file_name().is_some_and(|last| last == name) {
                return path;
            }
        }
    }
    panic!("{name} is not below {}", directory.display());
}

#[test]
fn the_sample_has_what_the_tests_change() {
    let lab = Lab::new();
    let tree = sample(&lab);
    let of = |name: &str| fs_err::symlink_metadata(tree.join(name)).unwrap();
    assert_eq!(of("d/file").ino(), of("d/second").ino());
    assert_eq!(of("d/file").permissions().mode() & 0o7777, 0o644);
    assert!(of("d/sparse").blocks() * 512 < of("d/sparse").len());
    assert_eq!(of("d/file").mtime_nsec(), 123_456_789);
    symlink("x", tree.join("y")).unwrap();
}
