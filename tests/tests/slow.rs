//! Registries that are slow: what goes on is waited for, what only drips is given up.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dsec_format::LayerDigest;
use dsec_store::layout::Object;
use dsec_store::remote::Options;
use dsec_store::{Error, LocalStore, RemoteStore, Source, Store};
use dsec_tests::samples::Sample;
use fs_err as fs;

/// Serves every request, one a connection, with `answer`, which is given the head of the request in lower case.
fn serve(answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), Arc::clone(&answer));
            thread::spawn(move || -> std::io::Result<()> {
                stream.set_nodelay(true)?;
                let mut reader = BufReader::new(stream.try_clone()?);
                let (mut head, mut body_bytes) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line)?;
                    if line.trim().is_empty() {
                        break;
                    }
                    head.push_str(&line.to_lowercase());
                    if let Some(length) = line.to_lowercase().strip_prefix("content-length:") {
                        body_bytes = length.trim().parse().unwrap();
                    }
                }
                std::io::copy(&mut reader.take(body_bytes), &mut std::io::sink())?;
                answer(&head, &mut stream)
            });
        }
    });
    format!("http://{address}")
}

/// Sends the head of an answer with a part of `bytes`, as the request asks for; gives the part.
fn send_head<'a>(head: &str, bytes: &'a [u8], stream: &mut TcpStream) -> std::io::Result<&'a [u8]> {
    let start = head.split("range: bytes=").nth(1).and_then(|range| range.split('-').next()?.parse().ok());
    let part = &bytes[start.unwrap_or(0)..];
    let status = match start {
        None => "200 OK".to_owned(),
        Some(start) => format!("206 P\r\ncontent-range: bytes {start}-{}/{}", bytes.len() - 1, bytes.len()),
    };
    write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", part.len())?;
    Ok(part)
}

fn connect(url: &str, progress_ms: u64, overall_ms: u64) -> RemoteStore {
    let options = Options {
        progress_timeout: Duration::from_millis(progress_ms),
        overall_timeout: Duration::from_millis(overall_ms),
        pause: Duration::from_millis(5),
        attempts: 2,
        ..Options::default()
    };
    RemoteStore::connect(url, None, options).unwrap()
}

/// The stored locations of a sample.
fn locations(sample: &Sample) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let store = LocalStore::create(directory.path()).unwrap();
    sample.put(&store, 1 << 20).unwrap();
    fs::read(Object::locations(&sample.digest()).path(directory.path())).unwrap()
}

#[test]
fn an_answer_that_goes_on_may_take_longer_than_the_timeout_for_progress() {
    let sample = Sample::seeded(0, 100, 100);
    let bytes = locations(&sample);
    let url = serve(move |head, stream| {
        for piece in send_head(head, &bytes, stream)?.chunks(bytes.len().div_ceil(8)) {
            stream.write_all(piece)?;
            thread::sleep(Duration::from_millis(150));
        }
        Ok(())
    });
    let found = connect(&url, 500, 20_000).read_locations(&sample.digest(), u64::MAX).unwrap();
    assert_eq!(found.records.len(), 100);
}

#[test]
fn a_large_object_goes_on_where_its_connection_was_lost() {
    let sample = Sample::seeded(0, 100, 100);
    let bytes = locations(&sample);
    let (length, sent) = (bytes.len(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&sent);
    let url = serve(move |head, stream| {
        let part = send_head(head, &bytes, stream)?;
        let piece = &part[..part.len().min(length / 4 + 1)];
        counted.fetch_add(piece.len(), Ordering::Relaxed);
        stream.write_all(piece)
    });
    connect(&url, 2000, 20_000).read_locations(&sample.digest(), u64::MAX).unwrap();
    assert_eq!(sent.load(Ordering::Relaxed), length, "bytes were sent twice");
}

#[test]
fn a_source_that_drips_is_given_up() {
    let bytes = vec![7; 1_000_000];
    let url = serve(move |head, stream| {
        for byte in send_head(head, &bytes, stream)? {
            stream.write_all(&[*byte])?;
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    });
    let (done, outcome) = mpsc::channel();
    thread::spawn(move || {
        let store = connect(&url, 500, 1000);
        let read = store.open_layer(&LayerDigest::of(b"")).unwrap().read_to_end(&mut Vec::new());
        done.send(read.unwrap_err().downcast::<Error>()).unwrap();
    });
    let error = outcome.recv_timeout(Duration::from_secs(10)).expect("it is still being read");
    assert!(matches!(error, Ok(Error::Unreachable { .. })), "{error:?}");
}

#[test]
fn the_check_of_an_upload_may_take_longer_than_any_one_answer() {
    let start = Instant::now();
    let url = serve(move |head, stream| {
        let checked = start.elapsed() > Duration::from_secs(3);
        let (status, body) = match head.split(' ').next().unwrap_or_default() {
            "post" => ("201 Created", r#"{"id":"0123456789abcdefghijklmn","offset":0}"#),
            "patch" => ("204 No Content\r\ndsec-offset: 3", ""),
            "put" if checked => ("404 Not Found", r#"{"kind":"not-found","message":"gone","object":"the upload"}"#),
            // The first one waits for the check in vain, those after it find the upload locked.
            "put" if start.elapsed() < Duration::from_secs(1) => {
                thread::sleep(Duration::from_secs(2));
                return Ok(());
            }
            "put" => ("503 Busy", r#"{"kind":"busy","message":"locked"}"#),
            "head" if checked => ("200 OK", ""),
            _ => ("404 Not Found", ""),
        };
        write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pack");
    fs::write(&file, b"abc").unwrap();
    connect(&url, 300, 20_000).put_pack(&dsec_format::PackDigest::of(b"abc"), &file).unwrap();
}

#[test]
fn locations_that_are_larger_than_the_layer_can_have_are_not_read() {
    let sample = Sample::seeded(0, 100, 100);
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let url = serve(move |_, stream| {
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")?;
        loop {
            stream.write_all(&[0; 1000])?;
            counted.fetch_add(1000, Ordering::Relaxed);
        }
    });
    let error = connect(&url, 2000, 20_000).read_locations(&sample.digest(), 100).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error:?}");
    // What the kernel has taken meanwhile, not what was announced.
    assert!(taken.load(Ordering::Relaxed) < 100_000_000);

    let directory = tempfile::tempdir().unwrap();
    let store = LocalStore::create(directory.path()).unwrap();
    sample.put(&store, 1 << 20).unwrap();
    assert_eq!(store.read_locations(&sample.digest(), 100).unwrap().records.len(), 100);
    let error = store.read_locations(&sample.digest(), 49).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error:?}");
    let path = Object::locations(&sample.digest()).path(directory.path());
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1 << 40).unwrap();
    let error = store.read_locations(&sample.digest(), 100).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error:?}");
}
