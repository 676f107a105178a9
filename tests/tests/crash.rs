//! A crash at every step of every change of a local store: what was acknowledged is there, the rest is whole or absent,
//! and the same again succeeds.
//!
//! Two kinds of crash are simulated: the process ends before a step (everything done so far is seen), and the machine
//! ends (a name that its directory was not synced for may be lost).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use dsec_format::protocol::registry::Expected;
use dsec_format::refs::{RefName, Target};
use dsec_store::disk::{Hook, Step};
use dsec_store::fsck::{self, fsck};
use dsec_store::{Error, LocalStore, Silent, Source, Store};
use dsec_tests::samples::{self, Sample};
use fs_err as fs;

fn name() -> RefName {
    "app".parse().unwrap()
}

/// Stops the disk before step number `stop_at`; remembers what a lost directory entry would mean.
struct Crash {
    stop_at: usize,
    steps: usize,
    stopped: bool,
    /// A name that was given and whose directory is not synced yet, with what it named before.
    unsynced: Option<(PathBuf, Option<Vec<u8>>)>,
    synced_file: Option<PathBuf>,
}

impl Crash {
    fn at(stop_at: usize) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { stop_at, steps: 0, stopped: false, unsynced: None, synced_file: None }))
    }

    fn hook(this: &Arc<Mutex<Self>>) -> Hook {
        let this = Arc::clone(this);
        Arc::new(move |step, path: &Path| this.lock().unwrap().step(step, path))
    }

    fn step(&mut self, step: Step, path: &Path) -> io::Result<()> {
        if self.stopped || self.steps == self.stop_at {
            self.stopped = true;
            return Err(io::Error::other("crash"));
        }
        self.steps += 1;
        match step {
            Step::SyncFile => self.synced_file = Some(path.to_owned()),
            Step::Rename => {
                assert!(
                    self.synced_file.take().is_some(),
                    "{} was named before its bytes were durable",
                    path.display()
                );
                assert!(self.unsynced.is_none(), "two names at a time");
                self.unsynced = Some((path.to_owned(), fs::read(path).ok()));
            }
            Step::Remove => self.unsynced = Some((path.to_owned(), fs::read(path).ok())),
            Step::SyncDirectory => {
                self.unsynced.take_if(|(name, _)| name.parent() == Some(path));
            }
            Step::MakeDirectory | Step::Write => {}
        }
        Ok(())
    }

    /// The machine went down: the name that is not durable is lost.
    fn lose_unsynced(&mut self) {
        match self.unsynced.take() {
            None => {}
            Some((path, Some(before))) => fs::write(path, before).unwrap(),
            // It may not even have been given.
            Some((path, None)) => drop(fs::remove_file(path)),
        }
    }
}

/// Publishes `sample` as the ref.
fn publish(store: &LocalStore, sample: &Sample) -> Result<(), Error> {
    let scratch = store.scratch()?;
    for pack in sample.packs(scratch.path(), 50_000).unwrap() {
        store.put_pack(&pack.digest(), pack.path())?;
    }
    let layer = scratch.path().join("layer");
    fs::write(&layer, sample.layer.encode(samples::LEVEL)).unwrap();
    store.put_layer(&sample.digest(), &layer)?;
    let image = store.put_image(&samples::image(&[sample]))?;
    store.set_ref(&name(), Target::Image(image), Expected::Anything)?;
    Ok(())
}

fn assert_clean(store: &LocalStore) {
    let report = fsck(store, &fsck::Options::default(), &Silent).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

fn target_of(sample: &Sample) -> Target {
    Target::Image(samples::image(&[sample]).digest())
}

#[test]
fn a_crash_at_any_step_loses_nothing_acknowledged() {
    let (old, new) = (Sample::seeded(0, 12, 8000), Sample::seeded(8, 12, 8000));
    let mut stop_at = 0;
    loop {
        let mut finished = false;
        for machine in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("store");
            publish(&LocalStore::create(&path).unwrap(), &old).unwrap();

            let crash = Crash::at(stop_at);
            let result = LocalStore::create_with_hook(&path, Crash::hook(&crash)).and_then(|store| {
                let result = publish(&store, &new);
                // A process that dies runs no destructors.
                std::mem::forget(store);
                result
            });
            let mut crash = crash.lock().unwrap();
            assert_eq!(result.is_err(), crash.stopped, "an acknowledgement after a failed step");
            if machine {
                crash.lose_unsynced();
            }
            let store = LocalStore::open(&path).unwrap();
            assert_clean(&store);
            let present = store.read_ref(&name()).unwrap().target;
            if result.is_ok() {
                assert_eq!(present, target_of(&new), "acknowledged, and lost");
            } else {
                assert!([target_of(&old), target_of(&new)].contains(&present));
            }
            publish(&store, &new).unwrap();
            assert_clean(&store);
            assert_eq!(store.read_ref(&name()).unwrap().target, target_of(&new));
            finished |= result.is_ok();
        }
        if finished {
            break;
        }
        stop_at += 1;
    }
    assert!(stop_at > 25, "only {stop_at} steps were seen");
}

#[test]
fn a_crash_while_a_store_is_made_leaves_one_that_can_be_made_again() {
    for stop_at in 0.. {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/store");
        let crash = Crash::at(stop_at);
        let result = LocalStore::create_with_hook(&path, Crash::hook(&crash));
        LocalStore::create(&path).unwrap();
        assert_clean(&LocalStore::open(&path).unwrap());
        if result.is_ok() {
            assert!(stop_at > 4);
            return;
        }
    }
}

#[test]
fn a_full_disk_is_an_error_that_says_so_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    publish(&LocalStore::create(directory.path()).unwrap(), &Sample::seeded(0, 3, 100)).unwrap();
    let hook: Hook = Arc::new(|step, _| match step {
        Step::Write | Step::SyncFile => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    });
    let store = LocalStore::create_with_hook(directory.path(), hook).unwrap();
    let error = publish(&store, &Sample::seeded(5, 3, 100)).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error:?}");
    drop(store);
    let store = LocalStore::open(directory.path()).unwrap();
    assert_clean(&store);
    assert_eq!(store.read_ref(&name()).unwrap().target, target_of(&Sample::seeded(0, 3, 100)));
    assert_eq!(fs::read_dir(directory.path().join("tmp")).unwrap().count(), 0);
}
