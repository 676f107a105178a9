//! What a command's start needs, and the bytes in which the command reads it.
//!
//! One memfd: a [`Header`], then what it refers to by offset from the beginning. Arrays of strings are arrays of offsets
//! that end with 0; the command adds the address at which it has mapped the file, and has the arrays that `execve` takes.

use crate::limits::Limit;
use crate::seccomp::Filter;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, Result};
use std::ffi::{CStr, CString};

/// Where a command begins.
#[derive(Debug, Clone)]
pub enum WorkingDirectory {
    /// There, or not at all.
    At(CString),
    /// There, or at the root if that does not work.
    IfThere(CString),
}

/// A command to start.
#[derive(Debug)]
pub struct Request<'a> {
    /// Pid 1 of the sandbox.
    pub sandbox: BorrowedFd<'a>,
    /// `CLONE_NEW*` of the namespaces that it has of its own, those of users and cgroups included.
    pub namespaces: i32,
    /// The cgroup of version 2 that the command is born in.
    pub cgroup: BorrowedFd<'a>,
    /// Files of cgroups of version 1 (`cgroup.procs`), open for writing.
    pub joins: Vec<BorrowedFd<'a>>,
    /// Standard input, output and error.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Resource limits.
    pub limits: &'a [Limit],
    /// Signals that the daemon ignores (bit n - 1 for signal n); the command begins with their defaults.
    pub ignored_signals: u64,
    /// Capabilities that stay in the bounding set (bit n: capability n).
    pub capabilities: u64,
    /// The last capability that the kernel knows.
    pub last_capability: u8,
    /// Whether nothing that it runs may gain privileges.
    pub no_new_privileges: bool,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
    /// Where it begins.
    pub cwd: WorkingDirectory,
    /// What it may ask the kernel for.
    pub filter: &'a Filter,
    /// Paths under which the program may be; the first that is there and may be run is run.
    pub paths: Vec<CString>,
    /// Arguments.
    pub argv: Vec<CString>,
    /// Environment.
    pub env: Vec<CString>,
}

/// An array in the payload.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Array {
    pub(super) offset: usize,
    pub(super) count: usize,
}

/// How the payload begins.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Header {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Array,
    /// Resource, soft and hard limit, three numbers each.
    pub(super) limits: Array,
    pub(super) filter: Array,
    pub(super) paths: usize,
    pub(super) argv: usize,
    pub(super) env: usize,
    pub(super) cwd: usize,
    pub(super) cwd_must: u32,
    pub(super) no_new_privileges: u32,
    pub(super) capabilities: u64,
    pub(super) ignored_signals: u64,
    pub(super) last_capability: u64,
}

/// The payload, in a file.
pub(super) struct Payload {
    pub(super) file: OwnedFd,
    pub(super) bytes: u64,
}

impl Request<'_> {
    /// Descriptors in the order in which they are handed over, after those of status and payload.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let [stdin, stdout, stderr] = self.stdio;
        let mut all = vec![self.sandbox, self.cgroup, stdin, stdout, stderr];
        all.extend(&self.joins);
        all
    }

    pub(super) fn payload(&self) -> Result<Payload> {
        let bytes = self.encode();
        let file = memfd_create("command", MemfdFlags::CLOEXEC)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let written = rustix::io::write(&file, rest)?;
            rest = rest.get(written..).ok_or(Errno::IO)?;
        }
        Ok(Payload { file, bytes: bytes.len() as u64 })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Encoder { bytes: vec![0; size_of::<Header>()] };
        let (cwd, must) = match &self.cwd {
            WorkingDirectory::At(path) => (path, true),
            WorkingDirectory::IfThere(path) => (path, false),
        };
        let limits: Vec<[u64; 3]> =
            self.limits.iter().map(|limit| [limit.resource.into(), limit.soft, limit.hard]).collect();
        let header = Header {
            uid: self.uid,
            gid: self.gid,
            groups: out.array(self.groups),
            limits: out.array(&limits),
            filter: out.array(self.filter.instructions()),
            paths: out.strings(&self.paths),
            argv: out.strings(&self.argv),
            env: out.strings(&self.env),
            cwd: out.string(cwd),
            cwd_must: must.into(),
            no_new_privileges: self.no_new_privileges.into(),
            capabilities: self.capabilities,
            ignored_signals: self.ignored_signals,
            last_capability: self.last_capability.into(),
        };
        let mut bytes = out.bytes;
        let begin = bytes.get_mut(..size_of::<Header>()).expect("made this long above");
        begin.copy_from_slice(as_bytes(std::slice::from_ref(&header)));
        bytes
    }
}

/// Values that are their bytes: no padding, no pointer.
trait Plain: Copy {}
impl Plain for u32 {}
impl Plain for usize {}
impl Plain for Header {}
impl Plain for crate::seccomp::Instruction {}
impl Plain for [u64; 3] {}

// Fields without a gap between them, so that every byte is one of a field.
const _: () = assert!(size_of::<Header>() == 8 + 3 * 16 + 4 * 8 + 8 + 3 * 8);

fn as_bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: plain values, as many bytes as they have.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// Appends, aligned for anything; where.
    fn put(&mut self, bytes: &[u8]) -> usize {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let offset = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        offset
    }

    fn array<T: Plain>(&mut self, values: &[T]) -> Array {
        Array { offset: self.put(as_bytes(values)), count: values.len() }
    }

    fn string(&mut self, text: &CStr) -> usize {
        self.put(text.to_bytes_with_nul())
    }

    fn strings(&mut self, texts: &[CString]) -> usize {
        let mut offsets: Vec<usize> = texts.iter().map(|text| self.string(text)).collect();
        offsets.push(0);
        self.put(as_bytes(&offsets))
    }
}
