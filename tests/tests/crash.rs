//! A crash at every step of every change of a local store: what was acknowledged is there, the rest is whole or absent,
//! and the same again succeeds.
//!
//! Two kinds of crash are simulated: a process ends before a step (everything done so far is seen), and the machine
//! ends. Then a name, of a file or of a directory, may be lost unless its directory was synced since it was given; any
//! one of them, or all. Bytes of a file count as lost unless they were synced before the file was named: that is
//! asserted, not simulated.

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

/// A name that its directory was not synced for.
struct Unsynced {
    path: PathBuf,
    /// What it named before: the bytes of a file, or nothing.
    before: Option<Vec<u8>>,
}

/// The disk of a machine, shared by all writers of a store.
#[derive(Default)]
struct Machine {
    unsynced: Vec<Unsynced>,
}

impl Machine {
    fn named(&mut self, path: &Path) {
        if self.unsynced.iter().all(|name| name.path != path) {
            self.unsynced.push(Unsynced { path: path.to_owned(), before: fs::read(path).ok() });
        }
    }

    fn synced(&mut self, directory: &Path) {
        self.unsynced.retain(|name| name.path.parent() != Some(directory));
    }

    /// The machine goes down: what is not durable is lost; all of it, or only number `which`.
    fn crash(&mut self, which: Option<usize>) {
        for (number, name) in std::mem::take(&mut self.unsynced).into_iter().enumerate() {
            if which.is_some_and(|which| which != number) {
                continue;
            }
            match name.before {
                // What is in a directory that was lost is lost with it, and cannot be given back.
                Some(before) => drop(fs::write(name.path, before)),
                None if name.path.is_dir() => fs::remove_dir_all(name.path).unwrap(),
                // It may not even have been given.
                None => drop(fs::remove_file(name.path)),
            }
        }
    }
}

/// A writer that is stopped before step number `stop_at`.
struct Crash {
    machine: Arc<Mutex<Machine>>,
    stop_at: usize,
    steps: usize,
    stopped: bool,
    synced_file: Option<PathBuf>,
}

impl Crash {
    fn at(machine: &Arc<Mutex<Machine>>, stop_at: usize) -> Arc<Mutex<Self>> {
        let machine = Arc::clone(machine);
        Arc::new(Mutex::new(Self { machine, stop_at, steps: 0, stopped: false, synced_file: None }))
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
        let mut machine = self.machine.lock().unwrap();
        match step {
            Step::SyncFile => self.synced_file = Some(path.to_owned()),
            Step::Rename => {
                assert!(
                    self.synced_file.take().is_some(),
                    "{} was named before its bytes were durable",
                    path.display()
                );
                machine.named(path);
            }
            Step::Remove => machine.named(path),
            // Another writer may have made it meanwhile.
            Step::MakeDirectory if path.is_dir() => {}
            Step::MakeDirectory => machine.named(path),
            Step::SyncDirectory => machine.synced(path),
            Step::Write => {}
        }
        Ok(())
    }
}

/// A process that makes or opens the store at `path`, publishes a sample, and is killed before step `stop_at`.
fn writer(machine: &Arc<Mutex<Machine>>, path: &Path, sample: &Sample, stop_at: usize) -> Result<(), Error> {
    let crash = Crash::at(machine, stop_at);
    let result = LocalStore::create_with_hook(path, Crash::hook(&crash)).and_then(|store| {
        let result = publish(&store, sample);
        // A process that dies runs no destructors.
        std::mem::forget(store);
        result
    });
    assert_eq!(result.is_err(), crash.lock().unwrap().stopped, "an acknowledgement after a failed step");
    result
}

/// Publishes `sample` as the ref; a pack only if the store lacks one of its chunks.
fn publish(store: &LocalStore, sample: &Sample) -> Result<(), Error> {
    let scratch = store.scratch()?;
    for pack in sample.packs(scratch.path(), 50_000).unwrap() {
        let chunks: Vec<_> = pack.tables().chunks().iter().map(|chunk| chunk.digest).collect();
        if store.missing_chunks(&chunks)?.is_empty() {
            continue;
        }
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

/// Runs `test` with one step number after the other, until it says that nothing was stopped any more.
fn at_every_step(least: usize, mut test: impl FnMut(usize) -> bool) {
    let mut stop_at = 0;
    while !test(stop_at) {
        stop_at += 1;
    }
    assert!(stop_at > least, "only {stop_at} steps were seen");
}

#[test]
fn a_crash_at_any_step_loses_nothing_acknowledged() {
    let (old, new) = (Sample::seeded(0, 12, 8000), Sample::seeded(8, 12, 8000));
    at_every_step(25, |stop_at| {
        let mut finished = false;
        for machine_too in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("store");
            publish(&LocalStore::create(&path).unwrap(), &old).unwrap();
            let machine = Arc::default();
            let result = writer(&machine, &path, &new, stop_at);
            if machine_too {
                machine.lock().unwrap().crash(None);
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
        finished
    });
}

#[test]
fn what_rests_on_the_work_of_a_killed_writer_is_durable_when_acknowledged() {
    let sample = Sample::seeded(0, 12, 8000);
    at_every_step(25, |stop_at| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("above/store");
        let machine = Arc::default();
        let killed = writer(&machine, &path, &sample, stop_at);
        // The second one finds everything that the first one has named, durable or not.
        writer(&machine, &path, &sample, usize::MAX).unwrap();
        machine.lock().unwrap().crash(None);
        let store = LocalStore::open(&path).unwrap_or_else(|error| panic!("step {stop_at}: {error:?}"));
        assert_clean(&store);
        assert_eq!(store.read_ref(&name()).unwrap().target, target_of(&sample), "step {stop_at}");
        killed.is_ok()
    });
}

#[test]
fn what_a_store_says_to_have_is_durable() {
    let sample = Sample::seeded(0, 12, 8000);
    let image = samples::image(&[&sample]).digest();
    at_every_step(25, |stop_at| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        LocalStore::create(&path).unwrap();
        let machine = Arc::default();
        let killed = writer(&machine, &path, &sample, stop_at);
        let other = Crash::at(&machine, usize::MAX);
        let store = LocalStore::create_with_hook(&path, Crash::hook(&other)).unwrap();
        let (layer, has_image) = (store.has_layer(&sample.digest()).unwrap(), store.has_image(&image).unwrap());
        drop(store);
        machine.lock().unwrap().crash(None);
        let store = LocalStore::open(&path).unwrap();
        assert_clean(&store);
        assert!(!layer || store.has_layer(&sample.digest()).unwrap(), "step {stop_at}");
        assert!(!has_image || store.has_image(&image).unwrap(), "step {stop_at}");
        killed.is_ok()
    });
}

#[test]
fn any_one_name_may_be_lost_after_two_killed_writers() {
    let (one, two) = (Sample::seeded(0, 6, 8000), Sample::seeded(2, 3, 8000));
    // Not every pair of steps, but each step of the first with the whole second, and with a part of it.
    for (first, second) in (0..40).flat_map(|step| [(step, usize::MAX), (step, 15 + step * 7 % 40)]) {
        let mut lost = 0;
        loop {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("store");
            LocalStore::create(&path).unwrap();
            let machine: Arc<Mutex<Machine>> = Arc::default();
            drop(writer(&machine, &path, &one, first));
            drop(writer(&machine, &path, &two, second));
            let mut machine = machine.lock().unwrap();
            let names = machine.unsynced.len();
            machine.crash(Some(lost));
            assert_clean(&LocalStore::open(&path).unwrap());
            lost += 1;
            if lost >= names {
                break;
            }
        }
    }
}

#[test]
fn a_crash_while_a_store_is_made_leaves_one_that_can_be_made_again() {
    at_every_step(4, |stop_at| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/store");
        let machine = Arc::default();
        let crash = Crash::at(&machine, stop_at);
        let result = LocalStore::create_with_hook(&path, Crash::hook(&crash));
        LocalStore::create_with_hook(&path, Crash::hook(&Crash::at(&machine, usize::MAX))).unwrap();
        machine.lock().unwrap().crash(None);
        assert_clean(&LocalStore::open(&path).unwrap());
        result.is_ok()
    });
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
