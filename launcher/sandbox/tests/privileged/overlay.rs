//! The root: layers, whiteouts, what the upper holds.

use super::support::*;
use dsec_sandbox::Ended;
use std::os::unix::fs::FileTypeExt;

#[test]
fn privileged_later_layers_cover_earlier_ones() {
    let directory = tempfile::tempdir().unwrap();
    let layers = ["workspace", "toolkit"].map(|name| directory.path().join(name));
    for (layer, text) in layers.iter().zip(["workspace", "toolkit"]) {
        fs_err::create_dir_all(layer.join("opt")).unwrap();
        fs_err::write(layer.join("opt").join(text), text).unwrap();
        fs_err::write(layer.join("opt/who"), text).unwrap();
    }
    let sandbox = create_with(|spec| spec.layers.extend(layers));
    assert_eq!(sh(&sandbox, "cat /opt/who; ls /opt").replace('\n', " "), "toolkittoolkit who workspace ");
}

#[test]
fn privileged_deleting_and_replacing_what_layers_hold() {
    let sandbox = create();
    let base_before = fs_err::read_dir(base().join("home")).unwrap().count();
    sh(
        &sandbox,
        "rm /etc/original && ! test -e /etc/original && rm -r /home && mkdir /home && ls -A /home | wc -l | grep -q '^0$'",
    );
    let upper = sandbox.upper();
    let whiteout = rustix::fs::stat(upper.join("etc/original")).unwrap();
    assert_eq!(whiteout.st_rdev, 0);
    assert!(fs_err::metadata(upper.join("etc/original")).unwrap().file_type().is_char_device());
    let mut opaque = [0; 8];
    let count = rustix::fs::getxattr(upper.join("home"), "trusted.overlay.opaque", &mut opaque).unwrap();
    assert_eq!(&opaque[..count], b"y");
    assert_eq!(fs_err::read_dir(base().join("home")).unwrap().count(), base_before);
    // And again on top of what was deleted.
    sh(&sandbox, "echo new >/etc/original; mkdir -p /home/x; mv /etc/original /home/x/; cat /home/x/original");
}

#[test]
fn privileged_a_directory_of_a_layer_can_be_renamed() {
    let sandbox = create();
    // busybox mv would copy if rename did not work, so perl asks the kernel alone.
    let perl = "rename('/home', '/elsewhere') or die $!; rename('/elsewhere/ann', '/ann') or die $!";
    assert_eq!(run(&sandbox, &["/usr/bin/perl", "-e", perl]).stderr, "");
    assert_eq!(sh(&sandbox, "ls -d /ann /elsewhere; ls /home 2>/dev/null | wc -l").trim(), "/ann\n/elsewhere\n0");
    let mut redirect = [0; 64];
    let count = rustix::fs::getxattr(sandbox.upper().join("elsewhere"), "trusted.overlay.redirect", &mut redirect);
    assert!(count.unwrap() > 0);
    // The tenant cannot leave such a mark by itself.
    let forged = "($p, $n, $v) = ('/root', 'trusted.overlay.redirect', '/etc'); \
                  print syscall(188, $p, $n, $v, 4, 0), ' ', $!+0";
    assert_eq!(run(&sandbox, &["/usr/bin/perl", "-e", forged]).stdout, "-1 1");
}

#[test]
fn privileged_owners_modes_and_links_inside() {
    let sandbox = create();
    sh(
        &sandbox,
        "chown ann:extra /etc/passwd && chmod 640 /etc/passwd && ln /etc/passwd /etc/passwd2 && ln -s x /etc/l",
    );
    assert_eq!(sh(&sandbox, "stat -c '%u %g %a %h' /etc/passwd").trim(), "1000 44 640 2");
    let stat = rustix::fs::stat(sandbox.upper().join("etc/passwd")).unwrap();
    assert_eq!((stat.st_uid, stat.st_gid, stat.st_mode & 0o7777), (1000, 44, 0o640));
    assert_ne!(run(&sandbox, &["chown", "70000", "/etc/passwd"]).outcome.ended, Ended::Exited(0));
}

#[test]
fn privileged_platform_files_can_be_replaced_and_never_reach_the_upper_unasked() {
    let sandbox = create();
    assert_eq!(fs_err::read_dir(sandbox.upper()).unwrap().count(), 0);
    sh(&sandbox, "sed -i s/localhost/elsewhere/ /etc/hosts && mv /etc/hostname /etc/was && rm /etc/resolv.conf");
    assert!(sh(&sandbox, "cat /etc/hosts /etc/was").contains("elsewhere"));
}

#[test]
fn privileged_the_root_is_what_the_topmost_layer_says() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    rustix::fs::setxattr(directory.path(), "user.note", b"kept", rustix::fs::XattrFlags::CREATE).unwrap();
    rustix::fs::setxattr(directory.path(), "trusted.overlay.opaque", b"y", rustix::fs::XattrFlags::CREATE).unwrap();
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o751);
    fs_err::set_permissions(directory.path(), mode).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    fs_err::File::open(directory.path()).unwrap().into_file().set_modified(time).unwrap();
    let sandbox = create_with(|spec| spec.layers.push(directory.path().to_owned()));
    assert_eq!(sh(&sandbox, "stat -c '%a %u %Y' /").trim(), "751 0 1000000000");
    // What a diff reads: nothing was changed, so nothing differs.
    let upper = fs_err::metadata(sandbox.upper()).unwrap();
    assert_eq!(upper.modified().unwrap(), time);
    let mut note = [0; 8];
    assert_eq!(rustix::fs::getxattr(sandbox.upper(), "user.note", &mut note), Ok(4));
    assert!(rustix::fs::getxattr(sandbox.upper(), "trusted.overlay.opaque", &mut note).is_err());
}

#[test]
fn privileged_a_layer_that_cannot_be_mapped_is_named() {
    // overlayfs itself takes no identity map.
    let directory = tempfile::tempdir().unwrap();
    for name in ["a", "b", "merged"] {
        fs_err::create_dir(directory.path().join(name)).unwrap();
    }
    let merged = directory.path().join("merged");
    let lower = format!("{}:{}", directory.path().join("a").display(), directory.path().join("b").display());
    let status = std::process::Command::new("mount")
        .args(["-t", "overlay", "-o", &format!("lowerdir={lower}"), "overlay"])
        .arg(&merged)
        .status()
        .unwrap();
    assert!(status.success());
    let home = tempfile::tempdir().unwrap();
    let mut spec = spec_in(home.path());
    spec.layers.push(merged.clone());
    let error = runtime().create(&spec).unwrap_err();
    let unmounted = std::process::Command::new("umount").arg(&merged).status().unwrap();
    assert!(unmounted.success());
    let text = chain(&error);
    assert!(matches!(error, dsec_sandbox::Error::Root(dsec_sandbox::RootError::Map { .. })), "{text}");
    assert!(text.contains("merged"), "{text}");
}
