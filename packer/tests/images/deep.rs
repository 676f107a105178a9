//! A tree deeper than the limit of open files, from a directory into an image and back.
//!
//! The limit is the process's: each step is a program of its own.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::support::{Lab, need_root};

const LEVELS: usize = 20_000;
/// Beneath this many levels lies a file each, so that the way up is gone as well as the way down.
const FILE_EVERY: usize = 3_000;

/// Directories in directories, with a few files on the way and hard links between the deepest and the highest.
fn make(root: &Path) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at: OwnedFd = openat(CWD, root, flags, Mode::empty()).unwrap();
    let top = openat(CWD, root, flags, Mode::empty()).unwrap();
    for level in 1..=LEVELS {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = openat(&at, "d", flags, Mode::empty()).unwrap();
        if level % FILE_EVERY == 0 || level == LEVELS {
            let file = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
            let file = openat(&at, "file", file, Mode::RUSR | Mode::WUSR).unwrap();
            rustix::io::write(&file, format!("level {level}").as_bytes()).unwrap();
        }
    }
    let no_flags = rustix::fs::AtFlags::empty();
    rustix::fs::linkat(&at, "file", &at, "link", no_flags).unwrap();
    rustix::fs::linkat(&at, "file", &top, "z-link", no_flags).unwrap();
}

/// `dsec-pack` with few descriptors.
fn pack(store: &Path, words: &[&str], paths: &[&Path]) {
    let script = "ulimit -n 256; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_dsec-pack"), "--quiet", "--store"]).arg(store);
    let done = command.args(words).args(paths).output().unwrap();
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Removed by a program that does not mind depth, as the drop of a temporary directory does.
struct Deep<'a>(&'a Lab);

impl Deep<'_> {
    const NAMES: [&'static str; 3] = ["tree", "unpacked", "diff"];
}

impl Drop for Deep<'_> {
    fn drop(&mut self) {
        let paths = Self::NAMES.map(|name| self.0.path(name));
        let done = Command::new("rm").arg("-rf").args(paths).status();
        assert!(std::thread::panicking() || done.is_ok_and(|status| status.success()), "the trees stay");
    }
}

#[test]
fn privileged_depth_is_not_limited_by_open_files() {
    need_root();
    let lab = Lab::new();
    let _deep = Deep(&lab);
    let [tree, unpacked, diff] = Deep::NAMES.map(|name| lab.path(name));
    let (empty, store) = (lab.directory("empty"), lab.path("store"));
    fs_err::create_dir(&tree).unwrap();
    make(&tree);
    pack(&store, &["build", "--ref", "deep"], &[&tree]);
    pack(&store, &["verify", "deep", "--against"], &[&tree]);
    pack(&store, &["unpack", "deep"], &[&unpacked]);
    pack(&store, &["verify", "deep", "--against"], &[&unpacked]);
    pack(&store, &["build", "--ref", "empty"], &[&empty]);
    pack(&store, &["pack-diff", "--parent", "empty", "--ref", "diff", "--upper"], &[&tree]);
    // What a killed one leaves is as deep, and is removed first.
    fs_err::rename(&unpacked, lab.path(".diff.dsec-unpack")).unwrap();
    pack(&store, &["unpack", "diff"], &[&diff]);
    pack(&store, &["verify", "diff", "--against"], &[&tree]);
}
