//! Small file systems of a test's own.

use std::path::Path;
use std::process::Command;

/// A tmpfs. Unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    directory: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts one of `size`, as mount(8) takes it.
    ///
    /// # Panics
    /// It cannot be mounted: the test needs root.
    #[must_use]
    pub fn new(size: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let options = format!("size={size}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(directory.path()).status();
        assert!(mount.is_ok_and(|status| status.success()), "this test needs root: a tmpfs cannot be mounted");
        Self { directory }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Whatever a failed test still holds open: the mount goes away with it.
        let _ = Command::new("umount").arg("-l").arg(self.directory.path()).status();
    }
}
