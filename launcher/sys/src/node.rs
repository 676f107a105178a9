//! What the kernel says about its security modules.

/// The version of Landlock that the kernel has, 0 for none or one that is off.
#[must_use]
pub fn landlock_version() -> u32 {
    const VERSION: usize = 1;
    // SAFETY: with this flag the call takes no memory and makes nothing.
    let answer = unsafe { crate::raw::syscall6(libc::SYS_landlock_create_ruleset, 0, 0, VERSION, 0, 0, 0) };
    u32::try_from(answer).unwrap_or(0)
}

/// Names of `LSM_ID_*`, from 100 on (`include/uapi/linux/lsm.h`).
const MODULES: [&str; 14] = [
    "capability",
    "selinux",
    "smack",
    "tomoyo",
    "apparmor",
    "yama",
    "loadpin",
    "safesetid",
    "lockdown",
    "bpf",
    "landlock",
    "ima",
    "evm",
    "ipe",
];

const LSM_LIST_MODULES: i64 = 461;

/// The security modules that are on, in their order; empty where the kernel cannot say (before Linux 6.8).
#[must_use]
pub fn security_modules() -> Vec<String> {
    let mut ids = [0u64; 32];
    let mut bytes: u32 = 256;
    // SAFETY: an array of `bytes` bytes, and its size, which the kernel sets to what it used.
    let answer = unsafe {
        crate::raw::syscall6(LSM_LIST_MODULES, ids.as_mut_ptr() as usize, (&raw mut bytes) as usize, 0, 0, 0, 0)
    };
    let count = usize::try_from(answer).unwrap_or(0);
    let name = |id: &u64| {
        let index = id.checked_sub(100).and_then(|index| usize::try_from(index).ok());
        index.and_then(|index| MODULES.get(index)).map_or_else(|| format!("module-{id}"), |name| (*name).to_owned())
    };
    ids.iter().take(count).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_named() {
        // Capabilities are always a module; an old kernel does not say.
        let modules = security_modules();
        assert!(modules.is_empty() || modules.iter().any(|module| module == "capability"), "{modules:?}");
        assert!(landlock_version() < 100);
    }
}
