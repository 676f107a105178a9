//! What a sandbox can see and reach.

use super::support::*;
use dsec_sandbox::{Ended, MASKS, Profile};

#[test]
fn privileged_no_mount_of_the_host_is_left() {
    let sandbox = create();
    let mounts = sh(&sandbox, "cat /proc/self/mountinfo");
    let allowed = ["overlay", "proc", "tmpfs", "devpts", "mqueue"];
    for line in mounts.lines() {
        let (left, right) = line.split_once(" - ").unwrap();
        let point = left.split(' ').nth(4).unwrap();
        let kind = right.split(' ').next().unwrap();
        assert!(allowed.contains(&kind), "{line}");
        let ours = point == "/" || ["/proc", "/dev", "/sys"].iter().any(|root| point.starts_with(root));
        assert!(ours, "{line}");
        for path in [sandbox.state().directory.to_str().unwrap(), base().to_str().unwrap()] {
            assert!(!line.contains(path), "a path of the host shows: {line}");
        }
    }
}

#[test]
fn privileged_every_namespace_is_its_own_and_commands_share_it() {
    let (one, other) = (create(), create());
    let script = "for kind in cgroup ipc mnt net pid user uts; do readlink /proc/self/ns/$kind; done";
    let inside = |sandbox: &dsec_sandbox::Sandbox| sh(sandbox, script).lines().map(str::to_owned).collect::<Vec<_>>();
    let host = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"]
        .map(|kind| fs_err::read_link(format!("/proc/thread-self/ns/{kind}")).unwrap().to_str().unwrap().to_owned());
    let (first, second) = (inside(&one), inside(&other));
    assert_eq!((first.len(), second.len()), (host.len(), host.len()));
    for ((host, first), second) in host.iter().zip(&first).zip(&second) {
        assert!(first != host && second != host && first != second, "{host} {first} {second}");
    }
    assert_eq!(inside(&one), first, "a second command is in the namespaces of the first");
    // What a cgroup namespace is for: no name of the host's cgroups shows.
    let groups = sh(&one, "cut -d: -f3 /proc/self/cgroup");
    assert!(!groups.is_empty() && !groups.contains(one.state().id.as_str()), "{groups}");
}

#[test]
fn privileged_only_the_three_standard_descriptors_are_open() {
    let sandbox = create();
    // The fourth is the one that lists them.
    assert_eq!(sh(&sandbox, "exec ls /proc/self/fd").split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    let kinds = sh(&sandbox, "exec ls -l /proc/self/fd");
    assert!(!kinds.contains("socket") && !kinds.contains("memfd"), "{kinds}");
}

#[test]
fn privileged_a_leaky_parent_leaks_nothing() {
    let sandbox = create();
    let leak = rustix::fs::open("/etc/hostname", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    assert_eq!(sh(&sandbox, "exec ls /proc/self/fd").split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    drop(leak);
}

#[test]
fn privileged_only_its_own_processes_are_seen() {
    let sandbox = create();
    let pids = sh(&sandbox, "ls /proc | grep '^[0-9]' | wc -l");
    assert!(pids.trim().parse::<u32>().unwrap() <= 5, "{pids}");
    assert_eq!(sh(&sandbox, "kill -0 1 && echo may signal").trim(), "may signal");
}

#[test]
fn privileged_pid_1_cannot_be_looked_into_or_killed() {
    let sandbox = create();
    for script in
        ["readlink /proc/1/exe", "cat /proc/1/mem", "ls /proc/1/root/", "cat /proc/1/environ", "ls /proc/1/fd/"]
    {
        let captured = run(&sandbox, &["sh", "-c", script]);
        assert_ne!(captured.outcome.ended, Ended::Exited(0), "{script}: {captured:?}");
    }
    // PTRACE_ATTACH is 16, EPERM is 1.
    let perl = "print syscall(101, 16, 1, 0, 0), ' ', $!+0";
    assert_eq!(run(&sandbox, &["/usr/bin/perl", "-e", perl]).stdout, "-1 1");
    run(&sandbox, &["kill", "-9", "1"]);
    run(&sandbox, &["kill", "-TERM", "1"]);
    assert!(sandbox.is_running());
}

#[test]
fn privileged_the_hosts_boot_build_and_disks_do_not_show() {
    let sandbox = create();
    for name in ["cmdline", "config.gz", "partitions", "diskstats"] {
        // A kernel may be built without one of them; the boot command line is always there.
        let host = fs_err::read(format!("/proc/{name}")).unwrap_or_default();
        assert!(name != "cmdline" || !host.is_empty(), "the host's own {name} is empty: nothing is shown by this");
        assert_eq!(sh(&sandbox, &format!("if test -e /proc/{name}; then cat /proc/{name}; fi")), "", "{name}");
    }
}

#[test]
fn privileged_a_kernels_memory_and_switches_are_covered() {
    let sandbox = create();
    for mask in MASKS {
        let host = std::path::Path::new("/proc").join(mask.path);
        if !host.exists() {
            continue;
        }
        let path = format!("/proc/{}", mask.path);
        let script =
            format!("cat {path} 2>/dev/null | head -c 1; touch {path}/new 2>/dev/null && echo wrote; ls {path}");
        let out = run(&sandbox, &["sh", "-c", &script]).stdout;
        assert!(!out.contains("wrote"), "{path}");
        let covered = sh(&sandbox, "cat /proc/self/mountinfo").contains(&format!(" {path} "));
        assert!(covered, "{path} is not covered");
    }
    for write in
        ["echo 1 >/proc/sys/vm/drop_caches", "echo x >/proc/sys/kernel/hostname", "echo h >/proc/sysrq-trigger"]
    {
        let captured = run(&sandbox, &["sh", "-c", write]);
        let harmless = write.contains("sysrq") || captured.outcome.ended != Ended::Exited(0);
        assert!(harmless, "{write}");
    }
    let grep = run(
        &sandbox,
        &["timeout", "60", "grep", "-r", "no such words anywhere", "/proc/sys", "/proc/fs", "/proc/irq", "/sys"],
    );
    assert!(matches!(grep.outcome.ended, Ended::Exited(1 | 2)), "{grep:?}");
}

#[test]
fn privileged_ids_inside_are_the_hosts_own_range() {
    let sandbox = create();
    let base = sandbox.state().id_base.to_string();
    let map = sh(&sandbox, "cat /proc/self/uid_map /proc/self/gid_map");
    let expected = [["0", base.as_str(), "65536"]; 2].concat();
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), expected);
    sh(&sandbox, "touch /new && chown 1000:1001 /new");
    // On disk the ids are those inside; the process runs with ids of the range.
    let stat = rustix::fs::stat(sandbox.upper().join("new")).unwrap();
    assert_eq!((stat.st_uid, stat.st_gid), (1000, 1001));
    assert_eq!(sh(&sandbox, "stat -c %u:%g /bin/busybox /etc/passwd /home/ann").trim(), "0:0\n0:0\n1000:1001");
    let (process, ..) = start(&sandbox, &["sleep", "100"], |_| {}).unwrap();
    let status = fs_err::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    assert!(status.contains(&format!("Uid:\t{base}\t{base}\t{base}\t{base}")), "{status}");
    process.kill().unwrap();
}

#[test]
fn privileged_capabilities_are_those_of_the_table() {
    let sets = |sandbox: &dsec_sandbox::Sandbox| {
        let status = sh(sandbox, "cat /proc/self/status");
        let set = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
        };
        ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"].map(set)
    };
    let table = dsec_sandbox::CAPABILITIES.iter().fold(0, |set, one| set | 1u64 << one.number);
    let sandbox = create();
    assert_eq!(sets(&sandbox), [0, table, table, table, 0]);
    let strict = create_with(|spec| spec.profile = Profile::Strict);
    assert_eq!(sets(&strict), [0; 5]);
    assert!(sh(&strict, "cat /proc/self/status").contains("NoNewPrivs:\t1"));
}

#[test]
fn privileged_a_user_is_a_user() {
    let sandbox = create();
    let ann = |argv: &[&str]| run_with(&sandbox, argv, |spec| spec.user = Some("ann".parse().unwrap()));
    assert_eq!(
        ann(&["sh", "-c", "id -u; id -g; id -G; echo $HOME; pwd"]).stdout,
        "1000\n1001\n1001 44\n/home/ann\n/home/ann\n"
    );
    let status = ann(&["cat", "/proc/self/status"]).stdout;
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    assert_ne!(ann(&["touch", "/etc/new"]).outcome.ended, Ended::Exited(0));
    assert_eq!(ann(&["touch", "/home/ann/new", "/tmp/new"]).outcome.ended, Ended::Exited(0));
}

#[test]
fn privileged_set_id_programs_work_by_default_and_not_in_strict() {
    let id = |sandbox: &dsec_sandbox::Sandbox| {
        sh(sandbox, "cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id");
        run_with(sandbox, &["/tmp/id"], |spec| spec.user = Some("1000:1001".parse().unwrap())).stdout
    };
    let sandbox = create();
    assert!(id(&sandbox).contains("euid=0(root)"), "{}", id(&sandbox));
    let strict = create_with(|spec| spec.profile = Profile::Strict);
    assert!(!id(&strict).contains("euid"), "{}", id(&strict));
}

#[test]
fn privileged_the_network_is_loopback() {
    let sandbox = create();
    let interfaces = sh(&sandbox, "cat /proc/net/dev | tail -n +3 | cut -d: -f1");
    assert_eq!(interfaces.trim(), "lo");
    assert!(sh(&sandbox, "ping -c1 127.0.0.1 2>&1 || cat /proc/net/route; ip link show lo").contains("UP"));
    assert_eq!(sh(&sandbox, "cat /proc/net/unix | tail -n +2 | wc -l").trim(), "0");
}

#[test]
fn privileged_devices_are_the_usual_ones() {
    let sandbox = create();
    let names = sh(&sandbox, "ls /dev");
    let expected = "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero";
    assert_eq!(names.split_whitespace().collect::<Vec<_>>().join(" "), expected);
    assert_eq!(
        sh(&sandbox, "head -c 4 /dev/zero | wc -c; echo x >/dev/null; head -c 8 /dev/urandom | wc -c").trim(),
        "4\n8"
    );
    assert_eq!(run(&sandbox, &["sh", "-c", "echo x >/dev/full"]).outcome.ended, Ended::Exited(1));
    for refused in
        ["mknod /tmp/sda b 8 0", "mknod /tmp/null c 1 3", "touch /dev/new", "chmod 600 /dev/null", "rm /dev/null"]
    {
        assert_ne!(run(&sandbox, &["sh", "-c", refused]).outcome.ended, Ended::Exited(0), "{refused}");
    }
    let size = sh(&sandbox, "df -k /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2");
    assert_eq!(size.trim().parse::<u64>().unwrap(), sandbox.state().limits.memory_bytes / 1024);
}

#[test]
fn privileged_devices_and_links_of_an_image_lead_nowhere() {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let directory = tempfile::tempdir().unwrap();
    let layer = directory.path();
    let outside = directory.path().parent().unwrap().join(format!("dsec-outside-{}", std::process::id()));
    fs_err::create_dir(&outside).unwrap();
    for name in ["proc", "sys", "dev"] {
        std::os::unix::fs::symlink(&outside, layer.join(name)).unwrap();
    }
    fs_err::create_dir(layer.join("etc")).unwrap();
    for name in ["hosts", "hostname", "resolv.conf"] {
        std::os::unix::fs::symlink(outside.join(name), layer.join("etc").join(name)).unwrap();
    }
    mknodat(CWD, layer.join("zero"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 5)).unwrap();
    let sandbox = create_with(|spec| spec.layers.push(layer.to_owned()));
    assert!(sh(&sandbox, "cat /etc/hosts; ls /proc/1/status /dev/null /sys/fs").contains("localhost"));
    assert_ne!(run(&sandbox, &["head", "-c", "1", "/zero"]).outcome.ended, Ended::Exited(0));
    assert_eq!(fs_err::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(fs_err::read_dir(sandbox.upper()).unwrap().count(), 0, "the platform's files are in the upper");
    fs_err::remove_dir_all(&outside).unwrap();
}

#[test]
fn privileged_a_network_is_one_sandboxs_and_nobody_inside_has_a_privilege_over_it() {
    let host = || fs_err::read_link("/proc/thread-self/ns/net").unwrap();
    let before = host();
    let (one, other) = (create(), create());
    assert_eq!(host(), before, "the thread that made a sandbox is in its network");
    let network = |sandbox: &dsec_sandbox::Sandbox| sh(sandbox, "readlink /proc/self/ns/net");
    assert_ne!(network(&one), network(&other));
    assert_ne!(network(&one).trim(), before.to_str().unwrap());
    // socket, bind to 127.0.0.1:80
    let serve =
        r#"$a = pack('S n N x8', 2, 80, 0x7f000001); print syscall(49, syscall(41, 2, 1, 0), $a, 16), ' ', $!+0"#;
    for user in ["root", "ann"] {
        let captured = run_with(&one, &["/usr/bin/perl", "-e", serve], |spec| spec.user = Some(user.parse().unwrap()));
        assert_eq!(captured.stdout, "0 0", "{user}: {captured:?}");
    }
    assert_ne!(run(&one, &["ip", "link", "set", "lo", "down"]).outcome.ended, Ended::Exited(0));
}
