//! The file systems that a sandbox's directory may be on.

use super::support::*;
use dsec_sandbox::Ended;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system in a file, mounted for the length of a test.
struct Disk {
    point: PathBuf,
    _directory: tempfile::TempDir,
}

impl Disk {
    fn new(kind: &str, mkfs: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        fs_err::File::create(&image).unwrap().set_len(400 << 20).unwrap();
        let point = directory.path().join("mounted");
        fs_err::create_dir(&point).unwrap();
        succeed(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image));
        succeed(Command::new("mount").args(["-t", kind, "-o", "loop"]).arg(&image).arg(&point));
        Self { point, _directory: directory }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The overlay's last reference to the file system goes a moment after its last process.
        for _ in 0..200 {
            if Command::new("umount").arg(&self.point).output().is_ok_and(|output| output.status.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        succeed(Command::new("umount").arg(&self.point));
    }
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
}

fn whole_life_on(parent: &Path) {
    let sandbox = runtime().create(&spec_in(parent)).unwrap_or_else(|error| panic!("{}", chain(&error)));
    sh(
        &sandbox,
        "rm /etc/original; rm -r /home; mkdir /home; chown 1000:1001 /home; echo x >/home/x; cp /bin/busybox /b",
    );
    sh(&sandbox, "mkdir -p /deep/$(seq -s/ 1 300); chmod 0 /deep/1");
    assert_eq!(sh(&sandbox, "stat -c %u:%g /home; ls /etc/original 2>&1 | wc -l").trim(), "1000:1001\n1");
    let swap = "print syscall(16, 0, 0xc0c0586d, 0), ' ', $!+0";
    let captured = run(&sandbox, &["sh", "-c", &format!("exec /usr/bin/perl -e \"{}\" </b", swap.replace('$', "\\$"))]);
    assert_eq!(captured.stdout, "-1 1", "XFS_IOC_SWAPEXT");
    assert_eq!(captured.outcome.ended, Ended::Exited(0));
    let upper = sandbox.upper();
    assert_eq!(rustix::fs::stat(upper.join("home")).unwrap().st_uid, 1000);
    // What only the host can set must not hold the removal up.
    let immutable = Command::new("chattr").arg("+i").arg(upper.join("home/x")).output();
    assert!(immutable.is_ok());
    sandbox.destroy().unwrap();
    assert_eq!(
        fs_err::read_dir(parent).unwrap().filter(|entry| entry.as_ref().unwrap().file_name() != "lost+found").count(),
        0
    );
}

#[test]
fn privileged_on_ext4() {
    let disk = Disk::new("ext4", &["mkfs.ext4", "-q", "-F"]);
    whole_life_on(&disk.point);
}

#[test]
fn privileged_on_xfs() {
    let disk = Disk::new("xfs", &["mkfs.xfs", "-q", "-f"]);
    whole_life_on(&disk.point);
}

#[test]
fn privileged_on_btrfs() {
    let disk = Disk::new("btrfs", &["mkfs.btrfs", "-q", "-f"]);
    whole_life_on(&disk.point);
}

#[test]
fn privileged_on_tmpfs() {
    let directory = tempfile::Builder::new().prefix("dsec-test").tempdir_in("/dev/shm").unwrap();
    whole_life_on(directory.path());
}
