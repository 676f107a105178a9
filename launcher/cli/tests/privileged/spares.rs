//! Sandboxes made ahead: nobody can tell, nothing is left of them, and none is given where it would be wrong.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use hyper::Method;

use super::support::{Node, RANGES, eventually, http_json, make_base, runtime};

/// Everything of a sandbox that a tenant can look at and that should not depend on when it was made: mounts, ids, limits,
/// privileges, names, owners, modes and times of files that the image has, devices, processes. Left out is what no two
/// sandboxes have in common: numbers of mounts, file systems and inodes, and the host's number of a group of its range.
const LOOK: &str = "
sed 's/gid=[0-9]*/gid=RANGE/' /proc/mounts | sort
cut -d' ' -f4- /proc/self/mountinfo | sed 's/gid=[0-9]*/gid=RANGE/' | sort
cat /proc/self/limits /proc/self/cgroup /proc/1/cgroup /etc/hosts /etc/hostname /etc/resolv.conf
grep -E '^(Cap|Seccomp|NoNewPrivs|Uid|Gid|Groups|Sig|Cpus_allowed_list)' /proc/self/status /proc/1/status
cut -d' ' -f2-8,18,19 /proc/1/stat; cat /proc/1/oom_score_adj /proc/self/oom_score_adj
env | sort; id; hostname; pwd; umask; nproc; echo $$; ls /proc | grep '^[0-9]'; ls -l /proc/self/fd | wc -l
awk '{ print $1, $3 }' /proc/self/uid_map /proc/self/gid_map
stat -c '%n %a %u %g %h %s %Y' / /etc /tmp /root /srv /bin /etc/passwd; stat -c '%n %a %u %g %s %t %T' /etc/h* /dev/*
ls -a / /etc /tmp /dev /proc/sys/net /sys /sys/fs/cgroup; df -k / /dev/shm /tmp | awk '{ print $1, $2, $6 }' | grep -v overlay
cat /proc/net/dev /proc/net/unix /proc/sys/net/ipv4/ip_unprivileged_port_start; ls /proc/self/task";

/// A tmpfs over a directory, for as long as this lives.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn over(directory: &Path, options: &str) -> Self {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(directory).status();
        assert!(mount.unwrap().success());
        Self(directory.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(std::thread::panicking() || unmounted.unwrap().success());
    }
}

fn spares(node: &Node) -> u64 {
    let health = runtime().block_on(http_json(&node.socket(), Method::GET, "/v1/health", Vec::new()));
    health.1["spares"].as_u64().unwrap()
}

/// Sandboxes that have files here, spares and those that are being removed among them.
fn on_disk(node: &Node) -> BTreeSet<String> {
    let entries = fs_err::read_dir(node.directory.path().join("edge/sandboxes")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Waits until there are so many spares and nothing else is going on; their ids.
fn settled(node: &Node, count: u64) -> BTreeSet<String> {
    let all = || on_disk(node).len() as u64 == count + node.ids().len() as u64;
    eventually("there are as many spares as wanted", || spares(node) == count && all());
    on_disk(node).difference(&node.ids()).cloned().collect()
}

#[test]
fn privileged_a_spare_is_made_where_one_was_asked_for_and_is_as_a_fresh_sandbox() {
    let node = Node::with_spares(4);
    assert_eq!(spares(&node), 0);
    let look = |arguments: &[&str]| {
        let id = node.ok(&[&["create"], arguments, &["base"]].concat()).trim().to_owned();
        let text = node.ok(&["exec", &id, "--", "sh", "-c", LOOK]);
        assert!(text.contains(&id), "{text}");
        (text.replace(&id, "ID"), id)
    };
    let (fresh, first) = look(&["-e", "MINE=1"]);
    let ahead = settled(&node, 1);
    assert!(!ahead.contains(&first) && node.ids().len() == 1, "{ahead:?}");
    let doctor = node.json(&["doctor"]);
    assert_eq!((&doctor["edge"]["spares"], &doctor["edge"]["sandboxes"]), (&1.into(), &1.into()), "{doctor}");
    let (staged, second) = look(&["-e", "MINE=1"]);
    assert!(ahead.contains(&second), "{second} was not made ahead");
    assert_eq!(fresh, staged);
    assert!(staged.contains("MINE=1") && staged.contains("FROM_IMAGE=yes"));
    // Whoever asks for more than the common gets it, and no spare.
    let ahead = settled(&node, 2);
    assert_eq!(node.ok(&["run", "--hostname", "box", "base", "hostname"]), "box\n");
    let shm = ["run", "--memory", "64M", "base", "--", "sh", "-c", "df -k /dev/shm | awk 'NR == 2 { print $2 }'"];
    assert_eq!(node.ok(&shm), "65536\n");
    assert!(on_disk(&node).is_superset(&ahead));
    // A run takes one as well.
    let report = node.json(&["run", "-e", "LATE=2", "base", "--", "sh", "-c", "echo $LATE $MINE $OVER"]);
    assert!(ahead.contains(report["sandbox"].as_str().unwrap()), "{report}");
    assert_eq!(report["stdout"], "2 image\n");
}

#[test]
fn privileged_what_a_spare_became_survives_and_its_key_is_kept() {
    let mut node = Node::with_spares(2);
    node.ok(&["run", "base", "true"]);
    let ahead = settled(&node, 1);
    let create = ["create", "--key", "k", "--label", "a=b", "-e", "MINE=1", "base"];
    let id = node.ok(&create).trim().to_owned();
    assert!(ahead.contains(&id));
    let other = node.dsec(&["create", "--key", "k", "base"]);
    assert!(!other.status.success(), "{other:?}");
    node.kill_edge();
    node.start_edge();
    assert_eq!(node.ids(), BTreeSet::from([id.clone()]));
    assert_eq!(on_disk(&node), node.ids(), "spares of a dead edge are gone");
    assert_eq!(node.ok(&["exec", &id, "sh", "-c", "echo $MINE $FROM_IMAGE"]), "1 yes\n");
    assert_eq!(
        (node.ok(&create).trim(), node.json(&["ps"])["sandboxes"][0]["labels"]["a"].as_str()),
        (id.as_str(), Some("b"))
    );
}

#[test]
fn privileged_a_ref_that_moved_gives_the_new_image() {
    let node = Node::with_spares(8);
    let show = "cat /etc/version; awk '$2 == \"/\"' /proc/mounts | wc -l; hostname";
    node.ok(&["run", "base", "true"]);
    let mut ahead = settled(&node, 1);
    let mut asked = 1;
    for (version, create) in [("2", false), ("3", true), ("4", false)] {
        let next = node.directory.path().join(format!("base-{version}"));
        make_base(&next);
        fs_err::write(next.join("etc/version"), format!("{version}\n")).unwrap();
        node.mountd.move_refs(next);
        let id = match create {
            true => {
                let id = node.ok(&["create", "base"]).trim().to_owned();
                assert_eq!(node.ok(&["exec", &id, "sh", "-c", show]), format!("{version}\n1\n{id}\n"));
                node.ok(&["rm", &id]);
                id
            }
            false => {
                let report = node.json(&["run", "base", "--", "sh", "-c", show]);
                let id = report["sandbox"].as_str().unwrap().to_owned();
                assert_eq!(report["stdout"], format!("{version}\n1\n{id}\n"));
                id
            }
        };
        assert!(ahead.contains(&id), "it has the id of a spare that did not fit");
        asked += 1;
        ahead = settled(&node, asked);
        let report = node.json(&["run", "base", "--", "cat", "/etc/version"]);
        assert_eq!(report["stdout"], format!("{version}\n"));
        assert!(ahead.contains(report["sandbox"].as_str().unwrap()), "spares are of the new image");
        asked += 1;
        ahead = settled(&node, asked);
    }
}

#[test]
fn privileged_a_spare_on_mounts_of_a_daemon_that_is_gone_is_not_given() {
    let node = Node::with_spares(1);
    node.ok(&["run", "base", "true"]);
    let ahead = settled(&node, 1);
    // As after a restart of the daemon: the same layer, on a new mount.
    let layer = node.directory.path().join("base");
    let anew = Tmpfs::over(&layer, "mode=0755");
    make_base(&layer);
    fs_err::write(layer.join("etc/version"), "mounted anew\n").unwrap();
    let report = node.json(&["run", "base", "--", "cat", "/etc/version"]);
    drop(anew);
    assert_eq!(report["stdout"], "mounted anew\n");
    assert!(ahead.contains(report["sandbox"].as_str().unwrap()), "{report}");
}

#[test]
fn privileged_spares_are_in_nobodys_way() {
    let mut node = Node::with_spares(8);
    (0..8).for_each(|_| drop(node.ok(&["run", "base", "true"])));
    settled(&node, 8);
    // Every range of ids can be had, for any environment.
    let mut ids = BTreeSet::new();
    for number in 0..RANGES {
        let memory = format!("{}M", 64 + number % 2);
        ids.insert(node.ok(&["create", "--memory", &memory, "base"]).trim().to_owned());
    }
    assert_eq!((ids.len(), &node.ids()), (RANGES as usize, &ids));
    let one_more = node.dsec(&["create", "base"]);
    assert!(String::from_utf8_lossy(&one_more.stderr).contains("id ranges are in use"), "{one_more:?}");
    for id in &ids {
        assert_eq!(node.ok(&["exec", id, "hostname"]).trim(), id);
    }
    node.ok(&["rm", "--all"]);
    eventually("spares come back", || spares(&node) > 0);
    node.stop_edge();
    assert_eq!(node.remains(), Vec::<String>::new(), "after an orderly stop");
}

#[test]
fn privileged_a_killed_edge_leaves_its_spares_to_the_next_and_that_removes_them() {
    let mut node = Node::with_spares(4);
    (0..4).for_each(|_| drop(node.ok(&["run", "base", "true"])));
    settled(&node, 4);
    node.kill_edge();
    assert!(!node.remains().is_empty());
    node.start_edge();
    assert_eq!((on_disk(&node), spares(&node)), (BTreeSet::new(), 0));
    node.nothing_remains();
}

#[test]
fn privileged_a_request_that_is_refused_costs_nobody_a_spare() {
    let node = Node::with_spares(4);
    for verb in ["create", "run"] {
        for _ in 0..3 {
            let refused = node.dsec(&[verb, "--memory", "1", "base"]);
            assert!(matches!(refused.status.code(), Some(2 | 125)), "{refused:?}");
        }
    }
    node.ok(&["run", "base", "true"]);
    settled(&node, 1);
    assert!(!node.log().contains("a spare could not be made"), "{}", node.log());
}

#[test]
fn privileged_a_full_disk_makes_no_spares_and_leaves_nothing() {
    let mut node = Node::without_edge(4);
    let disk = node.directory.path().join("edge");
    fs_err::create_dir(&disk).unwrap();
    let _small = Tmpfs::over(&disk, "size=1m,nr_inodes=200");
    node.start_edge();
    node.ok(&["run", "base", "true"]);
    settled(&node, 1);
    let mut full = Vec::new();
    eventually("there is no room for a sandbox", || {
        // What there is still can be had; what it leaves is taken too.
        full.extend(fill(&disk, full.len()));
        let output = node.dsec(&["run", "base", "true"]);
        assert!(matches!(output.status.code(), Some(0 | 125)), "{output:?}");
        !output.status.success()
    });
    eventually("nothing is left of them", || spares(&node) == 0 && on_disk(&node).is_empty());
    full.iter().for_each(|path| fs_err::remove_file(path).unwrap());
    node.ok(&["run", "base", "true"]);
    eventually("spares come back", || spares(&node) > 0);
    node.stop_edge();
    node.nothing_remains();
}

/// Takes every inode of a disk.
fn fill(disk: &Path, from: usize) -> Vec<PathBuf> {
    let paths = (from..).map(|number| disk.join(format!("fill-{number}")));
    paths.take_while(|path| fs_err::File::create(path).is_ok()).collect()
}
