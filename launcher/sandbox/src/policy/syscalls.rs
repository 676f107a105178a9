//! The system calls that a sandbox may make: an allowlist in groups, each with its reason.
//!
//! What is not listed answers EPERM; numbers beyond those that this table knows answer ENOSYS, so that a newer libc falls
//! back to what is allowed. Calls whose arguments decide are in [`CHECKED`].

/// One system call by name and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The kernel's name, with `SYS_`.
    pub name: &'static str,
    /// Its number on this architecture.
    pub number: u32,
}

/// System calls that are allowed for one reason.
#[derive(Debug, Clone, Copy)]
pub struct SyscallGroup {
    /// Why they are.
    pub reason: &'static str,
    /// Which ones.
    pub calls: &'static [Call],
}

/// A number as filters see it.
const fn number(call: libc::c_long) -> u32 {
    assert!(0 <= call && call <= 0xffff, "no such system call");
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    {
        call as u32
    }
}

macro_rules! calls {
    ($($name:ident)*) => {
        &[$(Call { name: stringify!($name), number: number(libc::$name) }),*]
    };
}

/// What is allowed whatever the arguments.
pub const SYSCALLS: &[SyscallGroup] = &[
    SyscallGroup {
        reason: "read and write what is open",
        calls: calls![
            SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2
            SYS_pwritev2 SYS_lseek SYS_close SYS_close_range SYS_dup SYS_dup3 SYS_fcntl SYS_flock SYS_fsync SYS_fdatasync
            SYS_sync SYS_syncfs SYS_sync_file_range SYS_sendfile SYS_copy_file_range SYS_splice SYS_tee SYS_vmsplice
            SYS_fallocate SYS_ftruncate SYS_truncate SYS_fadvise64 SYS_readahead SYS_pipe2 SYS_memfd_create
        ],
    },
    SyscallGroup {
        reason: "files and directories by name; the mount namespace holds nothing of the host",
        calls: calls![
            SYS_openat SYS_openat2 SYS_mkdirat SYS_mknodat SYS_unlinkat SYS_symlinkat SYS_linkat SYS_renameat2
            SYS_readlinkat SYS_faccessat SYS_faccessat2 SYS_fchmod SYS_fchmodat SYS_fchmodat2 SYS_fchown SYS_fchownat
            SYS_newfstatat SYS_fstat SYS_statx SYS_statfs SYS_fstatfs SYS_getdents64 SYS_getcwd SYS_chdir SYS_fchdir
            SYS_chroot SYS_umask SYS_utimensat SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_getxattr SYS_lgetxattr
            SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr SYS_removexattr SYS_lremovexattr SYS_fremovexattr
            SYS_name_to_handle_at
        ],
    },
    SyscallGroup {
        reason: "wait for files, timers, signals and each other",
        calls: calls![
            SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2
            SYS_signalfd4 SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime SYS_inotify_init1
            SYS_inotify_add_watch SYS_inotify_rm_watch SYS_io_setup SYS_io_destroy SYS_io_submit SYS_io_cancel
            SYS_io_getevents SYS_futex SYS_futex_waitv
            SYS_set_robust_list SYS_get_robust_list SYS_nanosleep SYS_clock_nanosleep
            SYS_restart_syscall SYS_membarrier SYS_rseq
        ],
    },
    SyscallGroup {
        reason: "memory of one's own",
        calls: calls![
            SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_msync SYS_mincore SYS_brk SYS_mlock SYS_mlock2
            SYS_munlock SYS_mlockall SYS_munlockall SYS_remap_file_pages SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect
            SYS_get_mempolicy SYS_set_mempolicy SYS_mbind SYS_set_mempolicy_home_node SYS_mseal SYS_process_madvise
        ],
    },
    SyscallGroup {
        reason: "start programs and end them; clone and unshare are checked",
        calls: calls![
            SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid SYS_set_tid_address SYS_getpid SYS_getppid
            SYS_gettid SYS_getpgid SYS_setpgid SYS_getsid SYS_setsid SYS_kill SYS_tkill SYS_tgkill SYS_pidfd_open
            SYS_pidfd_send_signal SYS_prctl SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigpending
            SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_sigaltstack
            SYS_process_mrelease
        ],
    },
    SyscallGroup {
        reason: "users and capabilities of the sandbox's own user namespace",
        calls: calls![
            SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid SYS_getresgid SYS_getgroups SYS_setuid SYS_setgid
            SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_setfsuid SYS_setfsgid SYS_setgroups SYS_capget
            SYS_capset
        ],
    },
    SyscallGroup {
        reason: "priorities and limits of one's own processes, which the cgroup bounds",
        calls: calls![
            SYS_getpriority SYS_setpriority SYS_getrlimit SYS_setrlimit SYS_prlimit64 SYS_getrusage SYS_times SYS_sched_yield
            SYS_sched_getaffinity SYS_sched_setaffinity SYS_sched_getparam SYS_sched_setparam SYS_sched_getscheduler
            SYS_sched_setscheduler SYS_sched_getattr SYS_sched_setattr SYS_sched_get_priority_max
            SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_ioprio_get SYS_ioprio_set SYS_getcpu
        ],
    },
    SyscallGroup {
        reason: "read clocks, set timers; setting a clock is not allowed",
        calls: calls![
            SYS_clock_gettime SYS_clock_getres SYS_gettimeofday SYS_getitimer SYS_setitimer SYS_timer_create
            SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun SYS_timer_delete
        ],
    },
    SyscallGroup {
        reason: "sockets; the families are checked when one is made",
        calls: calls![
            SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_connect SYS_getsockname SYS_getpeername SYS_sendto SYS_recvfrom
            SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg SYS_getsockopt SYS_setsockopt SYS_shutdown
        ],
    },
    SyscallGroup {
        reason: "System V and POSIX message passing, in an IPC namespace of its own",
        calls: calls![
            SYS_shmget SYS_shmat SYS_shmdt SYS_shmctl SYS_semget SYS_semop SYS_semtimedop SYS_semctl SYS_msgget SYS_msgsnd
            SYS_msgrcv SYS_msgctl SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive SYS_mq_notify
            SYS_mq_getsetattr
        ],
    },
    SyscallGroup {
        reason: "debuggers and checkpoint tools, on processes of the same pid namespace and user",
        calls: calls![SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_kcmp SYS_pidfd_getfd],
    },
    SyscallGroup { reason: "ask about the system", calls: calls![SYS_uname SYS_sysinfo SYS_getrandom] },
    SyscallGroup {
        reason: "programs that confine themselves further",
        calls: calls![SYS_seccomp SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self],
    },
    #[cfg(target_arch = "x86_64")]
    SyscallGroup {
        reason: "the older names of the above that this architecture has",
        calls: calls![
            SYS_open SYS_creat SYS_stat SYS_lstat SYS_access SYS_mkdir SYS_rmdir SYS_unlink SYS_link SYS_symlink SYS_rename
            SYS_renameat SYS_readlink SYS_chmod SYS_chown SYS_lchown SYS_mknod SYS_utime SYS_utimes SYS_futimesat
            SYS_getdents SYS_dup2 SYS_pipe SYS_poll SYS_select SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_signalfd
            SYS_inotify_init SYS_alarm SYS_pause SYS_time SYS_getpgrp SYS_fork SYS_vfork SYS_arch_prctl SYS_ustat
            SYS_sysfs
        ],
    },
    #[cfg(target_arch = "aarch64")]
    SyscallGroup { reason: "the older names of the above that this architecture has", calls: calls![SYS_renameat] },
];

/// The last number that this table takes a position on (`SYS_mseal`'s generation, Linux 6.17: `file_setattr`). The numbers
/// are the same on both architectures from 424 on.
pub(crate) const LAST_KNOWN: u32 = 469;

/// `io_pgetevents`, which libc does not name.
#[cfg(target_arch = "x86_64")]
const IO_PGETEVENTS: u32 = 333;
#[cfg(target_arch = "aarch64")]
const IO_PGETEVENTS: u32 = 292;

/// Numbers that libc does not name and that only repeat, in another form, what is allowed above: `cachestat` (451, Linux
/// 6.5), `futex_wake`, `futex_wait`, `futex_requeue` (454 to 456, 6.7), `setxattrat`, `getxattrat`, `listxattrat`,
/// `removexattrat` (463 to 466, 6.13), `file_getattr` (468, 6.17; its sibling that sets is not allowed, since it changes
/// project ids, which quotas hang on).
pub(crate) const UNNAMED: &[u32] = &[IO_PGETEVENTS, 451, 454, 455, 456, 463, 464, 465, 466, 468];

/// What a checked call depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// EPERM when an argument has any of these bits.
    NoneOf { argument: u8, mask: u32 },
    /// The ioctl rules.
    Ioctl,
    /// Only these socket families; Netlink for routes only.
    Socket,
    /// Only Unix sockets.
    SocketPair,
    /// Only these values.
    Personality,
    /// ENOSYS, whatever the arguments.
    Missing,
}

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP)
    .cast_unsigned();
const CLONE_NEWTIME: u32 = 0x80;

/// A child of the caller's parent. The parent of a command is the platform, outside: it would get children that it did
/// not start and does not wait for, and the sandbox would not end before it had.
const CLONE_PARENT: u32 = libc::CLONE_PARENT.cast_unsigned();

/// Calls whose arguments decide.
pub(crate) const CHECKED: &[(u32, Check)] = &[
    // A new user namespace gives capabilities that the bounding set does not reach.
    (number(libc::SYS_clone), Check::NoneOf { argument: 0, mask: NEW_NAMESPACES | CLONE_PARENT }),
    (number(libc::SYS_unshare), Check::NoneOf { argument: 0, mask: NEW_NAMESPACES | CLONE_NEWTIME }),
    // Its flags are in memory, which a filter cannot read; a libc that is told it is missing uses clone.
    (number(libc::SYS_clone3), Check::Missing),
    (number(libc::SYS_ioctl), Check::Ioctl),
    (number(libc::SYS_socket), Check::Socket),
    (number(libc::SYS_socketpair), Check::SocketPair),
    (number(libc::SYS_personality), Check::Personality),
];

/// `ioctl` requests of this type byte swap files' extents, freeze file systems and change project ids (XFS and the VFS).
pub(crate) const IOCTL_TYPE_REFUSED: u32 = 0x58;

/// Single `ioctl` requests that put input into a terminal, or change what reads from it: TIOCSTI, TIOCLINUX, TIOCSETD.
pub(crate) const IOCTLS_REFUSED: &[u32] = &[0x5412, 0x541c, 0x5423];

/// Socket families that may be used: Unix, IPv4, IPv6.
pub(crate) const FAMILIES: &[u32] = &[1, 2, 10];
/// Netlink, whose protocol 0 (routes) libc uses to list addresses.
pub(crate) const FAMILY_NETLINK: u32 = 16;

/// `personality` values: Linux, 32-bit `uname`, no address randomisation (debuggers), and the question what it is.
pub(crate) const PERSONALITIES: &[u32] = &[0, 0x8, 0x4_0000, 0xffff_ffff];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_call_is_decided_once() {
        let mut seen = BTreeSet::new();
        let listed = SYSCALLS.iter().flat_map(|group| group.calls).map(|call| call.number);
        for number in listed.chain(CHECKED.iter().map(|(number, _)| *number)).chain(UNNAMED.iter().copied()) {
            assert!(seen.insert(number), "{number} twice");
            assert!(number <= LAST_KNOWN, "{number}");
        }
    }

    #[test]
    fn what_the_design_refuses_is_not_listed() {
        let refused = [
            libc::SYS_io_uring_setup,
            libc::SYS_io_uring_enter,
            libc::SYS_io_uring_register,
            libc::SYS_userfaultfd,
            libc::SYS_bpf,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_perf_event_open,
            libc::SYS_kexec_load,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_delete_module,
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_fsopen,
            libc::SYS_fsconfig,
            libc::SYS_fsmount,
            libc::SYS_fspick,
            libc::SYS_open_tree,
            libc::SYS_move_mount,
            libc::SYS_mount_setattr,
            libc::SYS_setns,
            libc::SYS_open_by_handle_at,
            libc::SYS_fanotify_init,
            libc::SYS_quotactl,
            libc::SYS_swapon,
            libc::SYS_reboot,
            libc::SYS_settimeofday,
            libc::SYS_clock_settime,
            libc::SYS_sethostname,
        ];
        let listed: BTreeSet<_> = SYSCALLS.iter().flat_map(|group| group.calls).map(|call| call.number).collect();
        for number in refused {
            assert!(!listed.contains(&super::number(number)), "{number}");
        }
    }
}
