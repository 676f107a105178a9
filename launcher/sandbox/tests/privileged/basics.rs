//! Create, run, destroy.

use super::support::*;
use dsec_sandbox::Ended;

#[test]
fn privileged_runs_a_command_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let spec = spec_in(directory.path());
    let sandbox = runtime().create(&spec).unwrap_or_else(|error| panic!("{}", chain(&error)));
    let captured = run(&sandbox, &["sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((captured.stdout.as_str(), captured.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(captured.outcome.ended, Ended::Exited(7));
    sandbox.destroy().unwrap();
    assert_eq!(fs_err::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn privileged_the_sandbox_is_a_machine_of_its_own() {
    let sandbox = create();
    assert_eq!(sh(&sandbox, "hostname").trim(), sandbox.state().id.as_str());
    assert_eq!(sh(&sandbox, "id -u; id -g").trim(), "0\n0");
    // What the kernel names a program without a path has changed over time.
    assert!(sh(&sandbox, "cat /proc/1/comm").trim().ends_with("init"));
    assert_eq!(sh(&sandbox, "echo $FROM_SPEC; cat /etc/resolv.conf").trim(), "yes\nnameserver 10.0.0.53");
    assert!(sh(&sandbox, "cat /sys/devices/system/cpu/online").contains('0'));
}

#[test]
fn privileged_a_failed_create_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut spec = spec_in(directory.path());
    spec.layers.push(directory.path().join("missing"));
    assert!(runtime().create(&spec).is_err());
    assert_eq!(fs_err::read_dir(directory.path()).unwrap().count(), 0);
    spec.layers.pop();
    let sandbox = runtime().create(&spec).unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(create_with(|spec| spec.hostname = "other".into()).state().id.as_str().chars().next(), Some('t'));
    sandbox.destroy().unwrap();
}

#[test]
fn privileged_this_node_is_usable_and_says_what_it_has() {
    let node = dsec_sandbox::probe(&config().cgroup_parent);
    assert!(node.is_usable(), "{node:#?}");
    assert!(!node.kernel.is_empty());
    assert!(serde_json::to_string(&node).unwrap().contains("mapped_overlay"));
}
