//! Freeze, adopt, destroy, sweep.

use super::support::*;
use dsec_sandbox::{Ended, Error, Runtime, State};
use std::time::Duration;

fn host_mounts() -> usize {
    fs_err::read_to_string("/proc/self/mountinfo").unwrap().lines().count()
}

#[test]
fn privileged_destroy_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let spec = spec_in(directory.path());
    let mounts = host_mounts();
    let sandbox = runtime().create(&spec).unwrap();
    assert_eq!(host_mounts(), mounts, "a mount shows on the host");
    let (process, ..) = start(&sandbox, &["sh", "-c", "setsid sleep 300 & sleep 300"], |_| {}).unwrap();
    sh(&sandbox, "mkdir -p /a/b/c; echo x >/a/b/c/f; chmod 000 /a/b/c; rm -r /home; mkfifo /p; ln -s /etc /l");
    let pid = sandbox.state().pid;
    sandbox.destroy().unwrap();
    assert_eq!(process.wait().unwrap().ended, Ended::Signalled(libc::SIGKILL));
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(fs_err::read_dir(directory.path()).unwrap().count(), 0);
    assert_eq!(cgroups_of(spec.id.as_str()), Vec::<std::path::PathBuf>::new());
    sandbox.destroy().unwrap();
    assert!(!sandbox.is_running());
    assert!(start(&sandbox, &["true"], |_| {}).is_err());
}

/// Directories of this name below any cgroup hierarchy's `dsec-test`.
fn cgroups_of(id: &str) -> Vec<std::path::PathBuf> {
    let mounts = fs_err::read_to_string("/proc/self/mounts").unwrap();
    let points = mounts.lines().filter(|line| line.split(' ').nth(2).is_some_and(|kind| kind.starts_with("cgroup")));
    let paths = points.map(|line| std::path::Path::new(line.split(' ').nth(1).unwrap()).join("dsec-test").join(id));
    paths.filter(|path| path.exists()).collect()
}

#[test]
fn privileged_freeze_stops_everything_and_destroy_works_on_the_frozen() {
    let sandbox = create();
    let (process, mut stdout, _) =
        start(&sandbox, &["sh", "-c", "while :; do echo x; sleep 0.01; done"], |_| {}).unwrap();
    let mut buffer = [0; 65536];
    std::thread::sleep(Duration::from_millis(100));
    sandbox.freeze().unwrap();
    rustix::io::ioctl_fionbio(&stdout, true).unwrap();
    while std::io::Read::read(&mut stdout, &mut buffer).is_ok() {}
    std::thread::sleep(Duration::from_millis(100));
    assert!(std::io::Read::read(&mut stdout, &mut buffer).is_err(), "it writes though it is frozen");
    sandbox.thaw().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(std::io::Read::read(&mut stdout, &mut buffer).unwrap() > 0);
    sandbox.freeze().unwrap();
    sandbox.destroy().unwrap();
    process.wait().unwrap();
}

#[test]
fn privileged_adopted_by_another_runtime() {
    let sandbox = create();
    sh(&sandbox, "echo kept >/file");
    let (process, ..) = start(&sandbox, &["sleep", "300"], |_| {}).unwrap();
    let json = serde_json::to_string(sandbox.state()).unwrap();
    let state: State = serde_json::from_str(&json).unwrap();
    let second = Runtime::open(&config()).unwrap();
    let adopted = second.adopt(state.clone()).unwrap();
    assert_eq!(sh(&adopted, "cat /file").trim(), "kept");
    adopted.freeze().unwrap();
    adopted.thaw().unwrap();
    // The command is still this process's child, by the first runtime, so somebody here waits for it.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| process.wait().unwrap());
        adopted.destroy().unwrap();
        assert_eq!(waiting.join().unwrap().ended, Ended::Signalled(libc::SIGKILL));
    });
    assert!(matches!(second.adopt(state), Err(Error::Gone { .. })));
}

#[test]
fn privileged_a_state_of_another_process_is_refused() {
    let sandbox = create();
    let state = sandbox.state();
    let other_start = State { start_ticks: state.start_ticks + 1, ..state.clone() };
    assert!(matches!(runtime().adopt(other_start), Err(Error::Gone { .. })));
    let ourselves = State { pid: std::process::id(), ..state.clone() };
    assert!(matches!(runtime().adopt(ourselves), Err(Error::Gone { .. })));
}

#[test]
fn privileged_sweep_ends_and_removes_by_id_and_directory_alone() {
    let directory = tempfile::tempdir().unwrap();
    let spec = spec_in(directory.path());
    let sandbox = runtime().create(&spec).unwrap();
    let (process, ..) = start(&sandbox, &["sleep", "300"], |_| {}).unwrap();
    runtime().sweep(&spec.id, &spec.directory).unwrap();
    runtime().sweep(&spec.id, &spec.directory).unwrap();
    process.wait().unwrap();
    assert_eq!(cgroups_of(spec.id.as_str()), Vec::<std::path::PathBuf>::new());
    assert_eq!(fs_err::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn privileged_a_second_sandbox_of_an_id_or_directory_does_not_harm_the_first() {
    let directory = tempfile::tempdir().unwrap();
    let spec = spec_in(directory.path());
    let sandbox = runtime().create(&spec).unwrap();
    sh(&sandbox, "echo mine >/file");
    assert!(runtime().create(&spec).is_err());
    let mut other = spec.clone();
    other.directory = directory.path().join("other");
    assert!(runtime().create(&other).is_err());
    assert!(!other.directory.exists());
    assert_eq!(sh(&sandbox, "cat /file").trim(), "mine");
    sandbox.destroy().unwrap();
}

#[test]
fn privileged_a_sandbox_outlives_the_process_that_made_it() {
    // A child process of its own makes a sandbox, prints its state and ends; this process adopts it.
    let directory = tempfile::tempdir().unwrap();
    let maker = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("examples/make_and_leave");
    let spec = spec_in(directory.path());
    let output = std::process::Command::new(&maker)
        .arg(serde_json::to_string(&spec).unwrap())
        .arg(config().cgroup_parent)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error} (cargo test builds examples)", maker.display()));
    assert!(output.status.success(), "{output:?}");
    let state: State = serde_json::from_slice(&output.stdout).unwrap();
    let sandbox = runtime().adopt(state).unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert!(sh(&sandbox, "cat /etc/hosts; cat /from-maker").contains("made"));
    sandbox.destroy().unwrap();
    assert_eq!(fs_err::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn privileged_creating_in_parallel() {
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..5 {
                    assert_eq!(run(&create(), &["echo", "up"]).stdout, "up\n");
                }
            });
        }
    });
}

#[test]
fn privileged_files_from_outside_stay_inside() {
    use std::io::{Read, Write};
    let sandbox = create();
    sandbox.create_file("/tmp/up", 0o640, 1000, 1001).unwrap().write_all(b"uploaded").unwrap();
    assert_eq!(sh(&sandbox, "stat -c '%u %g %a' /tmp/up; cat /tmp/up").trim(), "1000 1001 640\nuploaded");
    let mut text = String::new();
    sandbox.open_file("/etc/original").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "from the image\n");
    sandbox.create_directory("/made", 0o755, 0, 0).unwrap();
    sandbox.create_directory("/made", 0o755, 0, 0).unwrap();
    sandbox.create_link("target", "/made/link", 0, 0).unwrap();
    assert_eq!(sandbox.read_link("/made/link").unwrap(), b"target");
    assert_eq!(sandbox.entries("/made").unwrap().count(), 1);
    let outside = std::env::temp_dir().join(format!("dsec-outside-file-{}", std::process::id()));
    fs_err::write(&outside, "host").unwrap();
    sh(&sandbox, &format!("ln -s {} /escape; ln -s /proc/1/root/etc /magic; mkfifo /fifo", outside.display()));
    assert!(sandbox.open_file("/escape").is_err());
    assert!(sandbox.open_file("/magic/passwd").is_err());
    assert!(sandbox.open_file("/fifo").is_err());
    assert!(sandbox.open_file("../../../../etc/shadow").is_err());
    // An absolute link points inside; the file that it names is made there.
    sandbox.create_file("/escape", 0o644, 0, 0).unwrap().write_all(b"inside").unwrap();
    assert_eq!(sh(&sandbox, "cat /escape"), "inside");
    assert_eq!(fs_err::read_to_string(&outside).unwrap(), "host");
    fs_err::remove_file(&outside).unwrap();
}

/// The host's root opens the files of a sandbox; in `/proc` it would see what no one inside does.
#[test]
fn privileged_files_from_outside_are_the_roots_own() {
    use dsec_sandbox::FilesError::OtherMount;
    let sandbox = create();
    sh(&sandbox, "ln -s /proc/kmsg /log; ln -s ../../proc /p; ln -s /dev/shm /s; echo x >/dev/shm/file");
    let files = ["/proc/kmsg", "/proc/iomem", "/proc/1/maps", "/proc/self/maps", "/proc/1/root/etc/original", "/log"];
    let more = ["/p/kmsg", "/dev/null", "/dev/pts/ptmx", "/dev/shm/file", "/s/file", "/sys/devices/system/cpu/online"];
    for path in files.into_iter().chain(more) {
        assert!(matches!(sandbox.open_file(path), Err(OtherMount { .. })), "{path}: {:?}", sandbox.open_file(path));
        let created = sandbox.create_file(path, 0o644, 0, 0);
        assert!(matches!(created, Err(OtherMount { .. })), "{path}: {created:?}");
        assert!(matches!(sandbox.stat(path), Err(OtherMount { .. })), "{path}");
    }
    for path in ["/proc", "/proc/self", "/p", "/dev", "/dev/shm", "/s", "/sys", "/dev/mqueue", "/dev/pts"] {
        assert!(matches!(sandbox.entries(path), Err(OtherMount { .. })), "{path}");
        let below = format!("{path}/new");
        assert!(matches!(sandbox.create_directory(&below, 0o755, 0, 0), Err(OtherMount { .. })), "{path}");
        assert!(matches!(sandbox.create_link("x", &below, 0, 0), Err(OtherMount { .. })), "{path}");
        assert!(matches!(sandbox.stat_link(&below), Err(OtherMount { .. })), "{path}");
    }
    // The mount points themselves are directories of the root, which an archive may list.
    sandbox.create_directory("/proc", 0o755, 0, 0).unwrap();
    assert!(sandbox.create_directory("/log", 0o755, 0, 0).is_err());
    let names: Vec<_> = sandbox.entries("/").unwrap().map(|entry| entry.unwrap().name).collect();
    assert!([b"proc".as_slice(), b"dev", b"sys", b"log"].iter().all(|name| names.iter().any(|other| other == name)));
}

#[test]
fn privileged_names_of_users_are_not_read_from_proc() {
    let sandbox = create();
    sh(&sandbox, "rm /etc/passwd; ln -s /proc/kmsg /etc/passwd");
    let user = Some("ann".parse().unwrap());
    let started = start(&sandbox, &["true"], |spec| spec.user = user);
    let error = started.expect_err("a user was found in the kernel's log");
    assert!(chain(&error).contains("/proc"), "{}", chain(&error));
}

#[test]
fn privileged_a_wide_directory_is_listed_piece_by_piece() {
    let sandbox = create();
    sh(&sandbox, "mkdir /wide; cd /wide; i=0; while [ $i -lt 3000 ]; do : >name-$i; i=$((i+1)); done");
    let mut names: Vec<_> = sandbox.entries("/wide").unwrap().map(|entry| entry.unwrap().name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3000);
}
