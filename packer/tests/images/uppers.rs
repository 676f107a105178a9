//! Overlay mounts over a base directory, with the upper directory on a file system of each kind.

use std::path::{Path, PathBuf};

use crate::support::{Lab, run};

/// A file system for upper directories, mounted.
pub(crate) struct FileSystem {
    pub(crate) root: PathBuf,
}

pub(crate) const KINDS: [&str; 4] = ["ext4", "xfs", "btrfs", "tmpfs"];

impl FileSystem {
    pub(crate) fn new(lab: &Lab, kind: &str) -> Self {
        let root = lab.directory(&format!("{kind}-root"));
        let point = root.to_str().unwrap();
        if kind == "tmpfs" {
            run("mount", &["-t", "tmpfs", "-o", "size=256m", "tmpfs", point]);
            return Self { root };
        }
        let file = lab.path(&format!("{kind}-file"));
        fs_err::File::create(&file).unwrap().set_len(400 << 20).unwrap();
        run(&format!("mkfs.{kind}"), &["-q", file.to_str().unwrap()]);
        run("mount", &["-o", "loop", file.to_str().unwrap(), point]);
        Self { root }
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        unmount(&self.root);
    }
}

/// Lazily: a process that another test is starting may hold a copy of a descriptor until it has started.
pub(crate) fn unmount(path: &Path) {
    let done = std::process::Command::new("umount").arg("--lazy").arg(path).status();
    assert!(std::thread::panicking() || done.is_ok_and(|status| status.success()), "cannot unmount {}", path.display());
}

/// A mounted overlay: what a sandbox's root is.
pub(crate) struct Overlay {
    pub(crate) upper: PathBuf,
    pub(crate) merged: PathBuf,
}

impl Overlay {
    pub(crate) fn new(on: &Path, name: &str, base: &Path, options: &str) -> Self {
        let [upper, work, merged] = ["upper", "work", "merged"].map(|part| on.join(name).join(part));
        for path in [&upper, &work, &merged] {
            fs_err::create_dir_all(path).unwrap();
        }
        let dirs = format!("lowerdir={},upperdir={},workdir={}", base.display(), upper.display(), work.display());
        let options = format!("{dirs},{options}");
        run("mount", &["-t", "overlay", "overlay", "-o", &options, merged.to_str().unwrap()]);
        Self { upper, merged }
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        unmount(&self.merged);
    }
}
