//! Directories.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use dsec_pack::Cancel;
use dsec_pack::input::Location;
use dsec_store::Source;
use fs_err as fs;

use crate::support::{Lab, Options, find, input, need_root, noise, options, sh};

#[test]
fn privileged_every_oddity_is_kept_and_threads_and_level_do_not_matter() {
    need_root();
    let lab = Lab::new();
    let tree = lab.oddities("tree");
    let first = lab.build(&tree);
    assert_eq!(lab.differences(&first, &tree, &[]), Vec::<String>::new());
    assert!(first.layers[0].stored.new_chunks > 0);
    for (level, threads) in [(1, 1), (9, 7)] {
        let other = Lab::new();
        let options = Options { level, threads, verify: false };
        let built = other.build_with(input(Location::Path(tree.clone())), options).unwrap();
        assert_eq!(built.image, first.image, "level {level}, {threads} threads");
    }
    let again = lab.build(&tree);
    assert_eq!((again.image, again.layers[0].stored.new_chunks), (first.image, 0));
    assert!(again.layers[0].reused);
}

#[test]
fn packs_do_not_depend_on_the_number_of_threads() {
    let packs = |threads| {
        let lab = Lab::new();
        let tree = lab.directory("tree");
        (0..60).for_each(|n| fs::write(tree.join(format!("small-{n}")), noise(n, 3000)).unwrap());
        (0..3).for_each(|n| fs::write(tree.join(format!("large-{n}")), noise(n, 7_000_000)).unwrap());
        let options = Options { level: 1, threads, verify: false };
        let built = lab.build_with(input(Location::Path(tree)), options).unwrap();
        lab.store.read_locations(&built.layers[0].record.digest).unwrap()
    };
    let one = packs(1);
    assert_eq!(one, packs(2));
    assert_eq!(one, packs(9));
}

#[test]
fn equal_files_are_stored_once_and_share_their_place() {
    let lab = Lab::new();
    let tree = lab.directory("tree");
    let data = noise(1, 3_000_000);
    fs::write(tree.join("a"), &data).unwrap();
    fs::write(tree.join("z"), &data).unwrap();
    let built = lab.build(&tree);
    let record = &built.layers[0].record;
    assert_eq!((record.data_bytes, record.logical_bytes), (3_000_000, 6_000_000));
    let metadata = lab.metadata(&built, 0);
    let segments = |name| {
        let inode = find(&metadata, name).unwrap();
        metadata.segments(&inode).map(Result::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(segments("a"), segments("z"));
}

#[test]
fn a_ten_gigabyte_hole_takes_no_time_and_stays() {
    let lab = Lab::new();
    let tree = lab.directory("tree");
    let file = fs::File::create(tree.join("sparse")).unwrap();
    file.set_len(10 << 30).unwrap();
    file.file().write_all_at(b"middle", (5 << 30) + 100).unwrap();
    file.file().write_all_at(b"end", (10 << 30) - 3).unwrap();
    let start = Instant::now();
    let options = Options { verify: false, ..options() };
    let built = lab.build_with(input(Location::Path(tree.clone())), options).unwrap();
    // Without optimisation; a program that reads the hole takes far longer.
    assert!(start.elapsed().as_secs_f64() < 5.0, "{:?}", start.elapsed());
    let metadata = lab.metadata(&built, 0);
    let inode = find(&metadata, "sparse").unwrap();
    let segments: Vec<_> = metadata.segments(&inode).map(Result::unwrap).collect();
    let places: Vec<_> = segments.iter().map(|segment| (segment.file_offset, segment.bytes)).collect();
    // Pieces of 1 MiB: exact holes would take 2,621,440 chunk indexes.
    assert_eq!(places, [(5 << 30, 1 << 20), ((10 << 30) - (1 << 20), 1 << 20)]);
    assert_eq!(built.layers[0].record.data_bytes, 8192);
    assert_eq!(lab.differences(&built, &tree, &[]), Vec::<String>::new());
}

#[test]
fn vast_files_cost_what_their_data_costs() {
    let lab = Lab::new();
    let tree = lab.directory("tree");
    let sparse = |name: &str, bytes: u64, places: &[u64]| {
        let file = fs::File::create(tree.join(name)).unwrap();
        file.set_len(bytes).unwrap();
        places.iter().for_each(|place| file.file().write_all_at(name.as_bytes(), *place).unwrap());
    };
    let (gib, tib) = (1 << 30, 1 << 40);
    sparse("a hole", 8 * tib, &[]);
    sparse("8 TiB", 8 * tib, &[5000, tib, tib + 100_000, 8 * tib - 5]);
    sparse("lastlog", 300 * gib + 292, &[0, 292 * 1000, 292 * 65_534, 292 * 1_000_000_000]);
    sparse("touching", 100 * gib, &[(8 << 20) - 4096, 8 << 20, 50 * gib]);
    let start = Instant::now();
    let built = lab.build(&tree);
    let record = &built.layers[0].record;
    // Without optimisation, and with the reading back: nothing in it may go through the holes.
    assert!(start.elapsed().as_secs_f64() < 5.0, "{:?}", start.elapsed());
    assert_eq!(record.data_bytes, 11 * 4096);
    assert!(record.metadata_bytes < 1 << 20, "{}", record.metadata_bytes);
    assert_eq!(record.logical_bytes, 16 * tib + 400 * gib + 292);
    let again = Lab::new().build_with(input(Location::Path(tree.clone())), options()).unwrap();
    assert_eq!(again.image, built.image);

    // A hole that was filled with zeros, and data that moved within its piece: both are seen.
    let touched = fs::OpenOptions::new().write(true).open(tree.join("8 TiB")).unwrap();
    let mtime = fs::metadata(tree.join("8 TiB")).unwrap().modified().unwrap();
    touched.file().write_all_at(&[0; 4096], tib + 8192).unwrap();
    touched.file().set_modified(mtime).unwrap();
    let found = lab.differences(&built, &tree, &[]);
    assert!(found.len() == 1 && found[0].starts_with("/8 TiB: holes: "), "{found:?}");
    touched.file().write_all_at(b"new", tib + 8192).unwrap();
    touched.file().set_modified(mtime).unwrap();
    let found = lab.differences(&built, &tree, &[]);
    assert!(found.iter().any(|found| found.starts_with("/8 TiB: content: ")), "{found:?}");
}

#[test]
fn an_empty_directory_is_an_image() {
    let lab = Lab::new();
    let tree = lab.directory("tree");
    let built = lab.build(&tree);
    assert_eq!((built.layers[0].entries, built.layers[0].record.inodes, built.layers[0].stored.packs), (0, 1, 0));
}

#[test]
fn asked_to_stop_it_leaves_no_ref_and_no_temporary_file() {
    let lab = Lab::new();
    let tree = lab.directory("tree");
    fs::write(tree.join("file"), noise(1, 5_000_000)).unwrap();
    let cancel = Cancel::new();
    cancel.cancel();
    let name: dsec_format::refs::RefName = "built".parse().unwrap();
    let error = lab.build_until(input(Location::Path(tree.clone())), options(), &cancel).unwrap_err();
    assert!(error.is_cancelled(), "{error}");
    assert!(lab.store.read_ref(&name).is_err());
    lab.build(&tree);
    assert!(lab.store.read_ref(&name).is_ok());
}

#[test]
fn privileged_another_file_system_is_an_error_unless_it_is_wanted() {
    need_root();
    struct Mounted(std::path::PathBuf);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(&self.0).status();
        }
    }
    let lab = Lab::new();
    let tree = lab.directory("tree");
    sh(&tree, "mkdir below; mount -t tmpfs dsec-test below; echo x > below/file");
    let _mounted = Mounted(tree.join("below"));
    assert_eq!(lab.refusal(&tree), "`below` is on another file system");
    let mut crossing = input(Location::Path(tree.clone()));
    crossing.cross_mounts = true;
    let built = lab.build_with(crossing, Options { verify: false, ..options() }).unwrap();
    assert!(find(&lab.metadata(&built, 0), "below/file").is_some());
}

#[test]
fn what_cannot_be_kept_is_named() {
    let lab = Lab::new();
    assert!(lab.refusal(&lab.path("nowhere")).starts_with("cannot open the input: "));
    assert!(lab.refusal("/dev/null".as_ref()).contains("not a tar archive"));
    let tree = lab.directory("tree");
    fs::create_dir(tree.join("d")).unwrap();
    fs::write(tree.join("d/f"), b"").unwrap();
    // 64 KiB is the kernel's limit and one byte over that of the format; only some file systems take such a value.
    let value = vec![0; 65_536];
    match rustix::fs::setxattr(tree.join("d/f"), "user.large", &value, rustix::fs::XattrFlags::empty()) {
        Ok(()) => assert!(lab.refusal(&tree).starts_with("`d/f` cannot be kept: value of xattr `user.large`")),
        Err(errno) => assert!(matches!(errno, rustix::io::Errno::NOSPC | rustix::io::Errno::TOOBIG), "{errno}"),
    }
}
