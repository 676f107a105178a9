//! Real mounts: both roads show the same tree, holders, restarts. They need root and FUSE.

use std::path::Path;

use dsec_format::protocol::mountd::Road;
use dsec_store::LocalStore;

use crate::daemon::Daemon;
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
    assert_eq!(status.images[0].data_bytes, status.images[0].local_bytes, "all was read, so all is local");
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
