//! Inputs that have an overlay's upper directories in them: content like any other.

use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};

use crate::support::{Lab, Mounted, find, need_root, sh};

/// What overlay leaves in an upper directory, and once more what one inside an overlay does.
const XATTRS: [(&str, &str, &[u8]); 6] = [
    ("upper/opaque", "trusted.overlay.opaque", b"y"),
    ("upper/moved", "trusted.overlay.redirect", b"/etc"),
    ("upper/file", "trusted.overlay.metacopy", b""),
    ("upper/file", "trusted.overlay.origin", b"\0\xfb!"),
    ("upper/nested", "trusted.overlay.overlay.opaque", b"y"),
    ("upper/moved", "user.overlay.redirect", b"/data"),
];

fn tree(lab: &Lab) -> std::path::PathBuf {
    let tree = lab.directory("tree");
    sh(&tree, "mkdir -p upper/opaque upper/moved upper/nested; echo x >upper/file; echo y >upper/opaque/below");
    for (path, name, value) in XATTRS {
        setxattr(tree.join(path), name, value, XattrFlags::CREATE).unwrap();
    }
    tree
}

#[test]
fn privileged_an_overlay_inside_an_image_is_seen_inside_a_sandbox_as_it_was() {
    need_root();
    let lab = Lab::new();
    let tree = tree(&lab);
    let built = lab.build(&tree);
    assert_eq!(lab.differences(&built, &tree, &[]), Vec::<String>::new());
    sh(lab.path("").as_path(), "tar --format=posix --xattrs --xattrs-include='*' -C tree -cf archive.tar .");
    assert_eq!(lab.build(&lab.path("archive.tar")).image, built.image);
    let metadata = lab.metadata(&built, 0);
    let opaque = find(&metadata, "upper/opaque").unwrap();
    assert_eq!(metadata.xattr(&opaque, b"trusted.overlay.opaque").unwrap(), None);

    let digest = built.layers[0].record.digest;
    let layer = dsec_store::Source::read_layer(&lab.store, &digest).unwrap();
    let [image, device, layer_root, root, empty] =
        ["image", "device", "layer", "root", "empty"].map(|name| lab.path(name));
    fs_err::write(&image, &layer.metadata).unwrap();
    fs_err::File::create(&device).unwrap().set_len(1 << 20).unwrap();
    [&layer_root, &root, &empty].iter().for_each(|path| fs_err::create_dir(path).unwrap());
    let _layer = Mounted::read_only("erofs", &image, &layer_root, &format!("device={}", device.display()));
    let lowers = format!("lowerdir={}:{}", layer_root.display(), empty.display());
    let _root = Mounted::read_only("overlay", Path::new("overlay"), &root, &lowers);
    for (path, name, value) in XATTRS {
        let mut seen = [0; 16];
        let length =
            getxattr(root.join(path), name, &mut seen).unwrap_or_else(|errno| panic!("{path} {name}: {errno}"));
        assert_eq!(&seen[..length], value, "{path} {name}");
    }
    assert!(root.join("upper/opaque/below").exists() && root.join("upper/moved").is_dir());
}

#[test]
fn privileged_a_whiteout_in_an_input_cannot_be_kept_and_is_named() {
    need_root();
    let lab = Lab::new();
    let tree = tree(&lab);
    sh(&tree, "mknod upper/gone c 0 0");
    let message = "`upper/gone` cannot be kept: a character device 0:0 says in an image that a name is gone";
    assert_eq!(lab.refusal(&tree), message);
    sh(lab.path("").as_path(), "tar -C tree -cf archive.tar .");
    assert_eq!(lab.refusal(&lab.path("archive.tar")), message);
}
