//! What failed writers leave: removed when nobody can rely on it, never otherwise.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use dsec_format::ChunkDigest;
use dsec_format::protocol::registry::Expected;
use dsec_format::refs::Target;
use dsec_store::error::Result;
use dsec_store::fsck::{self, Report, fsck};
use dsec_store::layout::Object;
use dsec_store::local::unnamed::Rule;
use dsec_store::{Error, LocalStore, RemoteStore, Silent, Source, Store};
use dsec_tests::mounts::SmallDisk;
use dsec_tests::program::{self, Registry};
use dsec_tests::samples::{self, Sample};
use fs_err as fs;

const PACK_BYTES: u64 = 100_000;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn at_any_age() -> Rule {
    Rule { older_than: Some(Duration::ZERO), ..Rule::default() }
}

fn check(path: &Path) -> Report {
    let report = fsck(&LocalStore::open(path).unwrap(), &fsck::Options::default(), &Silent).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    report
}

fn put_packs(store: &dyn Store, sample: &Sample) {
    let scratch = tempfile::tempdir().unwrap();
    for pack in sample.packs(scratch.path(), PACK_BYTES).unwrap() {
        store.put_pack(&pack.digest(), pack.path()).unwrap();
    }
}

fn put_layer(store: &dyn Store, sample: &Sample) -> Result<()> {
    let scratch = tempfile::tempdir().unwrap();
    let layer = scratch.path().join("layer");
    fs::write(&layer, sample.layer.encode(3)).unwrap();
    store.put_layer(&sample.digest(), &layer)
}

fn put_image(store: &dyn Store, name: &str, sample: &Sample) {
    let target = Target::Image(store.put_image(&samples::image(&[sample])).unwrap());
    store.set_ref(&name.parse().unwrap(), target, Expected::Anything).unwrap();
}

fn digests(sample: &Sample) -> Vec<ChunkDigest> {
    sample.chunks.iter().map(|chunk| ChunkDigest::of(chunk)).collect()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let shards = fs::read_dir(directory).map(Iterator::collect).unwrap_or_else(|_| Vec::new());
    let paths = shards.into_iter().flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap());
    paths.map(|entry| entry.unwrap().path()).collect()
}

fn make_old(path: &Path, age: Duration) {
    for kind in ["packs", "layers", "locations"] {
        for file in files(&path.join(kind)) {
            let file = fs::OpenOptions::new().write(true).open(file).unwrap();
            file.file().set_modified(SystemTime::now() - age).unwrap();
        }
    }
}

#[test]
fn what_nothing_names_is_removed_and_what_is_named_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (named, layer_only, packs_only) =
        (Sample::seeded(0, 100, 5000), Sample::seeded(1000, 100, 5000), Sample::seeded(2000, 100, 5000));
    {
        let store = LocalStore::create(path).unwrap();
        put_packs(&store, &named);
        put_layer(&store, &named).unwrap();
        // An image is a root, with or without a ref.
        store.put_image(&samples::image(&[&named])).unwrap();
        put_packs(&store, &layer_only);
        put_layer(&store, &layer_only).unwrap();
        put_packs(&store, &packs_only);
    }
    let before = check(path);
    assert!(before.unnamed_packs > 0 && before.unnamed_bytes > 200_000, "{before:?}");
    let store = LocalStore::open(path).unwrap();
    let told = store.remove_unnamed(&Rule::default(), false).unwrap();
    assert_eq!(check(path), before, "a dry run removes nothing");
    let removed = store.remove_unnamed(&Rule::default(), true).unwrap();
    assert_eq!(removed, told);
    assert!(!removed.in_use && removed.bytes > 450_000, "{removed:?}");
    let after = check(path);
    assert_eq!((after.images, after.layers, after.locations, after.unnamed_packs), (1, 1, 1, 0));
    assert!(store.has_layer(&named.digest()).unwrap());
    assert_eq!(store.missing_chunks(&digests(&packs_only)).unwrap().len(), 100, "what is gone is missing");
    // And it comes again.
    put_packs(&store, &packs_only);
    put_layer(&store, &packs_only).unwrap();
    put_image(&store, "app", &packs_only);
    check(path);
}

#[test]
fn while_somebody_writes_only_what_is_old_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let writer = LocalStore::create(path).unwrap();
    put_packs(&writer, &Sample::seeded(0, 100, 5000));
    let keeper = LocalStore::open(path).unwrap();
    let removed = keeper.remove_unnamed(&Rule::default(), true).unwrap();
    assert!(removed.in_use && removed.objects.is_empty(), "{removed:?}");
    make_old(path, DAY * 2);
    let removed = keeper.remove_unnamed(&Rule::default(), true).unwrap();
    assert!(removed.in_use && !removed.objects.is_empty(), "{removed:?}");
}

#[test]
fn what_a_writer_was_told_is_there_counts_as_new() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let registry = Registry::start(path, &[]).unwrap();
    let client = RemoteStore::connect(&registry.url(), None, dsec_store::remote::Options::default()).unwrap();
    let sample = Sample::seeded(0, 100, 5000);
    put_packs(&client, &sample);
    put_layer(&client, &sample).unwrap();
    make_old(path, DAY * 2);
    // Another client asks, and does not bring what is there.
    assert!(client.missing_chunks(&digests(&sample)).unwrap().is_empty());
    assert!(client.has_layer(&sample.digest()).unwrap());
    let keeper = LocalStore::open(path).unwrap();
    let removed = keeper.remove_unnamed(&Rule { older_than: Some(DAY), ..Rule::default() }, true).unwrap();
    assert!(removed.objects.is_empty(), "{removed:?}");
    put_image(&client, "app", &sample);
    drop(registry);
    assert_eq!(check(path).images, 1);
}

#[test]
fn a_layer_whose_chunks_were_removed_meanwhile_is_refused_and_the_next_try_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let client = LocalStore::create(path).unwrap();
    let sample = Sample::seeded(0, 100, 5000);
    put_packs(&client, &sample);
    assert!(client.missing_chunks(&digests(&sample)).unwrap().is_empty());
    let removed = LocalStore::open(path).unwrap().remove_unnamed(&at_any_age(), true).unwrap();
    assert!(!removed.objects.is_empty());
    let error = put_layer(&client, &sample).unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    check(path);
    assert_eq!(client.missing_chunks(&digests(&sample)).unwrap().len(), 100);
    put_packs(&client, &sample);
    put_layer(&client, &sample).unwrap();
    put_image(&client, "app", &sample);
    check(path);
}

#[test]
fn a_writer_that_gives_up_takes_along_only_its_own_and_only_when_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (earlier, own) = (Sample::seeded(0, 100, 5000), Sample::seeded(1000, 100, 5000));
    let store = LocalStore::create(path).unwrap();
    put_packs(&store, &earlier);
    make_old(path, Duration::from_secs(10));
    let (earlier_files, other) = (files(&path.join("packs")).len(), LocalStore::open(path).unwrap());

    let mut session = store.session().unwrap();
    put_packs(&store, &own);
    let others = other.session().unwrap();
    assert!(session.give_up().unwrap().in_use);
    assert!(files(&path.join("packs")).len() > earlier_files, "the other may rely on it");
    drop(others);
    drop(other);
    // A second piece of work of the same process counts as another.
    let second = store.session().unwrap();
    assert!(session.give_up().unwrap().in_use);
    drop(second);
    let removed = session.give_up().unwrap();
    assert!(!removed.in_use && removed.bytes > 200_000, "{removed:?}");
    assert_eq!(files(&path.join("packs")).len(), earlier_files);
}

#[test]
fn writers_side_by_side_lose_nothing_to_a_keeper() {
    for (rule, may_fail) in [(Rule::default(), false), (at_any_age(), true)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        LocalStore::create(path).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let keeper = LocalStore::open(path).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    keeper.remove_unnamed(&rule, true).unwrap();
                }
            });
            let writers: Vec<_> = (0..3u64)
                .map(|writer| {
                    scope.spawn(move || {
                        for round in 0..15u64 {
                            let store = LocalStore::open(path).unwrap();
                            // Shares chunks with the others' of the same round, and brings only what is missing.
                            let sample = Sample::seeded(round * 100 + writer * 10, 60, 3000);
                            let name = format!("app-{writer}:{round}");
                            let mut tries = 0;
                            while let Err(error) = publish_missing(&store, &name, &sample) {
                                tries += 1;
                                assert!(may_fail && matches!(error, Error::NotFound { .. }), "{error:?}");
                                assert!(tries < 50, "it never succeeds");
                            }
                        }
                    })
                })
                .collect();
            let results: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            stop.store(true, Ordering::Relaxed);
            results.into_iter().for_each(|result| result.unwrap());
        });
        let report = check(path);
        assert_eq!(report.refs, 45);
    }
}

fn publish_missing(store: &LocalStore, name: &str, sample: &Sample) -> Result<()> {
    let missing = store.missing_chunks(&digests(sample))?;
    let chunks: Vec<_> =
        sample.chunks.iter().filter(|chunk| missing.contains(&ChunkDigest::of(chunk))).cloned().collect();
    if !chunks.is_empty() {
        put_packs(store, &Sample::of(chunks));
    }
    put_layer(store, sample)?;
    let target = Target::Image(store.put_image(&samples::image(&[sample]))?);
    store.set_ref(&name.parse().unwrap(), target, Expected::Anything).map(|_| ())
}

fn dsec_pack(store: &Path, arguments: &[&str]) -> Output {
    let binary = program::binary("dsec-pack").unwrap();
    Command::new(binary).arg("--store").arg(store).args(arguments).output().unwrap()
}

/// A directory of files that neither compress nor repeat.
fn tree(path: &Path, seed: u64, files: u64) {
    fs::create_dir_all(path).unwrap();
    for number in 0..files {
        fs::write(path.join(number.to_string()), samples::data(seed + number, 1 << 20)).unwrap();
    }
}

#[test]
fn privileged_a_build_on_a_full_disk_leaves_the_store_as_it_was() {
    let disk = SmallDisk::new("40m");
    let (store, trees) = (disk.path().join("s"), tempfile::tempdir().unwrap());
    let (small, large) = (trees.path().join("small"), trees.path().join("large"));
    tree(&small, 0, 4);
    tree(&large, 1000, 120);
    assert!(dsec_pack(&store, &["build", small.to_str().unwrap(), "--ref", "small:1"]).status.success());
    let before = check(&store);
    let output = dsec_pack(&store, &["build", large.to_str().unwrap(), "--ref", "large:1"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{text}");
    assert!(text.contains("hint: no ref was changed") && text.contains("--remove-unnamed"), "{text}");
    assert_eq!(check(&store), before);
    assert!(files(&store.join("packs")).iter().all(|path| fs::metadata(path).unwrap().len() < 5 << 20));
    // There is room for what fits.
    tree(&trees.path().join("other"), 5000, 40);
    let other = trees.path().join("other");
    assert!(dsec_pack(&store, &["build", other.to_str().unwrap(), "--ref", "other:1"]).status.success());
}

#[test]
fn privileged_a_push_to_a_full_registry_says_whose_disk_it_is_and_its_rest_goes_in_time() {
    let (disk, trees) = (SmallDisk::new("75m"), tempfile::tempdir().unwrap());
    let (served, local, large) = (disk.path().join("s"), trees.path().join("s"), trees.path().join("large"));
    tree(&large, 1000, 200);
    assert!(dsec_pack(&local, &["build", large.to_str().unwrap(), "--ref", "large:1"]).status.success());
    let push = |registry: &Registry| {
        let output = dsec_pack(&local, &["push", "large:1", &registry.url()]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(8), "{text}");
        assert!(text.contains(&format!("registry {} is full", registry.url())), "{text}");
        assert!(text.contains("its operator frees space"), "{text}");
    };
    let registry = Registry::start(&served, &[]).unwrap();
    push(&registry);
    assert!(check(&served).unnamed_packs > 0, "nothing was left: this test shows nothing");
    // Its packs are for the next try, until the registry ends or somebody says so.
    let output = dsec_pack(&served, &["fsck", "--remove-unnamed"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("others write to the store"), "{text}");
    assert!(check(&served).unnamed_packs > 0);
    drop(registry);
    let output = dsec_pack(&served, &["fsck", "--remove-unnamed", "--dry-run"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("would be removed"));
    assert!(check(&served).unnamed_packs > 0);
    assert!(dsec_pack(&served, &["fsck", "--remove-unnamed"]).status.success());
    assert_eq!(check(&served).packs, 0);

    // A registry that is left alone with it removes it by itself.
    let registry = Registry::start(&served, &["--unnamed-idle-secs", "2"]).unwrap();
    push(&registry);
    let start = Instant::now();
    while !files(&served.join("packs")).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing is removed");
        std::thread::sleep(Duration::from_millis(200));
    }
    drop(registry);
    check(&served);
}

#[test]
fn what_is_named_cannot_be_told_from_damaged_images_so_nothing_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (named, unnamed) = (Sample::seeded(0, 20, 5000), Sample::seeded(1000, 20, 5000));
    let image = {
        let store = LocalStore::create(path).unwrap();
        put_packs(&store, &named);
        put_layer(&store, &named).unwrap();
        put_image(&store, "app", &named);
        put_packs(&store, &unnamed);
        store.read_ref(&"app".parse().unwrap()).unwrap().target
    };
    let Target::Image(image) = image else { panic!("it is an image") };
    for object in [Object::image(&image), Object::locations(&named.digest())] {
        let file = object.path(path);
        let good = fs::read(&file).unwrap();
        fs::write(&file, &good[..good.len() / 2]).unwrap();
        let before = files(&path.join("packs"));
        let error = LocalStore::open(path).unwrap().remove_unnamed(&at_any_age(), true).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error:?}");
        assert_eq!(files(&path.join("packs")), before);
        fs::write(&file, &good).unwrap();
    }
    LocalStore::open(path).unwrap().remove_unnamed(&at_any_age(), true).unwrap();
    assert!(check(path).packs > 0);
}
