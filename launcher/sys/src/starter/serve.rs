//! The starter's own side, and the command's between its birth and its program.
//!
//! Both run in a copy of the daemon's memory that was made while other threads of it ran: whatever they held stays held
//! for ever. So nothing here allocates, locks, panics or touches a thread-local variable; only system calls and what was
//! handed over, as in [`crate::steps`].

use super::Step;
use super::request::Header;
use crate::raw::{self, CLONE_CLEAR_SIGHAND, CLONE_INTO_CGROUP, CloneArgs, call};
use crate::steps::{close, close_on_exec_from, default_signals, done, ids, new_session, no_new_privileges};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::{CString, c_char};

type Result<T> = core::result::Result<T, Errno>;
type Stepped = core::result::Result<(), (Step, Errno)>;

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

/// Namespaces that the starter enters and leaves again, by their names in `/proc/PID/ns`. Those of users and cgroups are
/// entered by the command alone: with the one it gives up the host's rights, with the other the right to be born in a
/// cgroup beside its parent's (`nsdelegate`).
pub(super) const ENTERED: &[(&str, i32)] = &[
    ("mnt", libc::CLONE_NEWNS),
    ("net", libc::CLONE_NEWNET),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("pid", libc::CLONE_NEWPID),
];
const ENTERED_FLAGS: i32 =
    libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWPID;
/// Those that the command enters.
const LAST_FLAGS: i32 = libc::CLONE_NEWUSER | libc::CLONE_NEWCGROUP;

/// What a process of ours calls itself where tenants can read it.
const NEUTRAL_NAME: &[u8] = b"(starting)\0";

/// What the daemon's memory has that neither the starter nor a command needs.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Beginning and length in bytes: heap and stacks.
    unneeded: Vec<[usize; 2]>,
    /// Where the arguments of the daemon are.
    arguments: [usize; 2],
}

impl Memory {
    pub(super) fn read() -> Result<Self> {
        let read = |path: &str| fs_read(path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let mut unneeded = unneeded(&read("/proc/self/maps")?);
        // The kernel writes into the calling thread's variables (rseq), in whatever process has inherited that.
        thread_local!(static VARIABLE: u8 = const { 0 });
        let variable = VARIABLE.with(|variable| std::ptr::from_ref(variable) as usize);
        unneeded.retain(|[begin, length]| !(*begin..begin + length).contains(&variable));
        Ok(Self { unneeded, arguments: arguments(&read("/proc/self/stat")?) })
    }
}

#[expect(clippy::disallowed_methods, reason = "the path is in the message of no one but the caller")]
fn fs_read(path: &str) -> std::io::Result<String> {
    std::fs::read_to_string(path)
}

/// Writable memory that belongs to no file, nor follows one (there the variables of a library are).
fn unneeded(maps: &str) -> Vec<[usize; 2]> {
    let mut found = Vec::new();
    let mut file_until = 0;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
        let (inode, name) = (words.nth(2), words.next());
        let Some((begin, end)) = range.split_once('-') else { continue };
        let number = |text| usize::from_str_radix(text, 16);
        let (Ok(begin), Ok(end)) = (number(begin), number(end)) else { continue };
        let of_file = inode != Some("0") || (name.is_none() && begin == file_until);
        if of_file {
            file_until = end;
        } else if rights.starts_with("rw") && matches!(name, None | Some("[heap]")) {
            found.push([begin, end - begin]);
        }
    }
    found
}

/// Where this process's arguments are, from `/proc/self/stat`: fields 48 and 49.
fn arguments(stat: &str) -> [usize; 2] {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_ascii_whitespace().skip(45).map(str::parse);
    match (fields.next(), fields.next()) {
        (Some(Ok(begin)), Some(Ok(end))) if begin < end => [begin, end],
        _ => [0, 0],
    }
}

/// What the starter is born with.
pub(super) struct Birth<'a> {
    joins: &'a [CString],
    socket: i32,
    null: i32,
    own: [(i32, i32); ENTERED.len()],
    /// All that it keeps, in order; everything between is closed.
    kept: [i32; ENTERED.len() + 1],
    unneeded: &'a [[usize; 2]],
    arguments: [usize; 2],
    stack: [usize; 2],
}

impl<'a> Birth<'a> {
    pub(super) fn new(
        config: &'a super::Config,
        socket: &OwnedFd,
        null: &OwnedFd,
        own: &[(OwnedFd, i32)],
        memory: &'a Memory,
        stack: &[u128],
    ) -> Self {
        let mut own_raw = [(-1, 0); ENTERED.len()];
        for (raw, (fd, flag)) in own_raw.iter_mut().zip(own) {
            *raw = (fd.as_raw_fd(), *flag);
        }
        let mut kept = [socket.as_raw_fd(); ENTERED.len() + 1];
        for (kept, (fd, _)) in kept.iter_mut().skip(1).zip(own_raw) {
            *kept = fd;
        }
        kept.sort_unstable();
        let begin = stack.as_ptr() as usize;
        Self {
            joins: &config.joins,
            socket: socket.as_raw_fd(),
            null: null.as_raw_fd(),
            own: own_raw,
            kept,
            unneeded: &memory.unneeded,
            arguments: memory.arguments,
            stack: [begin, begin + size_of_val(stack)],
        }
    }
}

/// Where the starter begins.
///
/// # Safety
/// `argument` is a `Birth` in this process's own memory.
pub(super) unsafe extern "C" fn starter(argument: *const u8) -> ! {
    // SAFETY: by this function's contract.
    let birth = unsafe { &*argument.cast::<Birth<'_>>() };
    if let Err(errno) = set_up(birth) {
        say(birth.socket, Status { kind: FAILED, value: 0, errno: errno.raw_os_error() });
        exit(1);
    }
    say(birth.socket, Status { kind: READY, value: 0, errno: 0 });
    loop {
        serve(birth);
    }
}

fn exit(status: i32) -> ! {
    loop {
        // SAFETY: ends this process, which has one thread.
        let _ = unsafe { call!(libc::SYS_exit_group, status) };
    }
}

/// Writes a message. Whoever should read it may be gone, which SIGPIPE or the next receive tells.
fn say(socket: i32, status: Status) {
    // SAFETY: a structure of three numbers.
    let _ = unsafe { call!(libc::SYS_write, socket, &raw const status, STATUS_BYTES) };
}

fn set_up(birth: &Birth<'_>) -> Result<()> {
    for path in birth.joins {
        write(path, b"0")?;
    }
    // The daemon may be shielded from the kernel's choice of whom to kill for want of memory; commands must not be.
    write(c"/proc/self/oom_score_adj", b"0")?;
    // SAFETY: strings and integers.
    unsafe {
        call!(libc::SYS_chdir, c"/".as_ptr())?;
        call!(libc::SYS_prctl, libc::PR_SET_NAME, NEUTRAL_NAME.as_ptr())?;
    }
    new_session()?;
    for number in 0..3 {
        // SAFETY: integers.
        unsafe { call!(libc::SYS_dup3, birth.null, number, 0) }?;
    }
    close_all_but(&birth.kept)?;
    rename_arguments(birth.arguments);
    forget(birth);
    Ok(())
}

fn write(path: &std::ffi::CStr, bytes: &[u8]) -> Result<()> {
    // SAFETY: a C string.
    let fd = unsafe { call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC, 0) }?;
    // SAFETY: a slice and its length.
    let answer = unsafe { call!(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) };
    close(fd as i32);
    done(answer)
}

fn close_all_but(kept: &[i32]) -> Result<()> {
    let mut first = 3u32;
    for fd in kept {
        let fd = fd.cast_unsigned();
        if fd > first {
            // SAFETY: integers; nothing in this process uses what is closed.
            unsafe { call!(libc::SYS_close_range, first, fd - 1, 0) }?;
        }
        first = fd + 1;
    }
    // SAFETY: as above.
    done(unsafe { call!(libc::SYS_close_range, first, u32::MAX, 0) })
}

/// The arguments in this process's memory are the daemon's; here they are a neutral name.
fn rename_arguments([begin, end]: [usize; 2]) {
    for (index, address) in (begin..end).enumerate() {
        let byte = match NEUTRAL_NAME.get(index) {
            Some(byte) if address + 1 < end => *byte,
            _ => 0,
        };
        // SAFETY: the kernel has said that this process's arguments are there; they are its own copy, writable as every
        // stack is, and nothing here reads them.
        unsafe { (address as *mut u8).write_volatile(byte) };
    }
    let length = NEUTRAL_NAME.len().min(end - begin);
    // How long the daemon's were is not shown either, where the kernel lets that be said.
    // SAFETY: an address within the arguments.
    let _ = unsafe { call!(libc::SYS_prctl, libc::PR_SET_MM, libc::PR_SET_MM_ARG_END, begin + length, 0, 0) };
}

/// Commands get no copy of the daemon's heap: it is theirs for a moment only, and copying its page tables takes time.
fn forget(birth: &Birth<'_>) {
    let [stack_begin, stack_end] = birth.stack;
    for [begin, length] in birth.unneeded {
        let end = begin + length;
        // The stack that this runs on may be part of a heap.
        for (begin, end) in [(*begin, end.min(stack_begin)), ((*begin).max(stack_end), end)] {
            let (begin, end) = (begin.next_multiple_of(PAGE_BYTES), end / PAGE_BYTES * PAGE_BYTES);
            if begin < end {
                // SAFETY: it changes only what a child of this process gets.
                let _ = unsafe { call!(libc::SYS_madvise, begin, end - begin, libc::MADV_DONTFORK) };
            }
        }
    }
}

/// The smallest there is. With larger pages the kernel refuses odd borders, and the memory is copied.
const PAGE_BYTES: usize = 4096;

/// Descriptors of a request: status, payload, pid 1, cgroup, the standard three; then the cgroups of version 1.
const STATUS: usize = 0;
const PAYLOAD: usize = 1;
const SANDBOX: usize = 2;
const CGROUP: usize = 3;
const STDIO: usize = 4;
const JOINS: usize = 7;
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
struct Received {
    message: Message,
    fds: [i32; DESCRIPTORS_MAX],
    count: usize,
}

impl Received {
    fn fd(&self, index: usize) -> i32 {
        if index < self.count { self.fds.get(index).copied().unwrap_or(-1) } else { -1 }
    }
}

/// Takes one request and does it. Ends the process when the daemon is gone.
fn serve(birth: &Birth<'_>) {
    let received = receive(birth.socket);
    let status = received.fd(STATUS);
    if let Err((step, errno)) = start(birth, &received) {
        say(status, Status { kind: FAILED, value: step as u32, errno: errno.raw_os_error() });
    }
    for index in 0..received.count {
        close(received.fd(index));
    }
}

fn receive(socket: i32) -> Received {
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

fn start(birth: &Birth<'_>, received: &Received) -> Stepped {
    if received.count != JOINS + received.message.joins as usize {
        return Err((Step::Request, Errno::INVAL));
    }
    let namespaces = received.message.namespaces.cast_signed() & ENTERED_FLAGS;
    enter(received.fd(SANDBOX), namespaces).map_err(|errno| (Step::Enter, errno))?;
    let born = clone(received);
    for (fd, flag) in birth.own {
        // A starter that cannot go back must not stay.
        if enter(fd, flag).is_err() {
            exit(1);
        }
    }
    born.map_err(|errno| (Step::Clone, errno))
}

fn enter(fd: i32, namespaces: i32) -> Result<()> {
    // SAFETY: integers.
    done(unsafe { call!(libc::SYS_setns, fd, namespaces) })
}

/// Makes the command: a child of the daemon, with a copy of this memory. Tells the daemon.
fn clone(received: &Received) -> Result<()> {
    let mut pidfd: i32 = -1;
    let args = CloneArgs {
        flags: u64::from((libc::CLONE_PIDFD | libc::CLONE_PARENT).cast_unsigned())
            | CLONE_CLEAR_SIGHAND
            | CLONE_INTO_CGROUP,
        pidfd: (&raw mut pidfd) as u64,
        cgroup: received.fd(CGROUP).cast_unsigned().into(),
        ..CloneArgs::default()
    };
    // SAFETY: without a stack of its own and without CLONE_VM the child goes on with a copy of this one, `received` in it;
    // `command` never returns.
    let answer = unsafe { raw::clone3(&args, command, std::ptr::from_ref(received).cast()) };
    let pid = raw::check(answer)?;
    say_born(received.fd(STATUS), pid as u32, pidfd);
    close(pidfd);
    Ok(())
}

fn say_born(socket: i32, pid: u32, pidfd: i32) {
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

/// Where a command begins: in the sandbox's namespaces, but for the two that take the host's rights away.
///
/// # Safety
/// `argument` is a `Received` in this process's own memory.
unsafe extern "C" fn command(argument: *const u8) -> ! {
    // SAFETY: by this function's contract.
    let received = unsafe { &*argument.cast::<Received>() };
    let status = received.fd(STATUS);
    let Err((step, errno)) = become_program(received);
    say(status, Status { kind: FAILED, value: step as u32, errno: errno.raw_os_error() });
    exit(125)
}

/// The straight line from birth to program.
fn become_program(received: &Received) -> core::result::Result<std::convert::Infallible, (Step, Errno)> {
    let at = |step: Step| move |errno: Errno| (step, errno);
    let payload = Mapped::new(received).map_err(at(Step::Request))?;
    let header = payload.header();
    for index in JOINS..received.count {
        join(received.fd(index)).map_err(at(Step::JoinCgroups))?;
    }
    stdio(received).map_err(at(Step::Stdio))?;
    close_on_exec_from(3).map_err(at(Step::Stdio))?;
    limits(payload.array(header.limits)).map_err(at(Step::Limits))?;
    new_session().map_err(at(Step::Session))?;
    // SAFETY: an integer.
    done(unsafe { call!(libc::SYS_umask, 0o022) }).map_err(at(Step::Session))?;
    let last = received.message.namespaces.cast_signed() & LAST_FLAGS;
    if last != 0 {
        enter(received.fd(SANDBOX), last).map_err(at(Step::UserNamespace))?;
    }
    bounding(header.capabilities, header.last_capability).map_err(at(Step::Privileges))?;
    default_signals(header.ignored_signals).map_err(at(Step::Privileges))?;
    ids(header.uid, header.gid, payload.array(header.groups)).map_err(at(Step::User))?;
    if header.no_new_privileges == 1 {
        no_new_privileges().map_err(at(Step::Privileges))?;
    }
    change_directory(payload.string(header.cwd), header.cwd_must == 1).map_err(at(Step::WorkingDirectory))?;
    seccomp(payload.array(header.filter)).map_err(at(Step::Seccomp))?;
    say(received.fd(STATUS), Status { kind: READY, value: 0, errno: 0 });
    let [paths, argv, env] = [header.paths, header.argv, header.env].map(|offset| payload.strings(offset));
    Err((Step::Exec, exec(paths, argv, env)))
}

/// The payload, in memory of the command's own.
struct Mapped {
    base: *mut u8,
}

impl Mapped {
    fn new(received: &Received) -> Result<Self> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let (bytes, fd) = (received.message.payload_bytes, received.fd(PAYLOAD));
        // SAFETY: a new map; nothing is replaced.
        let base = unsafe { call!(libc::SYS_mmap, 0, bytes, rights, libc::MAP_PRIVATE, fd, 0) }?;
        Ok(Self { base: base as *mut u8 })
    }

    fn header(&self) -> Header {
        // SAFETY: the daemon has written one there, and a page is aligned for it.
        unsafe { self.base.cast::<Header>().read() }
    }

    /// An array that the daemon has written, at an offset that it has aligned.
    fn array<T>(&self, array: super::request::Array) -> &[T] {
        // SAFETY: the daemon has written as many; the map stays until the program begins.
        unsafe { std::slice::from_raw_parts(self.base.add(array.offset).cast(), array.count) }
    }

    fn string(&self, offset: usize) -> *const c_char {
        // SAFETY: within the payload.
        unsafe { self.base.add(offset).cast() }
    }

    /// An array of offsets, made one of pointers in its place.
    fn strings(&self, offset: usize) -> *const *const c_char {
        // SAFETY: the daemon has written offsets there, the last one 0; a pointer is as long as an offset, and nobody else
        // sees this map.
        unsafe {
            let array = self.base.add(offset).cast::<usize>();
            let mut entry = array;
            while *entry != 0 {
                *entry += self.base as usize;
                entry = entry.add(1);
            }
            array.cast()
        }
    }
}

fn join(file: i32) -> Result<()> {
    // SAFETY: one byte.
    done(unsafe { call!(libc::SYS_write, file, c"0".as_ptr(), 1) })
}

/// All three are above the standard numbers, which the starter keeps occupied.
fn stdio(received: &Received) -> Result<()> {
    for number in 0..3 {
        // SAFETY: integers.
        unsafe { call!(libc::SYS_dup3, received.fd(STDIO + number), number, 0) }?;
    }
    Ok(())
}

fn limits(limits: &[[u64; 3]]) -> Result<()> {
    for [resource, soft, hard] in limits {
        let numbers = [*soft, *hard];
        // SAFETY: a structure of two 64-bit numbers, read only.
        unsafe { call!(libc::SYS_prlimit64, 0, *resource, &raw const numbers, 0) }?;
    }
    Ok(())
}

fn bounding(keep: u64, last: u64) -> Result<()> {
    for capability in 0..=last.min(63) {
        if keep & (1u64 << capability) == 0 {
            // SAFETY: integers.
            unsafe { call!(libc::SYS_prctl, libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }?;
        }
    }
    Ok(())
}

fn change_directory(path: *const c_char, must: bool) -> Result<()> {
    // SAFETY: a C string of the payload.
    match unsafe { call!(libc::SYS_chdir, path) } {
        Err(errno) if must => Err(errno),
        // The root, where it begins.
        _ => Ok(()),
    }
}

fn seccomp(filter: &[crate::seccomp::Instruction]) -> Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut().cast() };
    // SAFETY: the program points into the payload.
    done(unsafe { call!(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) })
}

/// Runs the first of these paths that is there and may be run. EACCES if one was there and may not, else ENOENT.
fn exec(mut paths: *const *const c_char, argv: *const *const c_char, env: *const *const c_char) -> Errno {
    let mut answer = Errno::NOENT;
    // SAFETY: three arrays of C strings that end with a null pointer.
    unsafe {
        while !(*paths).is_null() {
            match call!(libc::SYS_execve, *paths, argv, env) {
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(Errno::ACCESS) => answer = Errno::ACCESS,
                Err(other) => return other,
                Ok(_) => return Errno::IO,
            }
            paths = paths.add(1);
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_and_stacks_are_unneeded_and_variables_are_not() {
        let maps = "\
5500-5600 r-xp 00000000 fe:00 12 /bin/daemon
5600-5700 rw-p 00001000 fe:00 12 /bin/daemon
5700-5800 rw-p 00000000 00:00 0
5900-6000 rw-p 00000000 00:00 0 [heap]
7000-7100 ---p 00000000 00:00 0
7100-7200 rw-p 00000000 00:00 0
7300-7400 rw-p 00000000 00:00 0 [stack]
";
        assert_eq!(unneeded(maps), [[0x5900, 0x700], [0x7100, 0x100]]);
    }

    #[test]
    fn arguments_are_found_behind_any_name() {
        let own = fs_read("/proc/self/stat").unwrap();
        let [begin, end] = arguments(&own);
        let cmdline = fs_read("/proc/self/cmdline").unwrap();
        assert_eq!(end - begin, cmdline.len());
        let renamed = own.replacen('(', "(x) y (", 1);
        assert_eq!(arguments(&renamed), [begin, end]);
        assert_eq!(arguments("1 (x) S"), [0, 0]);
    }
}
