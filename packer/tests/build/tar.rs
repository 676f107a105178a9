//! Tar archives of GNU tar, bsdtar and Python's tarfile.

use std::path::{Path, PathBuf};

use dsec_erofs::{Kind, Timestamp};
use dsec_pack::compare::Aspect;
use dsec_pack::input::Location;
use proptest::prelude::*;

use crate::archive::Archive;
use crate::support::{Lab, Options, find, input, need_root, options, sh};

/// What a program and its format lose: not ours to bring back.
struct Case {
    name: &'static str,
    make: &'static str,
    loses: &'static [Aspect],
}

const GNU: &str = "tar --numeric-owner --sort=name -C tree -cf OUT .";

const CASES: &[Case] = &[
    Case {
        name: "gnu tar, pax, all",
        make: "tar --numeric-owner --format=posix --xattrs --xattrs-include='*' --acls --sparse -C tree -cf OUT .",
        loses: &[],
    },
    Case {
        name: "gnu tar, pax, sparse 0.0",
        make: "tar --numeric-owner --format=posix --xattrs --xattrs-include='*' --acls --sparse --sparse-version=0.0 -C tree -cf OUT .",
        loses: &[],
    },
    Case {
        name: "gnu tar, pax, sparse 0.1",
        make: "tar --numeric-owner --format=posix --xattrs --xattrs-include='*' --acls --sparse --sparse-version=0.1 -C tree -cf OUT .",
        loses: &[],
    },
    Case {
        name: "gnu tar, gnu, sparse",
        make: "tar --numeric-owner --format=gnu --sparse -C tree -cf OUT .",
        loses: &[Aspect::Mtime, Aspect::Xattrs],
    },
    Case {
        name: "bsdtar, pax",
        make: "bsdtar --numeric-owner --format=pax --options=hdrcharset=BINARY --xattrs --acls --read-sparse -C tree -cf OUT .",
        // It writes times before 1970 with the wrong second, and ids of ACLs only below 2^31.
        loses: &[Aspect::Mtime, Aspect::Xattrs],
    },
    Case {
        name: "python, pax",
        make: r#"python3 -c 'import tarfile; t = tarfile.open("OUT", "w", format=tarfile.PAX_FORMAT); t.add("tree", "."); t.close()'"#,
        loses: &[Aspect::Xattrs, Aspect::Holes, Aspect::Mtime, Aspect::Links],
    },
    Case {
        name: "python, gnu",
        make: r#"python3 -c 'import tarfile; t = tarfile.open("OUT", "w", format=tarfile.GNU_FORMAT); t.add("tree", "."); t.close()'"#,
        loses: &[Aspect::Xattrs, Aspect::Holes, Aspect::Mtime, Aspect::Links],
    },
];

/// The oddities without what no archive holds (sockets), what GNU tar loses (links of devices and fifos), and files
/// whose holes alone take minutes to write out.
fn tree(lab: &Lab) -> PathBuf {
    let tree = lab.oddities("tree");
    sh(&tree, "find . -type s -delete; find . -type f -size +64M -delete; rm devices/*-again");
    tree
}

#[test]
fn privileged_archives_of_every_program_show_what_the_directory_has() {
    need_root();
    let lab = Lab::new();
    let tree = tree(&lab);
    let directory = lab.build(&tree);
    for case in CASES {
        let archive = lab.path("case.tar");
        sh(lab.path("").as_path(), &format!("rm -f case.tar; {}", case.make.replace("OUT", "case.tar")));
        let built = lab.build(&archive);
        assert_eq!(lab.differences(&built, &tree, case.loses), Vec::<String>::new(), "{}", case.name);
        if case.loses.is_empty() {
            assert_eq!(built.image, directory.image, "{}", case.name);
        }
    }
}

#[test]
fn privileged_compression_and_standard_input_do_not_matter() {
    need_root();
    let lab = Lab::new();
    tree(&lab);
    let archive = lab.path("plain.tar");
    let compress = "gzip -k plain.tar; zstd -q plain.tar; xz -k -0 plain.tar;
        head -c 1000000 plain.tar | xz -0 >several.tar.xz; tail -c +1000001 plain.tar | xz -0 >>several.tar.xz";
    sh(lab.path("").as_path(), &format!("{}; {compress}", GNU.replace("OUT", "plain.tar")));
    let plain = lab.build(&archive);
    for name in ["plain.tar.gz", "plain.tar.zst", "plain.tar.xz", "several.tar.xz"] {
        assert_eq!(lab.build(&lab.path(name)).image, plain.image, "{name}");
    }
    let program = env!("CARGO_BIN_EXE_dsec-pack");
    let script = format!("'{program}' build --json --store store - < plain.tar.zst > out.json");
    sh(lab.path("").as_path(), &script);
    let out: serde_json::Value = serde_json::from_slice(&fs_err::read(lab.path("out.json")).unwrap()).unwrap();
    assert_eq!(out["image"], plain.image.to_string());
    assert_eq!((&out["input"], &out["new_bytes"]), (&"tar".into(), &0.into()));
}

#[test]
fn any_order_of_members_gives_the_same_image() {
    let lab = Lab::new();
    type Add = fn(Archive) -> Archive;
    let members: [Add; 6] = [
        |archive| archive.directory("./"),
        |archive| archive.directory("a/"),
        |archive| archive.file("a/b/file", b"data"),
        |archive| archive.link("a/link", "a/b/file"),
        |archive| archive.link("early", "a/link"),
        |archive| archive.directory("a/b"),
    ];
    let first = lab.build_tar(&members.iter().fold(Archive::new(), |archive, add| add(archive)).end());
    let metadata = lab.metadata(&first, 0);
    let [file, link, early] = ["a/b/file", "a/link", "early"].map(|path| find(&metadata, path).unwrap());
    assert_eq!((file.nlink, link.nid, early.nid), (3, file.nid, file.nid));
    // All 720 orders.
    let mut order = [0, 1, 2, 3, 4, 5];
    permute(&mut order, 0, &mut |order| {
        let archive = order.iter().fold(Archive::new(), |archive, index: &usize| members[*index](archive)).end();
        let path = lab.path("order.tar");
        fs_err::write(&path, archive).unwrap();
        let options = Options { verify: false, ..options() };
        let built = lab.build_with(input(Location::Path(path)), options).unwrap();
        assert_eq!(built.image, first.image, "{order:?}");
    });
}

/// A member of a random archive; of a link the target.
#[derive(Debug, Clone)]
enum Member {
    Directory,
    File(Vec<u8>),
    Symlink,
    Fifo,
    Link(String),
}

fn any_path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "long-name-of-an-entry"]), 1..5)
        .prop_map(|parts| parts.join("/"))
}

fn any_members() -> impl Strategy<Value = Vec<(String, Member)>> {
    let kind = prop_oneof![
        3 => Just(Member::Directory),
        3 => prop::collection::vec(any::<u8>(), 0..600).prop_map(Member::File),
        1 => Just(Member::Symlink),
        1 => Just(Member::Fifo),
    ];
    let paths = prop::collection::btree_map(any_path(), kind, 1..16);
    (paths, prop::collection::vec(any::<prop::sample::Index>(), 0..5)).prop_map(|(mut paths, links)| {
        // Nothing lies below what is no directory.
        let not_directories: Vec<String> =
            paths.iter().filter(|(_, kind)| !matches!(kind, Member::Directory)).map(|(path, _)| path.clone()).collect();
        paths.retain(|path, _| !not_directories.iter().any(|above| path.starts_with(&format!("{above}/"))));
        let mut targets: Vec<String> =
            paths.iter().filter(|(_, kind)| !matches!(kind, Member::Directory)).map(|(path, _)| path.clone()).collect();
        let links = if targets.is_empty() { Vec::new() } else { links };
        for (number, index) in links.iter().enumerate() {
            let (name, target) = (format!("links/{number}"), index.get(&targets).clone());
            paths.insert(name.clone(), Member::Link(target));
            targets.push(name);
        }
        paths.into_iter().collect()
    })
}

fn archive_of(members: &[(String, Member)]) -> Vec<u8> {
    let add = |archive: Archive, (path, member): &(String, Member)| match member {
        Member::Directory => archive.member(b'5', path, "", b"", |header| header[100..107].copy_from_slice(b"0000711")),
        Member::File(data) => archive.file(path, data),
        Member::Symlink => archive.symlink(path, "nowhere"),
        Member::Fifo => archive.member(b'6', path, "", b"", |_| {}),
        Member::Link(target) => archive.link(path, target),
    };
    members.iter().fold(Archive::new(), add).end()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn any_archive_in_any_order_gives_the_same_image(
        (sorted, shuffled) in any_members().prop_flat_map(|members| (Just(members.clone()), Just(members).prop_shuffle()))
    ) {
        let lab = Lab::new();
        let build = |members: &[(String, Member)]| {
            let path = lab.path("archive.tar");
            fs_err::write(&path, archive_of(members)).unwrap();
            lab.build_with(input(Location::Path(path)), Options { verify: false, ..options() }).unwrap()
        };
        let (first, second) = (build(&sorted), build(&shuffled));
        prop_assert_eq!(first.image, second.image);
        prop_assert!(first.layers[0].entries >= sorted.len() as u64);
    }
}

fn permute(order: &mut [usize; 6], from: usize, visit: &mut impl FnMut(&[usize; 6])) {
    if from == order.len() {
        return visit(order);
    }
    for other in from..order.len() {
        order.swap(from, other);
        permute(order, from + 1, visit);
        order.swap(from, other);
    }
}

#[test]
fn of_two_members_with_one_path_the_last_counts() {
    let lab = Lab::new();
    let archive = Archive::new()
        .file("a", b"old")
        .link("b", "a")
        .file("a", b"newer")
        .symlink("c", "x")
        .directory("c")
        .directory("d")
        .file("d", b"")
        .end();
    let built = lab.build_tar(&archive);
    let metadata = lab.metadata(&built, 0);
    let kind = |path| {
        let inode = find(&metadata, path).unwrap();
        metadata.kind(&inode).unwrap()
    };
    assert_eq!(kind("a"), Kind::Regular { bytes: 5 });
    assert_eq!(kind("b"), Kind::Regular { bytes: 3 }, "the link means what it meant when it came");
    assert_eq!((kind("c"), kind("d")), (Kind::Directory, Kind::Regular { bytes: 0 }));
}

#[test]
fn headers_of_every_dialect() {
    let lab = Lab::new();
    let long = ["long"; 40].join("/");
    let archive = Archive::new()
        .member(b'0', "v7", "", b"", |header| header[257..].fill(0))
        .member(b'0', "tail", "", b"", |header| header[345..351].copy_from_slice(b"prefix"))
        .member(b'0', "id", "", b"", |header| header[108..116].copy_from_slice(b"\x80\0\0\0\xff\xff\xff\xfe"))
        .member(b'0', "past", "", b"", |header| {
            header[136..148].copy_from_slice(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe");
        })
        .member(b'0', "old-directory/", "", b"", |_| {})
        .member(b'L', "././@LongLink", "", format!("{long}\0").as_bytes(), |_| {})
        .file("cut", b"long")
        .pax(&[("mtime", b"-1.25"), ("uid", b"4000000000"), ("path", b"pax/\xff"), ("SCHILY.xattr.user.empty", b"")])
        .file("ignored", b"pax")
        .member(b'3', "device", "", b"", |header| header[329..336].copy_from_slice(b"0000005"))
        .member(b'6', "fifo", "", b"", |_| {})
        .member(b'V', "label", "", b"", |_| {})
        .end();
    let built = lab.build_tar(&archive);
    let metadata = lab.metadata(&built, 0);
    let at = |path: &str| find(&metadata, path).unwrap_or_else(|| panic!("{path} is missing"));
    assert_eq!(at("prefix/tail").attributes.mode, 0o644);
    assert_eq!(at("id").attributes.uid, u32::MAX - 1);
    assert_eq!(at("past").attributes.mtime, Timestamp { secs: -2, nanos: 0 });
    assert_eq!(metadata.kind(&at("old-directory")).unwrap(), Kind::Directory);
    assert_eq!(at(&long).bytes, 4);
    let pax = at("pax");
    let entry = metadata.lookup(&pax, b"\xff").unwrap().unwrap();
    let file = metadata.inode(entry.nid).unwrap();
    assert_eq!(file.attributes.mtime, Timestamp { secs: -2, nanos: 750_000_000 });
    assert_eq!((file.attributes.uid, metadata.xattr(&file, b"user.empty").unwrap()), (4_000_000_000, Some(&b""[..])));
    assert_eq!(at("device").device().major, 5);
    at("v7");
    at("fifo");
    assert!(find(&metadata, "label").is_none() && find(&metadata, "cut").is_none());
    assert_eq!(at("pax").attributes, dsec_erofs::Attributes { mode: 0o755, ..Default::default() });
}

#[test]
fn an_archive_without_members_is_an_empty_image() {
    let lab = Lab::new();
    let built = lab.build_tar(&Archive::new().end());
    assert_eq!(built.layers[0].entries, 0);
    assert!(Path::new(env!("CARGO_BIN_EXE_dsec-pack")).exists());
}
