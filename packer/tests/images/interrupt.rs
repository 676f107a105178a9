//! Asked to stop at the last moment, `pack-diff` leaves nothing: an image would stay, though no ref names it.

use std::sync::atomic::{AtomicBool, Ordering};

use dsec_pack::build::Options;
use dsec_pack::pack_diff::{Request, pack_diff};
use dsec_pack::upper::{IdRange, Namespace};
use dsec_pack::{Cancel, Monitor, Stage};
use dsec_store::fsck::{self, fsck};
use fs_err as fs;
use rustix::fs::{Mode, OFlags};

use crate::support::{Lab, need_root};
use crate::uppers::{FileSystem, Overlay};

/// Asks to stop when what was verified is about to be published.
struct AtTheEnd {
    verified: AtomicBool,
    cancel: Cancel,
}

impl Monitor for AtTheEnd {
    fn begin(&self, stage: Stage, _total: Option<u64>) {
        match stage {
            Stage::Verify => self.verified.store(true, Ordering::SeqCst),
            Stage::Publish if self.verified.load(Ordering::SeqCst) => self.cancel.cancel(),
            _ => {}
        }
    }

    fn advance(&self, _amount: u64) {}
}

#[test]
fn privileged_a_pack_diff_that_was_asked_to_stop_leaves_no_image() {
    need_root();
    let lab = Lab::new();
    let base = lab.directory("base");
    fs::write(base.join("file"), b"below").unwrap();
    let parent = lab.built(&base);
    let disk = FileSystem::new(&lab, "tmpfs");
    let overlay = Overlay::new(&disk.root, "overlay", &base, "index=off");
    fs::write(overlay.merged.join("new"), vec![7; 100_000]).unwrap();
    let check = || fsck(&lab.store, &fsck::Options::default(), &dsec_store::Silent).unwrap();
    let before = check();

    let monitor = AtTheEnd { verified: AtomicBool::new(false), cancel: Cancel::new() };
    let upper = rustix::fs::open(&overlay.upper, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let request = Request {
        upper,
        ids: IdRange::IDENTITY,
        namespace: Namespace::Trusted,
        parent: parent.digest(),
        layers: None,
        name: Some("packed".parse().unwrap()),
        provenance: Default::default(),
    };
    let options = Options { level: 3, threads: 2 };
    let error = pack_diff(&lab.store, request, None, options, &monitor, &monitor.cancel).unwrap_err();
    assert_eq!(error.to_string(), "interrupted");
    assert!(monitor.verified.load(Ordering::SeqCst));
    assert_eq!(check(), before);
}
