//! A view of layers shows what an overlay mount of the same directories shows.

use std::path::Path;

use dsec_format::extents::encode;
use dsec_format::layer::{Layer, Totals};
use dsec_pack::tree::{Directory, Error as TreeError, FileTree};
use dsec_pack::view::{Layers, MAX_PLAIN_BYTES, View};

use crate::support::{Lab, need_root, run, sh};
use crate::uppers::unmount;

/// Layers with everything that overlay interprets.
fn layers(lab: &Lab) -> [std::path::PathBuf; 3] {
    let layers = [lab.directory("base"), lab.directory("middle"), lab.directory("top")];
    sh(
        &layers[0],
        "mkdir -p kept merged/deep opaque/gone hidden/below file-over-dir dir-over-file.d; echo base >kept/file;
         echo base >merged/both; echo base >merged/base; echo base >merged/deep/base; echo base >opaque/gone/file;
         echo base >hidden/below/file; echo base >file-over-dir/file; echo base >dir-over-file; ln kept/file kept/second;
         echo base >gone; echo base >comes-back; truncate -s 100000 sparse; echo x | dd of=sparse seek=10 status=none
         conv=notrunc; ln -s kept/file link",
    );
    sh(
        &layers[1],
        "mkdir -p merged/deep opaque; echo middle >merged/both; echo middle >merged/middle; echo middle >merged/deep/middle;
         echo middle >file-over-dir; rm -f dir-over-file; mkdir dir-over-file; echo middle >dir-over-file/file;
         mknod gone c 0 0; mknod hidden c 0 0; mknod comes-back c 0 0; echo middle >opaque/new; chmod 700 merged",
    );
    sh(
        &layers[2],
        "mkdir -p merged hidden; echo top >merged/top; echo top >comes-back; mknod merged/base c 0 0;
         echo top >hidden/new; mknod kept-away c 0 0; mkdir -p file-over-dir; echo top >file-over-dir/new",
    );
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    set(&layers[1].join("opaque"), "trusted.overlay.opaque", b"y");
    set(&layers[2].join("merged"), "trusted.overlay.overlay.opaque", b"y");
    set(&layers[2].join("merged"), "user.kept", b"");
    // Plain data to a mount of root, whatever it looks like.
    for (name, value) in [("note", &b"of a program"[..]), ("opaque", b"y"), ("redirect", b"/kept"), ("metacopy", b"")] {
        set(&layers[2].join("merged"), &format!("user.overlay.{name}"), value);
    }
    set(&layers[2].join("merged/top"), "user.overlay.metacopy", b"");
    set(&layers[2].join("merged/top"), "user.overlay.redirect", b"/kept/file");
    layers
}

struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

#[test]
fn privileged_a_view_is_what_overlay_shows() {
    need_root();
    let lab = Lab::new();
    let layers = layers(&lab);
    let image = lab.image(&layers.each_ref().map(|path| path.as_path()));
    let point = lab.directory("mount");
    let lower: Vec<&str> = layers.iter().rev().map(|path| path.to_str().unwrap()).collect();
    let options = format!("lowerdir={},redirect_dir=nofollow", lower.join(":"));
    run("mount", &["-t", "overlay", "overlay", "-o", &options, point.to_str().unwrap()]);
    let mounted = Mounted(point);
    assert_eq!(lab.differences(&image, &mounted.0), Vec::<String>::new());

    // The comparison looked at something: a whiteout less, and it says so.
    let other = lab.image(&[&layers[0], &layers[1]]);
    let found = lab.differences(&other, &mounted.0);
    for line in ["extra /merged/top", "missing /merged/base", "extra /hidden", "extra /comes-back"] {
        assert!(found.iter().any(|found| found == line), "{line} is not in {found:?}");
    }
}

#[test]
fn layers_that_come_to_too_much_are_refused_before_any_is_unpacked() {
    let lab = Lab::new();
    // A stored layer of a few bytes that states so many for its metadata: what a compressor makes of zeros.
    let stating = |metadata_bytes: u64| {
        let totals = Totals { device_bytes: 4096, data_bytes: 0, logical_bytes: 0, inodes: 1 };
        let mut layer = Layer::new(vec![0; 8192], encode(&[], 4096), totals);
        layer.identity.metadata_bytes.set(metadata_bytes);
        let hex = layer.digest().hex();
        let file = lab.path("store/layers").join(&hex[..2]).join(&hex);
        fs_err::create_dir_all(file.parent().unwrap()).unwrap();
        fs_err::write(file, layer.encode(3)).unwrap();
        layer.digest()
    };
    let many = [500 << 20, 501 << 20, 502 << 20, 503 << 20, 504 << 20].map(stating);
    let refused = Layers::load(&lab.store, many).unwrap_err();
    assert!(matches!(refused, TreeError::TooLarge { layer, .. } if layer == many[4]), "{refused}");
    let one = stating(MAX_PLAIN_BYTES + 4096);
    let refused = Layers::load(&lab.store, [one]).unwrap_err();
    assert!(matches!(refused, TreeError::TooLarge { .. }), "{refused}");
    // Less than that, it is read, and turns out to be no image.
    let refused = Layers::load(&lab.store, many[..1].iter().copied()).unwrap_err();
    let sorts = matches!(refused, TreeError::Unsound { .. } | TreeError::Store(dsec_store::Error::Damaged { .. }));
    assert!(sorts, "{refused}");
}

#[test]
fn privileged_a_changeset_shows_a_layer_as_it_is() {
    need_root();
    let lab = Lab::new();
    let layers = layers(&lab);
    let image = lab.image(&layers.each_ref().map(|path| path.as_path()));
    let loaded = Layers::load(&lab.store, image.layers.iter().map(|layer| layer.digest)).unwrap();
    let changeset = View::changeset(&loaded);
    let names = |view: &View<'_>| view.names(&view.root().unwrap()).unwrap();
    let text = |names: Vec<Vec<u8>>| names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>();
    assert_eq!(text(names(&changeset)), ["comes-back", "file-over-dir", "hidden", "kept-away", "merged"]);
    let directory = Directory::open(&layers[2]).unwrap();
    let child = |name: &[u8]| {
        let ours = changeset.child(&changeset.root().unwrap(), name).unwrap();
        let theirs = directory.child(&directory.root().unwrap(), name).unwrap();
        assert_eq!(changeset.node(&ours).unwrap(), directory.node(&theirs).unwrap());
    };
    for name in [&b"kept-away"[..], b"merged", b"hidden", b"comes-back"] {
        child(name);
    }

    let merged = View::merged(&loaded);
    let shown = [
        "comes-back",
        "dir-over-file",
        "dir-over-file.d",
        "file-over-dir",
        "hidden",
        "kept",
        "link",
        "merged",
        "opaque",
        "sparse",
    ];
    assert_eq!(text(names(&merged)), shown);
    let at = |path: &str| merged.lookup(path.as_bytes()).unwrap();
    assert!(at("opaque/gone").is_none() && at("opaque/new").is_some());
    assert!(at("hidden/below").is_none() && at("hidden/new").is_some());
    assert!(at("file-over-dir/file").is_none() && at("file-over-dir/new").is_some());
    assert!(at("kept/file/below").is_none() && at("").is_some() && at("/kept//file").is_some());
}

/// The most memory that this process has had, in bytes, since it was asked to count anew.
fn peak_bytes() -> u64 {
    let status = fs_err::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn the_layers_of_an_image_take_the_memory_that_they_state() {
    let lab = Lab::new();
    let tree = lab.directory("tree");
    for number in 0..200 {
        std::os::unix::fs::symlink(format!("{number}-{}", "x".repeat(4000)), tree.join(number.to_string())).unwrap();
    }
    let mut records = Vec::new();
    for number in 0..100 {
        fs_err::write(tree.join("number"), number.to_string()).unwrap();
        records.push(lab.layer(&Directory::open(&tree).unwrap()));
    }
    let stated: u64 = records.iter().map(|record| record.metadata_bytes).sum();
    assert!(stated > 75 << 20, "{stated}");
    fs_err::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak_bytes();
    let loaded = Layers::load(&lab.store, records.iter().map(|record| record.digest)).unwrap();
    let view = View::merged(&loaded);
    let found = view.lookup(b"199").unwrap().unwrap();
    assert!(matches!(view.node(&found).unwrap().kind, dsec_pack::tree::Kind::Symlink(_)));
    let taken = peak_bytes() - before;
    assert!(taken < stated + stated / 10 + (16 << 20), "{taken} bytes for {stated}");
}
