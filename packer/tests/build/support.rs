//! A store in a temporary directory, inputs beside it, and what an image of an input shows.

use std::path::{Path, PathBuf};
use std::process::Command;

use dsec_format::ImageDigest;
use dsec_format::image::{Config, Image};
use dsec_pack::build::{self, Built, Error, Request};
use dsec_pack::compare::{Aspect, Difference};
use dsec_pack::input::{Input, Kind, Location};
use dsec_pack::{Cancel, Silent};
use dsec_store::{LocalStore, Source};

pub(crate) struct Lab {
    directory: tempfile::TempDir,
    pub(crate) store: LocalStore,
}

/// How to build.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) level: i32,
    pub(crate) threads: usize,
    pub(crate) verify: bool,
}

pub(crate) fn input(location: Location) -> Input {
    Input { location, kind: None, cross_mounts: false, oci_ref: None, architecture: "amd64".into() }
}

pub(crate) fn options() -> Options {
    Options { level: 1, threads: 2, verify: true }
}

impl Lab {
    pub(crate) fn new() -> Self {
        // Not in /tmp, which may be a tmpfs: that has no user xattrs before Linux 6.6.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let store = LocalStore::create(&directory.path().join("store")).unwrap();
        Self { directory, store }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs_err::create_dir(&path).unwrap();
        path
    }

    /// The tree of every oddity.
    pub(crate) fn oddities(&self, name: &str) -> PathBuf {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/trees/oddities.py");
        let path = self.path(name);
        run("python3", &[script.to_str().unwrap(), path.to_str().unwrap()]);
        path
    }

    pub(crate) fn build_with(&self, input: Input, options: Options) -> Result<Built, Error> {
        self.build_until(input, options, &Cancel::new())
    }

    pub(crate) fn build_until(&self, input: Input, options: Options, cancel: &Cancel) -> Result<Built, Error> {
        let Options { level, threads, verify } = options;
        let name = Some("built".parse().unwrap());
        let request = Request { input, name, config: Config::default(), verify };
        build::build(&self.store, &request, build::Options { level, threads }, &Silent, cancel)
    }

    pub(crate) fn try_build(&self, path: &Path) -> Result<Built, Error> {
        self.build_with(input(Location::Path(path.to_owned())), options())
    }

    pub(crate) fn build(&self, path: &Path) -> Built {
        self.try_build(path).unwrap_or_else(|error| panic!("{}: {}", path.display(), chain(&error)))
    }

    pub(crate) fn image(&self, digest: &ImageDigest) -> Image {
        self.store.read_image(digest).unwrap()
    }

    /// The differences between an image and a directory, as `aspect path` lines.
    pub(crate) fn differences(&self, built: &Built, directory: &Path, ignore: &[Aspect]) -> Vec<String> {
        let image = self.image(&built.image);
        let mut found = Vec::new();
        let mut tell = |difference: Difference| found.push(difference.to_string());
        let cancel = Cancel::new();
        dsec_pack::verify::verify_against(&self.store, &image, directory, ignore, &Silent, &cancel, &mut tell).unwrap();
        found
    }

    /// What the build of `path` is refused for.
    pub(crate) fn refusal(&self, path: &Path) -> String {
        let error = self.try_build(path).expect_err(&path.display().to_string());
        assert!(self.store.read_ref(&"built".parse().unwrap()).is_err(), "a refused build has set its ref");
        chain(&error)
    }

    /// As [`Lab::refusal`], of a tar archive in memory.
    pub(crate) fn tar_refusal(&self, archive: &[u8]) -> String {
        let path = self.path("refused.tar");
        fs_err::write(&path, archive).unwrap();
        self.refusal(&path)
    }

    pub(crate) fn build_tar(&self, archive: &[u8]) -> Built {
        let path = self.path("archive.tar");
        fs_err::write(&path, archive).unwrap();
        let built = self.build(&path);
        assert_eq!(built.kind, Kind::Tar);
        built
    }

    /// The metadata image of a layer.
    pub(crate) fn metadata(&self, built: &Built, layer: usize) -> dsec_erofs::Image<Vec<u8>> {
        let layer = self.store.read_layer(&built.layers[layer].record.digest).unwrap();
        dsec_erofs::Image::open(layer.metadata).unwrap()
    }
}

/// A mounted file system, unmounted when it goes.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    /// One in memory.
    pub(crate) fn tmpfs(at: &Path) -> Self {
        sh(at, "mount -t tmpfs dsec-test .");
        Self(at.to_owned())
    }

    pub(crate) fn read_only(kind: &str, source: &Path, at: &Path, options: &str) -> Self {
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::RDONLY;
        rustix::mount::mount(source, at, kind, flags, Some(options.as_c_str())).unwrap();
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    /// Lazily: a process that another test is starting may hold a copy of a descriptor until it has started.
    fn drop(&mut self) {
        let done = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
        assert!(std::thread::panicking() || done.is_ok(), "cannot unmount {}", self.0.display());
    }
}

/// The inode at a path of a metadata image.
pub(crate) fn find(image: &dsec_erofs::Image<Vec<u8>>, path: &str) -> Option<dsec_erofs::Inode> {
    let mut inode = image.inode(image.root_nid()).unwrap();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let entry = image.lookup(&inode, name.as_bytes()).unwrap()?;
        inode = image.inode(entry.nid).unwrap();
    }
    Some(inode)
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A command that must succeed.
pub(crate) fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output();
    let done = done.unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A shell script that must succeed, in a directory.
pub(crate) fn sh(directory: &Path, script: &str) {
    run("sh", &["-euc", &format!("cd '{}'; {script}", directory.display())]);
}

/// Privileged tests need root: without it they fail, and say so.
pub(crate) fn need_root() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
}

/// Bytes that hardly compress, the same ones each time.
pub(crate) fn noise(seed: u8, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[seed]).finalize_xof().fill(&mut noise);
    noise
}
