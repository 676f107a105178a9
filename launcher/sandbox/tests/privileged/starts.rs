//! What a tenant can see of commands that are being started, and do to them.

use super::support::*;
use dsec_sandbox::{Ended, ExecError, ExecSpec, Sandbox};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

const LOOK: &str = include_str!("../../../../fixtures/adversary/look_into_starts.pl");
const STOP: &str = include_str!("../../../../fixtures/adversary/stop_starts.pl");

/// Runs an attack, as this user, while commands are started one after the other; what it printed.
fn attacked_by(sandbox: &Sandbox, script: &str, user: &str) -> String {
    let (process, stdout, _) =
        start(sandbox, &["/usr/bin/perl", "-e", script, "4"], |spec| spec.user = Some(user.parse().unwrap())).unwrap();
    let mut started = 0;
    while process.try_wait().unwrap().is_none() {
        run(sandbox, &["true"]);
        started += 1;
    }
    assert!(started > 50, "only {started} commands were started");
    std::io::read_to_string(stdout).unwrap()
}

#[test]
fn privileged_a_command_that_is_being_started_shows_nothing_of_the_host() {
    let sandbox = create();
    for user in ["root", "ann"] {
        let printed = attacked_by(&sandbox, LOOK, user);
        let seen = printed.lines().find_map(|line| line.strip_prefix("seen ")?.parse::<u32>().ok()).unwrap();
        assert!(seen > 0, "the attack as {user} has caught none");
        assert!(!printed.contains("leak "), "as {user}: {printed}");
    }
}

/// Starts a command that says where it is, with this as its home, its working directory or its program.
fn astray(sandbox: &Sandbox, lead: &str) -> Vec<String> {
    sh(sandbox, &format!("rm -rf /root /lead; ln -s {lead} /root; ln -s {lead} /lead"));
    // A directory of the host has no path below the sandbox's root.
    let where_it_is = "pwd -P";
    let mut seen = Vec::new();
    let homeless = run(sandbox, &["sh", "-c", where_it_is]);
    assert!(homeless.stdout == "/\n", "with {lead} as home: {homeless:?}");
    for (argv, cwd) in
        [(vec!["sh", "-c", where_it_is], Some("/lead")), (vec!["/lead"], None), (vec!["/lead/bin/sh"], None)]
    {
        match start(sandbox, &argv, |spec| spec.cwd = cwd.map(str::to_owned)) {
            Err(error) => drop(chain(&error)),
            Ok((process, stdout, _)) => {
                process.wait().unwrap();
                seen.push(format!("{argv:?} in {cwd:?}: {}", std::io::read_to_string(stdout).unwrap()));
            }
        }
    }
    seen
}

#[test]
fn privileged_what_a_command_opens_on_its_way_leads_nowhere() {
    let sandbox = create();
    for number in 0..40 {
        for up in ["", "/..", "/../../../../../../../.."] {
            let seen = astray(&sandbox, &format!("/proc/self/fd/{number}{up}"));
            assert!(seen.is_empty(), "fd {number}{up}: {seen:?}");
        }
    }
    for lead in ["/proc/self/exe", "/proc/self/ns/mnt", "/proc/1/root", "/proc/1/cwd"] {
        let seen = astray(&sandbox, lead);
        assert!(seen.is_empty(), "{lead}: {seen:?}");
    }
}

#[test]
fn privileged_a_script_cannot_run_what_started_it() {
    let sandbox = create();
    let script = "printf '#!/proc/self/exe\\n' > /evil; chmod 755 /evil; ln -s /proc/self/exe /link";
    sh(&sandbox, script);
    for (user, program) in [("root", "/evil"), ("root", "/link"), ("ann", "/evil"), ("ann", "/link")] {
        let error = start(&sandbox, &[program], |spec| spec.user = Some(user.parse().unwrap())).unwrap_err();
        assert!(matches!(error, ExecError::NotExecutable { .. }), "{user} {program}: {error:?}");
    }
}

fn spec(argv: &[&str]) -> ExecSpec {
    let null = || fs_err::File::options().read(true).write(true).open("/dev/null").unwrap().into_parts().0.into();
    spec_of(argv, [null(), null(), null()])
}

/// Commands of a sandbox that were stopped before they were their programs, by their numbers on the host.
fn half_way(sandbox: &Sandbox) -> Vec<u32> {
    let id = sandbox.state().id.to_string();
    let read = |pid: u32, file: &str| fs_err::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let numbers = fs_err::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let caught = |pid: &u32| {
        let status = read(*pid, "status");
        status.starts_with("Name:\t(starting)\n")
            && status.contains("\nState:\tT")
            && read(*pid, "cgroup").contains(&id)
    };
    numbers.filter(caught).collect()
}

/// What a process has open that is not of its own root.
fn open_files(pid: u32) -> Vec<String> {
    let device = |path: &Path| fs_err::metadata(path).unwrap().dev();
    let own = device(Path::new(&format!("/proc/{pid}/root/")));
    let entries = fs_err::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|entry| entry.unwrap().path());
    let foreign = entries.filter(|path| device(path) != own);
    foreign.map(|path| fs_err::read_link(path).unwrap().display().to_string()).collect()
}

#[test]
fn privileged_a_command_that_a_tenant_stops_half_way_holds_up_nobody() {
    let (attacker, neighbour) = (create(), create());
    let (script, stdout, _) = start(&attacker, &["/usr/bin/perl", "-e", STOP, "4"], |_| {}).unwrap();
    let begun = Instant::now();
    let mut starting = Vec::new();
    while begun.elapsed() < Duration::from_secs(3) {
        starting.push(attacker.exec(spec(&["true"])).unwrap());
        assert_eq!(run(&neighbour, &["true"]).outcome.ended, Ended::Exited(0));
    }
    script.wait().unwrap();
    let printed = std::io::read_to_string(stdout).unwrap();
    assert_ne!(printed, "stopped 0\n", "the attack has stopped none");
    // Each that was caught half-way has nothing open that leads anywhere.
    let caught = half_way(&attacker);
    assert!(!caught.is_empty(), "{printed}");
    for link in caught.iter().flat_map(|pid| open_files(*pid)) {
        let harmless = link == "/dev/null" || link.starts_with("socket:") || link.contains("pidfd");
        assert!(harmless, "a command that a tenant has stopped holds {link}");
    }
    // Those that it has stopped are undecided, until their time is up.
    let undecided =
        starting.iter_mut().filter_map(|starting| starting.poll().unwrap_or(None).is_none().then_some(starting));
    assert!(undecided.count() > 0, "{printed}");
    let mut killed = 0;
    for starting in starting {
        match starting.wait(Duration::from_millis(1)) {
            Err(ExecError::Killed) => killed += 1,
            Ok(process) => drop(process.wait()),
            Err(error) => panic!("{}", chain(&error)),
        }
    }
    assert!(killed > 0);
    assert_eq!(run(&attacker, &["true"]).outcome.ended, Ended::Exited(0));
}

#[test]
fn privileged_a_sandbox_that_is_out_of_cpu_time_holds_up_nobody() {
    let slow = create_with(|spec| spec.limits.cpu_millis = 10);
    let neighbour = create();
    let busy = (0..8).map(|_| slow.exec(spec(&["sh", "-c", "while :; do :; done"])).unwrap()).collect::<Vec<_>>();
    std::thread::sleep(Duration::from_millis(300));
    let more = (0..8).map(|_| slow.exec(spec(&["true"])).unwrap()).collect::<Vec<_>>();
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(run(&neighbour, &["true"]).outcome.ended, Ended::Exited(0));
    }
    // Ten milliseconds a second are not enough for what was begun before; twenty starts of the neighbour's are through.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop((busy, more));
}

#[test]
fn privileged_a_start_tells_through_its_descriptor_when_it_is_decided() {
    let sandbox = create();
    let mut starting = sandbox.exec(spec(&["true"])).unwrap();
    let process = loop {
        if let Some(process) = starting.poll().unwrap() {
            break process;
        }
        let fd = starting.as_fd();
        rustix::event::poll(&mut [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)], None).unwrap();
    };
    assert_eq!(process.wait().unwrap().ended, Ended::Exited(0));
}

#[test]
fn privileged_a_sandbox_ends_while_commands_are_being_started() {
    for _ in 0..20 {
        let sandbox = create();
        let starting: Vec<_> = (0..5).map(|_| sandbox.exec(spec(&["true"])).unwrap()).collect();
        std::thread::scope(|scope| {
            let ended = scope.spawn(|| sandbox.destroy().map_err(|error| chain(&error)));
            for one in starting {
                match one.wait(START_TIMEOUT) {
                    Ok(process) => drop(process),
                    Err(ExecError::NotRunning { .. } | ExecError::Killed | ExecError::Step { .. }) => {}
                    Err(error) => panic!("{}", chain(&error)),
                }
            }
            ended.join().unwrap().unwrap();
        });
    }
}
