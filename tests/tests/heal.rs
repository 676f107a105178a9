//! A store with rotten objects is whole again after `fsck --repair` and a push, pull or build of what was in them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dsec_format::protocol::registry::Expected;
use dsec_format::refs::Target;
use dsec_store::fsck::{self, Finding, Report, fsck};
use dsec_store::layout::Object;
use dsec_store::remote::Options;
use dsec_store::transfer::{self, Stats};
use dsec_store::{ChunkReader, LocalStore, RemoteStore, Silent, Source, Store, transfer_ref};
use dsec_tests::program::{self, Registry};
use dsec_tests::samples::{self, Sample};
use fs_err as fs;

fn publish(store: &dyn Store, name: &str, sample: &Sample) {
    sample.put(store, 1 << 20).unwrap();
    let target = Target::Image(store.put_image(&samples::image(&[sample])).unwrap());
    store.set_ref(&name.parse().unwrap(), target, Expected::Anything).unwrap();
}

fn copy(from: &dyn Source, to: &dyn Store, name: &str) -> Stats {
    let scratch = tempfile::tempdir().unwrap();
    let (name, options) = (name.parse().unwrap(), transfer::Options::new(scratch.path()));
    transfer_ref(from, &name, to, &name, Expected::Anything, &options, &Silent).unwrap().1
}

fn check(path: &Path, repair: bool) -> Report {
    fsck(&LocalStore::open(path).unwrap(), &fsck::Options { repair, ..fsck::Options::default() }, &Silent).unwrap()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn assert_whole(path: &Path, samples: &[&Sample]) {
    let report = check(path, false);
    assert!(report.is_clean(), "{:?}", report.findings);
    let store = LocalStore::open(path).unwrap();
    for sample in samples {
        let mut reader = ChunkReader::open(&store, &sample.digest()).unwrap();
        for (index, chunk) in sample.chunks.iter().enumerate() {
            assert_eq!(reader.read(index).unwrap(), chunk);
        }
    }
}

fn objects(path: &Path, sample: &Sample) -> Vec<(Object, usize)> {
    let store = LocalStore::open(path).unwrap();
    let chunks = sample.chunks.len() as u64;
    let pack = store.read_locations(&sample.digest(), chunks).unwrap().packs[0];
    let image = samples::image(&[sample]).digest();
    [(Object::pack(&pack), 300), (Object::layer(&sample.digest()), 250), (Object::image(&image), 40)].into()
}

#[test]
fn a_push_brings_again_what_was_set_aside_in_a_directory_and_behind_a_registry() {
    let sample = Sample::seeded(0, 300, 4000);
    let directory = tempfile::tempdir().unwrap();
    let full = LocalStore::create(&directory.path().join("full")).unwrap();
    publish(&full, "app", &sample);
    for served in [false, true] {
        let path = directory.path().join(format!("served-{served}"));
        publish(&LocalStore::create(&path).unwrap(), "app", &sample);
        // It knows what it has, and is not told.
        let registry = served.then(|| Registry::start(&path, &[]).unwrap());
        let open = || -> Box<dyn Store> {
            match &registry {
                Some(registry) => Box::new(RemoteStore::connect(&registry.url(), None, Options::default()).unwrap()),
                None => Box::new(LocalStore::open(&path).unwrap()),
            }
        };
        let to = open();
        assert_eq!(copy(&full, &*to, "app").moved_chunks, 0);
        for (number, (object, at)) in objects(&path, &sample).into_iter().enumerate() {
            flip(&object.path(&path), at);
            let report = check(&path, true);
            assert!(!report.is_clean(), "{object}: {report:?}");
            let aside = object.quarantine_path(&path);
            let said = Finding::SetAside { object: object.to_string(), path: aside.clone() };
            assert!(report.findings.contains(&said), "{:?}", report.findings);
            assert_eq!(report.set_aside, number as u64 + 1);
            assert!(aside.is_file() && !object.path(&path).exists());

            let stats = copy(&full, &*to, "app");
            assert_eq!(stats.moved_chunks > 0, number == 0, "{object}: {stats:?}");
            assert_whole(&path, &[&sample]);
        }
    }
}

#[test]
fn a_pull_brings_again_what_was_set_aside() {
    let sample = Sample::seeded(0, 300, 4000);
    let directory = tempfile::tempdir().unwrap();
    let (full, local) = (directory.path().join("full"), directory.path().join("local"));
    publish(&LocalStore::create(&full).unwrap(), "app", &sample);
    let registry = Registry::start(&full, &[]).unwrap();
    let remote = RemoteStore::connect(&registry.url(), None, Options::default()).unwrap();
    copy(&remote, &LocalStore::create(&local).unwrap(), "app");
    for (object, at) in objects(&local, &sample) {
        flip(&object.path(&local), at);
        assert!(!check(&local, true).is_clean());
        copy(&remote, &LocalStore::open(&local).unwrap(), "app");
        assert_whole(&local, &[&sample]);
    }
}

#[test]
fn locations_are_made_anew_from_the_packs_that_are_there() {
    let (sample, part) = (Sample::seeded(0, 300, 4000), Sample::seeded(100, 50, 4000));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = LocalStore::create(path).unwrap();
    publish(&store, "app", &sample);
    publish(&store, "part", &part);
    drop(store);
    let locations = Object::locations(&sample.digest()).path(path);
    flip(&locations, fs::read(&locations).unwrap().len() - 40);
    let report = check(path, true);
    assert!(report.findings.contains(&Finding::Relocated { layer: sample.digest() }), "{:?}", report.findings);
    assert_whole(path, &[&sample, &part]);

    // Both layers are in one pack; when it is lost, bringing the chunks of the one is enough for the other.
    let (object, at) = objects(path, &sample)[0];
    flip(&object.path(path), at);
    assert!(!check(path, true).is_clean());
    let full = tempfile::tempdir().unwrap();
    let full = LocalStore::create(full.path()).unwrap();
    publish(&full, "app", &sample);
    copy(&full, &LocalStore::open(path).unwrap(), "app");
    let report = check(path, true);
    assert!(report.findings.contains(&Finding::Relocated { layer: part.digest() }), "{:?}", report.findings);
    assert_whole(path, &[&sample, &part]);
}

#[test]
fn what_is_sound_is_not_set_aside() {
    let sample = Sample::seeded(0, 30, 4000);
    let directory = tempfile::tempdir().unwrap();
    publish(&LocalStore::create(directory.path()).unwrap(), "app", &sample);
    let before = check(directory.path(), false);
    assert_eq!(check(directory.path(), true), before);
    assert!(!directory.path().join("quarantine").exists());
    assert_whole(directory.path(), &[&sample]);
}

fn dsec_pack(store: &Path, arguments: &[&str]) -> Output {
    let binary = program::binary("dsec-pack").unwrap();
    Command::new(binary).arg("--store").arg(store).args(arguments).output().unwrap()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let shards = fs::read_dir(directory).unwrap();
    shards.flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap()).map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_build_of_the_same_brings_again_what_was_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    let (store, tree) = (directory.path().join("s"), directory.path().join("tree"));
    fs::create_dir(&tree).unwrap();
    (0..50).for_each(|number| fs::write(tree.join(number.to_string()), samples::data(number, 20_000)).unwrap());
    let build = || {
        let output = dsec_pack(&store, &["build", tree.to_str().unwrap(), "--ref", "app:1"]);
        assert!(output.status.success(), "{output:?}");
        fs::read(store.join("refs/app/:1")).unwrap()
    };
    build();
    let image = dsec_pack(&store, &["show", "app:1", "--json"]).stdout;
    flip(&files(&store.join("packs"))[0], 1000);
    assert_eq!(dsec_pack(&store, &["fsck"]).status.code(), Some(10));
    let output = dsec_pack(&store, &["fsck", "--repair"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(10), "{text}");
    assert!(text.contains("was set aside") && text.contains("quarantine"), "{text}");
    // Nothing was made right by setting it aside, and nothing is believed to be.
    assert_eq!(dsec_pack(&store, &["fsck"]).status.code(), Some(10));
    assert!(!dsec_pack(&store, &["verify", "app:1"]).status.success());
    build();
    let output = dsec_pack(&store, &["verify", "app:1", "--against", tree.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let output = dsec_pack(&store, &["fsck"]);
    assert!(output.status.success(), "{output:?}");
    let again = dsec_pack(&store, &["show", "app:1", "--json"]).stdout;
    let digest = |json: &[u8]| {
        let shown: serde_json::Value = serde_json::from_slice(json).unwrap();
        shown["digest"].as_str().unwrap().to_owned()
    };
    assert_eq!(digest(&again), digest(&image), "the same image");
}
