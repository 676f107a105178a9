//! Sandboxes as they really are: these tests make namespaces, mounts and cgroups, so they need root, and Debian's
//! `busybox-static` and `perl` for the small root that they run in.

mod privileged {
    mod support;

    mod basics;
    mod commands;
    mod disks;
    mod isolation;
    mod life;
    mod limits;
    mod overlay;
    mod starts;
    mod syscalls;
}
