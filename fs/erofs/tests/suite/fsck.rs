//! `fsck.erofs` and `dump.erofs` accept what is written.

use std::path::Path;
use std::process::Command;

use crate::sample::{Sample, oddities, vast_files};

/// Runs one of the EROFS tools on an image and answers what it prints.
pub(crate) fn run(tool: &str, image: &Path, device: &Path, options: &[&str]) -> String {
    let device = format!("--device={}", device.display());
    let output = Command::new(tool).arg(device).args(options).arg(image).output();
    let output = output.unwrap_or_else(|error| panic!("{tool} of the package erofs-utils is needed: {error}"));
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{tool}: {}\n{text}", output.status);
    assert!(!text.contains("<E>") && !text.contains("<W>"), "{text}");
    text
}

pub(crate) fn fsck(sample: &Sample) -> String {
    let dir = tempfile::tempdir().unwrap();
    let (image, device) = sample.store(dir.path());
    run("fsck.erofs", &image, &device, &["-d3", "--extract"])
}

#[test]
fn fsck_accepts_every_oddity() {
    assert!(fsck(&oddities()).contains("No errors found"));
}

#[test]
fn fsck_accepts_vast_files() {
    assert!(fsck(&vast_files()).contains("No errors found"));
}

#[test]
fn dump_shows_the_superblock() {
    let dir = tempfile::tempdir().unwrap();
    let (image, device) = oddities().store(dir.path());
    let text = run("dump.erofs", &image, &device, &["-s"]);
    for wanted in
        ["Filesystem magic number:                      0xE0F5E1E2", "sb_csum mtime", "chunked_file", "device_table"]
    {
        assert!(text.contains(wanted), "{wanted}:\n{text}");
    }
    assert!(run("dump.erofs", &image, &device, &["--path=/xattrs/capability"]).contains("NID"));
}

#[test]
fn fsck_accepts_an_empty_tree() {
    assert!(fsck(&Sample::new()).contains("No errors found"));
}
