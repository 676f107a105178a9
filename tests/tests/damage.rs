//! Damage of every kind of object in a local store: each way of reading it gives the right error, and `fsck` the right
//! finding.

use std::path::{Path, PathBuf};

use dsec_format::environment::Environment;
use dsec_format::image::Image;
use dsec_format::layer::Layer;
use dsec_format::protocol::registry::Expected;
use dsec_format::refs::{RefName, Target};
use dsec_format::{EnvironmentDigest, ImageDigest, PackDigest};
use dsec_store::fsck::{Finding, Options, Report, fsck};
use dsec_store::layout::{Object, ref_path};
use dsec_store::{ChunkReader, Error, LocalStore, Silent, Source, Store};
use dsec_tests::samples::{self, LEVEL, Sample};
use fs_err as fs;

/// A store with one of everything.
struct Fixture {
    directory: tempfile::TempDir,
    sample: Sample,
    image: ImageDigest,
    environment: EnvironmentDigest,
    pack: PackDigest,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = LocalStore::create(directory.path()).unwrap();
        let sample = Sample::seeded(0, 30, 9000);
        sample.put(&store, 100_000).unwrap();
        let image = store.put_image(&samples::image(&[&sample])).unwrap();
        let environment = store.put_environment(&Environment::new(image)).unwrap();
        store.set_ref(&name("app"), Target::Image(image), Expected::Absent).unwrap();
        store.set_ref(&name("env"), Target::Environment(environment), Expected::Absent).unwrap();
        let pack = store.read_locations(&sample.digest(), u64::MAX).unwrap().packs[0];
        Self { directory, sample, image, environment, pack }
    }

    /// As another process would open it: nothing is remembered.
    fn open(&self) -> LocalStore {
        LocalStore::open(self.directory.path()).unwrap()
    }

    fn fsck(&self, quick: bool) -> Report {
        fsck(&self.open(), &Options { quick, ..Options::default() }, &Silent).unwrap()
    }

    fn path(&self, object: Object) -> PathBuf {
        object.path(self.directory.path())
    }

    fn objects(&self) -> [Object; 5] {
        [
            Object::pack(&self.pack),
            Object::layer(&self.sample.digest()),
            Object::locations(&self.sample.digest()),
            Object::image(&self.image),
            Object::environment(&self.environment),
        ]
    }

    /// Reads everything that the refs lead to.
    fn read_all(&self) -> Result<(), Error> {
        let store = self.open();
        for text in ["app", "env"] {
            match store.read_ref(&name(text))?.target {
                Target::Image(digest) => drop(store.read_image(&digest)?),
                Target::Environment(digest) => drop(store.read_environment(&digest)?),
            }
        }
        let mut reader = ChunkReader::open(&store, &self.sample.digest())?;
        for (index, chunk) in self.sample.chunks.iter().enumerate() {
            assert_eq!(reader.read(index)?, chunk, "never wrong bytes");
        }
        Ok(())
    }
}

fn name(text: &str) -> RefName {
    text.parse().unwrap()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn truncate(path: &Path, bytes: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn damaged(report: &Report, object: &str) -> bool {
    report.findings.iter().any(|finding| matches!(finding, Finding::Damaged { object: found, .. } if found == object))
}

fn lacks(report: &Report, object: &str) -> bool {
    report.findings.iter().any(|finding| matches!(finding, Finding::Lacks { object: found, .. } if found == object))
}

#[test]
fn a_sound_store_is_clean() {
    let fixture = Fixture::new();
    fixture.read_all().unwrap();
    for quick in [false, true] {
        let report = fixture.fsck(quick);
        assert_eq!(report.findings, []);
        assert_eq!((report.refs, report.environments, report.images, report.layers), (2, 1, 1, 1));
        assert!(report.packs > 1);
        assert_eq!(report.unreferenced_layers, 0);
    }
}

#[test]
fn every_flipped_byte_is_found_and_never_read_as_data() {
    let fixture = Fixture::new();
    for object in fixture.objects() {
        let path = fixture.path(object);
        let good = fs::read(&path).unwrap();
        let step = (good.len() / 40).max(1);
        for at in (0..good.len()).step_by(step).chain([good.len() - 1]) {
            // Feature bits of the preamble that a reader may ignore are covered by the digest of a pack, and by
            // nothing for locations, which are derived.
            if object == Object::locations(&fixture.sample.digest()) && (12..20).contains(&at) {
                continue;
            }
            flip(&path, at);
            let report = fixture.fsck(false);
            assert!(damaged(&report, &object.to_string()), "{object}, byte {at}: {:?}", report.findings);
            // Tables of a pack are not read with its chunks; whatever is read is right or an error.
            match fixture.read_all() {
                Ok(()) => assert_eq!(object, Object::pack(&fixture.pack), "byte {at}"),
                Err(Error::Damaged { object: found, .. }) => assert_eq!(found, object.to_string(), "byte {at}"),
                Err(error) => panic!("{object}, byte {at}: {error:?}"),
            }
            fs::write(&path, &good).unwrap();
        }
    }
    fixture.read_all().unwrap();
}

#[test]
fn a_truncated_object_is_found() {
    let fixture = Fixture::new();
    for object in fixture.objects() {
        let path = fixture.path(object);
        let good = fs::read(&path).unwrap();
        for length in [0, 1, good.len() as u64 / 2, good.len() as u64 - 1] {
            truncate(&path, length);
            assert!(damaged(&fixture.fsck(true), &object.to_string()), "{object}, {length} bytes");
            if object != Object::pack(&fixture.pack) || length < good.len() as u64 / 2 {
                let error = fixture.read_all().unwrap_err();
                assert!(matches!(error, Error::Damaged { .. }), "{object}, {length} bytes: {error:?}");
                assert!(error.to_string().contains(&object.to_string()), "{error}");
            }
            fs::write(&path, &good).unwrap();
        }
    }
}

#[test]
fn a_removed_object_is_found_by_all_that_need_it() {
    for index in 0..5 {
        let fixture = Fixture::new();
        let object = fixture.objects()[index];
        fs::remove_file(fixture.path(object)).unwrap();
        let report = fixture.fsck(true);
        assert!(!report.is_clean());
        let layer = fixture.sample.digest();
        let image = Object::image(&fixture.image).to_string();
        let environment = Object::environment(&fixture.environment).to_string();
        let found = |what: &str| assert!(lacks(&report, what), "{what}: {:?}", report.findings);
        match index {
            0 => {
                let lost =
                    |finding: &Finding| matches!(finding, Finding::LacksChunks { layer: found, .. } if *found == layer);
                assert!(report.findings.iter().any(lost), "{:?}", report.findings);
                [&image, &environment].into_iter().for_each(|what| found(what));
                ["ref app:latest", "ref env:latest"].into_iter().for_each(found);
            }
            1 => [&image, &environment].into_iter().for_each(|what| found(what)),
            2 => {
                let gone = |finding: &Finding| matches!(finding, Finding::Unreadable { object: found, .. } if *found == object.to_string());
                assert!(report.findings.iter().any(gone), "{:?}", report.findings);
            }
            3 => {
                found(&environment);
                found("ref app:latest");
            }
            _ => found("ref env:latest"),
        }
        let error = fixture.read_all().unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    }
}

#[test]
fn damaged_and_misplaced_refs_are_found() {
    let fixture = Fixture::new();
    let path = ref_path(fixture.directory.path(), &name("app"));
    let good = fs::read(&path).unwrap();
    flip(&path, 3);
    assert!(damaged(&fixture.fsck(true), "ref app:latest"));
    assert!(matches!(fixture.open().read_ref(&name("app")), Err(Error::Damaged { .. })));
    truncate(&path, 0);
    assert!(damaged(&fixture.fsck(true), "ref app:latest"));
    fs::write(&path, &good).unwrap();

    let moved = ref_path(fixture.directory.path(), &name("other"));
    fs::create_dir_all(moved.parent().unwrap()).unwrap();
    fs::rename(&path, &moved).unwrap();
    assert!(damaged(&fixture.fsck(true), "ref other:latest"));
}

#[test]
fn wrong_locations_are_found_and_lead_to_no_wrong_bytes() {
    let fixture = Fixture::new();
    let layer = fixture.sample.digest();
    let mut locations = fixture.open().read_locations(&layer, u64::MAX).unwrap();
    // Two chunks of the same length in one frame change places.
    let (a, b) = (locations.records[0], locations.records[1]);
    (locations.records[0], locations.records[1]) = (b, a);
    fs::write(fixture.path(Object::locations(&layer)), locations.encode(&layer)).unwrap();
    let report = fixture.fsck(true);
    assert!(matches!(report.findings[..], [Finding::Misplaced { .. }]), "{:?}", report.findings);
    assert!(matches!(fixture.read_all(), Err(Error::Damaged { .. })));
}

#[test]
fn totals_that_lie_and_foreign_files_are_found() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let mut image: Image = samples::image(&[&fixture.sample]);
    image.layers[0].inodes += 1;
    let digest = store.put_image(&image).unwrap();
    let foreign = fixture.directory.path().join("packs/00/README");
    fs::create_dir_all(foreign.parent().unwrap()).unwrap();
    fs::write(&foreign, b"hello").unwrap();
    let report = fixture.fsck(true);
    let totals = Finding::Totals { image: digest, layer: fixture.sample.digest() };
    assert!(report.findings.contains(&totals), "{:?}", report.findings);
    assert!(report.findings.contains(&Finding::Foreign { path: foreign }), "{:?}", report.findings);
}

#[test]
fn a_push_heals_a_damaged_pack() {
    let fixture = Fixture::new();
    let path = fixture.path(Object::pack(&fixture.pack));
    let good = fs::read(&path).unwrap();
    truncate(&path, 10);
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("pack");
    fs::write(&copy, good).unwrap();
    fixture.open().put_pack(&fixture.pack, &copy).unwrap();
    assert_eq!(fixture.fsck(false).findings, []);
}

#[test]
fn a_directory_that_is_no_store_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |what: &str| {
        let error = LocalStore::open(directory.path()).unwrap_err();
        assert!(matches!(error, Error::NotAStore { .. }), "{error:?}");
        assert!(error.to_string().contains(what), "{error}");
    };
    refused("no file");
    fs::write(directory.path().join("something"), b"").unwrap();
    let error = LocalStore::create(directory.path()).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
    fs::write(directory.path().join("format"), b"dsec.store.v2\n").unwrap();
    refused("dsec.store.v2");
    fs::write(directory.path().join("format"), [0xff; 100_000]).unwrap();
    refused("format is");
    assert!(matches!(LocalStore::open(&directory.path().join("none")), Err(Error::NoStore { .. })));
}

#[test]
fn an_object_of_an_unknown_version_says_so() {
    let fixture = Fixture::new();
    let layer = Layer::new(vec![0; 4096], dsec_format::extents::encode(&[], 0), samples_totals());
    let mut stored = layer.encode(LEVEL);
    stored[8] = 2;
    let path = fixture.directory.path().join("l");
    fs::write(&path, stored).unwrap();
    let error = fixture.open().put_layer(&layer.digest(), &path).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("version 2"), "{source}");
}

fn samples_totals() -> dsec_format::layer::Totals {
    dsec_format::layer::Totals { device_bytes: 0, data_bytes: 0, logical_bytes: 0, inodes: 1 }
}
