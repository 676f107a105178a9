//! Real mounts: both roads show the same tree, holders, restarts. They need root and FUSE.

use std::path::Path;

use dsec_format::protocol::mountd::Road;
use dsec_store::LocalStore;

use crate::daemon::Daemon;
use crate::tmpfs::Tmpfs;
use crate::{fixture, oddities};

/// A tree with one of everything, and an image of it in the store of a daemon's directory.
fn odd_tree(root: &Path) -> fixture::Built {
    let tree = root.join("tree");
    std::fs::create_dir(&tree).unwrap();
    oddities::create(&tree);
    let store = LocalStore::create(&root.join("store")).unwrap();
    fixture::build(&store, &tree, "odd:1")
}

fn same_tree(want: &Path, have: &Path) {
    let (want, have) = (oddities::describe(want), oddities::describe(have));
    for (name, text) in &want {
        assert_eq!(Some(text), have.get(name), "{name}");
    }
    assert_eq!(want.len(), have.len());
}

#[test]
fn privileged_the_erofs_road_shows_the_tree_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    odd_tree(root.path());
    let mut daemon = Daemon::start(root.path(), &["--road", "erofs"]);
    let mounted = daemon.mount("odd:1", "test");
    assert_eq!(mounted.road, Road::Erofs);
    same_tree(&root.path().join("tree"), Path::new(&mounted.layers[0].path));
    let status = daemon.status();
    assert!(status.images[0].local_bytes > 0);
    assert_eq!(status.fetch.errors + status.fetch.corrupt + status.cache.damaged, 0);
    daemon.stop();
    assert_eq!(daemon.mounts(), Vec::<String>::new(), "nothing stays mounted");
}

#[test]
fn privileged_a_layer_is_mounted_once_and_for_as_long_as_someone_holds_it() {
    let root = tempfile::tempdir().unwrap();
    let built = odd_tree(root.path());
    let mut daemon = Daemon::start(root.path(), &["--linger-ms", "0"]);
    let first = daemon.mount("odd:1", "first");
    let again = daemon.mount(&built.image.to_string(), "first");
    let second = daemon.mount("odd:1", "second");
    assert_eq!((&first.layers, &first.image), (&again.layers, &built.image));
    assert_eq!(first.layers, second.layers);
    assert_eq!(first.layers[0].digest, built.layer);
    assert_eq!(daemon.status().images[0].holders, ["first", "second"]);
    let layers = |daemon: &Daemon| daemon.mounts().iter().filter(|mount| mount.contains("/layers/")).count();
    assert_eq!(layers(&daemon), 1);
    daemon.release("first");
    daemon.release("nobody");
    assert_eq!(layers(&daemon), 1, "the second one still holds it");
    daemon.release("second");
    assert_eq!((layers(&daemon), daemon.status().images.len()), (0, 0));
    daemon.stop();
}

#[test]
fn privileged_who_is_inside_when_a_layer_is_unmounted_goes_on_reading() {
    let root = tempfile::tempdir().unwrap();
    odd_tree(root.path());
    let mut daemon = Daemon::start(root.path(), &["--linger-ms", "0"]);
    let mounted = daemon.mount("odd:1", "test");
    let file = std::fs::File::open(Path::new(&mounted.layers[0].path).join("large")).unwrap();
    daemon.release("test");
    assert!(!Path::new(&mounted.layers[0].path).join("large").exists(), "it is unmounted");
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut &file, &mut bytes).unwrap();
    assert!(bytes == std::fs::read(root.path().join("tree/large")).unwrap(), "the bytes are those of the tree");
    // And whoever comes next gets it again.
    let again = daemon.mount("odd:1", "test");
    same_tree(&root.path().join("tree"), Path::new(&again.layers[0].path));
    drop(file);
    daemon.stop();
}

#[test]
fn privileged_a_killed_daemon_leaves_nothing_that_the_next_one_does_not_clean() {
    let root = tempfile::tempdir().unwrap();
    let built = odd_tree(root.path());
    let mut daemon = Daemon::start(root.path(), &[]);
    let mounted = daemon.mount("odd:1", "test");
    let inode = |mounted: &dsec_format::protocol::mountd::Mounted| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(Path::new(&mounted.layers[0].path).join("large")).unwrap().ino()
    };
    let before = inode(&mounted);
    same_tree(&root.path().join("tree"), Path::new(&mounted.layers[0].path));
    // A reader gets its bytes before they are written to the cache.
    let start = std::time::Instant::now();
    while daemon.status().images[0].local_bytes < daemon.status().images[0].data_bytes {
        assert!(start.elapsed().as_secs() < 10, "what was read never becomes local");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    daemon.kill();
    assert_eq!(daemon.mounts().len(), 2);
    daemon.restart();
    assert_eq!(daemon.mounts().len(), 1, "only the new session is mounted");
    let mounted = daemon.mount("odd:1", "test");
    same_tree(&root.path().join("tree"), Path::new(&mounted.layers[0].path));
    assert_eq!(inode(&mounted), before, "inode numbers are stable across restarts");
    let status = daemon.status();
    assert_eq!(status.fetch.requests, 0, "what was cached before is cached now, {} frames", built.frames);
    assert!(built.device.len() as u64 >= status.images[0].data_bytes);
    daemon.stop();
}

#[test]
fn privileged_where_the_kernel_mounts_no_erofs_the_road_is_fuse_without_being_asked_for() {
    let disk = Tmpfs::new(c"size=64m");
    odd_tree(disk.path());
    let mut daemon = Daemon::start(disk.path(), &[]);
    let mounted = daemon.mount("odd:1", "test");
    assert_eq!(mounted.road, Road::Fuse);
    same_tree(&disk.path().join("tree"), Path::new(&mounted.layers[0].path));
    assert!(daemon.client().status().unwrap().road_reason.contains("EROFS from files"), "{}", daemon.log());
    daemon.release("test");
    daemon.stop();
    let forced = daemon.command().args(["--road", "erofs"]).output().unwrap();
    let said = String::from_utf8(forced.stderr).unwrap();
    assert!(!forced.status.success() && said.contains("the erofs road does not work here"), "{said}");
}

#[test]
fn privileged_the_fuse_road_shows_the_tree_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    odd_tree(root.path());
    let mut daemon = Daemon::start(root.path(), &["--road", "fuse"]);
    let mounted = daemon.mount("odd:1", "test");
    assert_eq!(mounted.road, Road::Fuse);
    let path = Path::new(&mounted.layers[0].path);
    same_tree(&root.path().join("tree"), path);
    same_tree(&root.path().join("tree"), path);
    assert!(!path.join("absent").exists());
    daemon.release("test");
    daemon.stop();
    assert_eq!(daemon.mounts(), Vec::<String>::new(), "nothing stays mounted");
}

#[test]
fn privileged_without_its_source_a_mount_reads_what_is_cached_and_fails_the_rest_in_time() {
    for road in ["erofs", "fuse"] {
        let root = tempfile::tempdir().unwrap();
        odd_tree(root.path());
        let options = ["--road", road, "--deadline-ms", "1000"];
        let mut daemon = Daemon::start(root.path(), &options);
        let image = daemon.mount("odd:1", "test").image;
        let path = root.path().join("run/layers");
        let layer = std::fs::read_dir(path).unwrap().next().unwrap().unwrap().path();
        let small = std::fs::read(layer.join("small")).unwrap();
        let start = std::time::Instant::now();
        while daemon.status().cache.chunks == 0 {
            assert!(start.elapsed().as_secs() < 10, "what was read never becomes local");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        daemon.stop();
        // The store goes away, the daemon starts all the same, and mounts what it knows by its digest.
        std::fs::rename(root.path().join("store"), root.path().join("elsewhere")).unwrap();
        daemon.restart();
        daemon.mount(&image.to_string(), "test");
        assert_eq!(std::fs::read(layer.join("small")).unwrap(), small, "{road}: what is cached works");
        let start = std::time::Instant::now();
        let error = std::fs::read(layer.join("large")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{road}");
        assert!(start.elapsed().as_secs() < 10, "{road}: {:?}", start.elapsed());
        assert!(daemon.status().fetch.errors > 0 && daemon.status().images[0].errors > 0);
        // And when the store is back, so is the file.
        std::fs::rename(root.path().join("elsewhere"), root.path().join("store")).unwrap();
        let want = std::fs::read(root.path().join("tree/large")).unwrap();
        assert!(std::fs::read(layer.join("large")).unwrap() == want, "{road}");
        daemon.stop();
    }
}

#[test]
fn privileged_a_second_daemon_is_told_so_and_the_first_goes_on() {
    let root = tempfile::tempdir().unwrap();
    odd_tree(root.path());
    let mut daemon = Daemon::start(root.path(), &[]);
    let output = daemon.command().stderr(std::process::Stdio::piped()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(9), "{text}");
    assert_eq!(text.matches("error: ").count(), 1, "{text}");
    daemon.mount("odd:1", "test");
    daemon.stop();
}

#[test]
fn privileged_set_id_and_devices_work_in_an_overlay_and_nowhere_on_the_node() {
    use rustix::fs::{CWD, FileType, Mode};
    use rustix::mount::UnmountFlags;
    let root = tempfile::tempdir().unwrap();
    let tree = root.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::copy("/usr/bin/id", tree.join("id")).unwrap();
    rustix::fs::chmod(tree.join("id"), Mode::from(0o4755)).unwrap();
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(CWD, tree.join("null"), FileType::CharacterDevice, Mode::from(0o666), null).unwrap();
    rustix::fs::chmod(root.path(), Mode::from(0o755)).unwrap();
    let store = LocalStore::create(&root.path().join("store")).unwrap();
    fixture::build(&store, &tree, "set-id:1");
    let who = |directory: &Path| {
        // Through a descriptor: the way there is closed to the user.
        let directory = std::fs::File::open(directory).unwrap();
        let program = format!("/proc/self/fd/{}/id", std::os::fd::AsRawFd::as_raw_fd(&directory));
        let command = ["--reuid=65534", "--regid=65534", "--clear-groups", &program, "-u"];
        rustix::io::fcntl_setfd(&directory, rustix::io::FdFlags::empty()).unwrap();
        let output = std::process::Command::new("setpriv").args(command).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let opens = |directory: &Path| std::fs::File::open(directory.join("null")).is_ok();
    for road in ["erofs", "fuse"] {
        let mut daemon = Daemon::start(root.path(), &["--road", road]);
        let mounted = daemon.mount("set-id:1", "test");
        let layer = Path::new(&mounted.layers[0].path);
        assert_eq!((who(layer).as_str(), opens(layer)), ("65534", false), "{road}: a layer on the node is inert");
        let clone = dsec_sys::mount::clone_at(CWD, &std::ffi::CString::new(layer.to_str().unwrap()).unwrap()).unwrap();
        let overlay = overlay_of(&clone, root.path());
        let union = root.path().join("union");
        std::fs::create_dir_all(&union).unwrap();
        let flags = rustix::mount::MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&overlay, "", CWD, &union, flags).unwrap();
        let found = (who(&union), opens(&union));
        rustix::mount::unmount(&union, UnmountFlags::DETACH).unwrap();
        assert_eq!(found, ("0".to_owned(), true), "{road}: a sandbox's overlay decides for itself");
        drop((overlay, clone));
        daemon.stop();
    }
}

/// An overlay as a sandbox has it: one lower, given as a detached mount, and an upper.
fn overlay_of(lower: &std::os::fd::OwnedFd, root: &Path) -> std::os::fd::OwnedFd {
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_fd, fsconfig_set_string, fsmount,
        fsopen,
    };
    let own = tempfile::tempdir_in(root).unwrap().keep();
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    fsconfig_set_fd(&context, "lowerdir+", std::os::fd::AsFd::as_fd(lower)).unwrap();
    for name in ["upperdir", "workdir"] {
        std::fs::create_dir(own.join(name)).unwrap();
        fsconfig_set_string(&context, name, own.join(name)).unwrap();
    }
    fsconfig_create(&context).unwrap();
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap()
}

#[test]
fn privileged_no_other_user_reaches_what_the_daemon_keeps() {
    use rustix::fs::Mode;
    use std::os::unix::fs::MetadataExt;
    let root = tempfile::tempdir().unwrap();
    odd_tree(root.path());
    let cache = root.path().join("cache");
    let mut daemon = Daemon::start(root.path(), &[]);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&daemon.run()), mode(&cache)), (0o700, 0o700));
    daemon.stop();
    // A cache that was open to others is closed; a run directory may be anything, and is refused.
    rustix::fs::chmod(&cache, Mode::from(0o755)).unwrap();
    daemon.restart();
    assert_eq!(mode(&cache), 0o700);
    daemon.stop();
    rustix::fs::chmod(daemon.run(), Mode::from(0o755)).unwrap();
    let refused = |daemon: &Daemon| {
        let output = daemon.command().stderr(std::process::Stdio::piped()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = refused(&daemon);
    assert!(code == Some(7) && text.contains("run directory"), "{code:?} {text}");
    rustix::fs::chmod(daemon.run(), Mode::from(0o700)).unwrap();
    let other = Some(rustix::fs::Uid::from_raw(65_534));
    rustix::fs::chown(daemon.run(), other, None).unwrap();
    assert_eq!(refused(&daemon).0, Some(7));
    rustix::fs::chown(daemon.run(), Some(rustix::fs::Uid::ROOT), None).unwrap();
    rustix::fs::chown(&cache, other, None).unwrap();
    let (code, text) = refused(&daemon);
    assert!(code == Some(7) && text.contains("belongs to user 65534"), "{code:?} {text}");
}

#[test]
fn privileged_mounts_of_a_layer_can_map_its_ids() {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    let root = tempfile::tempdir().unwrap();
    odd_tree(root.path());
    let mut user = std::process::Command::new("unshare").args(["--user", "sleep", "60"]).spawn().unwrap();
    let process = format!("/proc/{}", user.id());
    let ours = std::fs::read_link("/proc/self/ns/user").unwrap();
    let start = std::time::Instant::now();
    while std::fs::read_link(format!("{process}/ns/user")).unwrap() == ours {
        assert!(start.elapsed().as_secs() < 10, "no user namespace");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    for map in ["uid_map", "gid_map"] {
        std::fs::write(format!("{process}/{map}"), "0 100000 65536\n").unwrap();
    }
    let namespace = std::fs::File::open(format!("{process}/ns/user")).unwrap();
    for road in ["erofs", "fuse"] {
        let mut daemon = Daemon::start(root.path(), &["--road", road]);
        let mounted = daemon.mount("odd:1", "test");
        let path = std::ffi::CString::new(mounted.layers[0].path.clone()).unwrap();
        let mount = dsec_sys::mount::clone_at(rustix::fs::CWD, &path).unwrap();
        let none = rustix::mount::MountAttrFlags::empty();
        dsec_sys::mount::map_ids(&mount, &namespace, none).unwrap_or_else(|error| panic!("{road}: {error}"));
        let seen = format!("/proc/self/fd/{}/small", mount.as_raw_fd());
        assert_eq!(std::fs::metadata(&seen).unwrap().uid(), 101_000, "{road}");
        assert_eq!(std::fs::read(&seen).unwrap(), b"small", "{road}");
        drop(mount);
        daemon.stop();
    }
    user.kill().unwrap();
    user.wait().unwrap();
}

#[test]
fn privileged_with_json_every_request_prints_what_it_did() {
    let root = tempfile::tempdir().unwrap();
    let built = odd_tree(root.path());
    let mut daemon = Daemon::start(root.path(), &[]);
    let json = |arguments: &[&str]| -> (Option<i32>, serde_json::Value) {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dsec-mountd"));
        let done = command.arg("--json").args(arguments).env("DSEC_MOUNTD", daemon.socket()).output().unwrap();
        assert!(done.stderr.is_empty(), "{arguments:?}: {done:?}");
        (done.status.code(), serde_json::from_slice(&done.stdout).unwrap())
    };
    let (code, mounted) = json(&["mount", "odd:1", "--holder", "me"]);
    assert_eq!((code, mounted["image"].as_str()), (Some(0), Some(built.image.to_string().as_str())));
    assert_eq!(json(&["release", "--holder", "me"]), (Some(0), serde_json::json!({ "released": "me" })));
    assert_eq!(json(&["status"]).1["images"], serde_json::json!([]));
    let (code, error) = json(&["mount", "absent:1", "--holder", "me"]);
    assert_eq!(
        (code, &error["error"]["kind"], &error["error"]["causes"]),
        (Some(3), &"not_found".into(), &serde_json::json!([]))
    );
    assert!(error["error"]["hint"].as_str().unwrap().contains("dsec-pack ls"), "{error}");
    daemon.stop();
}

#[test]
fn privileged_copies_of_sparse_files_are_the_same_by_both_roads() {
    use std::os::unix::fs::MetadataExt;
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("tree/sparse");
    odd_tree(root.path());
    let sh = |directory: &Path, script: &str| {
        let output = std::process::Command::new("sh").args(["-ec", script]).current_dir(directory).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        blake3::hash(&output.stdout)
    };
    let mut seen = Vec::new();
    for road in ["erofs", "fuse"] {
        let mut daemon = Daemon::start(root.path(), &["--road", road]);
        let mounted = daemon.mount("odd:1", "test");
        let layer = Path::new(&mounted.layers[0].path);
        let copies = root.path().join(road);
        std::fs::create_dir(&copies).unwrap();
        let mut found =
            vec![(oddities::data(&layer.join("sparse")), std::fs::metadata(layer.join("sparse")).unwrap().blocks())];
        for how in ["auto", "always", "never"] {
            let copy = copies.join(how);
            sh(layer, &format!("cp --sparse={how} sparse {}", copy.display()));
            assert!(std::fs::read(&copy).unwrap() == std::fs::read(&source).unwrap(), "{road} {how}");
            found.push((oddities::data(&copy), std::fs::metadata(&copy).unwrap().blocks()));
        }
        let archives =
            ["-S", "-S --hole-detection=raw", ""].map(|how| sh(layer, &format!("tar -c {how} sparse text small")));
        seen.push((found, archives));
        daemon.stop();
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0].0[0].0, oddities::data(&source), "the holes are those of the source");
    assert_eq!(seen[0].0[2].0, oddities::data(&source), "and those of a copy that looks for them");
}
