//! The network namespace that this thread's next child is born in.
//!
//! A network namespace is a thread's own and inherited, so the calling thread steps into one that was made before, clones,
//! and steps back.

use crate::raw::call;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Result;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// While this value lives, the calling thread is in another network namespace, and so are children that it makes. Dropping
/// it goes back.
#[derive(Debug)]
pub struct NetworkIn<'a> {
    own: BorrowedFd<'a>,
    // A thread's namespaces are its own: the guard must not travel.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl<'a> NetworkIn<'a> {
    /// Steps into `network`; `own` is this process's own network namespace (from [`own_network`]), to go back to.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN.
    pub fn enter(network: BorrowedFd<'_>, own: BorrowedFd<'a>) -> Result<Self> {
        setns(network, libc::CLONE_NEWNET)?;
        Ok(Self { own, _not_send: std::marker::PhantomData })
    }
}

impl Drop for NetworkIn<'_> {
    fn drop(&mut self) {
        // Going back needs nothing that it did not have when it left.
        setns(self.own, libc::CLONE_NEWNET).expect("a thread can always return to its own network namespace");
    }
}

/// This process's own network namespace.
///
/// # Errors
/// When `/proc` is missing.
pub fn own_network() -> std::io::Result<File> {
    #[expect(clippy::disallowed_methods, reason = "the path is in the message of no one but the caller")]
    File::open("/proc/self/ns/net")
}

/// Moves the calling thread, for good, into a new network namespace whose loopback interface is up; the namespace.
///
/// # Errors
/// What `unshare` or the interface answers.
pub fn new_network() -> Result<OwnedFd> {
    // SAFETY: an integer; only this thread moves.
    unsafe { call!(libc::SYS_unshare, libc::CLONE_NEWNET) }?;
    loopback_up()?;
    openat(CWD, "/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// `struct ifreq` as far as the flags reach.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

fn loopback_up() -> Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut request = InterfaceRequest { name: [0; 16], flags: 0, rest: [0; 22] };
    request.name[0] = b'l';
    request.name[1] = b'o';
    request.flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: the structure is as long as the kernel reads (40 bytes).
    unsafe { call!(libc::SYS_ioctl, socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) }.map(|_| ())
}

fn setns(fd: BorrowedFd<'_>, kind: i32) -> Result<()> {
    // SAFETY: two integers.
    unsafe { call!(libc::SYS_setns, fd.as_raw_fd(), kind) }.map(|_| ())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a link of /proc")]
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn privileged_a_thread_comes_back_from_a_network_made_by_another() {
        let here = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let own = own_network().unwrap();
        let before = here();
        let network = std::thread::spawn(|| new_network().unwrap()).join().unwrap();
        {
            let _inside = NetworkIn::enter(network.as_fd(), own.as_fd()).unwrap();
            assert_ne!(here(), before);
            // Up: an address of it can be had.
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap().connect("127.0.0.1:9").unwrap();
        }
        assert_eq!(here(), before);
    }
}
