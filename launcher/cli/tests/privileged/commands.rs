//! What a command is given, how its end is told, and that nothing of it stays.

use std::time::{Duration, Instant};

use super::support::{Node, eventually, http_json, processes_of, runtime, signal};

fn outcome(node: &Node, arguments: &[&str]) -> (i32, serde_json::Value) {
    let output = node.dsec(&[&["--json"], arguments].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code().unwrap(), report["outcome"]["reason"].clone())
}

#[test]
fn privileged_ends_are_told_exactly() {
    let node = Node::start();
    let sh = |script| outcome(&node, &["run", "--memory", "64M", "base", "--", "sh", "-c", script]);
    assert_eq!(sh("exit 0"), (0, serde_json::json!({"kind": "exited", "code": 0})));
    assert_eq!(sh("exit 255"), (255, serde_json::json!({"kind": "exited", "code": 255})));
    assert_eq!(sh("kill -15 $$"), (143, serde_json::json!({"kind": "signalled", "signal": 15})));
    assert_eq!(
        sh("exec dd if=/dev/zero of=/dev/null bs=200M count=1"),
        (137, serde_json::json!({"kind": "oom", "signal": 9}))
    );
    let (code, reason) = outcome(&node, &["run", "base", "no-such-program"]);
    assert_eq!((code, reason["kind"].as_str()), (127, Some("not_started")));
    // 127 says that there is no such program, and nothing else; what is not there either is told as 126.
    let (code, reason) = outcome(&node, &["run", "-w", "/nowhere", "base", "true"]);
    assert_eq!((code, reason["errno"].as_i64(), &reason["no_program"]), (126, Some(2), &false.into()));
    let (code, reason) = outcome(&node, &["run", "base", "/etc/passwd"]);
    assert_eq!((code, reason["errno"].as_i64()), (126, Some(13)));
    let (code, reason) = outcome(&node, &["run", "--timeout", "0.3", "base", "sleep", "100"]);
    assert_eq!((code, reason["kind"].as_str()), (124, Some("timeout")));
    node.nothing_remains();
}

#[test]
fn privileged_output_is_exact_and_separate() {
    let node = Node::start();
    let done = node.dsec(&["run", "base", "--", "sh", "-c", "printf 'no newline'; echo err >&2; exit 7"]);
    assert_eq!(
        (done.status.code(), done.stdout.as_slice(), done.stderr.as_slice()),
        (Some(7), b"no newline".as_slice(), b"err\n".as_slice())
    );
    assert_eq!(node.ok(&["run", "base"]), "from the image\n");
}

#[test]
fn privileged_environment_user_and_directory() {
    let node = Node::start();
    let id = node.ok(&["create", "-e", "OVER=sandbox", "-e", "MINE=1", "--hostname", "box", "base"]);
    let id = id.trim();
    let script = "echo $FROM_IMAGE $OVER $MINE $LATE; hostname; pwd; id -u; id -g";
    let said = node.ok(&["exec", "-e", "LATE=2", "-w", "/srv", "-u", "ann", id, "--", "sh", "-c", script]);
    assert_eq!(said, "yes sandbox 1 2\nbox\n/srv\n1000\n1001\n");
    let said = node.ok(&["exec", "-e", "OVER=exec", "-u", "7:8", id, "sh", "-c", "echo $OVER; id -u; id -g"]);
    assert_eq!(said, "exec\n7\n8\n");
    let stranger = node.dsec(&["exec", "-u", "eve", id, "true"]);
    assert_eq!(stranger.status.code(), Some(126));
    assert!(String::from_utf8_lossy(&stranger.stderr).contains("no user \"eve\""), "{stranger:?}");
}

#[test]
fn privileged_a_background_child_holds_nothing_up() {
    let node = Node::start();
    let id = node.create();
    let begun = Instant::now();
    assert_eq!(node.ok(&["exec", &id, "sh", "-c", "sleep 300 & echo hi"]), "hi\n");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(processes_of(&id), 2, "pid 1 and what was left running");
    // It may write for as long as it likes.
    assert!(node.ok(&["exec", &id, "sh", "-c", "(while :; do echo x; done) & echo hi"]).contains("hi\n"));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(processes_of(&id), 3);
}

#[test]
fn privileged_a_time_out_leaves_nothing_running() {
    let node = Node::start();
    let id = node.create();
    let script = "setsid sleep 300 & (setsid sh -c 'sleep 300 & sleep 300' &) ; sleep 300";
    let done = node.dsec(&["exec", "--timeout", "0.5", &id, "sh", "-c", script]);
    assert_eq!(done.status.code(), Some(124), "{done:?}");
    assert_eq!(String::from_utf8_lossy(&done.stderr), "dsec: killed: its time was up\n");
    assert_eq!(processes_of(&id), 1, "pid 1 alone");
    assert_eq!(node.ok(&["exec", &id, "echo", "on"]), "on\n");
}

#[test]
fn privileged_an_interrupt_ends_the_command_and_the_sandbox() {
    let node = Node::start();
    let id = node.create();
    for arguments in
        [["run", "base", "sh", "-c", "echo up; sleep 300"], ["exec", &id, "sh", "-c", "echo up; sleep 300"]]
    {
        let mut child = node.command(&arguments).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        assert_eq!(line, "up\n");
        signal(child.id(), rustix::process::Signal::INT);
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(2));
    }
    eventually("the run's sandbox is gone", || node.ids().into_iter().eq([id.clone()]));
    eventually("the exec is gone", || processes_of(&id) == 1);
    node.ok(&["rm", &id]);
    node.nothing_remains();
}

#[test]
fn privileged_a_client_that_leaves_while_its_sandbox_is_made_leaves_nothing() {
    let node = Node::start();
    for round in 0..20 {
        let mut child = node.command(&["run", "base", "sleep", "300"]).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(300 * round));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    eventually("no sandbox is left", || node.ids().is_empty());
    node.nothing_remains();
}

#[test]
fn privileged_ten_creates_with_one_key_make_one_sandbox() {
    let node = Node::start();
    let body = |hostname| serde_json::json!({"image": "base:latest", "idempotency_key": "k", "hostname": hostname});
    let send = |hostname: &'static str| {
        let (socket, body) = (node.socket(), serde_json::to_vec(&body(hostname)).unwrap());
        async move { http_json(&socket, hyper::Method::POST, "/v1/sandboxes", body).await }
    };
    runtime().block_on(async {
        let all: Vec<_> = (0..10).map(|_| tokio::spawn(send("one"))).collect();
        let mut ids = std::collections::BTreeSet::new();
        for answer in all {
            let (status, sandbox) = answer.await.unwrap();
            assert_eq!(status, 200, "{sandbox}");
            ids.insert(sandbox["id"].as_str().unwrap().to_owned());
        }
        assert_eq!(ids.len(), 1, "{ids:?}");
        let (status, error) = send("other").await;
        assert_eq!((status, error["kind"].as_str()), (409, Some("conflict")), "{error}");
    });
    assert_eq!(node.ids().len(), 1);
    let (key, id) = (["create", "--key", "k", "--hostname", "one", "base"], node.ids().pop_first().unwrap());
    assert_eq!(node.ok(&key).trim(), id);
    node.ok(&["rm", &id]);
    assert_ne!(node.ok(&key).trim(), id, "a key is free again once its sandbox is gone");
}

#[test]
fn privileged_failures_are_one_clear_line_each() {
    let node = Node::start();
    let id = node.create();
    let failure = |arguments: &[&str]| {
        let output = node.dsec(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = failure(&["run", "absent", "true"]);
    assert_eq!(
        (code, text.as_str()),
        (
            125,
            "error: no image absent:latest in any source\n\
             hint: `dsec-pack ls` lists the images of the local store, `ls --at URL|DIR` those of another\n"
        )
    );
    let (code, text) = failure(&["exec", "nobody", "true"]);
    assert_eq!(
        (code, text.as_str()),
        (125, "error: no sandbox nobody\nhint: `dsec ps` lists the sandboxes of this edge\n")
    );
    let (code, text) = failure(&["create", "--memory", "900T", "base"]);
    assert!(code == 7 && text.contains("this node gives at most"), "{text}");
    let (code, text) = failure(&["create", "--memory", "1K", "base"]);
    assert!(code == 2 && text.contains("memory"), "{text}");
    let (code, text) = failure(&["exec", "-t", &id, "sh"]);
    assert!(code == 2 && text.contains("terminals (-t) are not there yet"), "{text}");
    let (code, text) = failure(&["run", "Bad Name", "true"]);
    assert!(code == 2 && text.contains("is not a ref name"), "{text}");
    let nobody = node.directory.path().join("nobody.sock");
    let output =
        std::process::Command::new(super::support::DSEC).arg("--edge").arg(&nobody).arg("ps").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.starts_with("error: no edge answers at ") && text.contains("\nhint: start one with `dsec edge --socket "),
        "{text}"
    );
    let error = node.json(&["exec", "nobody", "true"]);
    let hint = "`dsec ps` lists the sandboxes of this edge";
    assert_eq!(
        error,
        serde_json::json!({"error": {
            "kind": "not_found", "message": "no sandbox nobody", "causes": [], "hint": hint, "exit_code": 125
        }})
    );
    let removed = node.dsec(&["--json", "rm", "nobody"]);
    let said: serde_json::Value = serde_json::from_slice(&removed.stdout).unwrap();
    assert_eq!((removed.status.code(), &said["errors"][0]["kind"]), (Some(3), &"not_found".into()), "{said}");
    eventually("nothing half made", || node.ids().len() == 1);
}
