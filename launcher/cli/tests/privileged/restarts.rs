//! An edge that dies: nothing is lost, nothing leaks, nothing runs twice.

use std::time::Duration;

use hyper::Method;

use super::support::{Node, eventually, http_json, noise, processes_of, runtime};

#[test]
fn privileged_sandboxes_survive_a_stop_and_a_kill() {
    let mut node = Node::start();
    let id = node.ok(&["create", "--key", "k", "--label", "a=b", "-e", "MINE=1", "base"]).trim().to_owned();
    node.ok(&["exec", &id, "sh", "-c", "echo kept > /srv/kept; sleep 1000 > /dev/null 2>&1 &"]);
    assert_eq!(processes_of(&id), 2);
    for kill in [false, true] {
        if kill {
            node.kill_edge()
        } else {
            node.stop_edge()
        }
        node.start_edge();
        assert_eq!(node.ok(&["exec", &id, "sh", "-c", "cat /srv/kept; echo $MINE $FROM_IMAGE"]), "kept\n1 yes\n");
        let all = node.json(&["ps"])["sandboxes"].take();
        assert_eq!((&all[0]["labels"]["a"], &all[0]["state"]), (&"b".into(), &"running".into()));
        assert_eq!(node.ok(&["create", "--key", "k", "--label", "a=b", "-e", "MINE=1", "base"]).trim(), id);
        assert_eq!(processes_of(&id), 2, "what an ended command had left running runs on");
        assert!(node.mountd.holders.lock().unwrap().contains(&format!("sandbox/{id}")));
    }
    node.ok(&["rm", &id]);
    node.nothing_remains();
}

#[test]
fn privileged_commands_of_a_dead_edge_are_ended_and_lost() {
    let mut node = Node::start();
    let id = node.create();
    let request = serde_json::json!({"argv": ["sh", "-c", "setsid sleep 1000 & sleep 1000; true"]});
    let path = format!("/v1/sandboxes/{id}/execs");
    let runtime = runtime();
    let (_, exec) =
        runtime.block_on(http_json(&node.socket(), Method::POST, &path, serde_json::to_vec(&request).unwrap()));
    let exec = exec["id"].as_str().unwrap();
    eventually("it runs", || processes_of(&id) == 4);
    let mut run = node.command(&["run", "base", "sleep", "1000"]).spawn().unwrap();
    eventually("the run runs", || node.ids().len() == 2);
    node.kill_edge();
    assert_eq!(run.wait().unwrap().code(), Some(125));
    node.start_edge();
    assert_eq!(processes_of(&id), 1, "pid 1 alone");
    assert_eq!(node.ids().into_iter().collect::<Vec<_>>(), [id.as_str()], "the run's sandbox went");
    let (status, shown) =
        runtime.block_on(http_json(&node.socket(), Method::GET, &format!("{path}/{exec}"), Vec::new()));
    assert_eq!((status, &shown["outcome"]["reason"]["kind"]), (200, &"infra_lost".into()));
    let (status, _) = runtime.block_on(http_json(&node.socket(), Method::GET, &format!("{path}/never"), Vec::new()));
    assert_eq!(status, 404);
}

#[test]
fn privileged_a_second_edge_on_one_directory_is_refused() {
    let node = Node::start();
    let root = node.directory.path().join("edge");
    let output =
        node.command(&["edge", "--root", root.to_str().unwrap(), "--socket", "/nonexistent/x"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(9) && text.contains("another edge works in"), "{text}");
    assert!(
        text.contains("\nhint: an edge has its directory to itself: stop the other one, or give --root DIR"),
        "{text}"
    );
    let error = node.json(&["edge", "--root", root.to_str().unwrap(), "--socket", "/nonexistent/x"]);
    assert_eq!((&error["error"]["kind"], &error["error"]["exit_code"]), (&"conflict".into(), &9.into()), "{error}");
    let other = node.directory.path().join("other");
    let output = node.command(&["edge", "--root", other.to_str().unwrap()]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(9) && text.contains("something listens at"), "{text}");
    assert!(text.contains("--socket SOCKET"), "{text}");
    assert!(node.ids().is_empty());
}

#[test]
fn privileged_an_edge_that_stops_is_told_to_whose_command_ran() {
    let mut node = Node::start();
    let id = node.create();
    for kill in [false, true] {
        let mut exec = node.command(&["exec", &id, "sleep", "1000"]);
        let exec = exec.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
        eventually("it runs", || processes_of(&id) == 2);
        if kill {
            node.kill_edge()
        } else {
            node.stop_edge()
        }
        let done = exec.wait_with_output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(125), "{said}");
        let clear = "error: the edge went away while the command ran: how it ended is not known\nhint: ";
        assert!(said.starts_with(clear) && said.lines().count() == 2, "{said}");
        node.start_edge();
    }
    // A daemon's log in a file has no colours.
    assert!(node.log().contains("INFO") && !node.log().contains('\u{1b}'), "{}", node.log());
}

/// SIGKILL at many moments of creations, runs, commands and removals: every sandbox that was told is there and works, and
/// nothing else is.
#[test]
fn privileged_kill_at_any_moment_leaks_nothing_and_loses_nothing() {
    kill_at_any_moment(Node::start());
}

#[test]
fn privileged_kill_at_any_moment_with_spares_leaks_nothing_and_loses_nothing() {
    kill_at_any_moment(Node::with_spares(4));
}

fn kill_at_any_moment(mut node: Node) {
    let moments = noise(4000);
    let mut moments = moments.iter().map(|byte| u64::from(*byte));
    let mut told = std::collections::BTreeSet::new();
    for round in 0..40 {
        let id = node.create();
        told.insert(id.clone());
        let doomed = told.pop_first().unwrap();
        let mut work = [
            node.command(&["run", "base", "true"]),
            node.command(&["run", "base", "sleep", "100"]),
            node.command(&["rm", &doomed]),
            node.command(&["create", "base"]),
            node.command(&["create", "base"]),
        ];
        let mut children: Vec<_> = work
            .iter_mut()
            .map(|command| {
                let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn();
                std::thread::sleep(Duration::from_micros(moments.next().unwrap() * 10));
                child.unwrap()
            })
            .collect();
        std::thread::sleep(Duration::from_micros(moments.next().unwrap() * 100));
        node.kill_edge();
        let outputs: Vec<_> = children.drain(..).map(|child| child.wait_with_output().unwrap()).collect();
        for created in outputs[3..].iter().filter(|output| output.status.success()) {
            told.insert(String::from_utf8(created.stdout.clone()).unwrap().trim().to_owned());
        }
        node.start_edge();
        let there = node.ids();
        assert!(there.is_superset(&told), "round {round}: lost {:?}", told.difference(&there));
        for id in there {
            assert_eq!(node.ok(&["exec", &id, "echo", "on"]), "on\n", "round {round}");
            if !told.contains(&id) || told.len() > 3 {
                node.ok(&["rm", &id]);
                told.remove(&id);
            }
        }
    }
    node.ok(&["rm", "--all"]);
    node.stop_edge();
    node.nothing_remains();
}
