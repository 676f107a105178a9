//! Memory, pids, CPU.

use super::support::*;
use dsec_sandbox::{Ended, Reason};

#[test]
fn privileged_out_of_memory_is_said_and_survived() {
    let sandbox = create();
    let captured = run(&sandbox, &["/usr/bin/perl", "-e", "$x = 'x' x (96 << 20); print length $x"]);
    assert_eq!(captured.outcome.ended, Ended::Signalled(libc::SIGKILL), "{captured:?}");
    assert!(captured.outcome.oom);
    assert_eq!(captured.outcome.reason(), Reason::Oom);
    assert!(sandbox.is_running());
    assert_eq!(run(&sandbox, &["echo", "alive"]).stdout, "alive\n");
    assert!(sandbox.usage().unwrap().oom_kills >= 1);
}

#[test]
fn privileged_shared_memory_is_charged() {
    let sandbox = create();
    let captured = run(&sandbox, &["sh", "-c", "exec dd if=/dev/zero of=/dev/shm/big bs=1M count=100"]);
    assert_ne!(captured.outcome.ended, Ended::Exited(0), "{captured:?}");
    sh(&sandbox, "rm -f /dev/shm/big");
}

#[test]
fn privileged_processes_are_bounded() {
    let sandbox = create_with(|spec| spec.limits.pids = 20);
    let script = "i=0; while [ $i -lt 60 ]; do sleep 100 >/dev/null 2>&1 & i=$((i+1)); done; echo all";
    let captured = run(&sandbox, &["sh", "-c", script]);
    assert!(!captured.stdout.contains("all"), "{captured:?}");
    assert!(sandbox.usage().unwrap().pids <= 20);
}

#[test]
fn privileged_cpu_is_bounded() {
    let sandbox = create_with(|spec| spec.limits.cpu_millis = 100);
    let script = "exec timeout 1 sh -c 'while :; do :; done'";
    run(&sandbox, &["sh", "-c", script]);
    let used_us = sandbox.usage().unwrap().cpu_us;
    assert!(used_us < 400_000, "{used_us} us of CPU in about a second at a tenth of a core");
}

/// The table as a command sees it, whatever this process was started with.
#[test]
fn privileged_resource_limits_are_the_sandboxs_own() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // Before the runtime looks: a lower hard limit of this process holds, the rest of its own must not reach a command.
    for (resource, current, maximum) in
        [(Resource::Sigpending, 7, 77), (Resource::Fsize, 1 << 30, u64::MAX), (Resource::Stack, 4 << 20, u64::MAX)]
    {
        let maximum = (maximum != u64::MAX).then_some(maximum);
        setrlimit(resource, Rlimit { current: Some(current), maximum }).unwrap();
    }
    let own_runtime = dsec_sandbox::Runtime::open(&config()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let sandbox = own_runtime.create(&spec_in(directory.path())).unwrap();
    let table = sh(&sandbox, "cat /proc/self/limits");
    sandbox.destroy().unwrap();
    // Columns: name (26 characters), soft, hard, unit.
    let seen = table.lines().skip(1).map(|line| {
        let (name, rest) = line.split_at(26);
        let mut words = rest.split_whitespace();
        (name.trim(), words.next().unwrap().to_owned(), words.next().unwrap().to_owned())
    });
    let own_hard = |resource| getrlimit(resource).maximum.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let open_files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX).min(524_288).to_string();
    let processes = own_hard(Resource::Nproc);
    let expected = [
        ("Max cpu time", "unlimited", "unlimited"),
        ("Max file size", "unlimited", "unlimited"),
        ("Max data size", "unlimited", "unlimited"),
        ("Max stack size", "8388608", "unlimited"),
        ("Max core file size", "1", "1"),
        ("Max resident set", "unlimited", "unlimited"),
        ("Max processes", processes.as_str(), processes.as_str()),
        ("Max open files", "1024", open_files.as_str()),
        ("Max locked memory", "8388608", "8388608"),
        ("Max address space", "unlimited", "unlimited"),
        ("Max file locks", "unlimited", "unlimited"),
        ("Max pending signals", "77", "77"),
        ("Max msgqueue size", "819200", "819200"),
        ("Max nice priority", "0", "0"),
        ("Max realtime priority", "0", "0"),
        ("Max realtime timeout", "unlimited", "unlimited"),
    ];
    let expected = expected.map(|(name, soft, hard)| (name, soft.to_owned(), hard.to_owned()));
    assert_eq!(seen.collect::<Vec<_>>(), expected);
}

#[test]
fn privileged_swap_is_no_way_around_the_limit_of_memory() {
    let sandbox = create();
    let id = sandbox.state().id.as_str();
    let version_1 = std::path::Path::new("/sys/fs/cgroup/memory/dsec-test").join(id);
    let read = |path: std::path::PathBuf| fs_err::read_to_string(path).unwrap().trim().to_owned();
    if version_1.exists() {
        let both = read(version_1.join("memory.memsw.limit_in_bytes"));
        assert_eq!(both, read(version_1.join("memory.limit_in_bytes")));
        assert_eq!(both, sandbox.state().limits.memory_bytes.to_string());
    } else {
        assert_eq!(read(std::path::Path::new("/sys/fs/cgroup/dsec-test").join(id).join("memory.swap.max")), "0");
    }
}

#[test]
fn privileged_terminals_are_bounded() {
    let sandbox = create();
    let script =
        "for (1 .. 200) { open(my $f, '+<', '/dev/ptmx') or do { print \"$! after \", $_ - 1; exit }; push @f, $f }";
    let captured = run(&sandbox, &["/usr/bin/perl", "-e", script]);
    assert_eq!(captured.stdout, "No space left on device after 128", "{captured:?}");
}
