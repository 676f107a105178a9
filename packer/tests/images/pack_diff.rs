//! `pack-diff`: the image of an upper directory shows what the overlay showed, whatever was done in it.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use dsec_format::LayerDigest;
use dsec_format::image::Image;
use dsec_format::protocol::edge;
use dsec_format::refs::{RefName, Target};
use dsec_pack::build::Options;
use dsec_pack::hold::{self, Hold};
use dsec_pack::pack_diff::{Error, Packed, Request, pack_diff};
use dsec_pack::tree::{self, Directory, FileTree, PathError};
use dsec_pack::upper::{IdRange, Namespace};
use dsec_pack::{Cancel, Silent};
use dsec_store::{Source, Store};
use rustix::fs::{Mode, OFlags};

use crate::support::{Lab, need_root, sh};
use crate::uppers::{FileSystem, KINDS, Overlay};

/// What there is below.
fn base(lab: &Lab) -> std::path::PathBuf {
    let base = lab.directory("base");
    sh(
        &base,
        "mkdir -p etc usr/lib/deep var/opaque var/moved/inner home;
         for n in 1 2 3 4; do echo lib $n >usr/lib/f$n; echo deep $n >usr/lib/deep/f$n; echo old $n >var/opaque/f$n;
         echo moved $n >var/moved/f$n; echo inner $n >var/moved/inner/f$n; done;
         head -c 700000 /dev/urandom >usr/big; cp usr/big usr/changed; cp usr/big usr/meta; chmod 600 usr/meta;
         ln usr/lib/f1 usr/lib/link1; ln var/moved/f1 var/moved/link1; ln -s ../etc usr/lib/sym;
         truncate -s 3000000 usr/sparse; echo x | dd of=usr/sparse bs=1 seek=2000000 conv=notrunc status=none;
         echo passwd >etc/passwd; chown 5:6 etc/passwd; touch -d @1000000000.5 usr/lib/f2 etc/passwd; mkfifo var/fifo",
    );
    base
}

/// What is done above it.
const CHANGES: &str = "echo new >etc/new; rm etc/passwd; rm -r var/opaque; mkdir var/opaque; echo only >var/opaque/one;
     chmod 4755 usr/lib/f3; chown 7:8 usr/meta; chmod 640 usr/meta; printf X | dd of=usr/changed bs=1 seek=300000 conv=notrunc status=none;
     rm usr/lib/f4; mkdir usr/lib/f4; echo below >usr/lib/f4/file; rm -r usr/lib/deep; echo file >usr/lib/deep;
     ln etc/new home/link; ln home/link home/link2; ln -s nowhere home/dangling; ln home/dangling home/dangling2;
     truncate -s 9000000 home/sparse; echo data | dd of=home/sparse bs=4096 seek=1000 conv=notrunc status=none;
     mkfifo home/fifo; mknod home/device c 10 229; touch -d @1234567890.123456789 home/link usr/lib/f2; touch usr/lib;
     rm var/fifo; echo 'not a fifo' >var/fifo;
     echo more >>usr/lib/link1; cp -a usr/lib/sym home/sym; touch -h -d @77.5 home/sym; mkdir -p home/a/b/c; chmod 700 home/a";

fn pack(lab: &Lab, upper: &Path, parent: &Image, ids: IdRange, name: Option<&str>) -> Result<Packed, Error> {
    pack_held(lab, upper, parent, ids, name, None)
}

fn pack_held(
    lab: &Lab,
    upper: &Path,
    parent: &Image,
    ids: IdRange,
    name: Option<&str>,
    hold: Option<Hold>,
) -> Result<Packed, Error> {
    let upper = rustix::fs::open(upper, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let name: Option<RefName> = name.map(|name| name.parse().unwrap());
    let layers = hold.as_ref().map(|hold| hold.answer().layers.clone());
    let provenance = Default::default();
    let namespace = Namespace::Trusted;
    let request = Request { upper, ids, namespace, parent: parent.digest(), layers, name, provenance };
    pack_diff(&lab.store, request, hold, Options { level: 3, threads: 2 }, &Silent, &Cancel::new())
}

fn packed_image(lab: &Lab, packed: &Packed) -> Image {
    lab.store.read_image(&packed.image).unwrap()
}

#[track_caller]
fn assert_restored(lab: &Lab, overlay: &Overlay, parent: &Image) -> Packed {
    let packed = pack(lab, &overlay.upper, parent, IdRange::IDENTITY, None).unwrap();
    let image = packed_image(lab, &packed);
    assert_eq!(image.layers.len(), parent.layers.len() + 1);
    assert_eq!(image.provenance.as_ref().unwrap().parent, Some(parent.digest()));
    assert_eq!(lab.differences(&image, &overlay.merged), Vec::<String>::new());
    packed
}

fn restored_on(kind: &str) {
    need_root();
    let lab = Lab::new();
    let base = base(&lab);
    let parent = lab.built(&base);
    let disk = FileSystem::new(&lab, kind);
    for options in ["redirect_dir=off", "metacopy=on,redirect_dir=on", "index=off,xino=off"] {
        let overlay = Overlay::new(&disk.root, &options.replace([',', '='], "-"), &base, options);
        sh(&overlay.merged, CHANGES);
        UnixListener::bind(overlay.merged.join("home/socket")).unwrap();
        let set = |name: &str, xattr: &str, value: &[u8]| {
            let path = overlay.merged.join(name);
            rustix::fs::setxattr(path, xattr, value, rustix::fs::XattrFlags::empty()).unwrap();
        };
        set("etc/new", "user.note", b"value");
        set("usr/lib/f2", "trusted.kept", b"");
        sh(
            &overlay.merged,
            "rm -rf home/moved; mv var/moved home/moved; echo extra >home/moved/extra; rm home/moved/f2",
        );
        let packed = assert_restored(&lab, &overlay, &parent);
        // The same upper gives the same layer, and nothing of it is stored twice.
        let again = pack(&lab, &overlay.upper, &parent, IdRange::IDENTITY, None).unwrap();
        assert_eq!(again.image, packed.image);
        assert_eq!(again.layer.stored.new_bytes, 0);
        // The comparison above looked at the mounted tree: a change more, and it says so.
        sh(&overlay.merged, "echo later >>home/moved/f3");
        let found = lab.differences(&packed_image(&lab, &packed), &overlay.merged);
        assert!(found.contains(&"size /home/moved/f3".to_owned()), "{found:?}");
    }
}

#[test]
fn privileged_restored_from_ext4() {
    restored_on(KINDS[0]);
}

#[test]
fn privileged_restored_from_xfs() {
    restored_on(KINDS[1]);
}

#[test]
fn privileged_restored_from_btrfs() {
    restored_on(KINDS[2]);
}

#[test]
fn privileged_restored_from_tmpfs() {
    restored_on(KINDS[3]);
}

#[test]
fn privileged_redirects_and_metacopies_are_resolved() {
    need_root();
    let lab = Lab::new();
    let base = base(&lab);
    let parent = lab.built(&base);
    let disk = FileSystem::new(&lab, "ext4");
    let overlay = Overlay::new(&disk.root, "o", &base, "metacopy=on,redirect_dir=on");
    sh(
        &overlay.merged,
        "chmod 644 usr/meta; mv usr/meta usr/renamed; mv var/moved home/moved; mv home/moved/inner home/inner; chmod 700 home/inner/f1;
         rm home/inner/f2; mv usr/lib usr/lib2; mkdir usr/lib; echo new >usr/lib/new; mv usr/lib2/deep usr/lib/deep; rm -r home/moved/f4",
    );
    // The kernel did what this test is about.
    let mut xattrs = Vec::new();
    all_xattrs(&Directory::open(&overlay.upper).unwrap(), &mut xattrs);
    for name in ["trusted.overlay.redirect", "trusted.overlay.metacopy"] {
        assert!(xattrs.iter().any(|found| found == name), "{xattrs:?}");
    }

    let packed = assert_restored(&lab, &overlay, &parent);
    // Data of the layer below is referred to, not stored anew.
    assert!(packed.layer.stored.reused_bytes > 700_000, "{:?}", packed.layer.stored);
    assert!(packed.layer.stored.new_bytes < 1000, "{:?}", packed.layer.stored);
    // Nothing of overlay's own but opaque directories is in the layer.
    let layers = dsec_pack::view::Layers::load(&lab.store, [packed.layer.record.digest]).unwrap();
    let changeset = dsec_pack::view::View::changeset(&layers);
    xattrs.clear();
    all_xattrs(&changeset, &mut xattrs);
    xattrs.retain(|name| name.contains("overlay."));
    assert!(!xattrs.is_empty() && xattrs.iter().all(|name| name == "trusted.overlay.opaque"), "{xattrs:?}");
}

/// Names of all xattrs in a tree.
fn all_xattrs<T: FileTree>(tree: &T, names: &mut Vec<String>) {
    tree::walk(tree, &mut |path, handle| {
        let node = tree.node(handle).map_err(|source| PathError { path: path.to_vec(), source: Box::new(source) })?;
        names.extend(node.xattrs.into_iter().map(|(name, _)| String::from_utf8(name).unwrap()));
        Ok::<(), PathError>(())
    })
    .unwrap();
}

#[test]
fn privileged_a_redirect_without_its_lower_is_refused() {
    need_root();
    let lab = Lab::new();
    let base = base(&lab);
    let empty = lab.directory("empty");
    let parent = lab.built(&empty);
    let disk = FileSystem::new(&lab, "tmpfs");
    let overlay = Overlay::new(&disk.root, "o", &base, "metacopy=on,redirect_dir=on");
    sh(&overlay.merged, "chmod 644 usr/meta");
    let refused = pack(&lab, &overlay.upper, &parent, IdRange::IDENTITY, Some("refused")).unwrap_err();
    let causes = format!("{:?}", anyhow::Error::from(refused));
    assert!(causes.contains("usr/meta"), "{causes}");
    assert!(lab.store.read_ref(&"refused".parse().unwrap()).is_err());
}

#[test]
fn privileged_hard_links_of_an_index_are_refused() {
    need_root();
    let lab = Lab::new();
    let base = base(&lab);
    let parent = lab.built(&base);
    let disk = FileSystem::new(&lab, "ext4");
    let overlay = Overlay::new(&disk.root, "o", &base, "index=on");
    sh(&overlay.merged, "echo more >>usr/lib/link1");
    let refused = pack(&lab, &overlay.upper, &parent, IdRange::IDENTITY, None).unwrap_err();
    let causes = format!("{:?}", anyhow::Error::from(refused));
    assert!(causes.contains("index"), "{causes}");
}

#[test]
fn privileged_ids_are_those_inside() {
    need_root();
    let lab = Lab::new();
    let base = base(&lab);
    let parent = lab.built(&base);
    let upper = lab.directory("upper");
    let make = |first: u32| {
        let id = |id: u32| first + id;
        sh(
            &upper,
            &format!(
                "rm -rf etc; mkdir etc; echo x >etc/file; echo y >etc/other; ln -s x etc/link; chown {}:{} . etc; chown {}:{} etc/file;
                 chown {}:{} etc/other; chown -h {}:{} etc/link; touch -h -d @5 etc/file etc/other etc/link etc .",
                id(0), id(0), id(1000), id(50), id(0), id(65_535), id(3), id(4)
            ),
        );
        let entry = |tag: u8, permissions: u8, id: u32| [&[tag, 0, permissions, 0][..], &id.to_le_bytes()].concat();
        let none = u32::MAX;
        let acl = [
            vec![2, 0, 0, 0],
            entry(1, 6, none),
            entry(2, 4, id(9)),
            entry(4, 4, none),
            entry(16, 4, none),
            entry(32, 0, none),
        ];
        let set = |name: &str, xattr: &str, value: &[u8]| {
            rustix::fs::setxattr(upper.join(name), xattr, value, rustix::fs::XattrFlags::empty()).unwrap();
        };
        set("etc/file", "system.posix_acl_access", &acl.concat());
    };
    make(0);
    let plain = pack(&lab, &upper, &parent, IdRange::IDENTITY, None).unwrap();
    make(200_000);
    let shifted = pack(&lab, &upper, &parent, IdRange::from_base(200_000), None).unwrap();
    assert_eq!(shifted.layer.record.digest, plain.layer.record.digest);
    // An id of somebody else.
    sh(&upper, "chown 199999 etc/other");
    let refused = pack(&lab, &upper, &parent, IdRange::from_base(200_000), None).unwrap_err();
    let causes = format!("{:?}", anyhow::Error::from(refused));
    assert!(causes.contains("199999") && causes.contains("/etc/other"), "{causes}");
}

#[test]
fn privileged_whiteouts_of_both_forms() {
    need_root();
    let lab = Lab::new();
    let base = base(&lab);
    let parent = lab.built(&base);
    let pack_with = |script: &str, attributes: &[(&str, &str, &[u8])]| {
        let upper = lab.directory("upper");
        sh(&upper, script);
        for (path, name, value) in attributes {
            rustix::fs::setxattr(upper.join(path), *name, value, rustix::fs::XattrFlags::empty()).unwrap();
        }
        sh(&upper, "touch -d @5 var var/opaque .; [ ! -e etc ] || touch -d @5 etc");
        let packed = pack(&lab, &upper, &parent, IdRange::IDENTITY, None).unwrap();
        fs_err::remove_dir_all(&upper).unwrap();
        packed.layer.record.digest
    };
    let kernel =
        pack_with("mkdir -p etc var/opaque; mknod etc/passwd c 0 0", &[("var/opaque", "trusted.overlay.opaque", b"y")]);
    let other = pack_with(
        "mkdir -p etc var/opaque; : >etc/passwd",
        &[
            ("etc", "trusted.overlay.opaque", b"x"),
            ("etc/passwd", "trusted.overlay.whiteout", b""),
            ("var/opaque", "trusted.overlay.opaque", b"y"),
            ("var", "trusted.overlay.impure", b"y"),
            ("var", "trusted.overlay.origin", b"whatever"),
        ],
    );
    assert_eq!(kernel, other);
    let image = lab.store.read_image(&pack_image(&lab, &parent)).unwrap();
    assert_eq!(image.layers.len(), 2);
}

/// An image of an empty upper directory.
fn pack_image(lab: &Lab, parent: &Image) -> dsec_format::ImageDigest {
    let upper = lab.directory("nothing");
    pack(lab, &upper, parent, IdRange::IDENTITY, Some("nothing:1")).unwrap().image
}

#[test]
fn privileged_the_ref_is_set_last_and_unknown_overlay_attributes_are_refused() {
    need_root();
    let lab = Lab::new();
    let base = base(&lab);
    let parent = lab.built(&base);
    let image = pack_image(&lab, &parent);
    assert_eq!(lab.store.read_ref(&"nothing:1".parse().unwrap()).unwrap().target, Target::Image(image));

    let upper = lab.directory("upper");
    rustix::fs::setxattr(&upper, "trusted.overlay.novelty", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    let refused = pack(&lab, &upper, &parent, IdRange::IDENTITY, Some("refused")).unwrap_err();
    let causes = format!("{:?}", anyhow::Error::from(refused));
    assert!(causes.contains("novelty"), "{causes}");
    assert!(lab.store.read_ref(&"refused".parse().unwrap()).is_err());
}

#[test]
fn a_diff_stores_less_than_its_changed_files_compressed_as_one() {
    let lab = Lab::new();
    let base = lab.directory("base");
    let parent = lab.built(&base);
    let upper = lab.directory("upper");
    // Like a package: some hundred files of source text of 0.5 to 20 KB.
    let words: Vec<String> =
        (0..4000u32).map(|n| blake3::hash(&n.to_le_bytes()).to_hex()[..(3 + n % 9) as usize].to_owned()).collect();
    for file in 0..300u32 {
        let mut text = String::new();
        let mut state = file.wrapping_mul(2_654_435_761) | 1;
        for _ in 0..(80 + file * 7 % 2500) {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Few words often, many words seldom: as in a language.
            let index = ((state >> 8) as usize % words.len()) * ((state >> 20) as usize % words.len()) / words.len();
            text.push_str(&words[index]);
            text.push(if state % 9 == 0 { '\n' } else { ' ' });
        }
        let directory = upper.join(format!("package-{}", file % 10));
        fs_err::create_dir_all(&directory).unwrap();
        fs_err::write(directory.join(format!("module_{file}.py")), text).unwrap();
    }
    let packed = pack(&lab, &upper, &parent, IdRange::IDENTITY, None).unwrap();
    let stored = packed.layer.stored.new_stored_bytes + packed.layer.layer_stored_bytes;
    let tar =
        std::process::Command::new("tar").args(["-C", upper.to_str().unwrap(), "-c", "."]).output().unwrap().stdout;
    let compressed = zstd::bulk::compress(&tar, 3).unwrap().len() as u64;
    assert!(stored * 10 < compressed * 12, "{stored} bytes stored, {compressed} as one zstd stream");
}

/// An edge that knows one sandbox. Answers one hold, then tells when its connection has ended.
fn edge(lab: &Lab, answer: edge::Hold, chunked: bool) -> (std::path::PathBuf, std::thread::JoinHandle<bool>) {
    let socket = lab.path("edge.sock");
    let _ = fs_err::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let head = read_head(&mut stream);
        assert!(head.starts_with(&format!("POST /v1/sandboxes/{}/hold HTTP/1.1\r\n", answer.id)), "{head}");
        let line = serde_json::to_string(&answer).unwrap() + "\n";
        if chunked {
            let text = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{line}\r\n", line.len());
            stream.write_all(text.as_bytes()).unwrap();
        } else {
            stream.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{line}").as_bytes()).unwrap();
        }
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.read(&mut [0]).unwrap() == 0
    });
    (socket, served)
}

fn read_head(stream: &mut UnixStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn answer_of(upper: &Path, parent: &Image) -> edge::Hold {
    edge::Hold {
        id: "s-1".to_owned(),
        upper: upper.to_str().unwrap().to_owned(),
        image: parent.digest(),
        layers: parent.layers.iter().map(|layer| layer.digest).collect(),
        id_base: 0,
    }
}

#[test]
fn a_held_sandbox_is_thawed_by_the_end_of_the_connection() {
    let lab = Lab::new();
    let base = lab.directory("base");
    let parent = lab.built(&base);
    let upper = lab.directory("upper");
    sh(&upper, "echo x >file");
    for chunked in [true, false] {
        let (socket, served) = edge(&lab, answer_of(&upper, &parent), chunked);
        let hold = Hold::take(&socket, "s-1").unwrap();
        hold.check().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        hold.check().unwrap();
        assert!(!served.is_finished());
        let ids = IdRange::from_base(hold.answer().id_base);
        let packed = pack_held(&lab, &upper, &parent, ids, Some("held"), Some(hold)).unwrap();
        assert!(served.join().unwrap());
        assert_eq!(lab.store.read_ref(&"held".parse().unwrap()).unwrap().target, Target::Image(packed.image));
    }
}

#[test]
fn a_hold_that_the_edge_ends_is_noticed_and_other_layers_are_refused() {
    let lab = Lab::new();
    let base = lab.directory("base");
    let parent = lab.built(&base);
    let upper = lab.directory("upper");
    let socket = lab.path("edge.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let line = serde_json::to_string(&answer_of(&upper, &parent)).unwrap();
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_head(&mut stream);
        stream.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{line}\n").as_bytes()).unwrap();
    });
    let hold = Hold::take(&socket, "s-1").unwrap();
    served.join().unwrap();
    let lost = pack_held(&lab, &upper, &parent, IdRange::IDENTITY, Some("lost"), Some(hold)).unwrap_err();
    assert!(matches!(lost, Error::Hold(hold::Error::Lost { .. })), "{lost}");
    assert!(lab.store.read_ref(&"lost".parse().unwrap()).is_err());

    let mut other = answer_of(&upper, &parent);
    other.layers = vec![LayerDigest::of(b"another")];
    let (socket, served) = edge(&lab, other, true);
    let hold = Hold::take(&socket, "s-1").unwrap();
    let refused = pack_held(&lab, &upper, &parent, IdRange::IDENTITY, None, Some(hold)).unwrap_err();
    assert!(matches!(refused, Error::OtherLayers { .. }), "{refused}");
    assert!(served.join().unwrap());
}

#[test]
fn what_the_edge_refuses_is_told_in_its_words() {
    let lab = Lab::new();
    let socket = lab.path("edge.sock");
    let missing = Hold::take(&socket, "s-1").unwrap_err();
    assert!(matches!(missing, hold::Error::Edge { .. }), "{missing}");
    let listener = UnixListener::bind(&socket).unwrap();
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_head(&mut stream);
        let body = r#"{"kind":"not_found","message":"no sandbox s-1 here"}"#;
        let head = format!("HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    });
    let refused = Hold::take(&socket, "s-1").unwrap_err();
    served.join().unwrap();
    assert!(matches!(refused, hold::Error::Refused { status: 404, .. }), "{refused}");
    assert!(refused.to_string().contains("no sandbox s-1 here"), "{refused}");
}

#[test]
fn privileged_a_renamed_directory_over_many_layers_is_read_through_layers_opened_once() {
    need_root();
    let lab = Lab::new();
    let base = lab.directory("base");
    sh(&base, "mkdir -p var/moved; for n in $(seq 300); do echo $n >var/moved/f$n; done");
    let filler = lab.directory("filler");
    sh(&filler, "for n in $(seq 150); do echo $n >f$n; done");
    let mut layers = vec![lab.layer(&Directory::open(&base).unwrap())];
    for number in 0..100 {
        fs_err::write(filler.join("number"), number.to_string()).unwrap();
        layers.push(lab.layer(&Directory::open(&filler).unwrap()));
    }
    let parent = Image::new("amd64", layers, Default::default());
    lab.store.put_image(&parent).unwrap();
    let disk = FileSystem::new(&lab, "tmpfs");
    let overlay = Overlay::new(&disk.root, "o", &base, "redirect_dir=on");
    sh(&overlay.merged, "mv var/moved moved");
    let start = std::time::Instant::now();
    let packed = pack(&lab, &overlay.upper, &parent, IdRange::IDENTITY, None).unwrap();
    assert_eq!(packed.layer.entries, 303);
    // Without optimisation; opening all layers for each of the names takes minutes.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
