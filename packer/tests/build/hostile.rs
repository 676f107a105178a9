//! Archives that lie, lead out, or hold what cannot be kept: one clear error each, and no ref.

use crate::archive::Archive;
use crate::support::{Lab, sh};

#[test]
fn nothing_leads_out_of_the_root() {
    let lab = Lab::new();
    for (archive, message) in [
        (Archive::new().file("/etc/passwd", b"x"), "`/etc/passwd` is an absolute path, which leads out of the image"),
        (Archive::new().file("a/../../b", b"x"), "`a/../../b` contains `..`, which leads out of the image"),
        (Archive::new().directory(".."), "`..` contains `..`, which leads out of the image"),
        (Archive::new().link("a", "../b"), "`../b` contains `..`, which leads out of the image"),
        (Archive::new().link("a", "/b"), "`/b` is an absolute path, which leads out of the image"),
        (
            Archive::new().symlink("x", "/etc").file("x/passwd", b"x"),
            "`x/passwd` lies below `x`, which is not a directory",
        ),
        (
            Archive::new().file("x/passwd", b"x").symlink("x", "/etc"),
            "`x` is a directory with entries and something else as well",
        ),
        (
            Archive::new().pax(&[("path", b"/abs")]).file("a", b""),
            "`/abs` is an absolute path, which leads out of the image",
        ),
    ] {
        assert_eq!(lab.tar_refusal(&archive.end()), message);
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    let lab = Lab::new();
    let sparse = |map: &[u8]| {
        Archive::new()
            .pax(&[("GNU.sparse.name", b"s"), ("GNU.sparse.size", b"8192"), ("GNU.sparse.map", map)])
            .file("x", b"12345")
            .end()
    };
    for (archive, message) in [
        (Archive::new().link("a", "b").end(), "`a` is a hard link to `b`, which is not in the archive"),
        (Archive::new().link("a", "a").end(), "`a` is a hard link to `a`, which is not in the archive"),
        (Archive::new().link("a", "b").link("b", "a").end(), "`a` is a hard link to `b`, which is not in the archive"),
        (Archive::new().directory("d").link("a", "d").end(), "`a` is a hard link to the directory `d`"),
        (
            Archive::new().link("p", "t").file("p/x", b"").file("t", b"").end(),
            "`p` is a directory with entries and something else as well",
        ),
        (Archive::new().file("./", b"x").end(), "`.` is a directory with data, which cannot be kept"),
        (Archive::new().symlink(".", "x").end(), "the root of the archive is not a directory"),
        (Archive::new().file("", b"").end(), "header at byte 0 has no name"),
        (
            Archive::new().member(b'1', "a", "b", b"data", |_| {}).end(),
            "`a` is a hard link with data of its own, which cannot be kept",
        ),
        (
            Archive::new().member(b'D', "a", "", b"", |_| {}).end(),
            "`a` is a directory of a GNU incremental archive, which cannot be kept",
        ),
        (
            Archive::new().member(b'Z', "a", "", b"", |_| {}).end(),
            "`a` is of the unknown type 'Z', which cannot be kept",
        ),
        (
            Archive::new().file("ok", b"").member(b'0', "a", "", b"", |header| header[108] = b'9').end(),
            "header at byte 512 has a malformed uid",
        ),
        (Archive::new().pax(&[("uid", b"5000000000")]).file("a", b"").end(), "`a` has a malformed extended header uid"),
        (
            Archive::new().pax(&[("SCHILY.xattr.system.other", b"x")]).file("a", b"").end(),
            "`a` cannot be kept: xattr `system.other` is in no namespace that erofs can hold",
        ),
        (
            Archive::new()
                .pax(&[("SCHILY.acl.access", b"user::r--,user:joe:r--,group::r--,mask::r--,other::---")])
                .file("a", b"")
                .end(),
            "the ACL of `a` names \"joe\" without its number; `tar --xattrs --xattrs-include='*'` writes numbers",
        ),
        (
            Archive::new()
                .pax(&[
                    ("GNU.sparse.name", b"vast"),
                    ("GNU.sparse.size", b"9223372036854775807"),
                    ("GNU.sparse.map", b"0,2,4611686018427387904,3"),
                ])
                .file("x", b"12345")
                .end(),
            "`vast` cannot be kept: with it the file data of the layer takes more than the 16 TiB that a layer addresses",
        ),
        (sparse(b"0,6"), "the sparse map of `s` is malformed"),
        (sparse(b"4096,3,0,2"), "the sparse map of `s` is malformed"),
        (sparse(b"8190,5"), "the sparse map of `s` is malformed"),
    ] {
        assert_eq!(lab.tar_refusal(&archive), message);
    }
}

#[test]
fn what_is_cut_off_or_goes_on_is_refused() {
    let lab = Lab::new();
    let archive = Archive::new().file("a", &[7; 2000]).directory("d");
    let whole = archive.clone().end();
    let members = archive.bytes().len();
    assert_eq!(lab.tar_refusal(&whole[..members]), format!("the archive is cut off at byte {members}"));
    for length in [600, 1500, members - 100] {
        assert!(lab.tar_refusal(&whole[..length]).starts_with("the archive is cut off at byte "), "{length}");
    }
    let mut twice = whole.clone();
    twice.extend_from_slice(&whole);
    assert_eq!(lab.tar_refusal(&twice), format!("the archive goes on after its end marker at byte {}", members + 512));
    let mut flipped = whole;
    flipped[members - 512 + 3] ^= 1;
    assert_eq!(lab.tar_refusal(&flipped), format!("header at byte {} has a wrong checksum", members - 512));

    fs_err::write(lab.path("whole.tar"), archive.end()).unwrap();
    sh(lab.path("").as_path(), "gzip -k whole.tar; head -c 60 whole.tar.gz > cut.tar.gz");
    assert!(lab.refusal(&lab.path("cut.tar.gz")).starts_with("cannot read the archive"));
}

#[test]
fn what_is_no_root_file_system_is_refused() {
    let lab = Lab::new();
    for (bytes, message) in [
        (&b""[..], "the input is not a tar archive"),
        (b"#!/bin/sh\n", "the input is not a tar archive"),
        (&[7; 4096], "the input is not a tar archive"),
        (b"\xfd7zXZ\0 and so on", "cannot read the archive: lzma data error"),
        (b"BZh91AY", "the archive is compressed with bzip2; supported are gzip, zstd and xz"),
    ] {
        assert_eq!(lab.tar_refusal(bytes), message);
    }
    assert_eq!(lab.tar_refusal(&Archive::new().file("manifest.json", b"[]").end()), "the input has no image");
    let oci = Archive::new().file("oci-layout", b"{}").file("index.json", b"{}").directory("blobs").end();
    assert!(lab.tar_refusal(&oci).starts_with("oci-layout is not a valid document: "));
}

#[test]
fn an_xz_stream_that_takes_too_much_memory_is_refused() {
    let lab = Lab::new();
    fs_err::write(lab.path("a.tar"), Archive::new().file("a", b"data").end()).unwrap();
    sh(lab.path("").as_path(), "xz -k --lzma2=dict=256MiB,mf=hc3,mode=fast,nice=4 a.tar");
    let refusal = lab.refusal(&lab.path("a.tar.xz"));
    assert!(refusal.starts_with("cannot read the archive: ") && refusal.contains("memory"), "{refusal}");
}

#[test]
fn every_flipped_bit_of_a_header_is_refused_or_harmless_but_never_a_panic() {
    let lab = Lab::new();
    let archive = Archive::new().pax(&[("mtime", b"1.5")]).file("a", b"data").end();
    let path = lab.path("flipped.tar");
    for bit in (0..archive.len().min(2048) * 8).step_by(7) {
        let mut bad = archive.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        fs_err::write(&path, &bad).unwrap();
        let built = lab.try_build(&path);
        // The checksum field may be written in several ways.
        let counts = !(512..1024).contains(&(bit / 8)) && bit / 8 < 1536 && !(148..156).contains(&(bit / 8 % 512));
        assert!(built.is_err() || !counts, "bit {bit} of a header was accepted");
    }
}
