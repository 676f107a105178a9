//! A starter over plain new namespaces, without a sandbox.

#![expect(clippy::disallowed_methods, reason = "paths of /proc and of the test's own")]

use super::*;
use crate::limits::Limit;
use crate::seccomp::{Filter, Instruction};
use rustix::pipe::pipe;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Allows everything: BPF_RET with SECCOMP_RET_ALLOW.
fn allow_all() -> Filter {
    Filter::new(vec![Instruction { code: 0x06, if_true: 0, if_false: 0, operand: 0x7fff_0000 }]).unwrap()
}

/// This process stands for pid 1: its namespaces are entered, and left.
struct Place {
    starter: Starter,
    own: OwnedFd,
    cgroup: OwnedFd,
    filter: Filter,
}

/// Where the cgroup hierarchy of version 2 is mounted.
fn unified() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    line.expect("privileged tests need a cgroup hierarchy of version 2").split(' ').nth(4).unwrap().into()
}

fn place_in(cgroup: &Path) -> Place {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Place {
        starter: Starter::new(Config::default()).unwrap(),
        own: process::open(std::process::id()).unwrap(),
        cgroup: openat(CWD, cgroup, flags, Mode::empty()).unwrap(),
        filter: allow_all(),
    }
}

fn place() -> Place {
    place_in(&unified())
}

impl Place {
    fn start(&self, argv: &[&str], change: impl FnOnce(&mut Request<'_>)) -> (Starting, OwnedFd) {
        let null = openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (reader, writer) = pipe().unwrap();
        let texts = |texts: &[&str]| texts.iter().map(|text| CString::new(*text).unwrap()).collect::<Vec<_>>();
        let mut request = Request {
            sandbox: self.own.as_fd(),
            // Threads cannot share a user namespace that one of them enters, and this process has many: not that one.
            namespaces: libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWUTS,
            cgroup: self.cgroup.as_fd(),
            joins: Vec::new(),
            stdio: [null.as_fd(), writer.as_fd(), writer.as_fd()],
            limits: &[],
            ignored_signals: 0,
            capabilities: u64::MAX,
            last_capability: 40,
            no_new_privileges: false,
            uid: 0,
            gid: 0,
            groups: &[],
            cwd: WorkingDirectory::At(c"/tmp".into()),
            filter: &self.filter,
            paths: texts(&["/nowhere/sh", "/bin/sh"]),
            argv: texts(argv),
            env: texts(&["NAME=value"]),
        };
        change(&mut request);
        (self.starter.start(&request).unwrap(), reader)
    }
}

fn text(reader: OwnedFd) -> String {
    let mut text = String::new();
    std::fs::File::from(reader).read_to_string(&mut text).unwrap();
    text
}

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn privileged_a_command_is_this_processs_child_with_what_was_asked_for() {
    let place = place();
    let script = "echo $0 $NAME $PWD $(umask) $(ulimit -n); exit 7";
    const LIMITS: &[Limit] = &[Limit { resource: libc::RLIMIT_NOFILE, soft: 123, hard: 456 }];
    let (starting, reader) = place.start(&["shell", "-c", script], |request| request.limits = LIMITS);
    let child = starting.wait(PATIENCE).unwrap();
    assert_eq!(text(reader), "shell value /tmp 0022 123\n");
    assert_eq!(process::wait(&child.pidfd).unwrap(), process::Ended::Exited(7));
}

#[test]
fn privileged_many_at_once_and_large_arguments() {
    let place = place();
    let long = "x".repeat(100_000);
    let started: Vec<_> = (0..50)
        .map(|number: u32| {
            let name = number.to_string();
            place.start(&["sh", "-c", "echo $0 ${#1} ${#2}", &name, &long, &long], |_| {})
        })
        .collect();
    for (number, (starting, reader)) in started.into_iter().enumerate() {
        let child = starting.wait(PATIENCE).unwrap();
        assert_eq!(text(reader), format!("{number} 100000 100000\n"));
        assert_eq!(process::wait(&child.pidfd).unwrap(), process::Ended::Exited(0));
    }
}

#[test]
fn privileged_a_failed_step_is_told_by_name() {
    let place = place();
    let failure = |change: fn(&mut Request<'_>)| match place.start(&["sh"], change).0.wait(PATIENCE) {
        Err(Error::Step { step, errno }) => (step, errno),
        other => panic!("{other:?}"),
    };
    assert_eq!(failure(|request| request.paths = vec![c"/nowhere".into()]), (Step::Exec, Errno::NOENT));
    assert_eq!(failure(|request| request.paths = vec![c"/etc/passwd".into()]), (Step::Exec, Errno::ACCESS));
    let nowhere = |request: &mut Request<'_>| request.cwd = WorkingDirectory::At(c"/nowhere".into());
    assert_eq!(failure(nowhere), (Step::WorkingDirectory, Errno::NOENT));
    assert_eq!(failure(|request| request.joins = vec![request.sandbox]), (Step::JoinCgroups, Errno::INVAL));
}

#[test]
fn privileged_one_that_never_gets_on_holds_up_nobody_and_ends_with_its_starting() {
    let group = unified().join(format!("dsec-starter-{}", std::process::id()));
    std::fs::create_dir(&group).unwrap();
    std::fs::write(group.join("cgroup.freeze"), "1").unwrap();
    let mut frozen = place_in(&group);
    // Born frozen: it does not get as far as its first instruction.
    let (mut starting, _reader) = frozen.start(&["sh"], |_| {});
    let (second, _reader) = frozen.start(&["sh"], |_| {});
    assert!(matches!(second.wait(Duration::from_millis(50)), Err(Error::Killed)));
    frozen.cgroup = place().cgroup;
    let (free, reader) = frozen.start(&["sh", "-c", "echo alive"], |_| {});
    process::wait(&free.wait(PATIENCE).unwrap().pidfd).unwrap();
    assert_eq!(text(reader), "alive\n");
    assert!(matches!(starting.poll(), Ok(None)));
    drop(starting);
    // Only an empty cgroup can be removed, and only one without zombies is empty.
    std::fs::remove_dir(&group).unwrap();
}

#[test]
fn privileged_a_killed_starter_is_replaced() {
    let place = place();
    let first = place.starter.pid();
    process::kill(process::open(first).unwrap()).unwrap();
    assert!(process::wait_ended(process::open(first).unwrap(), 10_000).unwrap_or(true));
    let (starting, reader) = place.start(&["sh", "-c", "echo again"], |_| {});
    let child = starting.wait(PATIENCE).unwrap();
    assert_eq!(text(reader), "again\n");
    process::wait(&child.pidfd).unwrap();
    assert_ne!(place.starter.pid(), first);
}

#[test]
fn privileged_it_shows_nothing_of_the_daemon_and_ends_with_it() {
    let place = place();
    let pid = place.starter.pid();
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    assert_eq!(read("cmdline").trim_end_matches('\0'), "(starting)");
    assert_eq!(read("comm"), "(starting)\n");
    // Not this file, and one that only root may run.
    let program = std::fs::metadata(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&program.permissions()) & 0o777, 0o500);
    assert!(!read("maps").contains(std::env::current_exe().unwrap().to_str().unwrap()));
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    // Standard ones, its socket, and the namespaces that it goes back to.
    assert_eq!(open, 3 + 1 + serve::ENTERED.len());
    let pidfd = process::open(pid).unwrap();
    drop(place);
    assert!(process::wait_ended(&pidfd, 10_000).unwrap());
}

#[test]
fn privileged_a_command_for_which_no_descriptor_is_left_is_ended_and_waited_for() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let place = place();
    let (starting, _reader) = place.start(&["sh", "-c", "sleep 1000"], |_| {});
    // In a process of its own under nextest; elsewhere other tests feel it for a moment.
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(1), ..before }).unwrap();
    let refused = starting.wait(PATIENCE);
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(matches!(refused, Err(Error::Receive(Errno::MFILE))), "{refused:?}");
    let children = format!("/proc/self/task/{}/children", rustix::thread::gettid().as_raw_nonzero());
    let left = std::fs::read_to_string(children).unwrap();
    assert_eq!(left.split_whitespace().collect::<Vec<_>>(), [place.starter.pid().to_string()]);
}
