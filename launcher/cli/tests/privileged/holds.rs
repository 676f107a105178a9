//! Holds: nothing moves while the connection lives.

use std::time::{Duration, Instant};

use dsec_format::protocol::edge::Hold;
use http_body_util::BodyExt;
use hyper::Method;

use super::support::{Node, eventually, http, http_json, image, runtime};

#[test]
fn privileged_a_hold_stops_everything_and_lets_go_with_its_connection() {
    let node = Node::start();
    let id = node.create();
    let write = "(while :; do date +%s%N > /srv/now; sleep 0.01; done) > /dev/null 2>&1 &";
    node.ok(&["exec", &id, "sh", "-c", &format!("{write} until [ -s /srv/now ]; do sleep 0.01; done")]);
    runtime().block_on(async {
        let path = format!("/v1/sandboxes/{id}/hold");
        let answer = http(&node.socket(), Method::POST, &path, Vec::new()).await;
        assert_eq!(answer.status().as_u16(), 200);
        let mut body = answer.into_body();
        let line = body.frame().await.unwrap().unwrap().into_data().unwrap();
        let hold: Hold = serde_json::from_slice(&line).unwrap();
        assert_eq!((hold.id.as_str(), hold.image, hold.layers.len()), (id.as_str(), image(), 1));
        let now = std::path::Path::new(&hold.upper).join("srv/now");
        let first = fs_err::read_to_string(&now).unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(fs_err::read_to_string(&now).unwrap(), first, "something moved");

        let (_, shown) = http_json(&node.socket(), Method::GET, &format!("/v1/sandboxes/{id}"), Vec::new()).await;
        assert_eq!(shown["state"], "frozen");
        let (status, error) = http_json(&node.socket(), Method::POST, &path, Vec::new()).await;
        assert_eq!((status, error["kind"].as_str()), (409, Some("conflict")));
        // A command waits for the hold to end.
        let mut waiting = node.command(&["exec", &id, "true"]).spawn().unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(waiting.try_wait().unwrap().is_none());
        drop(body);
        tokio::task::spawn_blocking(move || assert!(waiting.wait().unwrap().success())).await.unwrap();
        eventually("it moves again", || fs_err::read_to_string(&now).unwrap() != first);
    });
}

#[test]
fn privileged_a_held_sandbox_can_be_removed_and_a_dead_edge_holds_nothing() {
    let mut node = Node::start();
    let (first, second) = (node.create(), node.create());
    let hold = |node: &Node, id: &str| {
        let (socket, path) = (node.socket(), format!("/v1/sandboxes/{id}/hold"));
        async move {
            let mut body = http(&socket, Method::POST, &path, Vec::new()).await.into_body();
            body.frame().await.unwrap().unwrap();
            body
        }
    };
    let runtime = runtime();
    runtime.block_on(async {
        let mut body = hold(&node, &first).await;
        let begun = Instant::now();
        node.ok(&["rm", &first]);
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert!(body.frame().await.is_none_or(|frame| frame.is_err()), "the hold has ended");
    });
    let body = runtime.block_on(hold(&node, &second));
    node.kill_edge();
    node.start_edge();
    assert_eq!(node.ok(&["exec", &second, "echo", "on"]), "on\n");
    drop(body);
}
