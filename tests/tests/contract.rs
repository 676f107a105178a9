//! One contract for every store: the same tests over each back end.

use std::io::Read;
use std::path::Path;

use dsec_format::environment::Environment;
use dsec_format::layer::Layer;
use dsec_format::protocol::registry::Expected;
use dsec_format::refs::{RefName, Target};
use dsec_format::{ChunkDigest, ImageDigest, LayerDigest, PackDigest, frame};
use dsec_store::error::Damage;
use dsec_store::remote::Options;
use dsec_store::{Error, LocalStore, RemoteStore, Store};
use dsec_tests::program::Registry;
use dsec_tests::samples::{self, LEVEL, Sample};
use fs_err as fs;

/// Runs a test over each back end, each with a fresh, empty store.
fn each(test: impl Fn(&dyn Store)) {
    let directory = tempfile::tempdir().unwrap();
    test(&LocalStore::create(&directory.path().join("local")).unwrap());
    let registry = Registry::start(&directory.path().join("served"), &[]).unwrap();
    test(&RemoteStore::connect(&registry.url(), None, Options::default()).unwrap());
}

fn name(text: &str) -> RefName {
    text.parse().unwrap()
}

fn put_file<T>(bytes: &[u8], put: impl FnOnce(&Path) -> T) -> T {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, bytes).unwrap();
    put(&path)
}

#[test]
fn an_image_round_trips() {
    each(|store| {
        let (base, top) = (Sample::seeded(0, 40, 20_000), Sample::seeded(30, 20, 7_000));
        base.put(store, 100_000).unwrap();
        top.put(store, 100_000).unwrap();
        let image = samples::image(&[&base, &top]);
        let digest = store.put_image(&image).unwrap();
        let record = store.set_ref(&name("a/b:1"), Target::Image(digest), Expected::Absent).unwrap();
        assert_eq!(record.target, Target::Image(digest));

        assert_eq!(store.read_ref(&name("a/b:1")).unwrap(), record);
        assert_eq!(store.read_image(&digest).unwrap(), image);
        assert!(store.has_image(&digest).unwrap());
        for sample in [&base, &top] {
            assert!(store.has_layer(&sample.digest()).unwrap());
            assert_eq!(store.read_layer(&sample.digest()).unwrap(), sample.layer);
            let mut stored = Vec::new();
            store.open_layer(&sample.digest()).unwrap().read_to_end(&mut stored).unwrap();
            assert_eq!(Layer::decode(&stored, &sample.digest()).unwrap(), sample.layer);
            assert_chunks(store, sample);
        }
    });
}

/// Every chunk of a layer is where its locations say.
fn assert_chunks(store: &dyn Store, sample: &Sample) {
    let locations = store.read_locations(&sample.digest(), u64::MAX).unwrap();
    assert_eq!(locations.records.len(), sample.chunks.len());
    for (record, chunk) in locations.records.iter().zip(&sample.chunks) {
        let pack = &locations.packs[record.pack.get() as usize];
        let stored = u64::from(record.stored_bytes.get());
        let bytes = store.read_pack(pack, record.frame_offset.get(), stored).unwrap();
        let plain = frame::decode(record.codec().unwrap(), &bytes, record.plain_bytes.get()).unwrap();
        let start = record.chunk_offset.get() as usize;
        assert_eq!(&plain[start..start + chunk.len()], chunk);
    }
}

#[test]
fn what_is_absent_is_not_found() {
    each(|store| {
        let (image, layer, pack) = (ImageDigest::of(b"i"), LayerDigest::of(b"l"), PackDigest::of(b"p"));
        let errors = [
            store.read_ref(&name("x")).err(),
            store.read_image(&image).err(),
            store.read_environment(&dsec_format::EnvironmentDigest::of(b"e")).err(),
            store.read_layer(&layer).err(),
            store.read_locations(&layer, u64::MAX).err(),
            store.open_layer(&layer).err(),
            store.read_pack(&pack, 0, 1).err(),
            store.pack_bytes(&pack).err(),
            store.set_ref(&name("x"), Target::Image(image), Expected::Anything).err(),
            store.remove_ref(&name("x"), Expected::Anything).err(),
            store.put_environment(&Environment::new(image)).err(),
        ];
        for error in errors {
            assert!(matches!(error, Some(Error::NotFound { .. })), "{error:?}");
        }
        assert!(!store.has_layer(&layer).unwrap() && !store.has_image(&image).unwrap());
        assert_eq!(store.list_refs("", None, 10).unwrap().refs, []);
    });
}

#[test]
fn what_lacks_its_parts_is_refused_and_named() {
    each(|store| {
        let sample = Sample::seeded(0, 3, 1000);
        let image = samples::image(&[&sample]);
        let error = store.put_image(&image).unwrap_err();
        assert!(error.to_string().contains(&sample.digest().to_string()), "{error}");

        let stored = sample.layer.encode(LEVEL);
        let error = put_file(&stored, |path| store.put_layer(&sample.digest(), path)).unwrap_err();
        let chunk = ChunkDigest::of(&sample.chunks[0]);
        assert!(error.to_string().contains(&chunk.to_string()), "{error}");
        assert!(!store.has_layer(&sample.digest()).unwrap());
    });
}

#[test]
fn missing_chunks_are_told_in_order() {
    each(|store| {
        let there = Sample::seeded(0, 30, 5000);
        there.put(store, 20_000).unwrap();
        let digest = |seed| ChunkDigest::of(&samples::data(seed, 5000));
        let asked: Vec<_> = (20..40).rev().map(digest).collect();
        let missing = store.missing_chunks(&asked).unwrap();
        assert_eq!(missing, (30..40).rev().map(digest).collect::<Vec<_>>());
        assert_eq!(store.missing_chunks(&[]).unwrap(), []);
    });
}

#[test]
fn refs_change_under_their_condition() {
    each(|store| {
        let (one, two) = (Sample::seeded(0, 1, 10), Sample::seeded(1, 1, 10));
        let [one, two] = [one, two].map(|sample| {
            sample.put(store, 1).unwrap();
            Target::Image(store.put_image(&samples::image(&[&sample])).unwrap())
        });
        let x = name("x");
        store.set_ref(&x, one, Expected::Absent).unwrap();
        let conflict = |result: Result<_, Error>| assert!(matches!(result, Err(Error::Conflict { .. })), "{result:?}");
        conflict(store.set_ref(&x, two, Expected::Absent));
        conflict(store.set_ref(&x, two, Expected::Is(two)));
        conflict(store.set_ref(&name("y"), two, Expected::Is(one)));
        assert_eq!(store.read_ref(&x).unwrap().target, one);
        store.set_ref(&x, two, Expected::Is(one)).unwrap();
        store.set_ref(&x, one, Expected::Anything).unwrap();
        assert!(matches!(store.remove_ref(&x, Expected::Is(two)), Err(Error::Conflict { .. })));
        store.remove_ref(&x, Expected::Is(one)).unwrap();
        assert!(matches!(store.read_ref(&x), Err(Error::NotFound { .. })));
    });
}

#[test]
fn refs_are_listed_by_name_and_in_pages() {
    each(|store| {
        let sample = Sample::seeded(0, 1, 10);
        sample.put(store, 1).unwrap();
        let target = Target::Image(store.put_image(&samples::image(&[&sample])).unwrap());
        let mut names: Vec<String> =
            (0..25).map(|number| format!("team{}/app:{number}", number % 3)).chain(["team:x".to_owned()]).collect();
        names.push(format!("{}:{}", "n".repeat(200), "t".repeat(128)));
        for text in &names {
            store.set_ref(&name(text), target, Expected::Absent).unwrap();
        }
        names.sort();
        for limit in [1, 7, 100] {
            let (mut listed, mut after) = (Vec::new(), None);
            loop {
                let page = store.list_refs("", after.as_deref(), limit).unwrap();
                assert!(page.refs.len() <= limit);
                listed.extend(page.refs.iter().map(|record| record.name.to_string()));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(listed, names, "limit {limit}");
        }
        let listed = store.list_refs("team1/", None, 100).unwrap().refs;
        assert_eq!(listed.len(), 8);
        assert!(listed.iter().all(|record| record.name.to_string().starts_with("team1/")));
    });
}

#[test]
fn packs_are_checked_on_arrival() {
    each(|store| {
        let directory = tempfile::tempdir().unwrap();
        let sample = Sample::seeded(0, 5, 3000);
        let pack = &sample.packs(directory.path(), 1 << 20).unwrap()[0];
        let good = fs::read(pack.path()).unwrap();
        let flip = |at: usize| {
            let mut bad = good.clone();
            bad[at] ^= 1;
            bad
        };
        let empty = Vec::new();
        for bad in [flip(0), flip(100), flip(good.len() - 100), good[..good.len() - 1].to_vec(), empty] {
            let error = put_file(&bad, |path| store.put_pack(&pack.digest(), path)).unwrap_err();
            assert!(is_refusal(&error), "{error:?}");
            assert!(matches!(store.pack_bytes(&pack.digest()), Err(Error::NotFound { .. })));
        }
        let error = store.put_pack(&PackDigest::of(b"other"), pack.path()).unwrap_err();
        assert!(is_refusal(&error), "{error:?}");

        store.put_pack(&pack.digest(), pack.path()).unwrap();
        store.put_pack(&pack.digest(), pack.path()).unwrap();
        assert_eq!(store.pack_bytes(&pack.digest()).unwrap(), pack.bytes());
        assert_eq!(store.read_pack(&pack.digest(), 3, 50).unwrap(), &good[3..53]);
        let error = store.read_pack(&pack.digest(), pack.bytes() - 1, 2).unwrap_err();
        assert!(matches!(error, Error::Damaged { source: Damage::Length { .. }, .. }), "{error:?}");
    });
}

/// A local store says what is damaged; a remote one passes on that the registry refused it.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Damaged { .. } | Error::Refused { status: 422, .. })
}

#[test]
fn layers_are_checked_on_arrival() {
    each(|store| {
        let sample = Sample::seeded(0, 5, 3000);
        let directory = tempfile::tempdir().unwrap();
        for pack in sample.packs(directory.path(), 1 << 20).unwrap() {
            store.put_pack(&pack.digest(), pack.path()).unwrap();
        }
        let good = sample.layer.encode(LEVEL);
        for at in [0, 50, 170, 250] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let error = put_file(&bad, |path| store.put_layer(&sample.digest(), path)).unwrap_err();
            assert!(is_refusal(&error), "byte {at}: {error:?}");
        }
        assert!(!store.has_layer(&sample.digest()).unwrap());
        put_file(&good, |path| store.put_layer(&sample.digest(), path)).unwrap();
        assert!(store.has_layer(&sample.digest()).unwrap());
    });
}

#[test]
fn a_chunk_of_another_length_does_not_stand_in() {
    each(|store| {
        let sample = Sample::seeded(0, 1, 3000);
        sample.put(store, 1).unwrap();
        let extent = dsec_format::extents::Extent::new(0, ChunkDigest::of(&sample.chunks[0]), 2999);
        let totals =
            dsec_format::layer::Totals { device_bytes: 4096, data_bytes: 2999, logical_bytes: 2999, inodes: 1 };
        let lying = Layer::new(vec![0; 4096], dsec_format::extents::encode(&[extent], 4096), totals);
        let error = put_file(&lying.encode(LEVEL), |path| store.put_layer(&lying.digest(), path)).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    });
}

#[test]
fn environments_round_trip() {
    each(|store| {
        let sample = Sample::seeded(0, 1, 10);
        sample.put(store, 1).unwrap();
        let image = store.put_image(&samples::image(&[&sample])).unwrap();
        let environment = Environment::new(image);
        let digest = store.put_environment(&environment).unwrap();
        assert_eq!(store.read_environment(&digest).unwrap(), environment);
        let record = store.set_ref(&name("env"), Target::Environment(digest), Expected::Anything).unwrap();
        assert_eq!(record.target, Target::Environment(digest));
    });
}

#[test]
fn pushers_side_by_side_lose_nothing() {
    each(|store| {
        let winners: usize = std::thread::scope(|scope| {
            let pushers: Vec<_> = (0..6u64)
                .map(|pusher| {
                    scope.spawn(move || {
                        let sample = Sample::seeded(pusher / 2 * 5, 10, 4000);
                        sample.put(store, 10_000).unwrap();
                        let target = Target::Image(store.put_image(&samples::image(&[&sample])).unwrap());
                        store.set_ref(&name(&format!("own:{pusher}")), target, Expected::Absent).unwrap();
                        usize::from(store.set_ref(&name("race"), target, Expected::Absent).is_ok())
                    })
                })
                .collect();
            pushers.into_iter().map(|pusher| pusher.join().unwrap()).sum()
        });
        assert_eq!(winners, 1, "one of those that expect the ref to be absent wins");
        assert_eq!(store.list_refs("own:", None, 100).unwrap().refs.len(), 6);
        for pusher in 0..3 {
            assert_chunks(store, &Sample::seeded(pusher * 5, 10, 4000));
        }
    });
}
