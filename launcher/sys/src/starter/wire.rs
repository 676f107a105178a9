//! What daemon, starter and command say to each other: one sequenced packet each, its descriptors beside it.
//!
//! The daemon sends a [`Message`] with the descriptors of a start, of which the first is a socket of that start; there the
//! starter and the command answer with [`Status`]. The sending and receiving here is the starter's and the command's own:
//! the rules of [`crate::steps`] hold, so control messages are laid out by hand.

use crate::raw::call;
use crate::steps::exit;

/// The starter is set up; or the command is about to run its program.
pub(super) const READY: u32 = 1;
/// The command has been born: its number, with its descriptor.
pub(super) const BORN: u32 = 2;
/// A step failed: its number.
pub(super) const FAILED: u32 = 3;

/// What the starter and the command say of a start.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) kind: u32,
    pub(super) value: u32,
    pub(super) errno: i32,
}

const STATUS_BYTES: usize = size_of::<Status>();

impl Status {
    /// A message of the right length, taken apart.
    pub(super) fn from_bytes(bytes: &[u8; STATUS_BYTES], count: usize) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
        let whole = count == STATUS_BYTES;
        whole.then(|| Self {
            kind: u32::from_ne_bytes([a, b, c, d]),
            value: u32::from_ne_bytes([e, f, g, h]),
            errno: i32::from_ne_bytes([i, j, k, l]),
        })
    }
}

/// What the daemon asks the starter for, beside the descriptors.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    pub(super) namespaces: u32,
    pub(super) joins: u32,
    pub(super) payload_bytes: u64,
}

const MESSAGE_BYTES: usize = size_of::<Message>();
const _: () = assert!(MESSAGE_BYTES == 16);

impl Message {
    pub(super) fn as_bytes(&self) -> &[u8; MESSAGE_BYTES] {
        // SAFETY: three numbers without a gap, as asserted above.
        unsafe { &*std::ptr::from_ref(self).cast() }
    }
}

/// Descriptors of a request: status, payload, pid 1, cgroup, the standard three; then the cgroups of version 1.
pub(super) const STATUS: usize = 0;
pub(super) const PAYLOAD: usize = 1;
pub(super) const SANDBOX: usize = 2;
pub(super) const CGROUP: usize = 3;
pub(super) const STDIO: usize = 4;
pub(super) const JOINS: usize = 7;
const DESCRIPTORS_MAX: usize = crate::scm::DESCRIPTORS_MAX;

#[repr(C, align(8))]
struct Control {
    /// `struct cmsghdr`, then the descriptors.
    length: usize,
    level: i32,
    kind: i32,
    fds: [i32; DESCRIPTORS_MAX],
}

const CONTROL_HEADER_BYTES: usize = 16;
const _: () = assert!(std::mem::offset_of!(Control, fds) == CONTROL_HEADER_BYTES);

/// One request, with its descriptors.
pub(super) struct Received {
    pub(super) message: Message,
    fds: [i32; DESCRIPTORS_MAX],
    pub(super) count: usize,
}

impl Received {
    pub(super) fn fd(&self, index: usize) -> i32 {
        if index < self.count { self.fds.get(index).copied().unwrap_or(-1) } else { -1 }
    }
}

pub(super) fn receive(socket: i32) -> Received {
    let mut message = Message { namespaces: 0, joins: 0, payload_bytes: 0 };
    let mut part = libc::iovec { iov_base: (&raw mut message).cast(), iov_len: MESSAGE_BYTES };
    let mut control = Control { length: 0, level: 0, kind: 0, fds: [-1; DESCRIPTORS_MAX] };
    // SAFETY: all numbers and pointers of it may be zero.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<Control>() as _;
    // SAFETY: the header's pointers are to what lives in this frame.
    let answer = unsafe { call!(libc::SYS_recvmsg, socket, &raw mut header, libc::MSG_CMSG_CLOEXEC) };
    let whole = answer == Ok(MESSAGE_BYTES) && control.level == libc::SOL_SOCKET && control.kind == libc::SCM_RIGHTS;
    // The daemon is gone, or speaks another language: either way there is nothing more to do.
    if !whole || header.msg_flags & libc::MSG_CTRUNC != 0 {
        exit(i32::from(answer != Ok(0)));
    }
    let count = control.length.saturating_sub(CONTROL_HEADER_BYTES) / size_of::<i32>();
    Received { message, fds: control.fds, count: count.min(DESCRIPTORS_MAX) }
}

/// Writes a message. Whoever should read it may be gone: then nobody wants to know.
pub(super) fn say(socket: i32, status: Status) {
    // SAFETY: a structure of three numbers.
    let _ = unsafe { call!(libc::SYS_write, socket, &raw const status, STATUS_BYTES) };
}

pub(super) fn say_born(socket: i32, pid: u32, pidfd: i32) {
    let mut status = Status { kind: BORN, value: pid, errno: 0 };
    let mut part = libc::iovec { iov_base: (&raw mut status).cast(), iov_len: STATUS_BYTES };
    let mut control = Control {
        length: CONTROL_HEADER_BYTES + size_of::<i32>(),
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        fds: [pidfd; DESCRIPTORS_MAX],
    };
    // SAFETY: all numbers and pointers of it may be zero.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    // The header and one descriptor, rounded up as the kernel counts.
    header.msg_controllen = (CONTROL_HEADER_BYTES + size_of::<usize>()) as _;
    // SAFETY: the header's pointers are to what lives in this frame. A daemon that is gone is told by the next receive.
    let _ = unsafe { call!(libc::SYS_sendmsg, socket, &raw const header, libc::MSG_NOSIGNAL) };
}
