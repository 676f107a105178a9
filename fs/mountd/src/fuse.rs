//! The FUSE adapter: sessions, and the one place that answers the kernel.
//!
//! Thin on purpose: it turns requests into calls of [`crate::device`] and [`crate::tree`], and what they answer into
//! replies, errnos, counts and log lines. A session is one mount with its own threads: [`devices`] shows a flat
//! directory of data devices, [`trees`] a directory of whole trees. They are apart because one session either has no
//! OPEN requests at all or has them for every file.

pub mod devices;
pub mod trees;

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use fuser::{Config, Errno, INodeNo, Notifier, ReplyData, Session, SessionACL};
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, move_mount,
};

use crate::fetch::ReadError;
use crate::mounts::LAYER_ATTRIBUTES;

/// A directory entry or an attribute never changes while it can be looked up.
const FOREVER: std::time::Duration = std::time::Duration::from_secs(u32::MAX as u64);

/// The most that one request can bring.
const READ_AHEAD_KIB: u32 = 1024;

/// Why a session cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device of FUSE cannot be opened.
    #[error("FUSE cannot be used")]
    Device(#[source] std::io::Error),
    /// A step of the mount.
    #[error("FUSE cannot be mounted on {}: {step} failed", path.display())]
    Mount {
        /// Where.
        path: PathBuf,
        /// The system call.
        step: &'static str,
        /// What it answered.
        #[source]
        source: rustix::io::Errno,
    },
    /// The first exchange with the kernel, or the threads.
    #[error("FUSE session of {} cannot be started", path.display())]
    Session {
        /// Where.
        path: PathBuf,
        /// What happened.
        #[source]
        source: std::io::Error,
    },
}

/// A mounted session. It ends when the kernel has unmounted it, or with the process.
#[derive(Debug)]
pub struct Mounted {
    notifier: Notifier,
    thread: JoinHandle<()>,
}

impl Mounted {
    /// Mounts a file system on `path`, which exists, and serves it with `threads` threads.
    ///
    /// # Errors
    /// One variant a step; nothing is mounted then.
    pub fn start(filesystem: impl fuser::Filesystem, path: &Path, threads: usize) -> Result<Self, Error> {
        let device = fs_err::OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(Error::Device)?;
        let device: std::fs::File = device.into_parts().0;
        let failed = |step| move |source| Error::Mount { path: path.to_owned(), step, source };
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed("fsopen"))?;
        let descriptor = device.as_raw_fd().to_string();
        let options = [
            ("source", "dsec-mountd"),
            ("fd", &descriptor),
            ("rootmode", "40000"),
            ("user_id", "0"),
            ("group_id", "0"),
        ];
        for (key, value) in options {
            fsconfig_set_string(&context, key, value).map_err(failed("fsconfig"))?;
        }
        for flag in ["allow_other", "default_permissions"] {
            fsconfig_set_flag(&context, flag).map_err(failed("fsconfig"))?;
        }
        fsconfig_create(&context).map_err(failed("fsconfig create"))?;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, LAYER_ATTRIBUTES).map_err(failed("fsmount"))?;

        let mut config = Config::default();
        config.acl = SessionACL::All;
        config.n_threads = Some(threads);
        config.clone_fd = true;
        let broken = |source| Error::Session { path: path.to_owned(), source };
        let session = Session::from_fd(filesystem, device.into(), SessionACL::All, config).map_err(broken)?;
        let notifier = session.notifier();
        let shown = path.to_owned();
        let thread = std::thread::Builder::new().name("fuse".to_owned()).spawn(move || match session.run() {
            Ok(()) => tracing::debug!(path = %shown.display(), "FUSE session ended"),
            Err(error) => tracing::error!(path = %shown.display(), %error, "FUSE session ended"),
        });
        let thread = thread.map_err(broken)?;
        move_mount(&mount, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(failed("move_mount"))?;
        raise_read_ahead(path);
        Ok(Self { notifier, thread })
    }

    /// Tells the kernel to forget a name in the root directory, and all below that nobody uses.
    pub fn forget(&self, name: &str) {
        if let Err(error) = self.notifier.inval_entry(INodeNo::ROOT, name.as_ref()) {
            tracing::debug!(name, %error, "the kernel does not forget a name");
        }
    }

    /// Whether the kernel has ended it.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Lets the kernel read further ahead than the 128 KiB of its default: one request then brings more.
fn raise_read_ahead(path: &Path) {
    let result = fs_err::metadata(path).and_then(|metadata| {
        let number = std::os::unix::fs::MetadataExt::dev(&metadata);
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        fs_err::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB.to_string())
    });
    if let Err(error) = result {
        tracing::debug!(%error, "the kernel's read-ahead stays as it is");
    }
}

/// Answers a read. Every failure of a read passes here, once.
fn answer_read(reply: ReplyData, answer: Result<&[u8], ReadError>, ino: u64, offset: u64) {
    match answer {
        Ok(bytes) => reply.data(bytes),
        Err(error) => {
            // What is told to people is told by the fetcher, which knows what is missing.
            tracing::debug!(ino, offset, %error, "a read failed");
            reply.error(errno(error));
        }
    }
}

/// The one map from failures of reads to errnos.
fn errno(error: ReadError) -> Errno {
    match error {
        ReadError::Deadline | ReadError::Unavailable | ReadError::Stopped => Errno::EIO,
    }
}
