//! Starts that a sandbox holds up, and what they hold.

use std::path::Path;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};

use super::support::{Node, http_json, processes_of, runtime, unified};

/// Lets no process of a sandbox run, or lets them all: no start is decided, and nobody holds the sandbox either.
fn freeze(sandbox: &str, frozen: bool) {
    let file = Path::new(&unified(sandbox).unwrap()).join("cgroup.freeze");
    fs_err::write(file, if frozen { "1" } else { "0" }).unwrap();
}

/// A command with a megabyte and a half of arguments.
fn long(timeout_ms: Option<u64>) -> Vec<u8> {
    let mut argv = vec!["true".to_owned()];
    argv.extend(std::iter::repeat_n("x".repeat(100_000), 15));
    serde_json::to_vec(&json!({ "argv": argv, "timeout_ms": timeout_ms })).unwrap()
}

async fn exec(node: &Node, id: &str, request: Vec<u8>) -> (u16, Value) {
    http_json(&node.socket(), Method::POST, &format!("/v1/sandboxes/{id}/execs"), request).await
}

#[test]
fn privileged_what_starts_of_one_sandbox_hold_is_bounded_and_others_start() {
    let node = Node::start();
    let (slow, neighbour) = (node.create(), node.create());
    let idle = processes_of(&slow);
    freeze(&slow, true);
    runtime().block_on(async {
        let waiting = answers_of(&node, &slow, 14);
        let meanwhile = async {
            // Sixteen MiB are eleven times a megabyte and a half, and some.
            let room = idle + 11;
            let begun = Instant::now();
            while processes_of(&slow) < room {
                assert!(begun.elapsed() < Duration::from_secs(20), "{} on their way", processes_of(&slow) - idle);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let (status, ended) = exec(&node, &slow, long(Some(300))).await;
            assert_eq!((status, ended["outcome"]["reason"]["kind"].as_str()), (200, Some("timeout")), "{ended}");
            for _ in 0..20 {
                let (status, begun) = exec(&node, &neighbour, long(None)).await;
                assert_eq!(status, 200, "{begun}");
            }
            assert_eq!(processes_of(&slow), room, "as many are on their way as there is room for");
            freeze(&slow, false);
        };
        let (answers, ()) = tokio::join!(waiting, meanwhile);
        for (status, begun) in answers {
            assert_eq!(status, 200, "{begun}");
        }
    });
    assert_eq!(node.ok(&["exec", &slow, "echo", "free"]), "free\n");
}

/// The answers to so many long commands at once.
async fn answers_of(node: &Node, id: &str, count: usize) -> Vec<(u16, Value)> {
    let (socket, path) = (node.socket(), format!("/v1/sandboxes/{id}/execs"));
    let requests: Vec<_> = (0..count)
        .map(|_| {
            let (socket, path) = (socket.clone(), path.clone());
            tokio::spawn(async move { http_json(&socket, Method::POST, &path, long(None)).await })
        })
        .collect();
    let mut answers = Vec::new();
    for request in requests {
        answers.push(request.await.unwrap());
    }
    answers
}
