//! Output and input: every byte, in bounded memory, whatever the speed of either side.

use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use dsec_format::protocol::edge::Outcome;
use dsec_format::protocol::stream::{HEADER_BYTES, Header, Kind, Skipped};
use http_body_util::BodyExt;
use hyper::Method;

use super::support::{Node, http, http_json, noise, runtime};

fn edge_memory_bytes(node: &Node) -> u64 {
    let status = fs_err::read_to_string(format!("/proc/{}/status", node.edge_pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// A stream taken apart.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    stdout: Vec<u8>,
    skipped: u64,
    outcome: Option<Outcome>,
}

impl Stream {
    fn add(&mut self, part: &[u8]) {
        self.bytes.extend_from_slice(part);
        while let Ok(header) = Header::decode(&self.bytes) {
            let end = HEADER_BYTES + header.bytes as usize;
            if self.bytes.len() < end {
                return;
            }
            let payload = &self.bytes[HEADER_BYTES..end];
            match header.kind {
                Kind::Stdout => self.stdout.extend_from_slice(payload),
                Kind::Skipped => self.skipped += serde_json::from_slice::<Skipped>(payload).unwrap().bytes,
                Kind::Outcome => self.outcome = Some(serde_json::from_slice(payload).unwrap()),
                Kind::Stderr | Kind::Error => panic!("unexpected: {}", String::from_utf8_lossy(payload)),
            }
            self.bytes.drain(..end);
        }
    }
}

#[test]
fn privileged_ten_megabytes_of_binary_go_in_and_come_out_unchanged() {
    let node = Node::start();
    let data = noise(10 << 20);
    let mut child = node.command(&["run", "base", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let sent = data.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent));
    let mut back = Vec::new();
    stdout.read_to_end(&mut back).unwrap();
    writer.join().unwrap().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(back == data, "{} bytes of {} came back, or others", back.len(), data.len());
}

#[test]
fn privileged_input_ends_when_it_ends_and_may_be_left_unread() {
    let node = Node::start();
    let file = node.directory.path().join("input");
    fs_err::write(&file, noise(3 << 20)).unwrap();
    let with = |arguments: &[&str]| {
        let input = fs_err::File::open(&file).unwrap().into_parts().0;
        node.command(arguments).stdin(input).output().unwrap()
    };
    assert_eq!(String::from_utf8(with(&["run", "base", "wc", "-c"]).stdout).unwrap().trim(), (3 << 20).to_string());
    assert!(with(&["run", "base", "true"]).status.success());
    assert_eq!(String::from_utf8(with(&["run", "-n", "base", "wc", "-c"]).stdout).unwrap().trim(), "0");
    let quick = Instant::now();
    assert!(with(&["run", "base", "sh", "-c", "read line; sleep 0.1"]).status.success());
    assert!(quick.elapsed() < Duration::from_secs(5));
}

#[test]
fn privileged_a_reader_that_stops_ends_the_command() {
    let node = Node::start();
    let mut child = node.command(&["run", "base", "yes"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut some = vec![0; 100_000];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(141), "as one that SIGPIPE has ended");
    node.nothing_remains();
}

#[test]
fn privileged_endless_output_without_a_reader_is_capped() {
    let node = Node::start();
    let id = node.create();
    let before = edge_memory_bytes(&node);
    let request = serde_json::json!({"argv": ["yes", "0123456789abcde"], "timeout_ms": 3000});
    let output = runtime().block_on(async {
        let path = format!("/v1/sandboxes/{id}/execs");
        let (status, exec) =
            http_json(&node.socket(), Method::POST, &path, serde_json::to_vec(&request).unwrap()).await;
        assert_eq!(status, 200, "{exec}");
        let exec = exec["id"].as_str().unwrap();
        let path = format!("{path}/{exec}");
        let (_, ended) = http_json(&node.socket(), Method::GET, &format!("{path}?wait_ms=60000"), Vec::new()).await;
        assert_eq!(ended["outcome"]["reason"]["kind"], "timeout");
        let mut stream = Stream::default();
        let answer = http(&node.socket(), Method::GET, &format!("{path}/output"), Vec::new()).await;
        stream.add(&answer.into_body().collect().await.unwrap().to_bytes());
        stream
    });
    let outcome = output.outcome.unwrap();
    assert!(outcome.truncated && outcome.stdout_bytes > 100 << 20, "{outcome:?}");
    assert_eq!(output.stdout.len() as u64 + output.skipped, outcome.stdout_bytes);
    assert_eq!(output.stdout.len(), 5 << 20, "head and tail");
    assert!(output.stdout.starts_with(b"0123456789abcde\n0123456789abcde\n"));
    let grown = edge_memory_bytes(&node).saturating_sub(before);
    assert!(grown < 32 << 20, "the edge grew by {grown} bytes");
}

#[test]
fn privileged_a_cut_connection_loses_no_byte() {
    let node = Node::start();
    let id = node.create();
    let data = noise(12 << 20);
    let source = node.directory.path().join("data");
    fs_err::write(&source, &data).unwrap();
    node.ok(&["cp", source.to_str().unwrap(), &format!("{id}:/srv/data")]);
    let request = serde_json::json!({"argv": ["cat", "/srv/data"], "attach": "keep"});
    let got = runtime().block_on(async {
        let path = format!("/v1/sandboxes/{id}/execs");
        let answer = http(&node.socket(), Method::POST, &path, serde_json::to_vec(&request).unwrap()).await;
        let exec = answer.headers()["dsec-exec"].to_str().unwrap().to_owned();
        let mut body = answer.into_body();
        let mut got = Vec::new();
        let mut cuts = 0;
        loop {
            let mut stream = Stream::default();
            while stream.outcome.is_none() {
                let Some(frame) = body.frame().await else { break };
                stream.add(&frame.unwrap().into_data().unwrap());
                // What is still on its way then is lost with the connection.
                if cuts < 5 && stream.stdout.len() > 1 << 20 {
                    break;
                }
            }
            got.extend_from_slice(&stream.stdout);
            assert_eq!(stream.skipped, 0);
            if let Some(outcome) = stream.outcome {
                assert!(!outcome.truncated && outcome.stdout_bytes == 12 << 20, "{outcome:?}");
                return got;
            }
            cuts += 1;
            drop(body);
            tokio::time::sleep(Duration::from_millis(50)).await;
            let path = format!("{path}/{exec}/output?stdout_from={}", got.len());
            body = http(&node.socket(), Method::GET, &path, Vec::new()).await.into_body();
        }
    });
    assert!(got == data, "{} bytes of {} arrived, or others", got.len(), data.len());
}
