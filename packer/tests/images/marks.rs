//! Overlay's marks: believed only where nobody inside can write them, and never passed on in a layer.

use std::path::Path;

use dsec_format::image::{Config, Image};
use dsec_pack::build::Options;
use dsec_pack::pack_diff::{Packed, Request, pack_diff};
use dsec_pack::tree::{Directory, Error as TreeError};
use dsec_pack::upper::{IdRange, Namespace};
use dsec_pack::verify::verify_image;
use dsec_pack::view::Layers;
use dsec_pack::{Cancel, Silent};
use dsec_store::{Source, Store};
use rustix::fs::{Mode, OFlags, XattrFlags};

use crate::support::{Lab, need_root, sh};
use crate::uppers::{FileSystem, Overlay};

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn pack(lab: &Lab, upper: &Path, parent: &Image, namespace: Namespace) -> Packed {
    let upper = rustix::fs::open(upper, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let (ids, layers, name) = (IdRange::IDENTITY, None, None);
    let provenance = Default::default();
    let request = Request { upper, ids, namespace, parent: parent.digest(), layers, name, provenance };
    pack_diff(&lab.store, request, None, Options { level: 3, threads: 2 }, &Silent, &Cancel::new()).unwrap()
}

/// The image of what an overlay has changed shows what the overlay shows.
#[track_caller]
fn assert_restored(lab: &Lab, overlay: &Overlay, parent: &Image, namespace: Namespace) {
    let packed = pack(lab, &overlay.upper, parent, namespace);
    let image = lab.store.read_image(&packed.image).unwrap();
    assert_eq!(lab.differences(&image, &overlay.merged), Vec::<String>::new());
}

fn base(lab: &Lab) -> std::path::PathBuf {
    let base = lab.directory("base");
    sh(
        &base,
        "mkdir -p etc home/shared var/moved/inner var/gone; printf 'root only' >etc/secret; chmod 600 etc/secret;
         echo lower >home/shared/file; echo x >var/moved/inner/file; echo x >var/gone/file; chmod 777 home home/shared",
    );
    base
}

#[test]
fn privileged_marks_that_a_program_has_forged_are_data() {
    need_root();
    let lab = Lab::new();
    let base = base(&lab);
    let parent = lab.built(&base);
    let disk = FileSystem::new(&lab, "ext4");
    let overlay = Overlay::new(&disk.root, "o", &base, "redirect_dir=on,metacopy=off,index=off");
    // As somebody without rights inside would: a file of the size of one that he must not read, and a redirect to it.
    sh(
        &overlay.merged,
        "printf 123456789 >home/mine; chown 65534 home/mine; mkdir home/dir; rm -r var/gone; mkdir var/gone;
         touch home/shared/new",
    );
    let forge = |path: &str, name: &str, value: &[u8]| set(&overlay.merged.join(path), name, value);
    forge("home/mine", "user.overlay.metacopy", b"");
    forge("home/mine", "user.overlay.redirect", b"/etc/secret");
    forge("home/dir", "user.overlay.redirect", b"/etc");
    forge("home/dir", "user.overlay.novel", b"1");
    forge("home/shared", "user.overlay.opaque", b"y");
    forge("home", "user.overlay.overlay.opaque", b"y");
    // In the namespace of the marks the kernel puts a program's own out of the way.
    forge("home/dir", "trusted.overlay.redirect", b"/etc");

    assert_restored(&lab, &overlay, &parent, Namespace::Trusted);
    assert_eq!(fs_err::read(overlay.merged.join("home/mine")).unwrap(), b"123456789");
}

#[test]
fn privileged_marks_of_a_userxattr_overlay() {
    need_root();
    let lab = Lab::new();
    let base = base(&lab);
    let parent = lab.built(&base);
    let disk = FileSystem::new(&lab, "ext4");
    let overlay = Overlay::new(&disk.root, "o", &base, "userxattr");
    sh(&overlay.merged, "rm -r var/gone; mkdir var/gone; echo new >var/gone/new; rm etc/secret; mkdir home/dir");
    set(&overlay.merged.join("home/dir"), "user.overlay.opaque", b"of a program");
    set(&overlay.merged.join("home/dir"), "trusted.overlay.opaque", b"y");
    let mut value = [0; 8];
    let count = rustix::fs::getxattr(overlay.upper.join("var/gone"), "user.overlay.opaque", &mut value).unwrap();
    assert_eq!(&value[..count], b"y");
    assert_restored(&lab, &overlay, &parent, Namespace::User);
}

#[test]
fn privileged_attributes_of_a_nested_overlay_move_with_a_renamed_directory() {
    need_root();
    let lab = Lab::new();
    let base = base(&lab);
    set(&base.join("var/moved/inner"), "trusted.overlay.overlay.redirect", b"/nested");
    set(&base.join("var/moved/inner"), "trusted.overlay.overlay.overlay.opaque", b"y");
    // The base as the layer that the overlay has below, not as a root file system.
    let parent = lab.image(&[&base]);
    let disk = FileSystem::new(&lab, "ext4");
    let overlay = Overlay::new(&disk.root, "o", &base, "redirect_dir=on");
    sh(&overlay.merged, "mv var/moved home/moved");
    assert_restored(&lab, &overlay, &parent, Namespace::Trusted);
}

#[test]
fn a_crafted_layer_with_marks_is_malformed() {
    let lab = Lab::new();
    let tree = lab.directory("tree");
    sh(&tree, "mkdir -p home etc; echo secret >etc/secret");
    set(&tree.join("home"), "user.xoverlay.redirect", b"/etc");
    let make = |change: &dyn Fn(&mut Vec<u8>)| {
        let layer = lab.crafted(&Directory::open(&tree).unwrap(), change);
        let image = Image::new("amd64", vec![layer], Config::default());
        lab.store.put_image(&image).unwrap();
        image
    };
    let findings = |image: &Image| {
        let mut found = Vec::new();
        let mut tell = |finding: dsec_pack::verify::Finding| found.push(finding.what);
        verify_image(&lab.store, image, &Silent, &Cancel::new(), &mut tell).unwrap();
        found
    };
    assert_eq!(findings(&make(&|_| {})), Vec::<String>::new());
    // The entry of an xattr: length of the rest of the name, index of the namespace, length of the value, name, value.
    let crafted = make(&|metadata| {
        let rest = b"xoverlay.redirect";
        let at = metadata.windows(rest.len()).position(|window| window == rest).unwrap();
        let entry = [&[16, 4, 4, 0][..], b"overlay.redirect", b"/etc", &[0]].concat();
        metadata[at - 4..at - 4 + entry.len()].copy_from_slice(&entry);
    });
    let found = findings(&crafted);
    assert!(found.len() == 1 && found[0].contains("overlay mounts"), "{found:?}");
    let refused = Layers::load(&lab.store, crafted.layers.iter().map(|layer| layer.digest)).unwrap_err();
    assert!(matches!(refused, TreeError::Unsound { .. }), "{refused}");
}
