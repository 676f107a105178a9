//! Reads that fail on real mounts: in time, told once and by name, and without a loss to other images. They need root and FUSE.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dsec_store::LocalStore;
use dsec_store::layout::Object;

use crate::daemon::Daemon;
use crate::{fixture, oddities};

const LATE: Duration = Duration::from_secs(3);

/// Two images of one large file each, and the packs of the first.
fn two_images(root: &Path) -> Vec<PathBuf> {
    let store = LocalStore::create(&root.join("store")).unwrap();
    let mut packs = Vec::new();
    for (seed, name) in [(1, "bad:1"), (2, "good:1")] {
        let tree = root.join(format!("tree-{seed}"));
        std::fs::create_dir_all(tree.join("usr/lib")).unwrap();
        std::fs::write(tree.join("usr/lib/data"), oddities::noise(seed, 2 << 20)).unwrap();
        let built = fixture::build(&store, &tree, name);
        let locations = dsec_store::Source::read_locations(&store, &built.layer, u64::MAX).unwrap();
        packs.push(locations.packs);
    }
    packs[0].iter().map(|pack| Object::pack(pack).path(&root.join("store"))).collect()
}

/// Reads a file that cannot be had, in time.
fn fails(path: &Path, deadline: Duration) {
    let start = Instant::now();
    let error = std::fs::read(path).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
    assert!(start.elapsed() < deadline + LATE, "{:?}", start.elapsed());
}

#[test]
fn privileged_a_read_that_fails_is_told_by_name_and_costs_no_other_image() {
    const DEADLINE: Duration = Duration::from_millis(1000);
    type Harm = fn(&Path);
    let harms: [(&str, Harm, &str); 3] = [
        (
            "corrupt pack",
            |pack| {
                let file = std::fs::OpenOptions::new().write(true).open(pack).unwrap();
                let bytes = file.metadata().unwrap().len();
                (0..bytes).step_by(1000).for_each(|at| file.write_all_at(b"rot", at).unwrap());
            },
            "has wrong bytes",
        ),
        ("missing chunk", |pack| std::fs::remove_file(pack).unwrap(), "not"),
        ("store that is away", |pack| std::fs::rename(pack.ancestors().nth(3).unwrap(), away(pack)).unwrap(), "not"),
    ];
    for (road, (what, harm, because)) in ["erofs", "fuse"].iter().flat_map(|road| harms.map(|harm| (road, harm))) {
        let root = tempfile::tempdir().unwrap();
        let packs = two_images(root.path());
        let mut daemon = Daemon::start(root.path(), &["--road", road, "--deadline-ms", "1000"]);
        let layer = |mounted: dsec_format::protocol::mountd::Mounted| PathBuf::from(&mounted.layers[0].path);
        let (bad, good) = (layer(daemon.mount("bad:1", "test")), layer(daemon.mount("good:1", "test")));
        let whole = what == "store that is away";
        if whole {
            std::fs::read(good.join("usr/lib/data")).unwrap();
            harm(&packs[0]);
        } else {
            packs.iter().for_each(|pack| harm(pack));
        }
        fails(&bad.join("usr/lib/data"), DEADLINE);
        fails(&bad.join("usr/lib/data"), DEADLINE);
        assert!(std::fs::read(good.join("usr/lib/data")).unwrap() == oddities::noise(2, 2 << 20), "{road}: {what}");
        let start = Instant::now();
        while !daemon.log().contains("a read failed") && start.elapsed() < LATE {
            std::thread::sleep(Duration::from_millis(10));
        }
        let log = daemon.log();
        let lines: Vec<_> = log.lines().filter(|line| line.contains("a read failed")).collect();
        let chunk = |line: &str| line.split("chunk").nth(1).unwrap_or_default().chars().take(90).collect::<String>();
        let chunks: std::collections::BTreeSet<_> = lines.iter().map(|line| chunk(line)).collect();
        assert!(!lines.is_empty() && chunks.len() == lines.len(), "{road}: {what}: one line a chunk: {log}");
        for part in ["bad:1", "/usr/lib/data", because, "pack"] {
            assert!(lines[0].contains(part), "{road}: {what}: {part} is not told: {}", lines[0]);
        }
        let status = daemon.status();
        let errors = |name: &str| status.images.iter().find(|image| image.spec.to_string() == name).unwrap().errors;
        assert!(errors("bad:1") > 0 && errors("good:1") == 0, "{road}: {what}");
        daemon.stop();
    }
}

fn away(pack: &Path) -> PathBuf {
    pack.ancestors().nth(4).unwrap().join("away")
}

#[test]
fn privileged_who_is_inside_when_the_daemon_is_killed_gets_an_error_for_ever_and_never_waits() {
    use rustix::io::Errno;
    for (road, errors) in [("erofs", &[Errno::IO][..]), ("fuse", &[Errno::IO, Errno::NOTCONN])] {
        let root = tempfile::tempdir().unwrap();
        two_images(root.path());
        let mut daemon = Daemon::start(root.path(), &["--road", road]);
        let mounted = daemon.mount("good:1", "test");
        let path = Path::new(&mounted.layers[0].path).join("usr/lib/data");
        let inside = std::fs::File::open(&path).unwrap();
        let mut buffer = [0; 4096];
        inside.read_exact_at(&mut buffer, 0).unwrap();
        daemon.kill();
        let mut ask = |offset: u64| {
            let start = Instant::now();
            let errno = Errno::from_io_error(&inside.read_exact_at(&mut buffer, offset).unwrap_err()).unwrap();
            assert!(errors.contains(&errno) && start.elapsed() < LATE, "{road}: {errno} after {:?}", start.elapsed());
        };
        ask(2 << 19);
        daemon.restart();
        assert!(daemon.log().contains("detached what an earlier daemon left mounted"), "{road}: {}", daemon.log());
        daemon.mount("good:1", "test");
        ask(3 << 19);
        // Who comes anew has everything.
        assert!(std::fs::read(&path).unwrap() == oddities::noise(2, 2 << 20), "{road}");
        daemon.stop();
    }
}
