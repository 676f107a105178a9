//! The real program, started for a test, and gone after it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dsec_format::protocol::mountd::{Mounted, Reply, Request, Status};
use dsec_mountd_client::Client;

const PATIENCE: Duration = Duration::from_secs(20);

/// A daemon in a directory of its own.
pub(crate) struct Daemon {
    root: PathBuf,
    child: Option<Child>,
    options: Vec<String>,
}

impl Daemon {
    /// Starts it and waits until it answers.
    pub(crate) fn start(root: &Path, options: &[&str]) -> Self {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut daemon = Self { root: root.to_owned(), child: None, options };
        daemon.restart();
        daemon
    }

    /// The command that starts it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dsec-mountd"));
        command.arg("serve").arg("--store").arg(self.root.join("store")).arg("--socket").arg(self.socket());
        command.arg("--cache").arg(self.root.join("cache")).arg("--run").arg(self.run());
        command.args(&self.options).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// What the daemon has logged, all its lives together.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.root.join("log")).unwrap()
    }

    pub(crate) fn restart(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.root.join("log")).unwrap();
        self.child = Some(self.command().stderr(log).spawn().unwrap());
        let start = Instant::now();
        while self.client().status().is_err() {
            assert!(start.elapsed() < PATIENCE, "the daemon does not answer: is this root, with FUSE?");
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                panic!("the daemon ended with {status}: these tests need root and FUSE\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.socket(), PATIENCE)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.root.join("mountd.sock")
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    pub(crate) fn ask(&self, request: &Request) -> Reply {
        self.client().ask(request).unwrap()
    }

    pub(crate) fn mount(&self, image: &str, holder: &str) -> Mounted {
        match self.ask(&Request::Mount { image: image.parse().unwrap(), holder: holder.to_owned() }) {
            Reply::Mounted(mounted) => mounted,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn release(&self, holder: &str) {
        assert_eq!(self.ask(&Request::Release { holder: holder.to_owned() }), Reply::Released);
    }

    pub(crate) fn status(&self) -> Status {
        match self.ask(&Request::Status) {
            Reply::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Kills it without a chance to clean up.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Asks it to stop, and waits.
    pub(crate) fn stop(&mut self) {
        let mut child = self.child.take().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success(), "a daemon that is asked to stop ends well");
    }

    /// The mounts below its run directory.
    pub(crate) fn mounts(&self) -> Vec<String> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        let run = format!("{}/", self.run().display());
        points.filter(|point| point.starts_with(&run)).map(ToOwned::to_owned).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let mut mounts = self.mounts();
        mounts.reverse();
        for mount in mounts {
            let _ = rustix::mount::unmount(&*mount, rustix::mount::UnmountFlags::DETACH);
        }
    }
}
