//! Files into and out of sandboxes.

use std::os::unix::fs::PermissionsExt;

use super::support::{Node, noise};

#[test]
fn privileged_trees_come_back_the_same() {
    let node = Node::start();
    let id = node.create();
    let here = node.directory.path();
    let tree = here.join("tree");
    fs_err::create_dir_all(tree.join("deep/er")).unwrap();
    fs_err::write(tree.join("deep/er/data"), noise(3_000_000)).unwrap();
    fs_err::write(tree.join("a name with spaces & 100%"), "x").unwrap();
    fs_err::set_permissions(tree.join("a name with spaces & 100%"), std::fs::Permissions::from_mode(0o750)).unwrap();
    std::os::unix::fs::symlink("deep/er", tree.join("link")).unwrap();

    let tree_path = tree.to_str().unwrap();
    node.ok(&["cp", tree_path, &format!("{id}:/srv/new")]);
    node.ok(&["cp", tree_path, &format!("{id}:/srv")]);
    let owners = node.ok(&["exec", &id, "sh", "-c", "find /srv -exec stat -c '%u:%g' {} + | sort -u; ls /srv"]);
    assert_eq!(owners, "0:0\nnew\ntree\n");
    node.ok(&["cp", "--owner", "1000:1001", tree_path, &format!("{id}:/srv/anns")]);
    assert_eq!(node.ok(&["exec", &id, "stat", "-c", "%U %u %g", "/srv/anns/deep/er/data"]), "ann 1000 1001\n");

    node.ok(&["cp", &format!("{id}:/srv/new"), here.join("back").to_str().unwrap()]);
    let back = here.join("back");
    assert!(fs_err::read(back.join("deep/er/data")).unwrap() == noise(3_000_000));
    let mode = fs_err::metadata(back.join("a name with spaces & 100%")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o750);
    assert_eq!(fs_err::read_link(back.join("link")).unwrap(), std::path::Path::new("deep/er"));
    node.ok(&["cp", &format!("{id}:/srv/anns/deep"), back.to_str().unwrap()]);
    let copied = node.json(&["cp", &format!("{id}:/srv/new/link"), here.join("just-a-link").to_str().unwrap()]);
    assert_eq!(copied, serde_json::json!({"entries": 1, "bytes": 0}));
}

#[test]
fn privileged_links_inside_lead_nowhere_outside() {
    let node = Node::start();
    let id = node.create();
    let victim = node.directory.path().join("victim");
    fs_err::write(&victim, "untouched").unwrap();
    let payload = node.directory.path().join("payload");
    fs_err::write(&payload, "from outside").unwrap();
    let (victim_path, payload) = (victim.to_str().unwrap(), payload.to_str().unwrap());

    // Absolute links and dots lead to places inside, whatever is at those names outside.
    node.ok(&[
        "exec",
        &id,
        "sh",
        "-c",
        &format!("ln -s {victim_path} /srv/l; ln -s / /srv/top; ln -s ../../../../.. /srv/up"),
    ]);
    let into = node.dsec(&["cp", payload, &format!("{id}:/srv/l")]);
    assert!(!into.status.success() && fs_err::read_to_string(&victim).unwrap() == "untouched", "{into:?}");
    node.ok(&["cp", payload, &format!("{id}:/srv/top/tmp/one")]);
    node.ok(&["cp", payload, &format!("{id}:/srv/up/tmp/two")]);
    node.ok(&["cp", payload, &format!("{id}:/../../tmp/three")]);
    assert_eq!(node.ok(&["exec", &id, "sh", "-c", "cat /tmp/one /tmp/two /tmp/three"]), "from outside".repeat(3));

    // Out: a link is a link; what it names here is not read.
    let out = node.directory.path().join("out");
    node.ok(&["cp", &format!("{id}:/srv"), out.to_str().unwrap()]);
    assert_eq!(fs_err::read_link(out.join("l")).unwrap(), victim);
    // And a second copy does not go through the links of the first one.
    node.ok(&[
        "exec",
        &id,
        "sh",
        "-c",
        "rm /srv/l /srv/top; mkdir /srv/top; echo bad > /srv/l; echo bad > /srv/top/bad",
    ]);
    let again = node.dsec(&["cp", &format!("{id}:/srv/."), out.to_str().unwrap()]);
    assert!(!again.status.success(), "{again:?}");
    assert_eq!(fs_err::read_to_string(&victim).unwrap(), "untouched");
    assert!(!std::path::Path::new("/bad").exists());
}

#[test]
fn privileged_a_root_is_copied_under_another_name() {
    let node = Node::start();
    let id = node.create();
    node.ok(&["exec", &id, "sh", "-c", "mkdir /srv/deep; echo x > /srv/deep/file"]);
    let new = node.directory.path().join("new");
    let copied = node.json(&["cp", &format!("{id}:/"), new.to_str().unwrap()]);
    assert!(copied["entries"].as_u64().unwrap() > 5, "{copied}");
    assert_eq!(fs_err::read_to_string(new.join("srv/deep/file")).unwrap(), "x\n");
    // A root has no name to be copied under: into a directory that is there goes what is in it.
    let there = node.directory.path().join("there");
    fs_err::create_dir(&there).unwrap();
    node.ok(&["cp", &format!("{id}:/"), there.to_str().unwrap()]);
    assert_eq!(fs_err::read_to_string(there.join("srv/deep/file")).unwrap(), "x\n");
}

#[test]
fn privileged_what_cannot_be_copied_is_said() {
    let node = Node::start();
    let id = node.create();
    let failure = |arguments: &[&str]| {
        let output = node.dsec(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let target = node.directory.path().join("target");
    let target = target.to_str().unwrap();
    assert!(failure(&["cp", &format!("{id}:/no/such"), target]).contains("cannot open /no in the sandbox"));
    assert!(failure(&["cp", "/no/such", &format!("{id}:/srv")]).contains("/no"));
    let error = failure(&["cp", "/etc/hostname", &format!("{id}:/no/such/directory")]);
    assert!(error.contains("/no/such in the sandbox"), "{error}");
    node.ok(&["exec", &id, "mkfifo", "/srv/fifo"]);
    node.ok(&["exec", &id, "sh", "-c", r"mkdir /opt; touch $(printf '/opt/a\377b')"]);
    let error = failure(&["cp", &format!("{id}:/opt"), target]);
    assert!(error.contains(r"name a\xffb at /opt is not UTF-8"), "{error}");
    // Found when the answer has begun: the reason comes behind it.
    let error = failure(&["cp", &format!("{id}:/srv/fifo"), target]);
    assert!(error.contains("\"fifo\" of the archive is a fifo, which cannot be copied"), "{error}");
    let error = node.json(&["cp", &format!("{id}:/srv"), target]);
    assert_eq!((&error["error"]["kind"], &error["error"]["exit_code"]), (&"usage".into(), &2.into()), "{error}");
    assert!(failure(&["cp", "/etc/hostname", &format!("{id}:/srv/fifo")]).contains("/srv/fifo in the sandbox"));
    assert!(failure(&["cp", "/etc/hostname", "/tmp"]).contains("one side of cp is ID:PATH"));
    // A file may be of any size to the tenant's /proc; the copy ends.
    failure(&["cp", &format!("{id}:/proc/kcore"), target]);
}

/// A tar archive of one hard link.
fn hard_link(name: &str, target: &str) -> Vec<u8> {
    let mut archive = vec![0; 512 * 3];
    let fields: [(usize, &str); 9] = [
        (0, name),
        (100, "0000644"),
        (108, "0000000"),
        (116, "0000000"),
        (124, "00000000000"),
        (136, "00000000000"),
        (148, "        1"),
        (157, target),
        (257, "ustar\x0000"),
    ];
    for (at, text) in fields {
        archive[at..at + text.len()].copy_from_slice(text.as_bytes());
    }
    let sum: u32 = archive.iter().map(|byte| u32::from(*byte)).sum();
    archive[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive
}

#[test]
fn privileged_what_is_mounted_inside_is_closed_to_copies() {
    use std::io::{Read, Write};
    let node = Node::start();
    let id = node.create();
    let here = node.directory.path();
    for path in ["/proc/kmsg", "/proc/iomem", "/proc/1/maps", "/dev/null", "/sys/devices/system/cpu/online"] {
        let output = node.dsec(&["cp", &format!("{id}:{path}"), here.join("stolen").to_str().unwrap()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains("file system other than the root's"), "{path}: {error}");
    }
    // A hard link in an archive is a copy of what it names.
    for target in ["proc/kmsg", "proc/iomem", "dev/null"] {
        let archive = hard_link("log", target);
        let mut edge = std::os::unix::net::UnixStream::connect(node.socket()).unwrap();
        let head = format!("PUT /v1/sandboxes/{id}/files?path=/ HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n");
        write!(edge, "{head}content-length: {}\r\n\r\n", archive.len()).unwrap();
        edge.write_all(&archive).unwrap();
        let mut answer = String::new();
        edge.read_to_string(&mut answer).unwrap();
        assert!(!answer.starts_with("HTTP/1.1 200") && answer.contains("file system other than"), "{target}: {answer}");
    }
    node.ok(&["exec", &id, "sh", "-c", "test ! -s /log"]);
}
