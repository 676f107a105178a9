//! Where the local store is when the command line does not say it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Neither a store nor a place for one is known.
#[derive(Debug, thiserror::Error)]
#[error("no store is given, and neither XDG_DATA_HOME nor HOME says where a user's is")]
pub struct Nowhere;

/// The directory of the store: the given one; else `system` for root; else `dsec/store` in the user's data directory, as
/// the XDG base directory specification has it. `variable` gives variables of the environment.
///
/// # Errors
/// [`Nowhere`].
pub fn directory(
    given: Option<&Path>,
    is_root: bool,
    system: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, Nowhere> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match given {
        Some(given) => Ok(given.to_owned()),
        None if is_root => Ok(system.to_owned()),
        None => absolute("XDG_DATA_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
            .map(|data| data.join("dsec/store"))
            .ok_or(Nowhere),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(given: Option<&str>, is_root: bool, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        let found = directory(given.map(Path::new), is_root, Path::new("/system"), variable);
        found.ok().map(|path| path.display().to_string())
    }

    #[test]
    fn the_rule() {
        let both = [("XDG_DATA_HOME", "/data"), ("HOME", "/home/me")];
        assert_eq!(found(Some("given"), false, &both).as_deref(), Some("given"));
        assert_eq!(found(None, true, &both).as_deref(), Some("/system"));
        assert_eq!(found(None, false, &both).as_deref(), Some("/data/dsec/store"));
        assert_eq!(found(None, false, &both[1..]).as_deref(), Some("/home/me/.local/share/dsec/store"));
        let relative = [("XDG_DATA_HOME", "data"), both[1]];
        assert_eq!(found(None, false, &relative), found(None, false, &both[1..]), "relative paths do not count");
        assert_eq!(found(None, false, &[]), None);
    }
}
