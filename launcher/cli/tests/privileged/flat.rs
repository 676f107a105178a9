//! An edge does not grow with what it has done.

use super::support::{Node, eventually};

#[derive(Debug)]
struct Size {
    memory_bytes: u64,
    threads: u64,
    descriptors: usize,
}

fn size(node: &Node) -> Size {
    // A run is answered before its sandbox is gone.
    eventually("no run is being removed", || node.ids().len() == 1);
    let process = format!("/proc/{}", node.edge_pid());
    let status = fs_err::read_to_string(format!("{process}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    Size {
        memory_bytes: field("VmRSS:") * 1024,
        threads: field("Threads:"),
        descriptors: fs_err::read_dir(format!("{process}/fd")).unwrap().count(),
    }
}

fn many(node: &Node, count: usize, arguments: &[&str]) {
    let each = |_| {
        for _ in 0..count / 4 {
            assert_eq!(node.ok(arguments).len(), 6);
        }
    };
    std::thread::scope(|scope| {
        for worker in 0..4 {
            scope.spawn(move || each(worker));
        }
    });
}

#[test]
fn privileged_a_thousand_commands_leave_an_edge_as_it_was() {
    let node = Node::start();
    let id = node.create();
    let (exec, run) = (["exec", &id, "echo", "hello"], ["run", "base", "echo", "hello"]);
    many(&node, 100, &exec);
    many(&node, 20, &run);
    let before = size(&node);
    many(&node, 1000, &exec);
    many(&node, 100, &run);
    let after = size(&node);
    assert!(after.memory_bytes < before.memory_bytes + (4 << 20), "{before:?} {after:?}");
    assert!(after.threads <= before.threads + 4, "{before:?} {after:?}");
    // Connections to mountd that are kept for the next request: 8 at most.
    assert!(after.descriptors <= before.descriptors + 8, "{before:?} {after:?}");
}
