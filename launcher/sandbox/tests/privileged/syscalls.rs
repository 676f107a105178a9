//! What the filter refuses, tried by a program inside.

use super::support::*;

/// Runs `syscall(NUMBER, ARGUMENTS)` in perl for each line; the errno of each, 0 for success.
fn errnos(sandbox: &dsec_sandbox::Sandbox, user: Option<&str>, calls: &[(&str, i64, &[i64])]) -> Vec<i32> {
    let list = |(_, number, arguments): &(&str, i64, &[i64])| {
        let arguments: String = arguments.iter().map(|argument| format!(", {argument}")).collect();
        format!("$! = 0; $r = syscall({number}{arguments}); print $r < 0 ? $!+0 : 0, qq(\\n);")
    };
    let script: String = calls.iter().map(list).collect();
    let captured = run_with(sandbox, &["/usr/bin/perl", "-e", &script], |spec| {
        spec.user = user.map(|user| user.parse().unwrap());
    });
    captured.stdout.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn privileged_dangerous_calls_are_refused_for_root_and_user() {
    let sandbox = create();
    let calls: &[(&str, i64, &[i64])] = &[
        ("unshare a user namespace", libc::SYS_unshare, &[libc::CLONE_NEWUSER as i64]),
        ("unshare a mount namespace", libc::SYS_unshare, &[libc::CLONE_NEWNS as i64]),
        ("clone into a network namespace", libc::SYS_clone, &[libc::CLONE_NEWNET as i64 | 17, 0, 0, 0, 0]),
        ("clone a sibling", libc::SYS_clone, &[libc::CLONE_PARENT as i64 | 17, 0, 0, 0, 0]),
        ("setns", libc::SYS_setns, &[0, 0]),
        ("mount", libc::SYS_mount, &[0, 0, 0, 0, 0]),
        ("umount2", libc::SYS_umount2, &[0, 0]),
        ("pivot_root", libc::SYS_pivot_root, &[0, 0]),
        ("fsopen", libc::SYS_fsopen, &[0, 0]),
        ("open_tree", libc::SYS_open_tree, &[0, 0, 0]),
        ("move_mount", libc::SYS_move_mount, &[0, 0, 0, 0, 0]),
        ("mount_setattr", libc::SYS_mount_setattr, &[0, 0, 0, 0, 0]),
        ("bpf", libc::SYS_bpf, &[0, 0, 0]),
        ("keyctl", libc::SYS_keyctl, &[0, 0]),
        ("add_key", libc::SYS_add_key, &[0, 0, 0, 0, 0]),
        ("request_key", libc::SYS_request_key, &[0, 0, 0, 0]),
        ("userfaultfd", libc::SYS_userfaultfd, &[0]),
        ("io_uring_setup", libc::SYS_io_uring_setup, &[1, 0]),
        ("io_uring_enter", libc::SYS_io_uring_enter, &[0, 0, 0, 0, 0, 0]),
        ("io_uring_register", libc::SYS_io_uring_register, &[0, 0, 0, 0]),
        ("perf_event_open", libc::SYS_perf_event_open, &[0, 0, 0, 0, 0]),
        ("kexec_load", libc::SYS_kexec_load, &[0, 0, 0, 0]),
        ("init_module", libc::SYS_init_module, &[0, 0, 0]),
        ("finit_module", libc::SYS_finit_module, &[0, 0, 0]),
        ("delete_module", libc::SYS_delete_module, &[0, 0]),
        ("open_by_handle_at", libc::SYS_open_by_handle_at, &[0, 0, 0]),
        ("reboot", libc::SYS_reboot, &[0, 0, 0, 0]),
        ("swapon", libc::SYS_swapon, &[0, 0]),
        ("quotactl", libc::SYS_quotactl, &[0, 0, 0, 0]),
        ("settimeofday", libc::SYS_settimeofday, &[0, 0]),
        ("sethostname", libc::SYS_sethostname, &[0, 0]),
        ("fanotify_init", libc::SYS_fanotify_init, &[0, 0]),
        ("syslog", libc::SYS_syslog, &[3, 0, 0]),
        ("file_setattr", 469, &[0, 0, 0, 0, 0]),
        ("XFS_IOC_SWAPEXT", libc::SYS_ioctl, &[0, 0xc0c0_586d, 0]),
        ("FIFREEZE", libc::SYS_ioctl, &[0, 0xc004_5877, 0]),
        ("TIOCSTI", libc::SYS_ioctl, &[0, 0x5412, 0]),
        ("personality", libc::SYS_personality, &[0x40_0000]),
    ];
    for user in [None, Some("1000:1001")] {
        for ((name, ..), errno) in calls.iter().zip(errnos(&sandbox, user, calls)) {
            assert_eq!(errno, libc::EPERM, "{name} as {user:?}");
        }
        let missing: &[(&str, i64, &[i64])] = &[("clone3", libc::SYS_clone3, &[0, 0]), ("a new one", 600, &[])];
        assert_eq!(errnos(&sandbox, user, missing), [libc::ENOSYS; 2]);
    }
}

#[test]
fn privileged_socket_families_are_few() {
    let sandbox = create();
    let families: Vec<i64> = (1..46).collect();
    let arguments: Vec<[i64; 3]> = families.iter().map(|family| [*family, 1, 0]).collect();
    let calls: Vec<(&str, i64, &[i64])> =
        arguments.iter().map(|arguments| ("socket", libc::SYS_socket, arguments.as_slice())).collect();
    for (family, errno) in families.iter().zip(errnos(&sandbox, None, &calls)) {
        let allowed = matches!(family, 1 | 2 | 10);
        // Netlink has no stream sockets: the kernel's own answer, past the filter.
        let expected = if *family == 16 { libc::ESOCKTNOSUPPORT } else { libc::EAFNOSUPPORT };
        assert_eq!(errno, if allowed { 0 } else { expected }, "family {family}");
    }
    let netlink: &[(&str, i64, &[i64])] = &[
        ("route", libc::SYS_socket, &[16, 3, 0]),
        ("netfilter", libc::SYS_socket, &[16, 3, 12]),
        ("raw", libc::SYS_socket, &[2, 3, 1]),
        ("packet", libc::SYS_socket, &[17, 3, 0]),
    ];
    let expected = [0, libc::EPROTONOSUPPORT, libc::EPERM, libc::EAFNOSUPPORT];
    assert_eq!(errnos(&sandbox, None, netlink), expected);
}

#[test]
fn privileged_honest_calls_work() {
    let sandbox = create();
    let script = "pipe(R, W); if (!fork) { print W 'child'; exit 0 } close W; wait; print <R>; \
                  $n = 'name'; print ' ', syscall(157, 15, $n, 0, 0, 0); \
                  if (!fork) { exit(syscall(101, 0, 0, 0, 0) == 0 ? 5 : 6) } wait; print ' ', $? >> 8";
    assert_eq!(run(&sandbox, &["/usr/bin/perl", "-e", script]).stdout, "child 0 5");
}
