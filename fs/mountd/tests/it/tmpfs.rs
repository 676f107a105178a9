//! A tmpfs of a test's own: a disk that can be full, and one from which the kernel mounts no EROFS.

use std::ffi::CStr;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// It is gone when the value is dropped.
pub(crate) struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    pub(crate) fn new(options: &CStr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        mount("tmpfs", directory.path(), "tmpfs", MountFlags::empty(), options).expect("needs root");
        Self(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}
