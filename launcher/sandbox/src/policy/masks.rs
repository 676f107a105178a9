//! What of `/proc` is hidden or read-only.
//!
//! A sandbox's root is nobody towards the host, so most of these refuse it by their mode already; the covers hold even
//! where a kernel's modes are wider than they should be, and make a recursive read of `/proc` end.

/// How a path is covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cover {
    /// By `/dev/null`.
    Null,
    /// By an empty, read-only directory.
    Empty,
    /// By itself, read-only.
    ReadOnly,
}

/// One covered path.
#[derive(Debug, Clone, Copy)]
pub struct Mask {
    /// Below `/proc`.
    pub path: &'static str,
    pub(crate) cover: Cover,
    /// Why.
    pub reason: &'static str,
}

const fn mask(path: &'static str, cover: Cover, reason: &'static str) -> Mask {
    Mask { path, cover, reason }
}

/// All covered paths; one that a kernel does not have is left out when a [`crate::Runtime`] is opened. Each costs a mount
/// per sandbox, so what the kernel itself keeps from a sandbox's root (`kallsyms`, `vmallocinfo`) is not listed.
pub const MASKS: &[Mask] = &[
    mask("kcore", Cover::Null, "the kernel's memory"),
    mask("keys", Cover::Null, "keyrings are not namespaced"),
    mask("key-users", Cover::Null, "keyrings are not namespaced"),
    mask("kpagecgroup", Cover::Null, "reading it has crashed kernels; shows the host's page owners"),
    mask("kpagecount", Cover::Null, "shows the host's pages"),
    mask("kpageflags", Cover::Null, "shows the host's pages"),
    mask("latency_stats", Cover::Null, "shows what the host's kernel waits for"),
    mask("sched_debug", Cover::Null, "shows the host's processes"),
    mask("sysrq-trigger", Cover::Null, "reboots the host"),
    mask("timer_list", Cover::Null, "shows kernel addresses and the host's processes"),
    mask("timer_stats", Cover::Null, "shows the host's processes"),
    mask("interrupts", Cover::Null, "a side channel for keystrokes and neighbours' load"),
    mask("cmdline", Cover::Null, "the host's boot command line: its disks, devices and mitigations"),
    mask("config.gz", Cover::Null, "how the host's kernel was built: what an attack on it has to know"),
    mask("partitions", Cover::Null, "the host's disks"),
    mask("diskstats", Cover::Null, "the host's disks, and the load of neighbours"),
    mask("acpi", Cover::Empty, "the host's hardware"),
    mask("asound", Cover::Empty, "the host's hardware"),
    mask("scsi", Cover::Empty, "the host's hardware; writing removes disks"),
    mask("sys", Cover::ReadOnly, "kernel settings; those of the sandbox's own namespaces are set from outside"),
    mask("bus", Cover::ReadOnly, "the host's hardware"),
    mask("fs", Cover::ReadOnly, "settings of the host's file systems"),
    mask("irq", Cover::ReadOnly, "routes the host's interrupts"),
];
