//! Directories.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use dsec_pack::Cancel;
use dsec_pack::input::Location;
use dsec_store::Source;
use fs_err as fs;

use crate::support::{Lab, Mounted, Options, find, input, need_root, noise, options, run};

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
        lab.store.read_locations(&built.layers[0].record.digest, u64::MAX).unwrap()
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

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Name, size and places of data.
const VAST_FILES: [(&str, u64, &[u64]); 4] = [
    ("a hole", 8 * TIB, &[]),
    ("8 TiB", 8 * TIB, &[5000, TIB, TIB + 100_000, 8 * TIB - 5]),
    ("lastlog", 300 * GIB + 292, &[0, 292 * 1000, 292 * 65_534, 292 * 1_000_000_000]),
    ("touching", 100 * GIB, &[(8 << 20) - 4096, 8 << 20, 50 * GIB]),
];

fn vast_files(lab: &Lab) -> std::path::PathBuf {
    let tree = lab.directory("tree");
    for (name, bytes, places) in VAST_FILES {
        let file = fs::File::create(tree.join(name)).unwrap();
        file.set_len(bytes).unwrap();
        places.iter().for_each(|place| file.file().write_all_at(&name.as_bytes()[..5], *place).unwrap());
    }
    tree
}

#[test]
fn vast_files_cost_what_their_data_costs() {
    let lab = Lab::new();
    let tree = vast_files(&lab);
    let start = Instant::now();
    let built = lab.build(&tree);
    let record = &built.layers[0].record;
    // Without optimisation, and with the reading back: nothing in it may go through the holes.
    assert!(start.elapsed().as_secs_f64() < 5.0, "{:?}", start.elapsed());
    assert_eq!(record.data_bytes, 11 * 4096);
    assert!(record.metadata_bytes < 1 << 20, "{}", record.metadata_bytes);
    assert_eq!(record.logical_bytes, 16 * TIB + 400 * GIB + 292);
    let again = Lab::new().build_with(input(Location::Path(tree.clone())), options()).unwrap();
    assert_eq!(again.image, built.image);

    // A hole that was filled with zeros, and data that moved within its piece: both are seen.
    let touched = fs::OpenOptions::new().write(true).open(tree.join("8 TiB")).unwrap();
    let mtime = fs::metadata(tree.join("8 TiB")).unwrap().modified().unwrap();
    touched.file().write_all_at(&[0; 4096], TIB + 8192).unwrap();
    touched.file().set_modified(mtime).unwrap();
    let found = lab.differences(&built, &tree, &[]);
    assert!(found.len() == 1 && found[0].starts_with("/8 TiB: holes: "), "{found:?}");
    touched.file().write_all_at(b"new", TIB + 8192).unwrap();
    touched.file().set_modified(mtime).unwrap();
    let found = lab.differences(&built, &tree, &[]);
    assert!(found.iter().any(|found| found.starts_with("/8 TiB: content: ")), "{found:?}");
}

#[test]
fn privileged_fsck_and_the_kernel_take_vast_files() {
    need_root();
    let lab = Lab::new();
    let tree = vast_files(&lab);
    let built = lab.build(&tree);
    let digest = built.layers[0].record.digest;
    let layer = lab.store.read_layer(&digest).unwrap();
    let map = dsec_format::extents::Map::decode(&layer.extents).unwrap();
    let (image, device, root) = (lab.path("image"), lab.path("device"), lab.directory("mnt"));
    fs::write(&image, &layer.metadata).unwrap();
    let device_file = fs::File::create(&device).unwrap();
    device_file.set_len(map.device_bytes()).unwrap();
    let mut chunks = dsec_store::ChunkReader::open(&lab.store, &digest).unwrap();
    for (index, extent) in map.extents().iter().enumerate() {
        device_file.file().write_all_at(chunks.read(index).unwrap(), extent.device_offset.get()).unwrap();
    }
    let [image, device] = [&image, &device].map(|path| path.to_str().unwrap());
    run("fsck.erofs", &[&format!("--device={device}"), image]);

    let _mounted = Mounted::read_only("erofs", image.as_ref(), &root, &format!("device={device}"));
    for (name, bytes, places) in VAST_FILES {
        let file = fs::File::open(root.join(name)).unwrap();
        assert_eq!(file.metadata().unwrap().len(), bytes);
        for place in places {
            // The neighbourhood too: holes beside data, inside the piece that has it.
            let start = place.saturating_sub(70_000);
            let mut read = vec![1; usize::try_from((bytes - start).min(140_000)).unwrap()];
            let mut expected = read.clone();
            file.file().read_exact_at(&mut read, start).unwrap();
            fs::File::open(tree.join(name)).unwrap().file().read_exact_at(&mut expected, start).unwrap();
            assert!(read == expected, "{name} at {place}");
        }
        let first = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0));
        assert_eq!(first.is_ok(), !places.is_empty(), "{name}");
    }
}

#[test]
fn privileged_a_vast_file_that_has_no_room_is_named_before_anything_is_read() {
    need_root();
    let lab = Lab::new();
    let tree = lab.directory("tree");
    let _mounted = Mounted::tmpfs(&tree);
    let sparse = |name: &str, places: &[u64]| {
        let file = fs::File::create(tree.join(name)).unwrap();
        file.set_len(1 << 62).unwrap();
        places.iter().for_each(|place| file.file().write_all_at(b"data", *place).unwrap());
    };
    sparse("a", &[]);
    sparse("b", &[1 << 61]);
    let built = Lab::new().build(&tree);
    assert_eq!(built.layers[0].record.data_bytes, 4096);
    sparse("c", &[0]);
    let (start, refusal) = (Instant::now(), lab.refusal(&tree));
    assert!(refusal.starts_with("`c` cannot be kept: "), "{refusal}");
    assert!(start.elapsed().as_secs_f64() < 1.0, "{:?}", start.elapsed());
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
    let lab = Lab::new();
    let tree = lab.directory("tree");
    fs::create_dir(tree.join("below")).unwrap();
    let _mounted = Mounted::tmpfs(&tree.join("below"));
    fs::write(tree.join("below/file"), b"x").unwrap();
    assert_eq!(lab.refusal(&tree), "cannot read /below: it is on another file system");
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
