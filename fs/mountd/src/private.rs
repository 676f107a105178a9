//! Directories for this user alone: what lies in them are bytes of tenants, which no other user of the node may read.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;

/// Makes a directory with mode 0700, and those above it as they come. One that is there stays as it is.
///
/// # Errors
/// The message names the path.
pub(crate) fn create(path: &Path) -> std::io::Result<()> {
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        fs_err::create_dir_all(above)?;
    }
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) if path.is_dir() => Ok(()),
        Err(errno) => {
            let error = std::io::Error::from(errno);
            Err(std::io::Error::new(error.kind(), format!("failed to create directory {}: {error}", path.display())))
        }
    }
}

/// Owner and permissions of a directory that another user owns or may look into.
///
/// # Errors
/// The message names the path.
pub(crate) fn shared(path: &Path) -> std::io::Result<Option<(u32, u32)>> {
    let metadata = fs_err::symlink_metadata(path)?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let own = owner == rustix::process::geteuid().as_raw();
    Ok(if own && mode & 0o077 == 0 { None } else { Some((owner, mode)) })
}

/// Closes a directory of this user to all others.
///
/// # Errors
/// It belongs to somebody else. The message names the path.
pub(crate) fn close(path: &Path) -> std::io::Result<()> {
    if shared(path)?.is_none() {
        return Ok(());
    }
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(Mode::RWXU.bits()))
}
