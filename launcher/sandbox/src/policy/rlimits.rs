//! Resource limits of every process of a sandbox.
//!
//! The table has every limit that the kernel has: one that was left out would be what the platform's own process was
//! started with. Memory, processes and CPU time are the cgroup's to limit. No limit is raised above this process's own
//! hard one, which the node's administrator has chosen (and which takes a privilege).

use dsec_sys::limits::Limit;
use rustix::io::Errno;

const UNLIMITED: u64 = libc::RLIM_INFINITY;

const fn limit(resource: u32, soft: u64, hard: u64) -> Limit {
    Limit { resource, soft, hard }
}

const RLIMITS: [Limit; 16] = [
    limit(libc::RLIMIT_AS, UNLIMITED, UNLIMITED),
    // One byte, not none: the kernel then does not start the host's core handler for a program of the tenant either.
    limit(libc::RLIMIT_CORE, 1, 1),
    limit(libc::RLIMIT_CPU, UNLIMITED, UNLIMITED),
    limit(libc::RLIMIT_DATA, UNLIMITED, UNLIMITED),
    limit(libc::RLIMIT_FSIZE, UNLIMITED, UNLIMITED),
    limit(libc::RLIMIT_LOCKS, UNLIMITED, UNLIMITED),
    // The kernel's own default; locked memory cannot be reclaimed.
    limit(libc::RLIMIT_MEMLOCK, 8 << 20, 8 << 20),
    // The kernel's own default.
    limit(libc::RLIMIT_MSGQUEUE, 819_200, 819_200),
    // No priority above that of the others of the node, and none of real time.
    limit(libc::RLIMIT_NICE, 0, 0),
    // More than `select` can name breaks old programs, and new ones raise it themselves.
    limit(libc::RLIMIT_NOFILE, 1024, 524_288),
    limit(libc::RLIMIT_NPROC, UNLIMITED, UNLIMITED),
    limit(libc::RLIMIT_RSS, UNLIMITED, UNLIMITED),
    limit(libc::RLIMIT_RTPRIO, 0, 0),
    limit(libc::RLIMIT_RTTIME, UNLIMITED, UNLIMITED),
    limit(libc::RLIMIT_SIGPENDING, 16_384, 16_384),
    // The kernel's own default; it also decides where programs are laid out.
    limit(libc::RLIMIT_STACK, 8 << 20, UNLIMITED),
];

/// The table, within this process's own limits.
///
/// # Errors
/// What `prlimit` answers.
pub(crate) fn rlimits() -> Result<Vec<Limit>, Errno> {
    RLIMITS.into_iter().map(Limit::within_own).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_limit_of_the_kernel_is_in_the_table() {
        let kernels = fs_err::read_to_string("/proc/self/limits").unwrap().lines().count() - 1;
        let mut numbers = super::RLIMITS.map(|limit| limit.resource);
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..u32::try_from(kernels).unwrap()));
    }
}
