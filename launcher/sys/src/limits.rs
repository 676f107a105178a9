//! Resource limits of this process.

use rustix::process::{Resource, getrlimit, setrlimit};

/// One limit of a process: soft and hard, `u64::MAX` for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// `RLIMIT_*`.
    pub resource: u32,
    /// What holds until the process raises it.
    pub soft: u64,
    /// How far it may.
    pub hard: u64,
}

impl Limit {
    /// The same, and no higher than this process's own hard limit, so that setting it takes no privilege.
    ///
    /// # Errors
    /// EINVAL when the kernel knows no such resource.
    pub fn within_own(self) -> rustix::io::Result<Self> {
        let mut own = [0u64; 2];
        // SAFETY: no limit to set, and a place for the old one: two 64-bit numbers.
        unsafe { crate::raw::call!(libc::SYS_prlimit64, 0, self.resource, 0, &raw mut own) }?;
        let hard = self.hard.min(own[1]);
        Ok(Self { resource: self.resource, soft: self.soft.min(hard), hard })
    }
}

/// Raises the soft limit of open descriptors of this process to its hard one.
///
/// # Errors
/// What `setrlimit` answers.
pub fn raise_open_files() -> rustix::io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)
}
