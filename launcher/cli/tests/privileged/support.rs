//! A node: a small root, a stand-in for mountd, an edge.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dsec_format::image::Config;
use dsec_format::protocol::mountd::{ErrorKind, ImageStatus, Mounted, MountedLayer, Reply, Request, Road, Status};
use dsec_format::refs::Spec;
use dsec_format::{ImageDigest, LayerDigest};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request as HttpRequest, Response};
use hyper_util::rt::TokioIo;

pub(super) const DSEC: &str = env!("CARGO_BIN_EXE_dsec");
/// Ids per sandbox.
const IDS: u32 = 65_536;
/// Sandboxes at once of one test.
pub(super) const RANGES: u32 = 32;
/// Nodes that find room side by side, from 0x1000_0000 to the end of the ids.
const SLOTS: u32 = 1900;

/// Stands in for dsec-mountd: its layers are plain directories, and it remembers who holds them.
pub(super) struct Mountd {
    pub(super) holders: Arc<Mutex<BTreeSet<String>>>,
    images: Arc<Mutex<Images>>,
}

/// Images of one layer each. Every name means the last one.
type Images = Vec<(ImageDigest, PathBuf)>;

impl Mountd {
    fn serve(socket: &Path, layer: PathBuf) -> Self {
        let holders = Arc::<Mutex<BTreeSet<String>>>::default();
        let images = Arc::new(Mutex::new(vec![(image(), layer)]));
        let listener = UnixListener::bind(socket).unwrap();
        let shared = (Arc::clone(&holders), Arc::clone(&images));
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (holders, images) = shared.clone();
                std::thread::spawn(move || {
                    let mut lines = BufReader::new(connection.unwrap());
                    let mut line = String::new();
                    while lines.read_line(&mut line).unwrap_or(0) > 0 {
                        let mut reply = serde_json::to_vec(&answer(&line, &holders, &images.lock().unwrap())).unwrap();
                        reply.push(b'\n');
                        if lines.get_mut().write_all(&reply).is_err() {
                            return;
                        }
                        line.clear();
                    }
                });
            }
        });
        Self { holders, images }
    }

    /// From now on names mean an image whose layer is this.
    pub(super) fn move_refs(&self, layer: PathBuf) {
        let mut images = self.images.lock().unwrap();
        let digest = ImageDigest::of(format!("image {}", images.len()).as_bytes());
        images.push((digest, layer));
    }

    fn of_sandboxes(&self) -> Vec<String> {
        self.holders.lock().unwrap().iter().filter(|holder| holder.starts_with("sandbox/")).cloned().collect()
    }
}

pub(super) fn image() -> ImageDigest {
    ImageDigest::of(b"image")
}

fn answer(line: &str, holders: &Mutex<BTreeSet<String>>, images: &Images) -> Reply {
    let mut holders = holders.lock().unwrap();
    match serde_json::from_str(line).unwrap() {
        Request::Mount { image: spec, .. } if spec.to_string().starts_with("absent") => {
            Reply::Error { kind: ErrorKind::NotFound, message: format!("no image {spec} in any source") }
        }
        Request::Mount { image: spec, holder } => {
            holders.insert(holder);
            let named = images.iter().find(|(digest, _)| spec == Spec::Digest(*digest));
            let (image, layer) = named.or(images.last()).unwrap().clone();
            let layer = MountedLayer { digest: LayerDigest::of(b"layer"), path: layer.display().to_string() };
            let env = vec!["FROM_IMAGE=yes".to_owned(), "OVER=image".to_owned()];
            let config = Config { cmd: vec!["echo".into(), "from the image".into()], env, ..Config::default() };
            Reply::Mounted(Mounted { image, config, road: Road::Erofs, layers: vec![layer] })
        }
        Request::Release { holder } => {
            holders.remove(&holder);
            Reply::Released
        }
        Request::Status => {
            let holders = holders.iter().cloned().collect();
            let (spec, road) = ("base".parse().unwrap(), Road::Erofs);
            let (data_bytes, local_bytes, fetched_bytes, errors) = (0, 0, 0, 0);
            let image =
                ImageStatus { image: image(), spec, road, holders, data_bytes, local_bytes, fetched_bytes, errors };
            Reply::Status(Status { images: vec![image], ..Status::default() })
        }
    }
}

/// A node with an edge; at the end of a test it is taken down, and nothing may be left.
pub(super) struct Node {
    pub(super) directory: tempfile::TempDir,
    pub(super) mountd: Mountd,
    edge: Option<Child>,
    id_base: u32,
    spares: u32,
}

impl Node {
    /// Without spares, so that what is left over while the edge runs is a fault.
    pub(super) fn start() -> Self {
        Self::with_spares(0)
    }

    pub(super) fn with_spares(spares: u32) -> Self {
        let mut node = Self::without_edge(spares);
        node.start_edge();
        node
    }

    pub(super) fn without_edge(spares: u32) -> Self {
        assert!(rustix::process::geteuid().is_root(), "privileged tests need root");
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("base");
        make_base(&base);
        let mountd = Mountd::serve(&directory.path().join("mountd.sock"), base);
        // Ids that no other test process has at the same time, so that what is left over can be told by them.
        // Processes of a run have neighbouring ids, and a test has a few nodes.
        let slot = (std::process::id().wrapping_mul(4) + NEXT.fetch_add(1, Ordering::Relaxed)) % SLOTS;
        let id_base = 0x1000_0000 + slot * RANGES * IDS;
        Self { directory, mountd, edge: None, id_base, spares }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("edge.sock")
    }

    pub(super) fn start_edge(&mut self) {
        let path = |name| self.directory.path().join(name);
        let log = fs_err::OpenOptions::new().create(true).append(true).open(path("edge.log")).unwrap();
        let edge = Command::new(DSEC)
            .arg("edge")
            .args(["--root".as_ref(), path("edge").as_os_str(), "--socket".as_ref(), self.socket().as_os_str()])
            .args(["--mountd".as_ref(), path("mountd.sock").as_os_str()])
            .args(["--id-base", &self.id_base.to_string(), "--id-ranges", &RANGES.to_string()])
            .args(["--spares", &self.spares.to_string()])
            .stderr(log.into_parts().0)
            .spawn()
            .unwrap();
        self.edge = Some(edge);
        let begun = Instant::now();
        // A connection alone may be one to a killed edge whose last child is on its way out.
        while !self.dsec(&["ps"]).status.success() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the edge does not answer\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn edge_pid(&self) -> u32 {
        self.edge.as_ref().unwrap().id()
    }

    /// SIGKILL, as a crash.
    pub(super) fn kill_edge(&mut self) {
        let mut edge = self.edge.take().unwrap();
        edge.kill().unwrap();
        edge.wait().unwrap();
    }

    /// SIGTERM, as an upgrade.
    pub(super) fn stop_edge(&mut self) {
        let mut edge = self.edge.take().unwrap();
        signal(edge.id(), rustix::process::Signal::TERM);
        assert!(edge.wait().unwrap().success(), "{}", self.log());
    }

    pub(super) fn log(&self) -> String {
        fs_err::read_to_string(self.directory.path().join("edge.log")).unwrap_or_default()
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(DSEC);
        command.arg("--edge").arg(self.socket()).args(arguments).stdin(Stdio::null());
        command
    }

    pub(super) fn dsec(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The standard output of a command that must succeed.
    pub(super) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.dsec(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}\n{}", self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    pub(super) fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.dsec(&[&["--json"], arguments].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output:?}"))
    }

    pub(super) fn create(&self) -> String {
        self.ok(&["create", "base"]).trim().to_owned()
    }

    pub(super) fn ids(&self) -> BTreeSet<String> {
        let all = self.json(&["ps"])["sandboxes"].take();
        all.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Everything on this machine that belongs to a sandbox of this node: processes, cgroups, files, holders.
    pub(super) fn remains(&self) -> Vec<String> {
        let tag = fs_err::read_to_string(self.directory.path().join("edge/tag")).unwrap();
        let mut remains = processes(self.id_base, self.id_base + RANGES * IDS);
        remains.extend(cgroups(Path::new("/sys/fs/cgroup"), tag.trim_end()));
        let sandboxes = self.directory.path().join("edge/sandboxes");
        remains.extend(fs_err::read_dir(sandboxes).unwrap().map(|entry| entry.unwrap().path().display().to_string()));
        remains.extend(self.mountd.of_sandboxes());
        remains
    }

    pub(super) fn nothing_remains(&self) {
        let begun = Instant::now();
        while !self.remains().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(20), "left: {:?}\n{}", self.remains(), self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.edge.is_none() {
            return;
        }
        let removed = self.dsec(&["rm", "--all"]);
        let mut edge = self.edge.take().unwrap();
        signal(edge.id(), rustix::process::Signal::TERM);
        let stopped = edge.wait().unwrap();
        if !std::thread::panicking() {
            assert!(removed.status.success() && stopped.success(), "{removed:?} {stopped}\n{}", self.log());
            self.nothing_remains();
            assert!(self.mountd.holders.lock().unwrap().is_empty(), "{:?}", self.mountd.holders);
        }
    }
}

pub(super) fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

pub(super) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not after 20 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(super) fn make_base(root: &Path) {
    for directory in ["bin", "etc", "tmp", "root", "srv"] {
        fs_err::create_dir_all(root.join(directory)).unwrap();
    }
    let busybox = Path::new("/bin/busybox");
    assert!(busybox.exists(), "privileged tests need Debian's busybox-static");
    fs_err::copy(busybox, root.join("bin/busybox")).unwrap();
    let applets = Command::new(busybox).arg("--list").output().unwrap().stdout;
    for applet in String::from_utf8(applets).unwrap().lines().filter(|name| *name != "busybox") {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    fs_err::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1001::/tmp:/bin/sh\n").unwrap();
    fs_err::write(root.join("etc/group"), "root:x:0:\nann:x:1001:\n").unwrap();
}

/// Processes whose real user is one of these ids.
fn processes(from: u32, to: u32) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir("/proc").unwrap() {
        let path = entry.unwrap().path();
        let Ok(status) = fs_err::read_to_string(path.join("status")) else { continue };
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
        if uid.is_some_and(|uid: u32| (from..to).contains(&uid)) {
            found.push(format!("process {} {}", path.display(), status.lines().next().unwrap_or_default()));
        }
    }
    found
}

/// How many processes of a sandbox there are, its pid 1 among them.
pub(super) fn processes_of(sandbox: &str) -> usize {
    let group = cgroups(Path::new("/sys/fs/cgroup"), sandbox).into_iter().find(|path| !path.contains("/memory/"));
    let Some(group) = group else { return 0 };
    let mut count = 0;
    let mut waiting = vec![PathBuf::from(unified(sandbox).unwrap_or(group))];
    while let Some(path) = waiting.pop() {
        count += fs_err::read_to_string(path.join("cgroup.procs")).unwrap_or_default().lines().count();
        let entries = fs_err::read_dir(&path).into_iter().flatten().flatten();
        waiting.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    count
}

/// The version 2 cgroup of a sandbox: the one that can be frozen.
pub(super) fn unified(sandbox: &str) -> Option<String> {
    let all = cgroups(Path::new("/sys/fs/cgroup"), sandbox);
    all.into_iter().find(|path| Path::new(path).join("cgroup.freeze").exists())
}

fn cgroups(root: &Path, beginning: &str) -> Vec<String> {
    let mut found = Vec::new();
    // A hierarchy, its parent cgroup, and the sandboxes below: nothing of ours is deeper.
    let mut waiting = vec![(root.to_owned(), 0)];
    while let Some((path, depth)) = waiting.pop() {
        for entry in fs_err::read_dir(&path).into_iter().flatten().flatten() {
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if entry.file_name().to_string_lossy().starts_with(beginning) && depth > 0 {
                found.push(entry.path().display().to_string());
            } else if is_directory && depth < 3 {
                waiting.push((entry.path(), depth + 1));
            }
        }
    }
    found
}

/// A request to the edge itself; run it in a runtime.
pub(super) async fn http(socket: &Path, method: Method, path: &str, body: Vec<u8>) -> Response<Incoming> {
    let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let body = Full::new(Bytes::from(body));
    let request = HttpRequest::builder().method(method).uri(path).header("host", "edge").body(body).unwrap();
    sender.send_request(request).await.unwrap()
}

pub(super) async fn http_json(socket: &Path, method: Method, path: &str, body: Vec<u8>) -> (u16, serde_json::Value) {
    let response = http(socket, method, path, body).await;
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap())
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Bytes that look random and are the same every time.
pub(super) fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}
