//! Every version of the format that was ever written stays readable: the samples in `fixtures/erofs`.

use std::path::PathBuf;

use dsec_erofs::{Image, check};

use crate::round_trip::compare;
use crate::sample::frozen;

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/erofs")
}

#[test]
fn every_sample_is_listed_here() {
    let mut names: Vec<_> =
        fs_err::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["v1.erofs"]);
}

#[test]
fn v1_is_read_and_still_written_byte_for_byte() {
    let bytes = fs_err::read(fixtures().join("v1.erofs")).unwrap();
    check(&bytes).unwrap();
    assert!(frozen().image() == bytes, "another image of the same tree: that is a new version of the format");
    compare(&frozen().tree, &Image::open(bytes).unwrap());
}
