//! A build that ends during its own verification leaves the store as it was.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dsec_format::image::Config;
use dsec_pack::build::{self, Built, Error, Request};
use dsec_pack::input::Location;
use dsec_pack::{Cancel, Monitor, Stage};
use dsec_store::fsck::{self, fsck};
use fs_err as fs;

use crate::support::{Lab, input, noise, sh};

/// Does something when a stage begins.
struct At<'a> {
    stage: Stage,
    act: &'a (dyn Fn() + Sync),
}

impl Monitor for At<'_> {
    fn begin(&self, stage: Stage, _total: Option<u64>) {
        if stage == self.stage {
            (self.act)();
        }
    }

    fn advance(&self, _amount: u64) {}
}

/// The files of the store with their bytes, but for locks and temporary files.
fn content(lab: &Lab) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut content, mut directories) = (BTreeMap::new(), vec![lab.store.path().to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            match path.file_name().unwrap().to_str().unwrap() {
                "locks" | "tmp" => {}
                _ if path.is_dir() => directories.push(path),
                _ => drop(content.insert(path.clone(), fs::read(path).unwrap())),
            }
        }
    }
    content
}

fn build_at(lab: &Lab, path: &Path, monitor: &At<'_>, cancel: &Cancel) -> Result<Built, Error> {
    let input = input(Location::Path(path.to_owned()));
    let name = Some("second".parse().unwrap());
    let request = Request { input, name, config: Config::default(), verify: true };
    build::build(&lab.store, &request, build::Options { level: 1, threads: 2 }, monitor, cancel)
}

/// A tree and an archive of it, beside a store that has something else.
fn lab() -> (Lab, PathBuf, PathBuf) {
    let lab = Lab::new();
    let other = lab.directory("other");
    fs::write(other.join("file"), noise(7, 300_000)).unwrap();
    lab.build(&other);
    let tree = lab.directory("tree");
    fs::write(tree.join("one"), noise(1, 500_000)).unwrap();
    fs::write(tree.join("two"), noise(2, 500_000)).unwrap();
    let archive = lab.path("archive.tar");
    sh(lab.path("").as_path(), "tar --format=posix -C tree -cf archive.tar .");
    (lab, tree, archive)
}

#[track_caller]
fn assert_as_before(lab: &Lab, before: &BTreeMap<PathBuf, Vec<u8>>, what: &str) {
    let after = content(lab);
    let names = |content: &BTreeMap<PathBuf, Vec<u8>>| content.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&after), names(before), "{what}");
    assert!(after == *before, "{what}: other bytes");
    let report = fsck(&lab.store, &fsck::Options::default(), &dsec_store::Silent).unwrap();
    assert!(report.is_clean() && report.unnamed_packs == 0, "{what}: {report:?}");
}

#[test]
fn interrupted_during_the_verification_it_leaves_nothing() {
    let (lab, tree, archive) = lab();
    let before = content(&lab);
    for path in [&tree, &archive] {
        for stage in [Stage::Check, Stage::Verify] {
            let what = format!("{} at {stage:?}", path.display());
            let cancel = Cancel::new();
            let error = build_at(&lab, path, &At { stage, act: &|| cancel.cancel() }, &cancel).expect_err(&what);
            assert!(error.is_cancelled(), "{what}: {error}");
            assert_as_before(&lab, &before, &what);
        }
    }
    lab.build(&tree);
}

#[test]
fn an_image_that_is_not_its_source_is_not_kept() {
    let (lab, tree, _) = lab();
    let before = content(&lab);
    let act = || fs::write(tree.join("two"), b"changed").unwrap();
    let error = build_at(&lab, &tree, &At { stage: Stage::Check, act: &act }, &Cancel::new()).unwrap_err();
    assert!(matches!(error, Error::Differs { .. }), "{error}");
    assert_as_before(&lab, &before, "it differs");
}
