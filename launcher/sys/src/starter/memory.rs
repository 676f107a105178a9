//! What of the daemon's memory a command does not get, and what of it the starter overwrites.
//!
//! A command before its program has what the daemon's libraries and program keep in variables, the stack on which the
//! daemon's program began, and the memory in which the kernel keeps the forking thread's variables; no heap, and no other
//! stack. What it has nobody inside can read, as it is undumpable.

use crate::raw::call;
use rustix::io::Errno;

type Result<T> = core::result::Result<T, Errno>;

/// What a process of ours calls itself where tenants can read it.
pub(super) const NEUTRAL_NAME: &[u8] = b"(starting)\0";

/// What the daemon's memory has that neither the starter nor a command needs.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Beginning and length in bytes of the heap, and of the stacks of threads.
    unneeded: Vec<[usize; 2]>,
    /// Where the arguments of the daemon are.
    arguments: [usize; 2],
}

impl Memory {
    pub(super) fn read() -> Result<Self> {
        let read = |path: &str| fs_read(path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let mut unneeded = unneeded(&read("/proc/self/maps")?);
        // The kernel writes to where the forking thread has registered its `rseq`, in whatever process has inherited that,
        // and kills the one that has no memory there. The C library has it beside the thread's variables.
        thread_local!(static VARIABLE: u8 = const { 0 });
        let variable = VARIABLE.with(|variable| std::ptr::from_ref(variable) as usize);
        unneeded.retain(|[begin, length]| !(*begin..begin + length).contains(&variable));
        Ok(Self { unneeded, arguments: arguments(&read("/proc/self/stat")?) })
    }

    /// The arguments in this process's memory are the daemon's; here they are a neutral name.
    pub(super) fn overwrite_arguments(&self) {
        let [begin, end] = self.arguments;
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

/// Where this process's arguments are, from `/proc/self/stat`: fields 48 and 49.
fn arguments(stat: &str) -> [usize; 2] {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_ascii_whitespace().skip(45).map(str::parse);
    match (fields.next(), fields.next()) {
        (Some(Ok(begin)), Some(Ok(end))) if begin < end => [begin, end],
        _ => [0, 0],
    }
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
