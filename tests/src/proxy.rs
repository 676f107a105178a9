//! An HTTP/1.1 relay that delays every request and counts requests and bytes.
//!
//! One thread a connection, and one connection to the server for each; both are kept alive as long as both sides want.
//! A request waits its delay before its first byte is passed on, so a client pays once a request, whatever its size,
//! and requests on different connections wait side by side: that is what distance does.
//!
//! It is a tool for tests on loopback: no TLS, no `Expect: 100-continue`, no upgrade.

mod http;

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Body, Head, Result};

/// Answered by the proxy itself, and not counted.
pub const STATS_PATH: &str = "/.delay-proxy/stats";

/// What has passed so far. Bytes are those of bodies, without heads and chunk framing.
#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    request_bytes: AtomicU64,
    response_bytes: AtomicU64,
}

/// The relay.
#[derive(Debug)]
pub struct Proxy {
    upstream: SocketAddr,
    delay: Duration,
    counters: Counters,
}

impl Proxy {
    /// A relay to `upstream` that delays each request by `delay`.
    #[must_use]
    pub fn new(upstream: SocketAddr, delay: Duration) -> Arc<Self> {
        Arc::new(Self { upstream, delay, counters: Counters::default() })
    }

    /// Serves every connection of `listener`, until the listener fails.
    pub fn serve(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming().flatten() {
            let proxy = Arc::clone(self);
            // A connection that breaks ends its thread; both peers see their connection closed.
            std::thread::spawn(move || proxy.relay(client));
        }
    }

    fn relay(&self, client: TcpStream) -> Result<()> {
        client.set_nodelay(true)?;
        let mut from_client = BufReader::new(client.try_clone()?);
        let mut to_client = client;
        let mut server: Option<(BufReader<TcpStream>, TcpStream)> = None;
        while let Some(request) = Head::read(&mut from_client)? {
            if request.target() == Some(STATS_PATH) {
                self.answer_stats(&mut to_client)?;
                continue;
            }
            std::thread::sleep(self.delay);
            let (from_server, to_server) = match &mut server {
                Some(connection) => connection,
                none => none.insert(self.connect()?),
            };
            self.counters.requests.fetch_add(1, Ordering::Relaxed);
            to_server.write_all(request.bytes())?;
            request.request_body()?.relay(&mut from_client, to_server, &self.counters.request_bytes)?;
            let response = Head::read_final(from_server, &mut to_client)?;
            to_client.write_all(response.bytes())?;
            let body = response.response_body(&request)?;
            body.relay(from_server, &mut to_client, &self.counters.response_bytes)?;
            if body == Body::UntilClose || request.closes() || response.closes() {
                break;
            }
        }
        Ok(())
    }

    fn connect(&self) -> Result<(BufReader<TcpStream>, TcpStream)> {
        let server = TcpStream::connect(self.upstream)?;
        server.set_nodelay(true)?;
        Ok((BufReader::new(server.try_clone()?), server))
    }

    fn answer_stats(&self, to_client: &mut TcpStream) -> Result<()> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let body = serde_json::json!({
            "requests": count(&self.counters.requests),
            "request_bytes": count(&self.counters.request_bytes),
            "response_bytes": count(&self.counters.response_bytes),
        })
        .to_string();
        let length = body.len();
        write!(
            to_client,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::time::Instant;

    const DELAY: Duration = Duration::from_millis(30);

    /// A server that answers each request in turn with the next of `answers`, byte for byte, on one connection.
    fn server(answers: Vec<Vec<u8>>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (connection, _) = listener.accept().unwrap();
            let mut from = BufReader::new(connection.try_clone().unwrap());
            let mut to = connection;
            for answer in answers {
                let head = Head::read(&mut from).unwrap().unwrap();
                head.request_body().unwrap().relay(&mut from, &mut std::io::sink(), &AtomicU64::new(0)).unwrap();
                to.write_all(&answer).unwrap();
            }
        });
        address
    }

    fn through_proxy(answers: Vec<Vec<u8>>, requests: &[u8]) -> (Vec<u8>, Arc<Proxy>, Duration) {
        let proxy = Proxy::new(server(answers), DELAY);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Arc::clone(&proxy);
        std::thread::spawn(move || serving.serve(&listener));
        let start = Instant::now();
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(requests).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        (received, proxy, start.elapsed())
    }

    #[test]
    fn every_framing_passes_unchanged_and_is_counted() {
        let answers: Vec<Vec<u8>> = [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nto the end",
        ]
        .map(|answer| answer.as_bytes().to_vec())
        .to_vec();
        let requests =
            b"GET /a HTTP/1.1\r\n\r\nPOST /b HTTP/1.1\r\nContent-Length: 4\r\n\r\nbodyHEAD /c HTTP/1.1\r\n\r\n\
              PUT /d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxy\r\n0\r\n\r\nGET /e HTTP/1.1\r\n\r\n";
        let (received, proxy, took) = through_proxy(answers.clone(), requests);
        assert_eq!(String::from_utf8(received), String::from_utf8(answers.concat()));
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(count(&proxy.counters.requests), 5);
        assert_eq!(count(&proxy.counters.request_bytes), 4 + 2);
        assert_eq!(count(&proxy.counters.response_bytes), 5 + 7 + 10);
        assert!(took >= 5 * DELAY, "five requests, one after the other, took {took:?}");
    }

    #[test]
    fn stats_are_answered_by_the_proxy() {
        let request = format!("GET {STATS_PATH} HTTP/1.1\r\n\r\n");
        let (received, _, _) = through_proxy(Vec::new(), request.as_bytes());
        let text = String::from_utf8(received).unwrap();
        assert!(text.contains("\"requests\":0"), "{text}");
    }

    #[test]
    fn a_malformed_head_closes_the_connection() {
        let (received, proxy, _) = through_proxy(Vec::new(), b"POST / HTTP/1.1\r\ncontent-length: many\r\n\r\n");
        assert_eq!((received.len(), proxy.counters.response_bytes.load(Ordering::Relaxed)), (0, 0));
    }
}
