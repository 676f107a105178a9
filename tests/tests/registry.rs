//! `dsec-registry` as clients see it: tokens, hostile requests, broken connections, request counts, restarts.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dsec_format::PackDigest;
use dsec_format::protocol::registry::Expected;
use dsec_format::refs::Target;
use dsec_store::fsck::{self, fsck};
use dsec_store::remote::Options;
use dsec_store::transfer::{self, Stats};
use dsec_store::{Error, LocalStore, RemoteStore, Silent, Source, Store, transfer_ref};
use dsec_tests::mounts::SmallDisk;
use dsec_tests::program::{self, Registry};
use dsec_tests::samples::{self, Sample};
use fs_err as fs;

/// Deadlines for a network that breaks on purpose.
fn quick() -> Options {
    Options {
        progress_timeout: Duration::from_secs(2),
        overall_timeout: Duration::from_secs(20),
        pause: Duration::from_millis(5),
        piece_bytes: 100_000,
        ..Options::default()
    }
}

fn connect(url: &str) -> RemoteStore {
    RemoteStore::connect(url, None, quick()).unwrap()
}

fn publish(store: &dyn Store, name: &str, samples: &[&Sample]) {
    for sample in samples {
        sample.put(store, 1 << 20).unwrap();
    }
    let target = Target::Image(store.put_image(&samples::image(samples)).unwrap());
    store.set_ref(&name.parse().unwrap(), target, Expected::Anything).unwrap();
}

fn copy(from: &dyn Source, to: &dyn Store, name: &str, scratch: &Path) -> Result<Stats, Error> {
    let (name, options) = (name.parse().unwrap(), transfer::Options::new(scratch));
    transfer_ref(from, &name, to, &name, Expected::Anything, &options, &Silent).map(|(_, stats)| stats)
}

fn assert_clean(path: &Path) {
    let report = fsck(&LocalStore::open(path).unwrap(), &fsck::Options::default(), &Silent).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// Sends raw bytes; gives the status and what followed.
fn raw(address: &str, request: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    // The registry may close a connection that it has refused while this side still has data on the way.
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, text)
}

fn request(address: &str, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String) {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    raw(address, &[head.as_bytes(), body].concat())
}

#[test]
fn a_push_of_what_is_mostly_there_takes_few_requests() {
    let directory = tempfile::tempdir().unwrap();
    let local = LocalStore::create(&directory.path().join("local")).unwrap();
    let registry = Registry::start(&directory.path().join("served"), &[]).unwrap();
    let remote = RemoteStore::connect(&registry.url(), None, Options::default()).unwrap();
    let scratch = local.scratch().unwrap();
    let base = Sample::seeded(0, 1000, 8000);
    publish(&local, "app", &[&base]);
    copy(&local, &remote, "app", scratch.path()).unwrap();

    // One chunk of a hundred is new.
    let mut chunks = base.chunks.clone();
    (0..10).for_each(|number| chunks[number * 100] = samples::data(50_000 + number as u64, 8000));
    publish(&local, "app", &[&Sample::of(chunks)]);
    let stats = copy(&local, &remote, "app", scratch.path()).unwrap();
    assert_eq!((stats.moved_chunks, stats.packs), (10, 1));
    assert!(stats.requests <= 20, "{stats:?}");
    assert!(stats.sent_bytes < 10 * 8000 + 100_000, "{stats:?}");

    let again = copy(&local, &remote, "app", scratch.path()).unwrap();
    assert!(again.requests <= 2, "{again:?}");
    assert_eq!(again.sent_bytes, 0);

    let pulled = LocalStore::create(&directory.path().join("pulled")).unwrap();
    copy(&remote, &pulled, "app", pulled.scratch().unwrap().path()).unwrap();
    for path in ["served", "pulled"] {
        assert_clean(&directory.path().join(path));
    }
}

#[test]
fn a_token_is_needed_when_there_is_one() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "open-sesame\nsecond line\n").unwrap();
    let registry = Registry::start(&directory.path().join("s"), &["--token-file", token.to_str().unwrap()]).unwrap();
    let with = |token| RemoteStore::connect(&registry.url(), token, quick()).unwrap();
    publish(&with(Some("open-sesame")), "app", &[&Sample::seeded(0, 2, 100)]);
    for wrong in [None, Some(""), Some("open-sesam"), Some("open-sesame2"), Some("second"), Some("OPEN-SESAME")] {
        let store = with(wrong);
        store.ping().unwrap();
        let errors = [
            store.read_ref(&"app".parse().unwrap()).err(),
            store.list_refs("", None, 10).err(),
            store.missing_chunks(&[]).err().or(store.missing_chunks(&[dsec_format::ChunkDigest::of(b"")]).err()),
            store.has_image(&dsec_format::ImageDigest::of(b"")).err(),
            store.remove_ref(&"app".parse().unwrap(), Expected::Anything).err(),
        ];
        for error in errors {
            assert!(matches!(error, Some(Error::Refused { status: 401, .. })), "{wrong:?}: {error:?}");
        }
    }
    let (status, text) = request(&registry.address, "GET", "/v1/nothing", "authorization: Basic b3Blbg==\r\n", b"");
    assert_eq!(status, 401, "{text}");
    with(Some("open-sesame")).read_ref(&"app".parse().unwrap()).unwrap();
}

#[test]
fn hostile_requests_are_refused_and_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("secret"), "secret").unwrap();
    let registry = Registry::start(&directory.path().join("s"), &[]).unwrap();
    publish(&connect(&registry.url()), "app", &[&Sample::seeded(0, 2, 100)]);
    let address = &registry.address;
    let hex = "0".repeat(64);
    let upper = "A".repeat(64);
    let long = "x".repeat(100_000);
    for (method, path, headers, body, expected) in [
        ("GET", "/v1/refs/../../secret", "", "", &[404, 400][..]),
        ("GET", "/v1/refs/..%2f..%2fsecret:x", "", "", &[400]),
        ("GET", "/v1/refs/%2e%2e/x:y", "", "", &[400]),
        ("GET", "/v1/refs/a:b%00", "", "", &[400]),
        ("GET", "/v1/refs/app", "", "", &[400]),
        ("GET", "/v1/packs/..%2f..%2fformat", "", "", &[400]),
        ("GET", &format!("/v1/packs/{upper}"), "", "", &[400]),
        ("GET", "/v1/packs/ab", "", "", &[400]),
        ("GET", "/format", "", "", &[404]),
        ("GET", "/v1/refs?limit=-1", "", "", &[400]),
        ("GET", "/v1/refs?unknown=1", "", "", &[400]),
        ("DELETE", &format!("/v1/packs/{hex}"), "", "", &[405]),
        ("POST", "/v1/chunks/missing", "", "31 bytes are no list of digests", &[400]),
        ("PUT", "/v1/refs/new:x", "", "{}", &[400]),
        ("PUT", "/v1/refs/new:x", "", "not json", &[400]),
        ("PUT", "/v1/refs/new:x", "", long.as_str(), &[413]),
        ("PUT", &format!("/v1/images/{hex}"), "", "{}", &[422]),
        ("PUT", &format!("/v1/environments/{hex}"), "", "{}", &[422]),
        ("PUT", &format!("/v1/layers/{hex}"), "", "no layer", &[422]),
        ("PATCH", "/v1/uploads/..%2f..%2fformat", "dsec-offset: 0\r\n", "x", &[400]),
        ("PATCH", "/v1/uploads/AAAAAAAAAAAAAAAAAAAAAAAA", "dsec-offset: 0\r\n", "x", &[404]),
        ("PATCH", "/v1/uploads/AAAAAAAAAAAAAAAAAAAAAAAA", "", "x", &[400]),
        ("PUT", &format!("/v1/uploads/AAAAAAAAAAAAAAAAAAAAAAAA?pack={hex}"), "", "", &[404]),
        ("PUT", "/v1/uploads/AAAAAAAAAAAAAAAAAAAAAAAA?pack=..", "", "", &[400]),
        ("PUT", "/v1/uploads/AAAAAAAAAAAAAAAAAAAAAAAA", "", "", &[400]),
    ] {
        let (status, text) = request(address, method, path, headers, body.as_bytes());
        assert!(expected.contains(&status), "{method} {path}: {text}");
        assert!(!text.contains("secret\n") && !text.contains(directory.path().to_str().unwrap()), "{text}");
    }
    // Bodies that end early, and heads that never end.
    let cut = format!("PUT /v1/layers/{hex} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nshort");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(cut.as_bytes()).unwrap();
    drop(stream);
    let (status, _) = raw(address, format!("GET /{long}{long} HTTP/1.1\r\n\r\n").as_bytes());
    assert!([400, 414, 431].contains(&status), "{status}");

    let store = connect(&registry.url());
    assert_eq!(store.list_refs("", None, 10).unwrap().refs.len(), 1);
    drop(registry);
    assert_clean(&directory.path().join("s"));
}

#[test]
fn bodies_over_the_limit_are_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    let registry = Registry::start(&directory.path().join("s"), &[]).unwrap();
    let too_many = vec![0; 65_537 * 32];
    let (status, _) = request(&registry.address, "POST", "/v1/chunks/missing", "", &too_many);
    assert!([413, 0].contains(&status), "{status}");
    let image = vec![b' '; 5 << 20];
    let (status, _) = request(&registry.address, "PUT", &format!("/v1/images/{}", "0".repeat(64)), "", &image);
    assert!([413, 0].contains(&status), "{status}");
    connect(&registry.url()).ping().unwrap();
}

#[test]
fn a_client_that_sends_nothing_more_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let registry = Registry::start(&directory.path().join("s"), &["--client-timeout-secs", "1"]).unwrap();
    let start = Instant::now();
    let head = format!("PUT /v1/layers/{} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nsome", "0".repeat(64));
    let (status, text) = raw(&registry.address, head.as_bytes());
    assert_eq!(status, 408, "{text}");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn what_cannot_be_served_is_refused_with_its_own_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    let (store, token) = (directory.path().join("s"), directory.path().join("token"));
    LocalStore::create(&store).unwrap();
    fs::write(&token, "two words\n").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listener = TcpListener::bind(taken).unwrap();
    let (store, token, taken) = (store.to_str().unwrap(), token.to_str().unwrap(), taken.to_string());
    let binary = program::binary("dsec-registry").unwrap();
    for (arguments, code, what) in [
        (&["--store", store, "--listen", "0.0.0.0:0"][..], 7, "no token is configured"),
        (&["--store", store, "--listen", "nonsense"], 2, "cannot find the address nonsense"),
        (&["--store", store, "--token-file", token], 2, "no usable token"),
        (&["--store", store, "--token-file", "/nonexistent"], 3, "/nonexistent"),
        (&["--store", "/nonexistent"], 3, "no such directory\nhint: --create makes one"),
        (&["--store", directory.path().to_str().unwrap()], 3, "not a dsec store"),
        (&["--store", store, "--listen", &taken], 9, "cannot listen"),
    ] {
        let output = Command::new(&binary).arg("serve").args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(what), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty());
    }
    drop(listener);
}

#[test]
fn a_registry_stops_when_it_is_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let mut registry = Registry::start(&directory.path().join("s"), &[]).unwrap();
    connect(&registry.url()).ping().unwrap();
    let process = rustix::process::Pid::from_raw(i32::try_from(registry.id()).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert_eq!(registry.wait().unwrap(), 0);
    assert_eq!(fs::read_dir(directory.path().join("s/tmp")).map(Iterator::count).unwrap_or(0), 0);
    let error = connect(&registry.url()).ping().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[test]
fn two_registries_serve_one_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("s");
    let (one, two) = (Registry::start(&store, &[]).unwrap(), Registry::start(&store, &[]).unwrap());
    let (one, two) = (connect(&one.url()), connect(&two.url()));
    let sample = Sample::seeded(0, 20, 5000);
    // Packs to the one, the layer and the rest to the other.
    let scratch = tempfile::tempdir().unwrap();
    for pack in sample.packs(scratch.path(), 30_000).unwrap() {
        one.put_pack(&pack.digest(), pack.path()).unwrap();
    }
    let layer = scratch.path().join("layer");
    fs::write(&layer, sample.layer.encode(3)).unwrap();
    two.put_layer(&sample.digest(), &layer).unwrap();
    publish(&two, "app", &[&sample]);
    assert_eq!(one.read_ref(&"app".parse().unwrap()).unwrap(), two.read_ref(&"app".parse().unwrap()).unwrap());
    assert!(one.has_layer(&sample.digest()).unwrap());
}

/// A relay that cuts connections after some bytes, some of the time, in one direction.
struct Cutter {
    url: String,
    cuts: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Cutter {
    /// Cuts a connection whenever more than `after_bytes` were carried in `direction` since the last cut, `cuts` times.
    fn start(server: &str, direction: Direction, after_bytes: usize, cuts: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (left, carried) = (Arc::new(AtomicUsize::new(cuts)), Arc::new(Mutex::new(0)));
        let (server, cutter) = (server.to_owned(), Self { url, cuts: Arc::clone(&left) });
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(&server).unwrap();
                for (from, to, this) in [
                    (client.try_clone().unwrap(), server.try_clone().unwrap(), Direction::ToServer),
                    (server, client, Direction::ToClient),
                ] {
                    let (left, carried) = (Arc::clone(&left), Arc::clone(&carried));
                    let limit = (this == direction).then_some(after_bytes);
                    std::thread::spawn(move || relay(from, to, limit, &left, &carried));
                }
            }
        });
        cutter
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, limit: Option<usize>, left: &AtomicUsize, carried: &Mutex<usize>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(mut count @ 1..) = from.read(&mut buffer) {
        let mut cut = false;
        if let Some(limit) = limit {
            let mut carried = carried.lock().unwrap();
            cut = *carried + count > limit
                && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            if cut {
                count = limit.saturating_sub(*carried);
            }
            *carried = if cut { 0 } else { *carried + count };
        }
        if to.write_all(&buffer[..count]).is_err() || cut {
            break;
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

#[test]
fn an_upload_that_is_cut_goes_on_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let registry = Registry::start(&directory.path().join("s"), &[]).unwrap();
    let sample = Sample::seeded(0, 100, 10_000);
    let pack = &sample.packs(directory.path(), 10 << 20).unwrap()[0];
    for (number, after_bytes) in [1, 300, 700, 5_000, 99_000, 100_500, 200_001, 333_333].into_iter().enumerate() {
        // Another pack each time: the same chunks with one more.
        let mut chunks = sample.chunks.clone();
        chunks.push(vec![u8::try_from(number).unwrap(); 100]);
        let scratch = tempfile::tempdir().unwrap();
        let pack = &Sample::of(chunks).packs(scratch.path(), 10 << 20).unwrap()[0];
        let cutter = Cutter::start(&registry.address, Direction::ToServer, after_bytes, 2);
        let store = connect(&cutter.url);
        store.put_pack(&pack.digest(), pack.path()).unwrap();
        assert!(cutter.cuts.load(Ordering::SeqCst) < 2, "{after_bytes}: nothing was cut");
        assert_eq!(connect(&registry.url()).pack_bytes(&pack.digest()).unwrap(), pack.bytes());
    }
    assert!(pack.bytes() > 400_000);
    drop(registry);
    assert_clean(&directory.path().join("s"));
}

#[test]
fn an_answer_that_is_cut_is_asked_for_again_and_never_taken_for_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let local = LocalStore::create(&path).unwrap();
    let sample = Sample::seeded(0, 2000, 1000);
    publish(&local, "app", &[&sample]);
    let registry = Registry::start(&path, &[]).unwrap();
    let locations = local.read_locations(&sample.digest(), u64::MAX).unwrap();
    let bytes = local.pack_bytes(&locations.packs[0]).unwrap();
    let good = local.read_pack(&locations.packs[0], 0, bytes).unwrap();
    for after_bytes in [0, 50, 250, 1_000, 20_000, 40_000] {
        let cutter = Cutter::start(&registry.address, Direction::ToClient, after_bytes, 2);
        let store = connect(&cutter.url);
        assert_eq!(store.read_pack(&locations.packs[0], 0, bytes).unwrap(), good);
        assert!(cutter.cuts.load(Ordering::SeqCst) < 2, "{after_bytes}: nothing was cut");
        let cutter = Cutter::start(&registry.address, Direction::ToClient, after_bytes, 2);
        let store = connect(&cutter.url);
        let mut stored = Vec::new();
        store.open_layer(&sample.digest()).unwrap().read_to_end(&mut stored).unwrap();
        assert_eq!(stored, fs::read(dsec_store::layout::Object::layer(&sample.digest()).path(&path)).unwrap());
        assert!(cutter.cuts.load(Ordering::SeqCst) < 2, "{after_bytes}: nothing was cut");
    }
    // When it is always cut, that is an error after a bounded number of tries.
    let cutter = Cutter::start(&registry.address, Direction::ToClient, 1_000, usize::MAX);
    let store = connect(&cutter.url);
    let error = store.read_pack(&locations.packs[0], 0, bytes).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert_eq!(store.requests(), u64::from(quick().attempts));
}

/// A server that answers every request with the same bytes.
fn canned(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

#[test]
fn answers_that_lie_are_refused() {
    let pack = PackDigest::of(b"p");
    for (answer, what) in [
        ("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\nabcd", "not one"),
        ("HTTP/1.1 206 P\r\nconnection: close\r\ncontent-length: 4\r\n\r\nabcd", "Content-Range"),
        (
            "HTTP/1.1 206 P\r\nconnection: close\r\ncontent-range: bytes 1-4/9\r\ncontent-length: 4\r\n\r\nabcd",
            "Content-Range",
        ),
        (
            "HTTP/1.1 206 P\r\nconnection: close\r\ncontent-range: bytes 0-4/9\r\ncontent-length: 5\r\n\r\nabcde",
            "another range",
        ),
        (
            "HTTP/1.1 206 P\r\nconnection: close\r\ncontent-range: bytes 0-3/9\r\ncontent-length: 3\r\n\r\nabc",
            "cannot be reached",
        ),
        (
            "HTTP/1.1 206 P\r\nconnection: close\r\ncontent-range: bytes 0-1/2\r\ncontent-length: 2\r\n\r\nab",
            "is damaged",
        ),
        (
            "HTTP/1.1 302 Found\r\nconnection: close\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
            "302",
        ),
        ("no http at all", "cannot be reached"),
    ] {
        let error = connect(&canned(answer)).read_pack(&pack, 0, 4).unwrap_err();
        assert!(error.to_string().contains(what), "{answer:?}: {error}");
    }
    let url =
        canned("HTTP/1.1 206 P\r\nconnection: close\r\ncontent-range: bytes 0-3/9\r\ncontent-length: 4\r\n\r\nabcd");
    assert_eq!(connect(&url).read_pack(&pack, 0, 4).unwrap(), b"abcd");
}

#[test]
fn a_registry_that_is_silent_or_absent_is_an_error_in_bounded_time() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let options =
        Options { progress_timeout: Duration::from_millis(200), overall_timeout: Duration::from_secs(1), ..quick() };
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for address in [silent.local_addr().unwrap(), closed] {
        let store = RemoteStore::connect(&format!("http://{address}"), None, options.clone()).unwrap();
        let start = Instant::now();
        let error = store.read_ref(&"app".parse().unwrap()).unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
}

/// Begins an upload by hand; gives the status and the answer.
fn begin(address: &str) -> (u16, String) {
    request(address, "POST", "/v1/uploads", "", b"")
}

#[test]
fn unfinished_uploads_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let limits = ["--max-unfinished-uploads", "3", "--max-unfinished-bytes", "100000"];
    let registry = Registry::start(&directory.path().join("s"), &limits).unwrap();
    let address = &registry.address;
    let ids: Vec<String> = (0..3)
        .map(|_| {
            let (status, text) = begin(address);
            assert_eq!(status, 201, "{text}");
            text.split("\"id\":\"").nth(1).and_then(|text| text.split('"').next()).unwrap().to_owned()
        })
        .collect();
    let (status, text) = begin(address);
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("not finished"), "{text}");

    let piece = vec![7; 60_000];
    let send = |id: &str, offset: usize, piece: &[u8]| {
        request(address, "PATCH", &format!("/v1/uploads/{id}"), &format!("dsec-offset: {offset}\r\n"), piece)
    };
    assert_eq!(send(&ids[0], 0, &piece).0, 204);
    for id in &ids[1..] {
        let (status, text) = send(id, 0, &piece);
        assert_eq!(status, 507, "{text}");
    }
    assert_eq!(send(&ids[0], 60_000, &piece).0, 507);
    assert_eq!(send(&ids[1], 0, &piece[..30_000]).0, 204, "what fits is taken");

    // An end of any kind makes room.
    let (status, _) = request(address, "PUT", &format!("/v1/uploads/{}?pack={}", ids[0], "0".repeat(64)), "", b"");
    assert_eq!(status, 422);
    assert_eq!(begin(address).0, 201);
    assert_eq!(send(&ids[2], 0, &piece).0, 204);
}

#[test]
fn a_damaged_ref_is_named_and_the_others_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let registry = Registry::start(&path, &[]).unwrap();
    let remote = connect(&registry.url());
    for name in ["a:1", "b:1", "c:1"] {
        publish(&remote, name, &[&Sample::seeded(0, 2, 100)]);
    }
    fs::write(path.join("refs/b/:1"), "{").unwrap();
    for store in [&remote as &dyn Source, &LocalStore::open(&path).unwrap()] {
        for limit in [1, 10] {
            let (mut names, mut damaged, mut after) = (Vec::new(), Vec::new(), None);
            loop {
                let page = store.list_refs("", after.as_deref(), limit).unwrap();
                names.extend(page.refs.iter().map(|record| record.name.to_string()));
                damaged.extend(page.damaged.iter().map(ToString::to_string));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!((names, damaged), (vec!["a:1".into(), "c:1".into()], vec!["b:1".to_owned()]));
        }
    }
    let error = remote.read_ref(&"b:1".parse().unwrap()).unwrap_err();
    assert!(matches!(&error, Error::Refused { status: 500, .. }), "the damage is the registry's own: {error}");
}

#[test]
fn privileged_a_full_disk_is_said_and_leaves_nothing_behind() {
    let disk = SmallDisk::new("2m");
    let path = disk.path().join("s");
    let registry = Registry::start(&path, &[]).unwrap();
    let store = connect(&registry.url());
    let small = Sample::seeded(0, 10, 10_000);
    publish(&store, "app", &[&small]);

    let large = Sample::seeded(1000, 800, 10_000);
    let scratch = tempfile::tempdir().unwrap();
    let pack = &large.packs(scratch.path(), 100 << 20).unwrap()[0];
    assert!(pack.bytes() > 2 << 20);
    let error = store.put_pack(&pack.digest(), pack.path()).unwrap_err();
    assert!(matches!(error, Error::RegistryFull { .. }), "{error:?}");
    assert!(matches!(store.pack_bytes(&pack.digest()), Err(Error::NotFound { .. })));
    assert_eq!(fs::read_dir(path.join("uploads")).unwrap().count(), 0);

    // What fits still comes in, and what was there is there.
    publish(&store, "app", &[&Sample::seeded(50, 10, 10_000)]);
    assert!(store.has_layer(&small.digest()).unwrap());
    drop(registry);
    assert_clean(&path);
}
