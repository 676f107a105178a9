//! The command's side: the straight line from its birth to its program.
//!
//! It runs in a copy of the starter's memory; the rules of [`crate::steps`] hold.

use super::Step;
use super::request::Header;
use super::serve::enter;
use super::wire::{FAILED, JOINS, PAYLOAD, READY, Received, SANDBOX, STATUS, STDIO, Status, say};
use crate::raw::call;
use crate::steps::{close, close_all_but, default_signals, done, exit, ids, new_session, no_new_privileges};
use rustix::io::Errno;
use std::ffi::c_char;

type Result<T> = core::result::Result<T, Errno>;

/// Those of the sandbox's namespaces that the command enters itself.
const LAST_FLAGS: i32 = libc::CLONE_NEWUSER | libc::CLONE_NEWCGROUP;

/// Where a command begins: in the sandbox's namespaces, but for the two that take the host's rights away.
///
/// # Safety
/// `argument` is a `Received` in this process's own memory.
pub(super) unsafe extern "C" fn command(argument: *const u8) -> ! {
    // SAFETY: by this function's contract.
    let received = unsafe { &*argument.cast::<Received>() };
    let status = received.fd(STATUS);
    let Err((step, errno)) = become_program(received);
    say(status, Status { kind: FAILED, value: step as u32, errno: errno.raw_os_error() });
    exit(125)
}

/// The straight line from birth to program.
///
/// What a path of the tenant's leads to is the tenant's doing, `/proc/self/fd` included. So before the first of them is
/// looked at (the working directory), every descriptor is closed that could lead out.
fn become_program(received: &Received) -> core::result::Result<std::convert::Infallible, (Step, Errno)> {
    let at = |step: Step| move |errno: Errno| (step, errno);
    let payload = Mapped::new(received).map_err(at(Step::Request))?;
    let header = payload.header();
    for index in JOINS..received.count {
        join(received.fd(index)).map_err(at(Step::JoinCgroups))?;
    }
    stdio(received).map_err(at(Step::Stdio))?;
    // What is left closes at exec, and is no directory. The starter's own descriptors are gone before the tenant has any
    // right over this process.
    let (status, sandbox) = (received.fd(STATUS), received.fd(SANDBOX));
    close_all_but(&[status.min(sandbox), status.max(sandbox)]).map_err(at(Step::Stdio))?;
    limits(payload.array(header.limits)).map_err(at(Step::Limits))?;
    new_session().map_err(at(Step::Session))?;
    // SAFETY: an integer.
    done(unsafe { call!(libc::SYS_umask, 0o022) }).map_err(at(Step::Session))?;
    let last = received.message.namespaces.cast_signed() & LAST_FLAGS;
    if last != 0 {
        enter(sandbox, last).map_err(at(Step::UserNamespace))?;
    }
    bounding(header.capabilities, header.last_capability).map_err(at(Step::Privileges))?;
    default_signals(header.ignored_signals).map_err(at(Step::Privileges))?;
    ids(header.uid, header.gid, payload.array(header.groups)).map_err(at(Step::User))?;
    if header.no_new_privileges == 1 {
        no_new_privileges().map_err(at(Step::Privileges))?;
    }
    change_directory(payload.string(header.cwd), header.cwd_must == 1).map_err(at(Step::WorkingDirectory))?;
    seccomp(payload.array(header.filter)).map_err(at(Step::Seccomp))?;
    say(status, Status { kind: READY, value: 0, errno: 0 });
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

/// Links of `/proc` that lead to what a process has open, and not to a path, are not followed.
fn change_directory(path: *const c_char, must: bool) -> Result<()> {
    const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
    let flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
    // `struct open_how`.
    let how = [flags, 0, RESOLVE_NO_MAGICLINKS];
    // SAFETY: a C string of the payload, and a structure of three numbers with its size.
    let opened = unsafe { call!(libc::SYS_openat2, libc::AT_FDCWD, path, &raw const how, size_of_val(&how)) };
    let changed = opened.and_then(|directory| {
        // SAFETY: integers.
        let changed = unsafe { call!(libc::SYS_fchdir, directory) };
        close(directory as i32);
        changed
    });
    match changed {
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
