//! Clients that cost a registry as much as they can: half heads, silence, drips, floods. Beside them an honest client is
//! served at once.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use dsec_tests::program::Registry;
use rustix::net::{AddressFamily, SocketAddrV4, SocketType, ipproto};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// An honest request is answered in less.
const SOON: Duration = Duration::from_secs(1);
const HALF_HEAD: &[u8] = b"GET / HTTP/1.1\r\nX: ";

fn registry(arguments: &[&str]) -> (tempfile::TempDir, Registry) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let registry = Registry::start(&directory.path().join("s"), arguments).unwrap();
    (directory, registry)
}

/// Connects from `127.0.0.LAST`, another client for each.
fn connect_from(last: u8, registry: &Registry) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP)).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new([127, 0, 0, last].into(), 0)).unwrap();
    let address: SocketAddrV4 = registry.address.parse().unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// An honest request on a connection of its own; gives how long it took.
fn ask(last: u8, registry: &Registry) -> Duration {
    let start = Instant::now();
    let mut stream = connect_from(last, registry);
    stream.write_all(b"GET /v1/refs HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    start.elapsed()
}

fn assert_served(registry: &Registry, beside: &str) {
    for last in [1, 9] {
        let took = ask(last, registry);
        assert!(took < SOON, "beside {beside} a request of 127.0.0.{last} took {took:?}");
    }
}

/// Whether the other side has closed a connection, waiting for that up to `wait`.
fn is_closed(stream: &mut TcpStream, wait: Duration) -> bool {
    stream.set_read_timeout(Some(wait)).unwrap();
    match stream.read(&mut [0; 1024]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

#[test]
fn half_heads_of_one_client_shut_nobody_out() {
    let (_directory, registry) = registry(&[]);
    let mut crowd = Vec::new();
    for _ in 0..1200 {
        let mut stream = connect_from(2, &registry);
        stream.write_all(HALF_HEAD).unwrap();
        crowd.push(stream);
    }
    assert_served(&registry, "1,200 half heads");
    // The client has its part of the connections, and no more; and those not for long.
    let open = crowd.iter_mut().filter_map(|stream| (!is_closed(stream, Duration::from_millis(1))).then_some(()));
    let open = open.count();
    assert!((1..=256).contains(&open), "{open} half heads are waited for");
    let last = crowd.last_mut().unwrap();
    assert!(is_closed(last, Duration::from_secs(20)), "a head that does not come is waited for too long");
}

#[test]
fn half_heads_of_many_clients_shut_nobody_out() {
    let (_directory, registry) = registry(&["--max-connections", "300"]);
    let mut crowd = Vec::new();
    for number in 0..1200u32 {
        let mut stream = connect_from(u8::try_from(20 + number % 12).unwrap(), &registry);
        stream.write_all(HALF_HEAD).unwrap();
        crowd.push(stream);
        if number % 400 == 399 {
            assert_served(&registry, "half heads of many");
        }
    }
}

#[test]
fn idle_connections_make_room_for_requests() {
    let (_directory, registry) = registry(&["--max-connections", "50"]);
    let mut idle = Vec::new();
    for number in 0..120u32 {
        // Each has been answered once, and keeps its connection.
        let mut stream = connect_from(u8::try_from(20 + number % 12).unwrap(), &registry);
        stream.write_all(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
        idle.push(stream);
    }
    assert_served(&registry, "idle connections");
    let open = idle.iter_mut().filter_map(|stream| (!is_closed(stream, Duration::from_millis(1))).then_some(()));
    assert!(open.count() > 10, "idle connections are closed without need");
}

#[test]
fn a_client_with_all_its_connections_in_use_is_refused_more_and_others_are_not() {
    let (_directory, registry) = registry(&["--max-connections-of-client", "4", "--client-timeout-secs", "5"]);
    let head = format!("PUT /v1/layers/{} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n", "0".repeat(64));
    let mut busy: Vec<_> = (0..4).map(|_| connect_from(2, &registry)).collect();
    busy.iter_mut().for_each(|stream| stream.write_all(head.as_bytes()).unwrap());
    // All four are believed to be under way as soon as their heads have been read.
    thread::sleep(Duration::from_millis(300));
    assert!(is_closed(&mut connect_from(2, &registry), Duration::from_secs(3)));
    assert_served(&registry, "a busy client");
}

#[test]
fn a_body_that_drips_is_given_up_and_holds_nothing() {
    let (_directory, registry) = registry(&["--client-timeout-secs", "2", "--max-uploads", "4"]);
    let head = format!("PUT /v1/layers/{} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n", "0".repeat(64));
    let start = Instant::now();
    let dripping: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = connect_from(2, &registry);
            stream.write_all(head.as_bytes()).unwrap();
            let mut reader = stream.try_clone().unwrap();
            let writer = thread::spawn(move || {
                while stream.write_all(b"x").is_ok() && start.elapsed() < Duration::from_secs(60) {
                    thread::sleep(Duration::from_millis(200));
                }
            });
            let status = thread::spawn(move || {
                let mut answer = [0; 1024];
                let count = reader.read(&mut answer).unwrap_or(0);
                String::from_utf8_lossy(&answer[..count]).into_owned()
            });
            (writer, status)
        })
        .collect();
    thread::sleep(Duration::from_millis(500));
    assert_served(&registry, "bodies that drip");
    for (writer, status) in dripping {
        let status = status.join().unwrap();
        assert!(status.starts_with("HTTP/1.1 408"), "{status:?}");
        writer.join().unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn requests_ahead_of_their_answers_are_answered_in_turn_and_kept_in_bounds() {
    let (_directory, registry) = registry(&["--client-timeout-secs", "2"]);
    let request = b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n";
    // Whoever reads the answers gets all of them.
    let mut stream = connect_from(2, &registry);
    let mut writer = stream.try_clone().unwrap();
    let writing = thread::spawn(move || (0..2000).for_each(|_| writer.write_all(request).unwrap()));
    let (mut answers, mut buffer) = (Vec::new(), [0; 64 * 1024]);
    let count = |answers: &[u8]| answers.windows(12).filter(|window| window == b"HTTP/1.1 200").count();
    while count(&answers) < 2000 {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "closed after {} answers", count(&answers));
        answers.extend_from_slice(&buffer[..read]);
    }
    writing.join().unwrap();

    // Whoever never reads them is cut off, and has cost little memory.
    let before = resident_bytes(registry.id());
    let mut flood = connect_from(3, &registry);
    flood.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let (start, many) = (Instant::now(), request.repeat(1000));
    while flood.write_all(&many).is_ok() || !is_closed_for_writing(&mut flood) {
        assert!(start.elapsed() < Duration::from_secs(60), "a client that reads no answer is not given up");
    }
    assert_served(&registry, "a flood of requests");
    let grown = resident_bytes(registry.id()).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes for a client that reads nothing");
}

fn is_closed_for_writing(stream: &mut TcpStream) -> bool {
    match stream.write_all(b"G") {
        Ok(()) => false,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

fn resident_bytes(process: u32) -> u64 {
    let status = fs_err::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}
