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

#[test]
fn privileged_descriptors_are_bounded_and_no_core_handler_runs() {
    let sandbox = create();
    let limits = sh(&sandbox, "ulimit -Sn; cat /proc/self/limits | grep core");
    assert!(limits.starts_with("1024\n"), "{limits}");
    assert!(limits.split_whitespace().any(|word| word == "1"), "{limits}");
}
