//! A small root, a runtime and commands whose output is captured.

use dsec_sandbox::{Config, ExecError, ExecSpec, Id, Limits, Outcome, Process, Profile, Runtime, Sandbox, Spec};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// One runtime for the whole test process, in a cgroup of its own.
pub(super) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        assert!(rustix::process::geteuid().is_root(), "privileged tests need root");
        Runtime::open(&config()).expect("this node cannot have sandboxes")
    })
}

pub(super) fn config() -> Config {
    Config { cgroup_parent: "dsec-test".into() }
}

/// busybox, perl and id with what they need; made once, and used by every test process.
pub(super) fn base() -> &'static Path {
    static BASE: OnceLock<PathBuf> = OnceLock::new();
    BASE.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sandbox-base-1");
        if !root.exists() {
            let unfinished = root.with_extension(std::process::id().to_string());
            make_base(&unfinished);
            // Another process may have been faster; its root is as good.
            if fs_err::rename(&unfinished, &root).is_err() {
                fs_err::remove_dir_all(&unfinished).unwrap();
            }
        }
        root
    })
}

fn make_base(root: &Path) {
    for directory in ["bin", "etc", "tmp", "root", "home/ann", "var", "usr/bin"] {
        fs_err::create_dir_all(root.join(directory)).unwrap();
    }
    let busybox = Path::new("/bin/busybox");
    assert!(busybox.exists(), "privileged tests need Debian's busybox-static");
    fs_err::copy(busybox, root.join("bin/busybox")).unwrap();
    let applets = std::process::Command::new(busybox).arg("--list").output().unwrap().stdout;
    for applet in String::from_utf8(applets).unwrap().lines().filter(|name| *name != "busybox") {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    for program in ["/usr/bin/perl", "/usr/bin/id"] {
        copy_with_libraries(Path::new(program), root);
    }
    let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1001:Ann:/home/ann:/bin/sh\n";
    fs_err::write(root.join("etc/passwd"), passwd).unwrap();
    fs_err::write(root.join("etc/group"), "root:x:0:\nann:x:1001:\nextra:x:44:ann\n").unwrap();
    fs_err::write(root.join("etc/original"), "from the image\n").unwrap();
    std::os::unix::fs::chown(root.join("home/ann"), Some(1000), Some(1001)).unwrap();
    let tmp = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o1777);
    fs_err::set_permissions(root.join("tmp"), tmp).unwrap();
}

fn copy_with_libraries(program: &Path, root: &Path) {
    let listed = std::process::Command::new("ldd").arg(program).output().expect("privileged tests need ldd");
    let text = String::from_utf8(listed.stdout).unwrap();
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/'));
    for file in libraries.map(Path::new).chain([program]) {
        let target = root.join(file.strip_prefix("/").unwrap());
        fs_err::create_dir_all(target.parent().unwrap()).unwrap();
        fs_err::copy(file, target).unwrap();
    }
}

/// A sandbox that is destroyed at the end of a test, whatever happens.
pub(super) struct Guard {
    pub(super) sandbox: Sandbox,
    _directory: tempfile::TempDir,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Err(error) = self.sandbox.destroy()
            && !std::thread::panicking()
        {
            panic!("destroying failed: {error}");
        }
    }
}

impl std::ops::Deref for Guard {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        &self.sandbox
    }
}

/// An id and a range of host ids that no other test uses.
pub(super) fn unique() -> (Id, u32) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let id = format!("t{}-{number}", std::process::id()).parse().unwrap();
    (id, (1000 + (std::process::id() % 1000) * 20 + number) * dsec_sandbox::IDS)
}

/// A spec in a new directory below `parent`.
pub(super) fn spec_in(parent: &Path) -> Spec {
    let (id, id_base) = unique();
    Spec {
        directory: parent.join(id.as_str()),
        hostname: id.to_string(),
        id,
        layers: vec![base().to_owned()],
        limits: Limits { memory_bytes: 64 << 20, cpu_millis: 2000, pids: 64 },
        id_base,
        env: vec![("FROM_SPEC".into(), "yes".into())],
        nameservers: vec!["10.0.0.53".parse().unwrap()],
        profile: Profile::Default,
    }
}

pub(super) fn create_with(change: impl FnOnce(&mut Spec)) -> Guard {
    let directory = tempfile::tempdir().unwrap();
    let mut spec = spec_in(directory.path());
    change(&mut spec);
    let sandbox = runtime().create(&spec).unwrap_or_else(|error| panic!("{}", chain(&error)));
    Guard { sandbox, _directory: directory }
}

pub(super) fn create() -> Guard {
    create_with(|_| {})
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// What a command wrote, and how it ended.
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) outcome: Outcome,
}

pub(super) fn spec_of(argv: &[&str], stdio: [OwnedFd; 3]) -> ExecSpec {
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    ExecSpec { argv, env: Vec::new(), cwd: None, user: None, stdio }
}

/// How long a start may take here.
pub(super) const START_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);

/// Starts a command with its output in two pipes.
pub(super) fn start(
    sandbox: &Sandbox,
    argv: &[&str],
    change: impl FnOnce(&mut ExecSpec),
) -> Result<(Process, std::io::PipeReader, std::io::PipeReader), ExecError> {
    let (stdout, stdout_writer) = std::io::pipe().unwrap();
    let (stderr, stderr_writer) = std::io::pipe().unwrap();
    let stdin = fs_err::File::open("/dev/null").unwrap().into_parts().0;
    let mut spec = spec_of(argv, [stdin.into(), stdout_writer.into(), stderr_writer.into()]);
    change(&mut spec);
    Ok((sandbox.exec(spec)?.wait(START_TIMEOUT)?, stdout, stderr))
}

pub(super) fn run_with(sandbox: &Sandbox, argv: &[&str], change: impl FnOnce(&mut ExecSpec)) -> Captured {
    let started = start(sandbox, argv, change);
    let (process, mut stdout, mut stderr) = started.unwrap_or_else(|error| panic!("{argv:?}: {}", chain(&error)));
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
    });
    let mut bytes = Vec::new();
    stdout.read_to_end(&mut bytes).unwrap();
    let outcome = process.wait().unwrap();
    Captured { stdout: String::from_utf8_lossy(&bytes).into_owned(), stderr: errors.join().unwrap().unwrap(), outcome }
}

pub(super) fn run(sandbox: &Sandbox, argv: &[&str]) -> Captured {
    run_with(sandbox, argv, |_| {})
}

/// The output of a shell script that must succeed.
pub(super) fn sh(sandbox: &Sandbox, script: &str) -> String {
    let captured = run(sandbox, &["sh", "-c", script]);
    assert_eq!(captured.outcome.ended, dsec_sandbox::Ended::Exited(0), "{script}: {captured:?}");
    captured.stdout
}

/// Waits until something holds, at most ten seconds.
pub(super) fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed().as_secs() < 10, "waited in vain for: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
