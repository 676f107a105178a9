//! Sources and disks that fail: the right bytes or an error, in time, and counted.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dsec_mountd::cache::{self, Cache};
use dsec_mountd::fetch::ReadError;
use dsec_store::Source;
use proptest::prelude::*;

use crate::rig::{DEADLINE, Fault, Faulty, Shared, World};
use crate::tmpfs::Tmpfs;

const MIB: usize = 1 << 20;
const LATE: Duration = Duration::from_secs(1);

fn faults() -> Vec<Fault> {
    vec![
        Fault::Short,
        Fault::Flipped,
        Fault::Elsewhere,
        Fault::Status(500),
        Fault::Status(503),
        Fault::Status(401),
        Fault::Slow(Duration::from_millis(300)),
        Fault::Unreachable,
        Fault::Gone,
    ]
}

#[test]
fn a_source_that_fails_once_costs_a_retry_and_nothing_else() {
    let world = World::new(MIB);
    for fault in faults() {
        let source = world.faulty(&[fault], None);
        let cache = tempfile::tempdir().unwrap();
        let rig = world.rig_with(&[&source], cache.path(), 256 << 20);
        rig.read_all(&world.built.device);
        let status = rig.reader.fetcher().status();
        assert_eq!(status.errors, 0, "{fault:?}");
        let harmless = matches!(fault, Fault::Slow(_));
        assert_eq!(status.retries == 0, harmless, "{fault:?}: {status:?}");
        let wrong = matches!(fault, Fault::Short | Fault::Flipped | Fault::Elsewhere);
        assert_eq!(status.corrupt > 0, wrong, "{fault:?}: {status:?}");
    }
}

#[test]
fn a_source_that_keeps_failing_is_an_error_in_time_and_never_other_bytes() {
    let world = World::new(MIB);
    for fault in faults().into_iter().filter(|fault| !matches!(fault, Fault::Slow(_))) {
        let source = world.faulty(&[], Some(fault));
        let cache = tempfile::tempdir().unwrap();
        let rig = world.rig_with(&[&source], cache.path(), 256 << 20);
        let start = Instant::now();
        let answer = rig.reader.read_now(&rig.layer, 0, world.built.device.len() as u64);
        assert!(answer.is_err(), "{fault:?}");
        assert!(start.elapsed() < DEADLINE + LATE, "{fault:?} took {:?}", start.elapsed());
        assert!(rig.reader.fetcher().status().errors > 0);
        assert!(rig.layer.errors.value() > 0);
        // And when it is well again, so is the read.
        source.set_after(None);
        std::thread::sleep(Duration::from_millis(100));
        rig.read_all(&world.built.device);
    }
}

#[test]
fn a_source_that_hangs_fails_the_read_at_its_deadline() {
    let world = World::new(MIB);
    let source = world.faulty(&[Fault::Slow(DEADLINE * 2)], None);
    let rig = world.rig(&[&source]);
    let start = Instant::now();
    assert_eq!(rig.reader.read_now(&rig.layer, 0, 4096), Err(ReadError::Deadline));
    assert!(start.elapsed() >= DEADLINE && start.elapsed() < DEADLINE + LATE, "{:?}", start.elapsed());
}

#[test]
fn a_panic_of_a_request_costs_a_retry_and_no_thread() {
    let world = World::new(MIB);
    // More than there are threads.
    let source = world.faulty(&[Fault::Panic; 20], None);
    let rig = world.rig(&[&source]);
    let start = Instant::now();
    let mut answers = (0..4).map(|_| rig.reader.read_now(&rig.layer, 0, 4096));
    assert!(answers.any(|answer| answer.is_ok_and(|bytes| bytes == world.built.device[..4096])));
    assert!(start.elapsed() < DEADLINE, "nobody waits for what does not come");
    rig.read_all(&world.built.device);
}

#[test]
fn a_panic_of_a_request_for_locations_is_told_in_time() {
    let world = World::new(MIB);
    let source = world.faulty(&[], Some(Fault::Panic));
    let rig = world.rig(&[&source]);
    let start = Instant::now();
    assert_eq!(rig.reader.read_now(&rig.layer, 0, 4096), Err(ReadError::Unavailable));
    assert!(start.elapsed() < DEADLINE, "{:?}", start.elapsed());
    source.set_after(None);
    rig.read_all(&world.built.device);
}

#[test]
fn locations_of_more_than_the_layer_has_are_refused_before_anything_is_made_of_them() {
    let world = World::new(MIB);
    let (bad, good) = (world.faulty(&[], Some(Fault::Padded)), world.faulty(&[], None));
    let rig = world.rig(&[&bad]);
    assert_eq!(rig.reader.read_now(&rig.layer, 0, 4096), Err(ReadError::Unavailable));
    assert!(!rig.layer.directory().join("locations-0").exists());
    drop(rig);
    world.rig(&[&bad, &good]).read_all(&world.built.device);
}

#[test]
fn a_layer_that_breaks_off_is_brought_by_the_next_source() {
    use dsec_mountd::fetch::{Sources, bring};
    use dsec_mountd::layer::Layers;
    let world = World::new(MIB / 4);
    let (bad, good) = (world.faulty(&[], Some(Fault::Short)), world.faulty(&[], None));
    let directory = tempfile::tempdir().unwrap();
    let layers = Layers::open(directory.path(), u64::MAX).unwrap();
    let of = |all: &[&Arc<Faulty>]| {
        Sources::new(all.iter().map(|source| Box::new(Shared(Arc::clone(source))) as Box<dyn Source>).collect())
    };
    assert!(bring(&layers, &of(&[&bad]), &world.record).is_err());
    assert_eq!(bring(&layers, &of(&[&bad, &good]), &world.record).unwrap().digest(), &world.record.digest);
    bring(&layers, &of(&[]), &world.record).expect("what is here needs no source");
}

#[test]
fn layers_that_nobody_uses_go_when_they_are_more_than_the_budget() {
    use dsec_mountd::layer::{Layer, Layers};
    let worlds: Vec<World> = (1..=3).map(|size| World::new(size * MIB / 4)).collect();
    let directory = tempfile::tempdir().unwrap();
    let open = |layers: &Layers, world: &World| -> Layer {
        let store = dsec_store::LocalStore::open(&world.store()).unwrap();
        layers.open_or_unpack(&world.record, || store.open_layer(&world.record.digest)).unwrap()
    };
    let there = || worlds.iter().map(|world| directory.path().join(world.record.digest.hex()).exists());
    let kept = || there().collect::<Vec<_>>();
    let layers = Layers::open(directory.path(), 0).unwrap();
    let first = open(&layers, &worlds[0]);
    // Each one is let go of before the next is opened.
    let slot_of = |world: &World| {
        let layer = open(&layers, world);
        layer.slot()
    };
    let slots = std::collections::BTreeSet::from([first.slot(), slot_of(&worlds[1]), slot_of(&worlds[2])]);
    assert_eq!(kept(), [true, false, true], "what is used stays, what was brought last too");
    assert_eq!(slots.len(), 3, "a slot is not given again in the life of the process");
    drop(first);
    open(&layers, &worlds[1]);
    assert_eq!(kept(), [false, true, false]);
    // With room for all of them nothing goes, and a later start with less keeps what was used last.
    let layers = Layers::open(directory.path(), u64::MAX).unwrap();
    for world in [&worlds[0], &worlds[2], &worlds[1], &worlds[0]] {
        open(&layers, world);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(kept(), [true, true, true]);
    let bytes = |world: &World| {
        let files = std::fs::read_dir(directory.path().join(world.record.digest.hex())).unwrap();
        files.map(|file| std::os::unix::fs::MetadataExt::blocks(&file.unwrap().metadata().unwrap()) * 512).sum::<u64>()
    };
    Layers::open(directory.path(), bytes(&worlds[0]) + bytes(&worlds[1])).unwrap();
    assert_eq!(kept(), [true, true, false]);
    // A slot that is no slot, or another's, costs the layer and nothing else.
    let slot = |world: &World| directory.path().join(world.record.digest.hex()).join("slot");
    std::fs::write(slot(&worlds[0]), (1u32 << 20).to_string()).unwrap();
    let layers = Layers::open(directory.path(), u64::MAX).unwrap();
    assert_eq!(kept(), [false, true, false]);
    let (one, two) = (open(&layers, &worlds[0]), open(&layers, &worlds[1]));
    assert!(one.slot() != two.slot() && one.slot() < 1 << 20);
}

#[test]
fn the_next_source_helps() {
    let world = World::new(MIB);
    for fault in faults().into_iter().filter(|fault| !matches!(fault, Fault::Slow(_))) {
        let (bad, good) = (world.faulty(&[], Some(fault)), world.faulty(&[], None));
        let cache = tempfile::tempdir().unwrap();
        let rig = world.rig_with(&[&bad, &good], cache.path(), 256 << 20);
        rig.read_all(&world.built.device);
        assert_eq!(rig.reader.fetcher().status().errors, 0, "{fault:?}");
    }
}

#[test]
fn a_source_that_was_down_from_the_start_is_used_when_it_is_back() {
    let world = World::new(MIB);
    let source = world.faulty(&[], Some(Fault::Unreachable));
    let rig = world.rig(&[&source]);
    let back = Arc::clone(&source);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(DEADLINE / 3);
            back.set_after(None);
        });
        let answer = rig.reader.read_now(&rig.layer, 0, 4096);
        assert!(answer.unwrap() == world.built.device[..4096], "the read waited for it");
    });
}

#[test]
fn many_readers_of_everything_make_one_request_a_frame() {
    let world = World::new(8 * MIB);
    let source = world.faulty(&[], Some(Fault::Slow(Duration::from_millis(5))));
    let rig = world.rig(&[&source]);
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| rig.read_all(&world.built.device));
        }
    });
    let mut asked = source.asked.lock().unwrap().clone();
    asked.sort();
    for pair in asked.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        assert!(first.0 != second.0 || first.1 + first.2 <= second.1, "asked twice: {first:?} and {second:?}");
    }
    assert!(asked.len() as u64 <= world.built.frames, "{} requests for {} frames", asked.len(), world.built.frames);
    assert_eq!(*source.locations_asked.lock().unwrap(), 1);
    assert!(rig.reader.fetcher().status().shared > 0);
}

#[test]
fn neighbouring_frames_are_joined() {
    let world = World::new(8 * MIB);
    let source = world.faulty(&[], None);
    let rig = world.rig(&[&source]);
    let whole = rig.reader.read_now(&rig.layer, 0, world.built.device.len() as u64).unwrap();
    assert!(whole == world.built.device);
    let requests = source.asked.lock().unwrap().len() as u64;
    assert!(requests * 3 <= world.built.frames, "{requests} requests for {} frames", world.built.frames);
}

#[test]
fn what_is_damaged_on_the_disk_is_fetched_again() {
    let world = World::new(4 * MIB);
    let source = world.faulty(&[], None);
    let rig = world.rig(&[&source]);
    rig.read_all(&world.built.device);
    let before = source.asked.lock().unwrap().len();
    drop(rig);
    for segment in segments(&world.root.path().join("cache"), "data") {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(&segment).unwrap();
        let length = file.metadata().unwrap().len();
        for offset in [100, length / 2, length - 5000] {
            file.write_all_at(b"rot", offset).unwrap();
        }
    }
    let rig = world.rig(&[&source]);
    rig.read_all(&world.built.device);
    assert!(rig.cache.status().damaged >= 2, "{:?}", rig.cache.status());
    assert!(source.asked.lock().unwrap().len() > before);
    // The damage is gone now.
    rig.read_all(&world.built.device);
}

#[test]
fn a_restart_finds_what_was_cached_whatever_the_end_looks_like() {
    let world = World::new(4 * MIB);
    let source = world.faulty(&[], None);
    let rig = world.rig(&[&source]);
    rig.read_all(&world.built.device);
    let before = source.asked.lock().unwrap().len();
    drop(rig);
    let rig = world.rig(&[&source]);
    rig.read_all(&world.built.device);
    assert_eq!(source.asked.lock().unwrap().len(), before, "nothing is fetched twice");
    drop(rig);
    // A torn tail, of the table and of the data.
    let cache = world.root.path().join("cache");
    for path in segments(&cache, "index").into_iter().chain(segments(&cache, "data")) {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length - length / 3 - 7).unwrap();
    }
    let rig = world.rig(&[&source]);
    rig.read_all(&world.built.device);
}

#[test]
fn the_budget_holds_and_what_was_evicted_is_fetched_again() {
    let world = World::new(40 * MIB);
    let source = world.faulty(&[], None);
    let cache = tempfile::tempdir().unwrap();
    let budget_bytes = 16 * MIB as u64;
    let rig = world.rig_with(&[&source], cache.path(), budget_bytes);
    for _ in 0..2 {
        rig.read_all(&world.built.device);
        let status = rig.cache.status();
        assert!(status.used_bytes <= budget_bytes, "{status:?}");
        assert!(status.evictions > 0);
        let files = segments(cache.path(), "data").into_iter().chain(segments(cache.path(), "index"));
        // The last batches may still be on their way, and evict a file under our eyes.
        let on_disk: u64 = files.filter_map(|path| std::fs::metadata(path).ok()).map(|file| file.len()).sum();
        assert!(on_disk <= budget_bytes, "{on_disk} bytes in files");
    }
}

#[test]
fn a_cache_belongs_to_one_and_other_directories_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let options = cache::Options { budget_bytes: 16 << 20, memory_bytes: 1 << 20 };
    let first = Cache::open(directory.path(), options).unwrap();
    assert!(matches!(Cache::open(directory.path(), options), Err(cache::Error::Locked { .. })));
    drop(first);
    Cache::open(directory.path(), options).unwrap();
    std::fs::write(directory.path().join("VERSION"), "dsec-cache 9\n").unwrap();
    assert!(matches!(Cache::open(directory.path(), options), Err(cache::Error::Version { .. })));
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("thesis.tex"), "years of work").unwrap();
    assert!(matches!(Cache::open(other.path(), options), Err(cache::Error::Version { .. })));
    let small = cache::Options { budget_bytes: 1, ..options };
    assert!(matches!(Cache::open(directory.path(), small), Err(cache::Error::Budget { .. })));
}

fn segments(cache: &std::path::Path, extension: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(cache.join("segments")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// Looks after the cache until its disk has been found well, or ill, again.
fn wait_for_alarm(cache: &Cache, alarm: bool) {
    let start = Instant::now();
    while cache.status().alarm.is_some() != alarm {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", cache.status());
        cache.tick();
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn privileged_a_full_disk_costs_the_cache_and_no_read() {
    let world = World::new(24 * MIB);
    let source = world.faulty(&[], None);
    let disk = Tmpfs::new(c"size=6m");
    let rig = world.rig_with(&[&source], disk.path(), 256 << 20);
    for _ in 0..2 {
        rig.read_all(&world.built.device);
    }
    wait_for_alarm(&rig.cache, true);
    let status = rig.cache.status();
    assert!(status.bypassed > 0 && status.alarm.as_ref().unwrap().contains("No space left"), "{status:?}");
    assert_eq!(rig.reader.fetcher().status().errors, 0);
    // With space again, everything is cached, though nobody has said so and nobody reads meanwhile.
    rustix::mount::mount_remount(disk.path(), rustix::mount::MountFlags::empty(), "size=64m").unwrap();
    wait_for_alarm(&rig.cache, false);
    rig.read_all(&world.built.device);
    all_local(&rig, &world);
}

/// Everything comes to the disk, after the reads have been answered.
fn all_local(rig: &crate::rig::Rig, world: &World) {
    let start = Instant::now();
    while rig.reader.local_bytes(&rig.layer) < world.record.data_bytes {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", rig.cache.status());
        rig.read_all(&world.built.device);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn privileged_a_disk_that_becomes_read_only_costs_the_cache_and_no_read() {
    let world = World::new(4 * MIB);
    let source = world.faulty(&[], None);
    let cache = tempfile::tempdir().unwrap();
    // Segments of one MiB.
    let rig = world.rig_with(&[&source], cache.path(), 16 << 20);
    rig.reader.read_now(&rig.layer, 0, 4096).unwrap();
    let segments = cache.path().join("segments");
    let flags = rustix::mount::MountFlags::RDONLY;
    rustix::mount::mount("tmpfs", &segments, "tmpfs", flags, None).expect("needs root");
    rig.read_all(&world.built.device);
    wait_for_alarm(&rig.cache, true);
    let status = rig.cache.status();
    rustix::mount::unmount(&segments, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(status.alarm.as_ref().unwrap().contains("Read-only"), "{status:?}");
    assert_eq!(rig.reader.fetcher().status().errors, 0);
    wait_for_alarm(&rig.cache, false);
    all_local(&rig, &world);
}

#[test]
fn a_cache_that_is_removed_in_use_is_made_again() {
    let world = World::new(4 * MIB);
    let source = world.faulty(&[], None);
    let cache = world.root.path().join("cache");
    let rig = world.rig(&[&source]);
    rig.read_all(&world.built.device);
    all_local(&rig, &world);
    std::fs::remove_dir_all(&cache).unwrap();
    rig.read_all(&world.built.device);
    rig.cache.tick();
    assert_eq!(rig.cache.status().alarm, None);
    // It is this one's, as before.
    let options = cache::Options { budget_bytes: 16 << 20, memory_bytes: 1 << 20 };
    assert!(matches!(Cache::open(&cache, options), Err(cache::Error::Locked { .. })));
    // What is brought from now on is there after a restart.
    let other = World::new(MIB);
    let more = other.faulty(&[], None);
    let chunk: Arc<[u8]> = Arc::from(&b"brought after the removal"[..]);
    let digest = dsec_format::ChunkDigest::of(&chunk);
    rig.cache.insert(&[(digest, chunk)]);
    drop(rig);
    let opened = Cache::open(&cache, options).unwrap();
    assert!(opened.is_on_disk(&digest));
    drop(opened);
    other.rig_with(&[&more], &cache, 16 << 20).read_all(&other.built.device);
}

#[test]
fn a_cache_that_another_daemon_took_over_is_left_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    let options = cache::Options { budget_bytes: 16 << 20, memory_bytes: 1 << 20 };
    let first = Cache::open(&path, options).unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    let second = Cache::open(&path, options).unwrap();
    wait_for_alarm(&first, true);
    let chunk: Arc<[u8]> = Arc::from(&b"a chunk"[..]);
    first.insert(&[(dsec_format::ChunkDigest::of(&chunk), chunk)]);
    assert_eq!(segments(&path, "data"), Vec::<std::path::PathBuf>::new());
    let alarm = first.status().alarm.unwrap();
    assert!(alarm.contains("in use by another daemon"), "{alarm}");
    assert_eq!(second.status().alarm, None);
}

#[test]
fn a_layer_whose_bytes_are_wrong_is_refused_and_leaves_nothing() {
    use dsec_mountd::layer::Layers;
    let world = World::new(MIB / 4);
    let store = dsec_store::LocalStore::open(&world.store()).unwrap();
    let record = store.read_image(&world.built.image).unwrap().layers[0].clone();
    let mut stored = Vec::new();
    store.open_layer(&record.digest).unwrap().read_to_end(&mut stored).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let layers = Layers::open(directory.path(), u64::MAX).unwrap();
    let attempt = |bytes: Vec<u8>| layers.open_or_unpack(&record, || Ok(Box::new(std::io::Cursor::new(bytes))));
    let plain = attempt(stored.clone()).unwrap();
    let want = plain.image().bytes().to_vec();
    std::fs::remove_dir_all(directory.path().join(record.digest.hex())).unwrap();
    for at in (0..stored.len()).step_by(stored.len() / 97 + 1) {
        let mut bad = stored.clone();
        bad[at] ^= 0x10;
        if let Ok(layer) = attempt(bad) {
            // A bit without effect on the plain bytes, which are what the name covers.
            assert!(layer.image().bytes() == want, "byte {at}");
            assert!(layer.slot() > plain.slot(), "a slot is given to one layer only");
            std::fs::remove_dir_all(directory.path().join(record.digest.hex())).unwrap();
        }
        assert!(attempt(stored[..at].to_vec()).is_err(), "cut at {at}");
    }
    assert!(attempt([&stored[..], b"x"].concat()).is_err());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing stays behind");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Random reads of a device, some of the answers of the source being faults: what is read is right.
    #[test]
    fn random_reads_with_faults_are_right(
        seed in 0u64..1000,
        reads in proptest::collection::vec((0usize..3 << 20, 1usize..400_000), 1..40),
        script in proptest::collection::vec(proptest::sample::select(faults()), 0..6),
    ) {
        let world = World::new(2 * MIB + seed as usize * 7);
        let source = world.faulty(&script, None);
        let rig = world.rig_with(&[&source], &world.root.path().join("cache"), 16 << 20);
        let device = &world.built.device;
        for (offset, bytes) in reads {
            let want = device.get(offset..(offset + bytes).min(device.len())).unwrap_or_default();
            match rig.reader.read_now(&rig.layer, offset as u64, bytes as u64) {
                Ok(have) => prop_assert!(have == want, "{bytes} bytes at {offset}"),
                // Faults that pile up in one run of frames may end its patience; the next try is a new one.
                Err(error) => prop_assert!(error == ReadError::Unavailable && !script.is_empty()),
            }
        }
    }
}
