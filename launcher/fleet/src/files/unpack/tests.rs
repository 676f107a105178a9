//! Copies between directories, and archives that would lead out of them.

use std::os::unix::fs::PermissionsExt;

use super::super::{Local, pack};
use super::*;

fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, kind, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        if matches!(kind, EntryType::Symlink | EntryType::Link) {
            header.set_size(0);
            header.set_link_name_literal(content).unwrap();
            header.set_cksum();
            builder.append(&header, io::empty()).unwrap();
        } else {
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
    }
    builder.into_inner().unwrap()
}

fn into(directory: &std::path::Path, path: &str, archive: &[u8]) -> Result<Unpacked, Error> {
    unpack(&Local::open(directory).unwrap(), path, Owner::Is(0, 0), archive)
}

#[test]
fn a_tree_comes_back_the_same() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let top = source.path().join("top");
    fs_err::create_dir_all(top.join("a/b")).unwrap();
    fs_err::write(top.join("a/b/file"), vec![3; 200_000]).unwrap();
    fs_err::write(top.join("empty"), "").unwrap();
    fs_err::set_permissions(top.join("empty"), std::fs::Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::symlink("../nowhere", top.join("link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(top.join("socket")).unwrap();
    let mut bytes = Vec::new();
    pack(&Local::open(source.path()).unwrap(), "top", &mut bytes).unwrap();

    for (path, at) in [("", "top"), ("renamed", "renamed")] {
        let unpacked = into(target.path(), path, &bytes).unwrap();
        assert_eq!(unpacked, Unpacked { entries: 6, bytes: 200_000 });
        let at = target.path().join(at);
        assert_eq!(fs_err::read(at.join("a/b/file")).unwrap(), vec![3; 200_000]);
        assert_eq!(fs_err::metadata(at.join("empty")).unwrap().permissions().mode() & 0o7777, 0o751);
        assert_eq!(fs_err::read_link(at.join("link")).unwrap(), std::path::Path::new("../nowhere"));
        assert!(!at.join("socket").exists());
    }
}

#[test]
fn a_top_without_a_name_takes_the_one_that_is_wanted() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs_err::create_dir_all(source.path().join("bin/deep")).unwrap();
    fs_err::write(source.path().join("bin/file"), "x").unwrap();
    let mut bytes = Vec::new();
    pack(&Local::open(source.path()).unwrap(), "", &mut bytes).unwrap();
    fs_err::create_dir(target.path().join("there")).unwrap();
    for path in ["new", "there"] {
        assert_eq!(into(target.path(), path, &bytes).unwrap(), Unpacked { entries: 4, bytes: 1 });
        assert!(target.path().join(path).join("bin/deep").is_dir());
        assert_eq!(fs_err::read(target.path().join(path).join("bin/file")).unwrap(), b"x");
    }
    assert_eq!(fs_err::read_dir(target.path()).unwrap().count(), 2);
    let file = archive(&[(".", EntryType::Regular, "x")]);
    assert!(matches!(into(target.path(), "other", &file), Err(Error::NotADirectory { .. })));
}

#[test]
fn a_file_takes_the_place_of_a_file_and_a_link_group_becomes_files() {
    let target = tempfile::tempdir().unwrap();
    fs_err::write(target.path().join("there"), "old and longer").unwrap();
    into(target.path(), "there", &archive(&[("x", EntryType::Regular, "new")])).unwrap();
    assert_eq!(fs_err::read_to_string(target.path().join("there")).unwrap(), "new");
    let linked = archive(&[("d/one", EntryType::Regular, "same"), ("d/two", EntryType::Link, "d/one")]);
    into(target.path(), "new", &linked).unwrap();
    assert_eq!(fs_err::read_to_string(target.path().join("new/two")).unwrap(), "same");
}

#[test]
fn nothing_leads_out() {
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    fs_err::write(&victim, "untouched").unwrap();
    let target = tempfile::tempdir().unwrap();
    let out = outside.path().to_str().unwrap();
    for name in ["../x", "/x", "a/../../x", "a/.."] {
        let error = into(target.path(), "", &archive(&[(name, EntryType::Regular, "bad")])).unwrap_err();
        assert!(matches!(error, Error::Escapes { .. }), "{name}: {error}");
    }
    let through = [
        archive(&[("l", EntryType::Symlink, out), ("l/victim", EntryType::Regular, "bad")]),
        archive(&[("m", EntryType::Symlink, victim.to_str().unwrap()), ("m", EntryType::Regular, "bad")]),
        archive(&[("n", EntryType::Symlink, out), ("n/new", EntryType::Symlink, "bad")]),
        archive(&[("o", EntryType::Symlink, out), ("o/new", EntryType::Directory, "")]),
        archive(&[("p", EntryType::Symlink, out), ("copy", EntryType::Link, "p/victim")]),
    ];
    for bytes in through {
        assert!(into(target.path(), "", &bytes).is_err());
    }
    assert_eq!(fs_err::read_to_string(&victim).unwrap(), "untouched");
    assert_eq!(fs_err::read_dir(outside.path()).unwrap().count(), 1);
    assert!(!target.path().join("copy").exists());
}

#[test]
fn devices_and_broken_archives_are_refused() {
    let target = tempfile::tempdir().unwrap();
    let device = into(target.path(), "", &archive(&[("null", EntryType::Char, "")])).unwrap_err();
    assert!(matches!(device, Error::Special { what: "device", .. }), "{device}");
    let whole = archive(&[("x", EntryType::Regular, &"y".repeat(5000))]);
    let error = into(target.path(), "", &whole[..3000]).unwrap_err();
    assert!(matches!(error, Error::Contents { .. } | Error::Archive(_)), "{error}");
    let error = into(target.path(), "absent/deep", &whole).unwrap_err();
    assert!(error.is_absent(), "{error}");
}

#[test]
fn headers_are_bounded_and_contents_are_not() {
    let target = tempfile::tempdir().unwrap();
    let long = "x".repeat(HEADERS_BYTES.try_into().unwrap());
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let endless = archive(&[("x", kind, &long), ("file", EntryType::Regular, "x")]);
        let error = into(target.path(), "", &endless).unwrap_err();
        assert!(matches!(&error, Error::Archive(source) if source.to_string().contains("headers")), "{error}");
    }
    let mut sparse = archive(&[("s", EntryType::GNUSparse, "")]);
    sparse.truncate(512);
    sparse[482] = 1;
    let sum: u32 =
        sparse.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { 32 } else { (*byte).into() }).sum();
    sparse[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut more = [0; 512];
    more[504] = 1;
    sparse.extend(more.repeat(3000));
    let error = into(target.path(), "", &sparse).unwrap_err();
    assert!(matches!(&error, Error::Archive(source) if source.to_string().contains("headers")), "{error:?}");
    let large = archive(&[
        ("large", EntryType::Regular, &long.repeat(3)),
        ("d", EntryType::Directory, &long),
        ("e", EntryType::Regular, ""),
    ]);
    assert_eq!(into(target.path(), "", &large).unwrap(), Unpacked { entries: 3, bytes: 3 * HEADERS_BYTES });
}
