//! The capabilities that root inside a sandbox keeps.
//!
//! They count in the sandbox's own user namespace only: towards the host its root is a user without any. What is not in
//! the list is dropped from the bounding set, so no set-id program or file capability brings it back.

use crate::spec::Profile;

/// One capability that stays.
#[derive(Debug, Clone, Copy)]
pub struct Capability {
    /// The kernel's name, without `CAP_`.
    pub name: &'static str,
    /// The kernel's number.
    pub number: u8,
    /// Why honest work needs it.
    pub reason: &'static str,
}

const fn keep(name: &'static str, number: u8, reason: &'static str) -> Capability {
    Capability { name, number, reason }
}

/// What stays in the default profile. Numbers: `include/uapi/linux/capability.h`.
pub const CAPABILITIES: &[Capability] = &[
    keep("CHOWN", 0, "package managers give files to their owners"),
    keep("DAC_OVERRIDE", 1, "root edits files of other users"),
    keep("FOWNER", 3, "root changes modes of other users' files"),
    keep("FSETID", 4, "package managers set set-id bits"),
    keep("KILL", 5, "root ends other users' processes"),
    keep("SETGID", 6, "su, sudo and daemons change their group"),
    keep("SETUID", 7, "su, sudo and daemons change their user"),
    keep("SETPCAP", 8, "programs that drop what they do not need"),
    keep("NET_BIND_SERVICE", 10, "programs that look for it before they serve on a port below 1024, which all may"),
    keep("SYS_CHROOT", 18, "sshd, package builds"),
    keep("AUDIT_WRITE", 29, "login programs write an audit record, which the host's kernel drops"),
    keep("SETFCAP", 31, "package managers set file capabilities"),
];

/// The bounding set of a profile: bit n for capability n.
pub(crate) fn bounding_set(profile: Profile) -> u64 {
    match profile {
        Profile::Default => CAPABILITIES.iter().fold(0, |set, capability| set | 1 << capability.number),
        Profile::Strict => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_reaches_the_kernel_or_the_network_is_kept() {
        // SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, SYS_BOOT, SYS_TIME, NET_ADMIN, NET_RAW, MKNOD, BPF, PERFMON
        for number in [16, 17, 19, 21, 22, 25, 12, 13, 27, 39, 38] {
            assert_eq!(bounding_set(Profile::Default) & (1 << number), 0, "{number}");
        }
        assert_eq!(bounding_set(Profile::Strict), 0);
    }
}
