//! The program that is pid 1 of a sandbox, in a sealed memfd.
//!
//! It sleeps for ever. Its parent sets SIGCHLD to "ignored" before it starts, which is kept across exec, and for a
//! process that ignores SIGCHLD the kernel reaps children by itself; so every orphan of the sandbox vanishes at once
//! without a line of code. The program is one page of machine code in an ELF file that this module writes: no heap,
//! no library, nothing of the platform's memory in reach of the tenant.
//!
//! The file may be executed but not read by others, and its owner is not mapped inside a sandbox. The kernel therefore
//! makes the process undumpable towards the sandbox: its root cannot attach to it, read it or find the file.

use core::arch::global_asm;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, memfd_create};
use rustix::io::{Errno, Result};

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .rodata.dsec_reaper, \"a\"",
    ".globl dsec_reaper_start",
    ".globl dsec_reaper_end",
    "dsec_reaper_start:",
    "2:",
    "mov eax, 34", // pause
    "syscall",
    "jmp 2b",
    "dsec_reaper_end:",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .rodata.dsec_reaper, \"a\"",
    ".globl dsec_reaper_start",
    ".globl dsec_reaper_end",
    "dsec_reaper_start:",
    "2:",
    "mov x0, #0", // ppoll(NULL, 0, NULL, NULL): this architecture has no pause
    "mov x1, #0",
    "mov x2, #0",
    "mov x3, #0",
    "mov x8, #73",
    "svc 0",
    "b 2b",
    "dsec_reaper_end:",
    ".popsection",
);

unsafe extern "C" {
    static dsec_reaper_start: u8;
    static dsec_reaper_end: u8;
}

const ELF_HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const CODE_OFFSET: usize = ELF_HEADER_BYTES + PROGRAM_HEADER_BYTES;
const LOAD_ADDRESS: u64 = 0x40_0000;
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// The reaper's executable file, to be run by `execveat`. One serves every sandbox of a process.
#[derive(Debug)]
pub struct Reaper {
    file: OwnedFd,
}

impl Reaper {
    /// Writes and seals the file.
    ///
    /// # Errors
    /// What memfd_create, write or the sealing answer; EACCES when the node forbids executable memfds.
    pub fn new() -> Result<Self> {
        let file = create_executable()?;
        let image = image();
        let mut rest = image.as_slice();
        while !rest.is_empty() {
            let written = rustix::io::write(&file, rest)?;
            rest = rest.get(written..).ok_or(Errno::IO)?;
        }
        fchmod(&file, Mode::from_raw_mode(0o711))?;
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(Self { file })
    }
}

impl AsFd for Reaper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn create_executable() -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create("init", flags | MemfdFlags::EXEC) {
        // Before Linux 6.3 there is no such flag, and every memfd may be executed.
        Err(Errno::INVAL) => memfd_create("init", flags),
        other => other,
    }
}

fn code() -> &'static [u8] {
    // SAFETY: the two labels enclose the instructions above, in one read-only section.
    unsafe {
        let start = &raw const dsec_reaper_start;
        let end = &raw const dsec_reaper_end;
        std::slice::from_raw_parts(start, end.offset_from_unsigned(start))
    }
}

/// A static ELF file: header, one loadable segment that covers the whole file, code.
fn image() -> Vec<u8> {
    let code = code();
    let file_bytes = (CODE_OFFSET + code.len()) as u64;
    let mut image = Vec::with_capacity(CODE_OFFSET + code.len());
    image.extend_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    image.extend_from_slice(&2u16.to_le_bytes()); // an executable at a fixed address
    image.extend_from_slice(&MACHINE.to_le_bytes());
    image.extend_from_slice(&1u32.to_le_bytes());
    image.extend_from_slice(&(LOAD_ADDRESS + CODE_OFFSET as u64).to_le_bytes()); // entry
    image.extend_from_slice(&(ELF_HEADER_BYTES as u64).to_le_bytes()); // program headers follow at once
    image.extend_from_slice(&0u64.to_le_bytes()); // no sections
    image.extend_from_slice(&0u32.to_le_bytes());
    for field in [ELF_HEADER_BYTES as u16, PROGRAM_HEADER_BYTES as u16, 1, 0, 0, 0] {
        image.extend_from_slice(&field.to_le_bytes());
    }
    image.extend_from_slice(&1u32.to_le_bytes()); // PT_LOAD
    image.extend_from_slice(&5u32.to_le_bytes()); // read, execute
    for field in [0, LOAD_ADDRESS, LOAD_ADDRESS, file_bytes, file_bytes, 0x1000] {
        image.extend_from_slice(&field.to_le_bytes());
    }
    image.extend_from_slice(code);
    image
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn fits_a_page_and_is_laid_out_as_its_header_says() {
        let image = image();
        assert!(image.len() < 4096 && image.len() > CODE_OFFSET);
        assert_eq!(&image[CODE_OFFSET..], code());
    }

    #[test]
    fn runs_until_killed_and_cannot_be_changed() {
        let reaper = Reaper::new().unwrap();
        assert_eq!(rustix::io::write(&reaper, b"x"), Err(Errno::PERM));
        let path = format!("/proc/{}/fd/{}", std::process::id(), reaper.as_fd().as_raw_fd());
        let mut child = std::process::Command::new(path).spawn().unwrap();
        let pidfd = crate::process::open(child.id()).unwrap();
        assert!(!crate::process::wait_ended(&pidfd, 50).unwrap(), "the reaper ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
