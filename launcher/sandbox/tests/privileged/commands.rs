//! Commands: status, signals, errors, descendants.

use super::support::*;
use dsec_sandbox::{Ended, ExecError, Reason};

#[test]
fn privileged_status_and_signal_are_exact() {
    let sandbox = create();
    for code in [0u8, 1, 7, 126, 127, 137, 255] {
        let captured = run(&sandbox, &["sh", "-c", &format!("exit {code}")]);
        assert_eq!(captured.outcome.ended, Ended::Exited(code));
        assert_eq!(captured.outcome.reason(), Reason::Exited);
    }
    for signal in [1, 2, 9, 11, 15, 31] {
        let captured = run(&sandbox, &["sh", "-c", &format!("kill -{signal} $$; sleep 5")]);
        assert_eq!(captured.outcome.ended, Ended::Signalled(signal));
        assert_eq!((captured.outcome.reason(), captured.outcome.shell_status()), (Reason::Signalled, 128 + signal));
    }
}

#[test]
fn privileged_what_cannot_start_is_an_error() {
    let sandbox = create();
    sh(&sandbox, "echo '#!/bin/sh' >/tmp/closed; echo '#!/no/such' >/tmp/lost; chmod 755 /tmp/lost; mkdir /tmp/dir");
    let error = |argv: &[&str]| start(&sandbox, argv, |_| {}).unwrap_err();
    assert!(matches!(error(&["no-such-program"]), ExecError::NotFound { .. }));
    assert!(matches!(error(&["/no/such/program"]), ExecError::NotFound { .. }));
    assert!(matches!(error(&["/etc/passwd/x"]), ExecError::NotFound { .. }));
    assert!(matches!(error(&["/tmp/closed"]), ExecError::NotExecutable { .. }));
    assert!(matches!(error(&["/tmp/dir"]), ExecError::NotExecutable { .. }));
    assert!(matches!(error(&["/tmp/lost"]), ExecError::NotFound { .. }));
    assert!(matches!(error(&[]), ExecError::Empty));
    assert!(matches!(error(&["sh", "a\0b"]), ExecError::Text { .. }));
    let in_directory = start(&sandbox, &["true"], |spec| spec.cwd = Some("/no/such".into())).unwrap_err();
    assert!(matches!(in_directory, ExecError::WorkingDirectory { .. }), "{in_directory}");
    let as_user = start(&sandbox, &["true"], |spec| spec.user = Some("eve".parse().unwrap())).unwrap_err();
    assert!(matches!(as_user, ExecError::User(_)), "{as_user}");
    // A failure leaves neither zombie nor cgroup.
    let pids = sandbox.usage().unwrap().pids;
    assert_eq!(pids, 1);
}

#[test]
fn privileged_path_env_and_directory_are_the_commands() {
    let sandbox = create();
    sh(&sandbox, "mkdir -p /opt/bin; printf '#!/bin/sh\\necho mine $X; pwd' >/opt/bin/tool; chmod 755 /opt/bin/tool");
    let captured = run_with(&sandbox, &["tool"], |spec| {
        spec.env = vec![("PATH".into(), "/nowhere:/opt/bin:/bin".into()), ("X".into(), "value".into())];
        spec.cwd = Some("/opt".into());
    });
    assert_eq!(captured.stdout, "mine value\n/opt\n");
}

#[test]
fn privileged_signals_are_default_and_unblocked() {
    let sandbox = create();
    let status = sh(&sandbox, "exec cat /proc/self/status");
    for field in ["SigBlk", "SigIgn", "SigCgt"] {
        assert!(status.contains(&format!("{field}:\t0000000000000000")), "{status}");
    }
}

#[test]
fn privileged_orphans_are_reaped() {
    let sandbox = create();
    let script = "i=0; while [ $i -lt 500 ]; do (true &) ; i=$((i+1)); done; sleep 0.2";
    sh(&sandbox, script);
    let zombies = sh(&sandbox, "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l");
    assert_eq!(zombies.trim(), "0");
    assert_eq!(sandbox.usage().unwrap().pids, 1);
}

#[test]
fn privileged_kill_reaches_descendants_in_their_own_sessions() {
    let sandbox = create();
    let (process, ..) =
        start(&sandbox, &["sh", "-c", "setsid sleep 300 & setsid sleep 301 & sleep 302"], |_| {}).unwrap();
    let other = start(&sandbox, &["sleep", "303"], |_| {}).unwrap().0;
    until("all processes", || sandbox.usage().unwrap().pids >= 5);
    process.kill().unwrap();
    assert_eq!(process.wait().unwrap().ended, Ended::Signalled(libc::SIGKILL));
    assert!(!process.wait().unwrap().oom);
    // A process is dead some moments before it is no longer counted.
    until("only pid 1 and the other command live", || sandbox.usage().unwrap().pids == 2);
    assert_eq!(other.try_wait().unwrap(), None);
    other.signal(libc::SIGTERM).unwrap();
    assert_eq!(other.wait().unwrap().ended, Ended::Signalled(libc::SIGTERM));
}

#[test]
fn privileged_descendants_live_on_and_their_cgroups_go_when_they_do() {
    let sandbox = create();
    sh(&sandbox, "sleep 0.3 >/dev/null 2>&1 &");
    assert_eq!(sandbox.usage().unwrap().pids, 2);
    let group = format!("/sys/fs/cgroup/unified/dsec-test/{}", sandbox.state().id);
    let group = if std::path::Path::new(&group).exists() { group } else { group.replace("/unified", "") };
    let count = || fs_err::read_dir(&group).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    assert_eq!(count(), 1);
    std::thread::sleep(std::time::Duration::from_millis(500));
    for _ in 0..20 {
        sh(&sandbox, "true");
    }
    assert_eq!(count(), 0);
}

#[test]
fn privileged_many_commands_at_once() {
    let sandbox = create();
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let sandbox = &sandbox;
            scope.spawn(move || {
                for round in 0..10u8 {
                    let script = format!("echo {thread}-{round}; exit {thread}");
                    let captured = run(sandbox, &["sh", "-c", &script]);
                    assert_eq!(captured.stdout, format!("{thread}-{round}\n"));
                    assert_eq!(captured.outcome.ended, Ended::Exited(thread));
                }
            });
        }
    });
}

#[test]
fn privileged_many_commands_leave_nothing_in_the_parent() {
    let sandbox = create();
    let descriptors = || fs_err::read_dir("/proc/self/fd").unwrap().count();
    sh(&sandbox, "true");
    let before = descriptors();
    for _ in 0..300 {
        assert_eq!(run(&sandbox, &["true"]).outcome.ended, Ended::Exited(0));
    }
    // Other tests of this process hold some too.
    assert!(descriptors() < before + 100, "{before} before, {} after", descriptors());
}
