//! OCI layouts of umoci and skopeo, and some made by hand.

use std::io::Write;
use std::path::{Path, PathBuf};

use dsec_erofs::Kind;
use dsec_pack::input::{Kind as InputKind, Location};
use fs_err as fs;
use sha2::{Digest, Sha256};

use crate::archive::Archive;
use crate::support::{Lab, Options, find, input, need_root, options, sh};

/// Three layers: a tree; a change of it that removes, replaces and adds; a configuration.
const UMOCI: &str = r#"
umoci init --layout oci
umoci new --image oci:v1
umoci unpack --image oci:v1 bundle
mkdir -p bundle/rootfs/etc bundle/rootfs/usr/lib/gone
echo one > bundle/rootfs/etc/one; echo two > bundle/rootfs/etc/two
echo x > bundle/rootfs/usr/lib/gone/x
chmod 1750 bundle/rootfs/etc; chown 5:7 bundle/rootfs/etc; ln bundle/rootfs/etc/one bundle/rootfs/hard
umoci repack --image oci:v1 --refresh-bundle bundle
rm -r bundle/rootfs/usr/lib/gone bundle/rootfs/etc/one; echo three > bundle/rootfs/etc/three
umoci repack --image oci:v2 bundle
umoci config --image oci:v2 --config.env A=b --config.entrypoint /bin/x --config.cmd y --config.user 1:2 \
    --config.workingdir /w --config.label l=m --config.stopsignal SIGINT
"#;

fn umoci(lab: &Lab) -> PathBuf {
    sh(lab.path("").as_path(), UMOCI);
    lab.path("oci")
}

fn build_ref(lab: &Lab, layout: &Path, oci_ref: &str) -> dsec_pack::Built {
    let mut input = input(Location::Path(layout.to_owned()));
    input.oci_ref = Some(oci_ref.to_owned());
    lab.build_with(input, options()).unwrap()
}

#[test]
fn privileged_umoci_layers_become_layers_with_whiteouts_and_configuration() {
    need_root();
    let lab = Lab::new();
    let layout = umoci(&lab);
    assert_eq!(lab.refusal(&layout), "the input has several images, choose one of: v1, v2");
    let v1 = build_ref(&lab, &layout, "v1");
    let v2 = build_ref(&lab, &layout, "v2");
    assert_eq!((v1.kind, v1.layers.len(), v2.layers.len()), (InputKind::Oci, 1, 2));
    assert_eq!(v1.layers[0].record, v2.layers[0].record, "a shared layer is the same layer");

    let (base, change) = (lab.metadata(&v2, 0), lab.metadata(&v2, 1));
    assert_eq!(find(&base, "etc/one").unwrap().nid, find(&base, "hard").unwrap().nid);
    assert!(find(&change, "etc/one").unwrap().is_whiteout());
    assert!(find(&change, "usr/lib/gone").unwrap().is_whiteout());
    assert_eq!(change.kind(&find(&change, "etc/three").unwrap()).unwrap(), Kind::Regular { bytes: 6 });
    let etc = find(&change, "etc").unwrap().attributes;
    assert_eq!((etc.mode, etc.uid, etc.gid), (0o1750, 5, 7));

    let config = lab.image(&v2.image).config;
    assert_eq!(
        (config.user.as_str(), config.working_dir.as_str(), config.stop_signal.as_str()),
        ("1:2", "/w", "SIGINT")
    );
    assert_eq!(
        (config.env, config.entrypoint, config.cmd),
        (vec!["A=b".into()], vec!["/bin/x".into()], vec!["y".into()])
    );
    assert_eq!(config.labels["l"], "m");
}

#[test]
fn privileged_skopeo_copies_give_the_same_image_whatever_their_compression() {
    need_root();
    let lab = Lab::new();
    let layout = umoci(&lab);
    let first = build_ref(&lab, &layout, "v2");
    let copies = [
        ("gzip", "skopeo --insecure-policy copy -q oci:oci:v2 oci:gzip:only"),
        // By way of an archive, where layers are plain: older ones compress nothing that is compressed.
        (
            "zstd",
            "skopeo --insecure-policy copy -q oci:oci:v2 docker-archive:plain.tar:x/y:z;
             skopeo --insecure-policy copy -q --dest-compress-format zstd docker-archive:plain.tar oci:zstd:only",
        ),
    ];
    for (name, script) in copies {
        sh(lab.path("").as_path(), script);
        assert_eq!(lab.build(&lab.path(name)).image, first.image, "{name}");
    }
    sh(lab.path("").as_path(), "skopeo --insecure-policy copy -q oci:oci:v2 oci-archive:oci.tar:only; xz -0 oci.tar");
    for (name, kind) in [("plain.tar", InputKind::DockerArchive), ("oci.tar.xz", InputKind::OciArchive)] {
        let built = lab.build(&lab.path(name));
        assert_eq!((built.image, built.kind), (first.image, kind), "{name}");
        let mut as_files = input(Location::Path(lab.path(name)));
        as_files.kind = Some(InputKind::Tar);
        let built = lab.build_with(as_files, options()).unwrap();
        assert!(find(&lab.metadata(&built, 0), "oci-layout").is_some() == (kind == InputKind::OciArchive));
    }
    let program = env!("CARGO_BIN_EXE_dsec-pack");
    sh(
        lab.path("").as_path(),
        &format!("'{program}' build --json --store store --oci-ref docker.io/x/y:z - <plain.tar >out.json"),
    );
    let out: serde_json::Value = serde_json::from_slice(&fs::read(lab.path("out.json")).unwrap()).unwrap();
    assert_eq!((&out["image"], &out["input"]), (&first.image.to_string().into(), &"docker-archive".into()));
}

/// What `docker save` wrote for years: directories with a layer each, one of them a link to another.
fn docker_archive(change: impl Fn(&mut serde_json::Value)) -> Vec<u8> {
    let layer = Archive::new().file("etc/one", b"1").end();
    let hex = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let diff_id = format!("sha256:{}", hex(&layer));
    let image = serde_json::json!({"architecture": "amd64", "os": "linux", "config": {"Env": ["A=b"]},
        "rootfs": {"type": "layers", "diff_ids": [diff_id, diff_id]}});
    let image = image.to_string();
    let config = format!("{}.json", hex(image.as_bytes()));
    let entry = |tag: &str, layers: &[&str]| serde_json::json!({"Config": config, "RepoTags": [tag], "Layers": layers});
    let mut manifest = serde_json::json!([
        entry("one:1", &["first/layer.tar", "second/layer.tar"]),
        {"Config": "small.json", "RepoTags": null, "Layers": ["first/layer.tar"]}
    ]);
    change(&mut manifest);
    let small = serde_json::json!({"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": [diff_id]}});
    Archive::new()
        .pax(&[("path", config.as_bytes())])
        .file("config", image.as_bytes())
        .directory("first/")
        .file("first/layer.tar", &layer)
        .symlink("second/layer.tar", "../first/layer.tar")
        .file("manifest.json", manifest.to_string().as_bytes())
        .file("small.json", small.to_string().as_bytes())
        .end()
}

#[test]
fn a_docker_archive_made_by_hand() {
    let lab = Lab::new();
    let path = lab.path("saved.tar");
    fs::write(&path, docker_archive(|_| {})).unwrap();
    assert_eq!(lab.refusal(&path), "the input has several images, choose one of: one:1");
    let built = build_ref(&lab, &path, "one:1");
    assert_eq!((built.kind, built.layers.len()), (InputKind::DockerArchive, 1), "equal layers are one");
    assert_eq!(lab.image(&built.image).config.env, ["A=b"]);
    assert!(find(&lab.metadata(&built, 0), "etc/one").is_some());

    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let archive = docker_archive(|manifest| {
            manifest.as_array_mut().unwrap().truncate(1);
            change(manifest);
        });
        Lab::new().tar_refusal(&archive)
    };
    let says = |layer: &'static str| refused(&|manifest| manifest[0]["Layers"][1] = layer.into());
    assert!(says("../first/layer.tar").ends_with("the archive has no file \"../first/layer.tar\""));
    assert!(says("/etc/passwd").ends_with("the archive has no file \"/etc/passwd\""));
    assert!(says("first").ends_with("the archive has no file \"first\""));
    assert!(says("small.json").ends_with("the input is not a tar archive"), "{}", says("small.json"));
    let one = refused(&|manifest| drop(manifest[0]["Layers"].as_array_mut().unwrap().pop()));
    assert_eq!(one, "the image has 1 layers and 2 diff ids");
    // A configuration that is not what its name says.
    let named = "0".repeat(64) + ".json";
    let archive = Archive::new().pax(&[("path", named.as_bytes())]).file("config", b"{}");
    let manifest = serde_json::json!([{"Config": named, "RepoTags": [], "Layers": []}]).to_string();
    let refusal = Lab::new().tar_refusal(&archive.file("manifest.json", manifest.as_bytes()).end());
    assert!(refusal.ends_with("does not match its digest"), "{refusal}");
}

/// An OCI layout of uncompressed layers, made by hand.
fn layout(lab: &Lab, name: &str, layers: &[Vec<u8>]) -> PathBuf {
    let path = lab.directory(name);
    fs::create_dir_all(path.join("blobs/sha256")).unwrap();
    let blob = |bytes: &[u8], media_type: &str| {
        let digest = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        fs::write(path.join("blobs/sha256").join(&digest), bytes).unwrap();
        serde_json::json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len()})
    };
    let descriptors: Vec<_> =
        layers.iter().map(|layer| blob(layer, "application/vnd.oci.image.layer.v1.tar")).collect();
    let diff_ids: Vec<_> = descriptors.iter().map(|layer| layer["digest"].clone()).collect();
    let image = serde_json::json!({"architecture": "arm64", "os": "linux", "config": {"Env": null},
        "rootfs": {"type": "layers", "diff_ids": diff_ids}});
    let config = blob(image.to_string().as_bytes(), "application/vnd.oci.image.config.v1+json");
    let manifest = serde_json::json!({"schemaVersion": 2, "config": config, "layers": descriptors});
    let manifest = blob(manifest.to_string().as_bytes(), "application/vnd.oci.image.manifest.v1+json");
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(path.join("index.json"), index.to_string()).unwrap();
    fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
    path
}

#[test]
fn whiteouts_opaque_directories_and_implied_directories() {
    let lab = Lab::new();
    let owned = |header: &mut [u8; 512]| {
        header[100..107].copy_from_slice(b"0000700");
        header[108..115].copy_from_slice(b"0000007");
    };
    let base = Archive::new()
        .directory("./")
        .member(b'5', "private", "", b"", owned)
        .pax(&[("SCHILY.xattr.user.note", b"kept")])
        .member(b'5', "noted", "", b"", owned)
        .file("private/a", b"a")
        .file("noted/b", b"b")
        .file("again/c", b"c")
        .symlink("bin", "usr/bin")
        .end();
    let change = Archive::new()
        .file("private/.wh.a", b"")
        .file("private/new", b"")
        .file("noted/.wh..wh..opq", b"")
        .file(".wh.again", b"")
        .file("again/d", b"d")
        .end();
    let empty = Archive::new().end();
    let path = layout(&lab, "oci", &[base.clone(), change, empty]);
    let built = lab.build(&path);
    assert_eq!(built.layers.len(), 2, "an empty layer says nothing");
    assert_eq!(lab.image(&built.image).architecture, "arm64");
    let change = lab.metadata(&built, 1);
    let at = |path| find(&change, path).unwrap();
    assert!(at("private/a").is_whiteout());
    assert_eq!((at("private").attributes.mode, at("private").attributes.uid), (0o700, 7), "as it is below");
    let opaque = |path| change.xattr(&at(path), b"trusted.overlay.opaque").unwrap().map(<[u8]>::to_vec);
    assert_eq!((opaque("noted"), opaque("again"), opaque("private")), (Some(b"y".to_vec()), Some(b"y".to_vec()), None));
    assert_eq!(change.xattr(&at("noted"), b"user.note").unwrap(), Some(&b"kept"[..]));
    assert!(find(&change, "noted/.wh..wh..opq").is_none() && find(&change, "again/d").is_some());

    let below = layout(&lab, "below", &[base.clone(), Archive::new().file("bin/tool", b"").end()]);
    assert!(
        lab.try_build(&below)
            .unwrap_err()
            .to_string()
            .ends_with("has entries below `bin`, which is a symlink in a layer below")
    );
    let aufs = layout(&lab, "aufs", &[Archive::new().directory(".wh..wh.plnk").end()]);
    let error = crate::support::chain(&lab.try_build(&aufs).unwrap_err());
    assert!(error.ends_with("`.wh..wh.plnk` is not a whiteout that means anything"), "{error}");
    let repeated = layout(&lab, "repeated", &[base.clone(), Archive::new().file("x", b"").end(), base]);
    assert_eq!(lab.build(&repeated).layers.len(), 2, "the lower of two equal layers is covered by the upper");
}

#[test]
fn damaged_layouts_are_refused() {
    let lab = Lab::new();
    let layer = Archive::new().file("a", b"data").end();
    let damage = |name: &str, what: &dyn Fn(&Path)| {
        let path = layout(&lab, name, std::slice::from_ref(&layer));
        what(&path);
        lab.refusal(&path)
    };
    let blobs = |path: &Path| fs::read_dir(path.join("blobs/sha256")).unwrap().map(|entry| entry.unwrap().path());
    let is_layer = |path: &PathBuf| fs::metadata(path).unwrap().len() == layer.len() as u64;
    let flipped = damage("flipped", &|path| {
        let blob = blobs(path).find(is_layer).unwrap();
        let mut bytes = fs::read(&blob).unwrap();
        bytes[600] ^= 1;
        fs::write(&blob, bytes).unwrap();
    });
    assert!(flipped.starts_with("blob sha256:") && flipped.ends_with("does not match its digest"), "{flipped}");
    let short = damage("short", &|path| {
        let blob = blobs(path).find(is_layer).unwrap();
        fs::OpenOptions::new().write(true).open(blob).unwrap().set_len(100).unwrap();
    });
    assert!(short.contains("has 100 bytes, its descriptor says"), "{short}");
    let gone = damage("gone", &|path| blobs(path).for_each(|blob| fs::remove_file(blob).unwrap()));
    assert!(gone.starts_with("cannot read the files of the image: "), "{gone}");
    let version = damage("version", &|path| {
        fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion": "2.0.0"}"#).unwrap();
    });
    assert_eq!(version, "OCI layout version \"2.0.0\" is not supported, only 1.0.0");
    let text = damage("text", &|path| {
        fs::File::create(path.join("index.json")).unwrap().write_all(b"{").unwrap();
    });
    assert!(text.starts_with("index.json is not a valid document"), "{text}");
    let escape = damage("escape", &|path| {
        let index = fs::read_to_string(path.join("index.json")).unwrap();
        let start = index.find("sha256:").unwrap() + 7;
        let index = format!("{}../../{}", &index[..start], &index[start + 6..]);
        fs::write(path.join("index.json"), index).unwrap();
    });
    assert!(escape.ends_with("is not a sha256 or sha512 digest"), "{escape}");
}

#[test]
fn a_layout_can_be_packed_as_a_directory() {
    let lab = Lab::new();
    let path = layout(&lab, "oci", &[Archive::new().end()]);
    let mut input = input(Location::Path(path));
    input.kind = Some(InputKind::Directory);
    let built = lab.build_with(input, Options { verify: true, ..options() }).unwrap();
    assert!(find(&lab.metadata(&built, 0), "oci-layout").is_some());
}
