//! System calls without the C library: no errno in thread-local storage, no lock, no allocation.
//!
//! A child that shares its parent's memory also shares its thread-local storage; a libc wrapper that failed in the child
//! would change the parent's errno. So child code calls only what is in this file.

use core::arch::asm;
use rustix::io::Errno;

/// A system call with up to six arguments; the raw answer (negative errno on failure).
///
/// # Safety
/// As for the system call itself: pointers valid for what the kernel does with them.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn syscall6(number: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let answer: isize;
    // SAFETY: the kernel's calling convention: rcx and r11 are clobbered, nothing else.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// A system call with up to six arguments; the raw answer (negative errno on failure).
///
/// # Safety
/// As for the system call itself: pointers valid for what the kernel does with them.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn syscall6(number: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let answer: isize;
    // SAFETY: the kernel's calling convention: only x0 changes.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    answer
}

/// The answer of a call as a result.
pub(crate) fn check(answer: isize) -> Result<usize, Errno> {
    match usize::try_from(answer) {
        Ok(value) => Ok(value),
        Err(_) => Err(Errno::from_raw_os_error(-i32::try_from(answer).unwrap_or(-libc::EIO))),
    }
}

/// [`syscall6`] as a result, the arguments that are left out zero.
macro_rules! call {
    ($number:expr $(, $arg:expr)* $(,)?) => {{
        let args: &[usize] = &[$($arg as usize),*];
        let at = |index: usize| args.get(index).copied().unwrap_or(0);
        $crate::raw::check($crate::raw::syscall6($number, at(0), at(1), at(2), at(3), at(4), at(5)))
    }};
}
pub(crate) use call;

/// The kernel's `struct clone_args`, as of Linux 5.7.
#[repr(C, align(8))]
#[derive(Default, Clone, Copy)]
pub(crate) struct CloneArgs {
    pub(crate) flags: u64,
    pub(crate) pidfd: u64,
    pub(crate) child_tid: u64,
    pub(crate) parent_tid: u64,
    pub(crate) exit_signal: u64,
    pub(crate) stack: u64,
    pub(crate) stack_bytes: u64,
    pub(crate) tls: u64,
    pub(crate) set_tid: u64,
    pub(crate) set_tid_count: u64,
    pub(crate) cgroup: u64,
}

const _: () = assert!(size_of::<CloneArgs>() == 88);

/// `clone3`, with the child calling `entry(argument)` on its own stack; the parent gets the raw answer.
///
/// # Safety
/// `args` names a stack of its own (16-byte aligned top) that outlives the child's use of it; `entry` never returns and
/// touches nothing that the parent may free meanwhile.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn clone3(
    args: &CloneArgs,
    entry: unsafe extern "C" fn(*const u8) -> !,
    argument: *const u8,
) -> isize {
    let answer: isize;
    // SAFETY: in the parent the block is a system call; the child, on its new stack, leaves it only into `entry`.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 as isize => answer,
            in("rdi") args,
            in("rsi") size_of::<CloneArgs>(),
            in("r12") entry,
            in("r13") argument,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    answer
}

/// `clone3`, with the child calling `entry(argument)` on its own stack; the parent gets the raw answer.
///
/// # Safety
/// `args` names a stack of its own (16-byte aligned top) that outlives the child's use of it; `entry` never returns and
/// touches nothing that the parent may free meanwhile.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn clone3(
    args: &CloneArgs,
    entry: unsafe extern "C" fn(*const u8) -> !,
    argument: *const u8,
) -> isize {
    let answer: isize;
    // SAFETY: in the parent the block is a system call; the child, on its new stack, leaves it only into `entry`.
    unsafe {
        asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x21",
            "blr x20",
            "brk #1",
            "2:",
            in("x8") libc::SYS_clone3,
            inlateout("x0") args as *const CloneArgs as isize => answer,
            in("x1") size_of::<CloneArgs>(),
            in("x20") entry,
            in("x21") argument,
            lateout("x30") _,
        );
    }
    answer
}

pub(crate) const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
pub(crate) const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Blocks every signal of the calling thread; dropping it puts the mask back.
pub(crate) struct SignalsBlocked {
    before: u64,
}

impl SignalsBlocked {
    pub(crate) fn new() -> Self {
        let all = u64::MAX;
        let mut before = 0u64;
        // SAFETY: two masks of eight bytes, as the last argument says. It cannot fail with valid arguments.
        let _ = unsafe {
            call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut before, size_of::<u64>())
        };
        Self { before }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ =
            unsafe { call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const self.before, 0, size_of::<u64>()) };
    }
}
