//! What of the daemon's memory a command does not get, and what of it the starter overwrites.
//!
//! A command before its program has what the daemon's libraries and program keep in variables, the stack on which the
//! daemon's program began, and the memory in which the kernel keeps the forking thread's variables; no heap, and no other
//! stack. What it has nobody inside can read, as it is undumpable.

use crate::raw::call;
use crate::steps::{close, done};
use rustix::io::Errno;

type Result<T> = core::result::Result<T, Errno>;

/// What a process of ours calls itself where tenants can read it.
pub(super) const NEUTRAL_NAME: &[u8] = b"(starting)\0";

/// What the daemon's memory has that neither the starter nor a command needs.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Beginning and length in bytes of the heap, and of the stacks of threads.
    unneeded: Vec<[usize; 2]>,
    /// Where the daemon's own program file is mapped.
    program: Vec<Segment>,
    layout: Layout,
}

/// Where the kernel has what belongs to a process's program: `struct prctl_mm_map` of `linux/prctl.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Layout {
    code: [u64; 2],
    data: [u64; 2],
    heap: [u64; 2],
    stack: u64,
    arguments: [u64; 2],
    environment: [u64; 2],
    auxiliary: u64,
    auxiliary_bytes: u32,
    program: u32,
}

const _: () = assert!(size_of::<Layout>() == 104);

/// A part of a program file in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    begin: usize,
    bytes: usize,
    rights: i32,
}

impl Memory {
    pub(super) fn read() -> Result<Self> {
        let read = |path: &str| fs_read(path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let maps = read("/proc/self/maps")?;
        let mut unneeded = unneeded(&maps);
        // The kernel writes to where the forking thread has registered its `rseq`, in whatever process has inherited that,
        // and kills the one that has no memory there. The C library has it beside the thread's variables.
        thread_local!(static VARIABLE: u8 = const { 0 });
        let variable = VARIABLE.with(|variable| std::ptr::from_ref(variable) as usize);
        unneeded.retain(|[begin, length]| !(*begin..begin + length).contains(&variable));
        let program = rustix::fs::readlinkat(rustix::fs::CWD, "/proc/self/exe", Vec::new())?;
        let program = segments(&maps, &program.to_string_lossy());
        let layout = Layout::parse(&read("/proc/self/stat")?).ok_or(Errno::INVAL)?;
        Ok(Self { unneeded, program, layout })
    }

    /// From here on this process shows neither the daemon's arguments nor its program file.
    pub(super) fn become_neutral(&self) -> Result<()> {
        let mut layout = self.layout;
        rename_arguments(&mut layout);
        leave_program(&self.program, layout)
    }

    /// Commands get no copy of the daemon's heap and stacks: they would be theirs for a moment only, and copying page tables
    /// takes time. Between these two addresses is the stack that this runs on.
    pub(super) fn forget(&self, [stack_begin, stack_end]: [usize; 2]) {
        for [begin, length] in &self.unneeded {
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
}

/// The smallest there is. With larger pages the kernel refuses odd borders, and the memory is copied.
const PAGE_BYTES: usize = 4096;

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

/// Where a file is mapped. By its path, which the kernel shows alike for both; inode numbers differ on some file systems.
fn segments(maps: &str, path: &str) -> Vec<Segment> {
    let segment = |line: &str| {
        let (line, of) = line.split_at(line.find('/')?);
        let mut words = line.split_ascii_whitespace();
        let (range, rights) = (words.next()?, words.next()?);
        let (begin, end) = range.split_once('-')?;
        let (begin, end) = (usize::from_str_radix(begin, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        let has = |letter, right| if rights.contains(letter) { right } else { 0 };
        let rights = has('r', libc::PROT_READ) | has('w', libc::PROT_WRITE) | has('x', libc::PROT_EXEC);
        (of == path).then_some(Segment { begin, bytes: end - begin, rights })
    };
    maps.lines().filter_map(segment).collect()
}

impl Layout {
    /// From `/proc/self/stat`, but for what the kernel tells by other ways.
    fn parse(stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<u64> = fields.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
        // By the numbers of proc_pid_stat(5); the first behind the name is the third.
        let field = |number: usize| fields.get(number - 3).copied();
        let pair = |first| Some([field(first)?, field(first + 1)?]);
        Some(Self {
            code: pair(26)?,
            data: pair(45)?,
            heap: [field(47)?, 0],
            stack: field(28)?,
            arguments: pair(48)?,
            environment: pair(50)?,
            ..Self::default()
        })
    }
}

/// Lets go of the daemon's program file. A command that is not its program yet is still an instance of what this process
/// runs, and a tenant decides what the command opens next: `/proc/self/exe`, by a link or behind `#!`. So that is a copy, in
/// memory, that nobody but the host's root may open; the host's own file is mapped no more, as the kernel demands.
fn leave_program(program: &[Segment], layout: Layout) -> Result<()> {
    // SAFETY: a C string.
    let copy = unsafe { call!(libc::SYS_memfd_create, NEUTRAL_NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_EXEC) };
    let copy = match copy {
        // Before Linux 6.3 there is no such flag, and every memfd may be executed.
        // SAFETY: a C string.
        Err(Errno::INVAL) => unsafe { call!(libc::SYS_memfd_create, NEUTRAL_NAME.as_ptr(), libc::MFD_CLOEXEC) }?,
        other => other?,
    };
    let mut offset = 0;
    for segment in program {
        fill(copy, segment)?;
        let how = libc::MAP_PRIVATE | libc::MAP_FIXED;
        // SAFETY: what replaces the segment holds the same bytes, so it makes no difference to code that runs in it or
        // reads it. Nothing here writes to the program's variables in between: it has one thread, and that only copies.
        unsafe { call!(libc::SYS_mmap, segment.begin, segment.bytes, segment.rights, how, copy, offset) }?;
        offset += segment.bytes;
    }
    // SAFETY: integers.
    unsafe { call!(libc::SYS_fchmod, copy, 0o500) }?;
    change_layout(Layout { program: copy as u32, ..layout })?;
    close(copy as i32);
    Ok(())
}

/// Tells the kernel what this process's program and arguments are. One call changes both and asks for CAP_SYS_ADMIN; where
/// the kernel was built without it (`CONFIG_CHECKPOINT_RESTORE`), two calls ask for CAP_SYS_RESOURCE.
fn change_layout(mut layout: Layout) -> Result<()> {
    // SAFETY: no argument is a pointer; it answers where the heap ends.
    layout.heap[1] = unsafe { call!(libc::SYS_brk, 0) }? as u64;
    let set = |what: i32, value: usize, bytes: usize| {
        // SAFETY: an address within this process, a descriptor, or a structure of the kernel's form with its size.
        done(unsafe { call!(libc::SYS_prctl, libc::PR_SET_MM, what, value, bytes, 0) })
    };
    match set(libc::PR_SET_MM_MAP, &raw const layout as usize, size_of::<Layout>()) {
        Err(Errno::INVAL | Errno::PERM) => {
            set(libc::PR_SET_MM_EXE_FILE, layout.program as usize, 0)?;
            set(libc::PR_SET_MM_ARG_END, layout.arguments[1] as usize, 0)
        }
        other => other,
    }
}

/// Appends a segment as it is in memory now.
fn fill(file: usize, segment: &Segment) -> Result<()> {
    let mut done = 0;
    while done < segment.bytes {
        // SAFETY: the kernel has said that so many bytes are there; it answers EFAULT for any that cannot be read.
        done += unsafe { call!(libc::SYS_write, file, segment.begin + done, segment.bytes - done) }?;
    }
    Ok(())
}

/// The arguments in this process's memory are the daemon's; here they are a neutral name, and no longer than that.
fn rename_arguments(layout: &mut Layout) {
    let [begin, end] = layout.arguments;
    for (index, address) in (begin..end).enumerate() {
        let byte = match NEUTRAL_NAME.get(index) {
            Some(byte) if address + 1 < end => *byte,
            _ => 0,
        };
        // SAFETY: the kernel has said that this process's arguments are there; they are its own copy, writable as every
        // stack is, and nothing here reads them.
        unsafe { (address as *mut u8).write_volatile(byte) };
    }
    layout.arguments[1] = end.min(begin + NEUTRAL_NAME.len() as u64);
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
    fn a_programs_own_file_is_found_whatever_its_name() {
        let maps = "\
5500-5600 r-xp 00000000 fe:00 12                         /opt/a b/daemon (deleted)
5600-5800 rw-p 00001000 fe:00 12                         /opt/a b/daemon (deleted)
5800-5900 rw-p 00001000 fe:00 13                         /opt/a b/daemon
7000-7100 rw-p 00000000 00:00 0
";
        let segment = |begin, bytes, rights| Segment { begin, bytes, rights };
        let expected = [
            segment(0x5500, 0x100, libc::PROT_READ | libc::PROT_EXEC),
            segment(0x5600, 0x200, libc::PROT_READ | libc::PROT_WRITE),
        ];
        assert_eq!(segments(maps, "/opt/a b/daemon (deleted)"), expected);
        let own = Memory::read().unwrap();
        assert!(own.program.iter().any(|segment| segment.rights & libc::PROT_EXEC != 0), "{own:?}");
    }

    #[test]
    fn the_layout_is_found_behind_any_name() {
        let own = fs_read("/proc/self/stat").unwrap();
        let layout = Layout::parse(&own).unwrap();
        let cmdline = fs_read("/proc/self/cmdline").unwrap();
        assert_eq!(layout.arguments[1] - layout.arguments[0], cmdline.len() as u64);
        assert!(layout.code[0] < layout.code[1] && layout.environment[0] >= layout.arguments[1]);
        assert_eq!(Layout::parse(&own.replacen('(', "(x) y (", 1)), Some(layout));
        assert_eq!(Layout::parse("1 (x) S 1"), None);
    }
}
