//! `unpack`: the tree as it was, or nothing.

use std::path::Path;

use dsec_format::image::Image;
use dsec_pack::chunks::ChunkReader;
use dsec_pack::unpack::{Error, Owners, Stats, unpack};
use dsec_pack::view::{Layers, View};
use dsec_pack::{Cancel, Silent};

use crate::support::{Lab, need_root, run, sh};

fn unpack_image(lab: &Lab, image: &Image, to: &Path, owners: Owners, cancel: &Cancel) -> Result<Stats, Error> {
    let digests = || image.layers.iter().map(|layer| layer.digest);
    let layers = Layers::load(&lab.store, digests()).unwrap();
    let view = View::merged(&layers);
    let chunks = ChunkReader::new(&lab.store, digests());
    unpack(&view, &chunks, to, owners, &Silent, cancel)
}

fn oddities(lab: &Lab) -> std::path::PathBuf {
    let tree = lab.directory("tree");
    sh(
        &tree,
        "mkdir -p a/b read-only sticky; echo one >a/file; ln a/file a/b/link; ln -s /etc/passwd a/abs; ln -s .. a/b/up;
         ln a/b/up a/b/up-too; mkfifo fifo; mknod null c 1 3; mknod block b 259 65537; printf '' >empty;
         head -c 300000 /dev/urandom >large; truncate -s 5000000000 huge-hole; printf end >>huge-hole; cp /bin/true suid;
         chmod 4755 suid; chmod 1777 sticky; chmod 500 read-only; chmod 0 empty; chown 70000:4294967294 a/b large;
         chown -h 5:6 a/abs; printf x >\"$(printf 'odd\\377\\nname')\"; touch -h -d @-1.5 a/abs; touch -d @4102444800.000000001 large;
         touch -d @1.999999999 a/b read-only .",
    );
    std::os::unix::net::UnixListener::bind(tree.join("sock")).unwrap();
    let set = |name: &str, xattr: &str, value: &[u8]| {
        rustix::fs::lsetxattr(tree.join(name), xattr, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    set("large", "user.big", &[7; 2000]);
    set("a/abs", "trusted.on-a-symlink", b"1");
    set("a/b", "user.empty", b"");
    set("suid", "security.capability", &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let acl = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 9, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 4,
        0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    set("a/file", "system.posix_acl_access", &acl);
    set("a/b", "system.posix_acl_default", &acl);
    sh(&tree, "touch -h -d @-1.5 a/abs; touch -d @77.000000077 a .");
    tree
}

#[test]
fn privileged_everything_comes_back_as_it_was() {
    need_root();
    let lab = Lab::new();
    let tree = oddities(&lab);
    let image = lab.image(&[&tree]);
    let to = lab.path("unpacked");
    let stats = unpack_image(&lab, &image, &to, Owners::Same, &Cancel::new()).unwrap();
    assert_eq!(lab.differences(&image, &to), Vec::<String>::new());
    let counted = std::process::Command::new("find").args([tree.to_str().unwrap(), "-printf", "x"]).output().unwrap();
    assert_eq!((stats.entries, stats.left_out), (counted.stdout.len() as u64, Default::default()));
    // And by the eyes of others.
    let (from, into) = (format!("{}/", tree.display()), format!("{}/", to.display()));
    sh(
        &tree,
        &format!(
            "diff -r --no-dereference --exclude=sock --exclude=fifo --exclude=null --exclude=block --exclude=huge-hole {from} {into}"
        ),
    );
    let list = |path: &Path| {
        let find = "find . -printf '%p %y %m %U %G %s %T@ %n %l\\n' | sort";
        let done = std::process::Command::new("sh").args(["-c", find]).current_dir(path).output().unwrap();
        // Sizes of directories are the file system's own.
        let lines = done.stdout.split(|byte| *byte == b'\n').map(<[u8]>::to_vec);
        lines.filter(|line| !line.windows(3).any(|part| part == b" d ")).collect::<Vec<_>>()
    };
    assert_eq!(list(&tree), list(&to));
    let blocks = |path: &Path| std::os::unix::fs::MetadataExt::blocks(&fs_err::metadata(path).unwrap());
    assert!(blocks(&to.join("huge-hole")) < 100);
    // Into an empty directory as well; not into one that has something.
    let empty = lab.directory("empty");
    unpack_image(&lab, &image, &empty, Owners::Same, &Cancel::new()).unwrap();
    assert_eq!(lab.differences(&image, &empty), Vec::<String>::new());
    let again = unpack_image(&lab, &image, &empty, Owners::Same, &Cancel::new());
    assert!(matches!(again, Err(Error::NotEmpty { .. })), "{again:?}");
    assert_eq!(lab.differences(&image, &empty), Vec::<String>::new());
}

#[test]
fn privileged_what_a_kill_leaves_is_removed_by_the_next_try() {
    need_root();
    let lab = Lab::new();
    let tree = oddities(&lab);
    let image = lab.image(&[&tree]);
    let to = lab.path("to");
    // As a killed one leaves it: half a tree, with everything in it.
    run("cp", &["-a", tree.to_str().unwrap(), lab.path(".to.dsec-unpack").to_str().unwrap()]);
    unpack_image(&lab, &image, &to, Owners::Same, &Cancel::new()).unwrap();
    assert_eq!(lab.differences(&image, &to), Vec::<String>::new());
    assert!(!lab.path(".to.dsec-unpack").exists());

    let cancel = Cancel::new();
    cancel.cancel();
    let other = lab.path("other");
    let stopped = unpack_image(&lab, &image, &other, Owners::Same, &cancel);
    assert!(matches!(stopped, Err(Error::Cancelled(_))), "{stopped:?}");
    assert!(!other.exists() && !lab.path(".other.dsec-unpack").exists());
}

#[test]
fn places_that_cannot_be_used() {
    let lab = Lab::new();
    let tree = lab.directory("tree");
    sh(&tree, "echo x >file");
    let image = lab.image(&[&tree]);
    sh(&lab.path("."), "echo x >file; ln -s tree link; mkdir full; echo x >full/file");
    for name in ["file", "link", "full"] {
        let refused = unpack_image(&lab, &image, &lab.path(name), Owners::Own, &Cancel::new());
        assert!(matches!(refused, Err(Error::NotEmpty { .. })), "{name}: {refused:?}");
    }
    let nowhere = unpack_image(&lab, &image, &lab.path("no/such"), Owners::Own, &Cancel::new());
    assert!(matches!(nowhere, Err(Error::Place { .. })), "{nowhere:?}");

    // Two at once: the second one is told.
    let busy = lab.directory(".taken.dsec-unpack");
    let held = fs_err::File::open(&busy).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let second = unpack_image(&lab, &image, &lab.path("taken"), Owners::Own, &Cancel::new());
    assert!(matches!(second, Err(Error::Busy { .. })), "{second:?}");
}

#[test]
fn privileged_a_planted_directory_is_not_used() {
    need_root();
    let lab = Lab::new();
    let tree = lab.directory("tree");
    sh(&tree, "echo x >file");
    let image = lab.image(&[&tree]);
    let planted = lab.directory(".to.dsec-unpack");
    sh(&planted, "echo theirs >file");
    for script in ["chown 65534 .; chmod 700 .", "chown 0:0 .; chmod 777 .", "chmod 770 ."] {
        sh(&planted, script);
        let refused = unpack_image(&lab, &image, &lab.path("to"), Owners::Same, &Cancel::new());
        assert!(matches!(&refused, Err(Error::Foreign { path }) if *path == planted), "{script}: {refused:?}");
        assert_eq!(fs_err::read_to_string(planted.join("file")).unwrap(), "theirs\n");
        assert!(!lab.path("to").exists());
    }
    // What a process of our own left shortly before its end.
    sh(&planted, "chmod 755 .");
    unpack_image(&lab, &image, &lab.path("to"), Owners::Same, &Cancel::new()).unwrap();
    assert_eq!(lab.differences(&image, &lab.path("to")), Vec::<String>::new());
}

#[test]
fn privileged_a_mount_point_is_not_replaced() {
    need_root();
    let lab = Lab::new();
    let tree = lab.directory("tree");
    let image = lab.image(&[&tree]);
    let point = lab.directory("point");
    run("mount", &["-t", "tmpfs", "tmpfs", point.to_str().unwrap()]);
    let refused = unpack_image(&lab, &image, &point, Owners::Same, &Cancel::new());
    run("umount", &[point.to_str().unwrap()]);
    assert!(matches!(refused, Err(Error::MountPoint { .. })), "{refused:?}");
}

#[test]
fn privileged_left_out_without_privileges_is_counted() {
    need_root();
    let lab = Lab::new();
    let tree = oddities(&lab);
    let image = lab.image(&[&tree]);
    let to = lab.path("own");
    let stats = unpack_image(&lab, &image, &to, Owners::Own, &Cancel::new()).unwrap();
    assert_eq!((stats.left_out.owners, stats.left_out.devices, stats.left_out.xattrs), (3, 2, 2));
    let found = lab.differences(&image, &to);
    let expected =
        ["ids /a/abs", "ids /a/b", "ids /large", "missing /block", "missing /null", "xattrs /a/abs", "xattrs /suid"];
    for line in expected {
        assert!(found.iter().any(|found| found == line), "{line} is not in {found:?}");
    }
    // The mode of a directory without its devices has the same time: only what was left out differs.
    assert_eq!(found.len(), expected.len(), "{found:?}");
}
