//! SIGINT and SIGTERM end a transfer soon, whatever the other side does or does not, and leave both stores whole; and a
//! build whose input has stalled, of which nothing is left.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dsec_format::protocol::registry::Expected;
use dsec_format::refs::Target;
use dsec_store::fsck::{self, fsck};
use dsec_store::{LocalStore, Silent, Source, Store};
use dsec_tests::program::{self, Registry};
use dsec_tests::samples::{self, Sample};
use fs_err as fs;
use rustix::process::{Pid, Signal, kill_process};

/// From the signal to the end of the process.
const SOON: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

/// A relay that passes on some bytes in one direction, of all connections together, and then nothing more: what is
/// connected stays so.
struct Staller {
    url: String,
    stalled: Arc<AtomicBool>,
}

impl Staller {
    fn start(server: &str, direction: Direction, after_bytes: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (server, stalled) = (server.to_owned(), Arc::new(AtomicBool::new(false)));
        let staller = Self { url, stalled: Arc::clone(&stalled) };
        thread::spawn(move || {
            let left = Arc::new(std::sync::Mutex::new(after_bytes));
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(&server).unwrap();
                for (from, to, this) in [
                    (client.try_clone().unwrap(), server.try_clone().unwrap(), Direction::ToServer),
                    (server, client, Direction::ToClient),
                ] {
                    let bound = (this == direction).then(|| (Arc::clone(&left), Arc::clone(&stalled)));
                    thread::spawn(move || relay(from, to, bound));
                }
            }
        });
        staller
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, bound: Option<(Arc<std::sync::Mutex<usize>>, Arc<AtomicBool>)>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(mut count @ 1..) = from.read(&mut buffer) {
        if let Some((left, stalled)) = &bound {
            let mut left = left.lock().unwrap();
            if *left < count {
                count = *left;
                *left = 0;
                drop(left);
                let _ = to.write_all(&buffer[..count]);
                stalled.store(true, Ordering::SeqCst);
                // Nothing more comes, and nothing is closed.
                thread::sleep(Duration::from_secs(600));
                return;
            }
            *left -= count;
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn dsec_pack(store: &Path, arguments: &[&str]) -> Killed {
    dsec_pack_from(Stdio::null(), store, arguments)
}

fn dsec_pack_from(stdin: Stdio, store: &Path, arguments: &[&str]) -> Killed {
    let mut command = Command::new(program::binary("dsec-pack").unwrap());
    command.arg("--store").arg(store).args(arguments);
    Killed(command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Sends a signal; the process ends soon with the exit code for that.
fn ends_soon(process: &mut Killed, signal: Signal, what: &str) {
    let start = Instant::now();
    kill_process(Pid::from_child(&process.0), signal).unwrap();
    let status = loop {
        if let Some(status) = process.0.try_wait().unwrap() {
            break status;
        }
        assert!(start.elapsed() < SOON, "{what}: it goes on after {SOON:?}");
        thread::sleep(Duration::from_millis(10));
    };
    let mut text = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(status.code(), Some(130), "{what}: {text}");
    assert!(text.contains("interrupted"), "{what}: {text}");
}

fn assert_whole(path: &Path) {
    let report = fsck(&LocalStore::open(path).unwrap(), &fsck::Options::default(), &Silent).unwrap();
    assert!(report.findings.is_empty(), "{}: {:?}", path.display(), report.findings);
}

fn publish(path: &Path, sample: &Sample) {
    let store = LocalStore::create(path).unwrap();
    sample.put(&store, 1 << 20).unwrap();
    let target = Target::Image(store.put_image(&samples::image(&[sample])).unwrap());
    store.set_ref(&"app:1".parse().unwrap(), target, Expected::Anything).unwrap();
}

#[test]
fn a_signal_ends_a_transfer_with_a_registry_that_has_stalled() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    // Some 4 MiB that do not compress: packs, a layer and locations of several reads each.
    let sample = Sample::seeded(0, 1000, 4000);
    publish(&path("full"), &sample);
    let full = Registry::start(&path("full"), &[]).unwrap();
    for (number, (push, direction, after_bytes)) in [
        (false, Direction::ToServer, 0),
        (false, Direction::ToClient, 0),
        (false, Direction::ToClient, 500),
        (false, Direction::ToClient, 50_000),
        (false, Direction::ToClient, 1_500_000),
        (true, Direction::ToServer, 0),
        (true, Direction::ToServer, 50_000),
        (true, Direction::ToServer, 1_500_000),
        (true, Direction::ToClient, 300),
    ]
    .into_iter()
    .enumerate()
    {
        let what = format!("push: {push}, {after_bytes} bytes {direction:?}");
        let (local, served) = (path(&format!("local-{number}")), path(&format!("served-{number}")));
        let signal = if number % 2 == 0 { Signal::TERM } else { Signal::INT };
        let empty = push.then(|| Registry::start(&served, &[]).unwrap());
        let staller = Staller::start(&empty.as_ref().unwrap_or(&full).address, direction, after_bytes);
        let mut process = if push {
            publish(&local, &sample);
            dsec_pack(&local, &["push", "app:1", &staller.url])
        } else {
            dsec_pack(&local, &["pull", "app:1", &staller.url])
        };
        let start = Instant::now();
        while !staller.stalled.load(Ordering::SeqCst) {
            assert!(start.elapsed() < Duration::from_secs(30), "{what}: nothing stalls");
            assert!(process.0.try_wait().unwrap().is_none(), "{what}: it has ended");
            thread::sleep(Duration::from_millis(10));
        }
        // Whatever is going on at the moment of the stall comes to its wait.
        thread::sleep(Duration::from_millis(300));
        ends_soon(&mut process, signal, &what);
        drop(empty);
        for store in [&local, &served] {
            if store.join("format").exists() {
                assert_whole(store);
                assert!(push || fs::read_dir(store.join("refs")).map_or(0, Iterator::count) == 0, "{what}: a ref");
            }
        }
    }
}

#[test]
fn a_signal_ends_a_transfer_that_waits_before_it_tries_again() {
    let directory = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&asked);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream
                .write_all(b"HTTP/1.1 503 Busy\r\nconnection: close\r\nretry-after: 60\r\ncontent-length: 0\r\n\r\n");
            told.store(true, Ordering::SeqCst);
        }
    });
    let mut process = dsec_pack(&directory.path().join("s"), &["pull", "app:1", &url]);
    while !asked.load(Ordering::SeqCst) {
        assert!(process.0.try_wait().unwrap().is_none(), "it has ended");
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(300));
    ends_soon(&mut process, Signal::INT, "a pause");
}

/// A relay that counts what goes to the server.
fn counter(server: &str) -> (String, Arc<std::sync::atomic::AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (server, count) = (server.to_owned(), Arc::new(std::sync::atomic::AtomicU64::new(0)));
    let counted = Arc::clone(&count);
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut server = TcpStream::connect(&server).unwrap();
            let (mut answers, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut answers, &mut to_client));
            let counted = Arc::clone(&counted);
            thread::spawn(move || {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(count @ 1..) = client.read(&mut buffer) {
                    counted.fetch_add(count as u64, Ordering::SeqCst);
                    if server.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
                let _ = server.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    (url, count)
}

fn pack_bytes(store: &Path) -> u64 {
    let shards = fs::read_dir(store.join("packs")).map(Iterator::collect).unwrap_or_else(|_| Vec::new());
    let files = shards.into_iter().flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap());
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn a_push_that_was_killed_goes_on_with_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let (local, served, tree) =
        (directory.path().join("local"), directory.path().join("served"), directory.path().join("tree"));
    fs::create_dir(&tree).unwrap();
    // Some 100 MiB as they are stored: three packs and a rest.
    (0..200).for_each(|number| fs::write(tree.join(number.to_string()), samples::data(number, 1 << 20)).unwrap());
    let mut build = dsec_pack(&local, &["build", tree.to_str().unwrap(), "--ref", "app:1"]);
    assert!(build.0.wait().unwrap().success());
    let total = pack_bytes(&local);
    let registry = Registry::start(&served, &[]).unwrap();

    let (url, _) = counter(&registry.address);
    let mut push = dsec_pack(&local, &["push", "app:1", &url]);
    while pack_bytes(&served) == 0 {
        assert!(push.0.try_wait().unwrap().is_none(), "it ended before it could be killed");
        thread::sleep(Duration::from_millis(5));
    }
    push.0.kill().unwrap();
    push.0.wait().unwrap();
    // What the registry was given before the kill may still be checked.
    thread::sleep(Duration::from_secs(2));
    let arrived = pack_bytes(&served);
    assert!(arrived > 0 && arrived < total, "{arrived} of {total} bytes had arrived");
    assert!(fs::read_dir(served.join("refs")).map_or(0, Iterator::count) == 0, "a ref was set first");

    let (url, sent) = counter(&registry.address);
    let mut push = dsec_pack(&local, &["push", "app:1", &url]);
    assert!(push.0.wait().unwrap().success());
    let (sent, missing) = (sent.load(Ordering::SeqCst), total - arrived);
    assert!(sent >= missing - missing / 50, "{sent} bytes cannot be all of {missing}");
    assert!(sent < missing + missing / 50 + (1 << 20), "{sent} bytes were sent for {missing} that were missing");
    drop(registry);
    assert_whole(&served);

    // And again: nothing but questions.
    let registry = Registry::start(&served, &[]).unwrap();
    let (url, sent) = counter(&registry.address);
    let mut push = dsec_pack(&local, &["push", "app:1", &url]);
    assert!(push.0.wait().unwrap().success());
    let sent = sent.load(Ordering::SeqCst);
    assert!(sent < 4096, "{sent} bytes were sent for nothing");
}

fn assert_empty(path: &Path, what: &str) {
    for kind in ["tmp", "images", "layers", "locations", "packs", "refs"] {
        let left = fs::read_dir(path.join(kind)).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{what}: {left} in {kind}");
    }
    assert_whole(path);
}

fn build(store: &Path, stdin: Stdio, input: &str) -> Killed {
    dsec_pack_from(stdin, store, &["build", input, "--ref", "app:1"])
}

fn stops_waiting(process: &mut Killed, signal: Signal, what: &str) {
    // Whatever it does before it waits is done by then.
    thread::sleep(Duration::from_millis(500));
    assert!(process.0.try_wait().unwrap().is_none(), "{what}: it has ended by itself");
    ends_soon(process, signal, what);
}

/// An archive of some 2 MiB with one large file in it; plain and compressed.
fn archives(directory: &Path) -> [PathBuf; 2] {
    let tree = directory.join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), samples::data(1, 2 << 20)).unwrap();
    let tar = |option: &str, name: &str| {
        let path = directory.join(name);
        let status = Command::new("tar").arg(option).arg(&path).arg("-C").arg(&tree).arg(".").status().unwrap();
        assert!(status.success(), "tar {option}");
        path
    };
    [tar("-cf", "plain.tar"), tar("-czf", "archive.tar.gz")]
}

#[test]
fn a_signal_ends_a_build_whose_standard_input_stalls() {
    let directory = tempfile::tempdir().unwrap();
    let [plain, compressed] = archives(directory.path()).map(|path| fs::read(path).unwrap());
    let cases = [
        ("nothing", &plain[..0], Signal::INT),
        ("half a magic", &plain[..3], Signal::TERM),
        ("half a header", &plain[..700], Signal::INT),
        ("half of the data", &plain[..1 << 20], Signal::TERM),
        ("all of it, without an end", &plain[..], Signal::INT),
        ("half of a compressed one", &compressed[..1 << 20], Signal::INT),
    ];
    for (number, (what, bytes, signal)) in cases.into_iter().enumerate() {
        let store = directory.path().join(number.to_string());
        let mut process = build(&store, Stdio::piped(), "-");
        let mut stdin = process.0.stdin.take().unwrap();
        stdin.write_all(bytes).unwrap();
        stops_waiting(&mut process, signal, what);
        drop(stdin);
        assert_empty(&store, what);
    }
}

#[test]
fn a_signal_ends_a_build_from_a_fifo_that_stalls_or_that_nobody_writes_to() {
    let directory = tempfile::tempdir().unwrap();
    let [plain, _] = archives(directory.path()).map(|path| fs::read(path).unwrap());
    let fifo = directory.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
    let name = fifo.to_str().unwrap();

    let store = directory.path().join("unopened");
    let mut process = build(&store, Stdio::null(), name);
    stops_waiting(&mut process, Signal::INT, "nobody writes");
    assert_empty(&store, "nobody writes");

    let store = directory.path().join("stalled");
    let mut process = build(&store, Stdio::null(), name);
    let mut writer = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    writer.write_all(&plain[..1 << 20]).unwrap();
    stops_waiting(&mut process, Signal::TERM, "it stalls");
    assert_empty(&store, "it stalls");
    drop(writer);

    // One that comes to its end is an input like any other, however late it begins.
    let store = directory.path().join("whole");
    let mut process = build(&store, Stdio::null(), name);
    thread::sleep(Duration::from_millis(300));
    fs::write(&fifo, &plain).unwrap();
    assert!(process.0.wait().unwrap().success());
    let of_file = directory.path().join("of-file");
    let file = directory.path().join("plain.tar");
    assert!(build(&of_file, Stdio::null(), file.to_str().unwrap()).0.wait().unwrap().success());
    let target = |store: &Path| LocalStore::open(store).unwrap().read_ref(&"app:1".parse().unwrap()).unwrap().target;
    assert_eq!(target(&store), target(&of_file));
}
