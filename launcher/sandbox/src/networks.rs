//! Network namespaces, made ahead.
//!
//! Making one is the dearest single step of a sandbox, and nothing of it depends on the sandbox; so a thread keeps a few
//! ready, and pid 1 is born in one. None is used twice.
//!
//! They belong to the host's user namespace, so nobody inside has a privilege over them, whatever capabilities he has in
//! his own. The right that root inside is meant to have, to serve on ports below 1024, is a setting of the namespace
//! instead, and is every user's.

use dsec_sys::ns;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};

/// Why there is no network for a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel made none.
    #[error("cannot make a network namespace")]
    Make(#[source] Errno),
    /// Its ports could not be set free.
    #[error("cannot set up a network namespace")]
    Ports(#[source] io::Error),
    /// The thread that makes them is gone.
    #[error("no network namespaces are made any more")]
    Ended,
}

/// How many are ready at most. One takes about half a millisecond to make, and some 100 KiB of kernel memory.
const READY_MAX: usize = 8;

/// Network namespaces that are ready. The thread that makes them ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Networks {
    ready: Mutex<Receiver<Result<OwnedFd, Error>>>,
    own: File,
}

impl Networks {
    pub(crate) fn new() -> io::Result<Self> {
        let (queue, ready) = sync_channel(READY_MAX);
        let own = ns::own_network()?;
        std::thread::Builder::new().name("networks".into()).spawn(move || while queue.send(make()).is_ok() {})?;
        Ok(Self { ready: Mutex::new(ready), own })
    }

    /// One that nobody has used; waits if none is ready.
    pub(crate) fn take(&self) -> Result<OwnedFd, Error> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.recv().map_err(|_| Error::Ended)?
    }

    /// This process's own.
    pub(crate) fn own(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

/// A new one; this thread is in it afterwards.
fn make() -> Result<OwnedFd, Error> {
    let network = ns::new_network().map_err(Error::Make)?;
    fs_err::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0").map_err(Error::Ports)?;
    Ok(network)
}
