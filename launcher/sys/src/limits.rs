//! Resource limits of this process.

use rustix::process::{Resource, getrlimit, setrlimit};

/// The hard limit of open descriptors of this process.
#[must_use]
pub fn open_files_max() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
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
