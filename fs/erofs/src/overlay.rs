//! What overlay mounts read from the xattrs of their layers, and how much of that a layer may carry.
//!
//! An overlay mount of a privileged user takes orders from `trusted.overlay.*` of its lower layers: where a directory
//! really is (`redirect`), which file has the data (`metacopy`), which empty file is a whiteout. In a layer from a
//! stranger these would show one tree to whoever reads the layers and another one to a sandbox. A layer says no more
//! than that a directory is opaque; attributes that an overlay inside the sandbox uses are stored with `overlay.` put
//! once more behind the prefix, as the kernel does it. `user.overlay.*` means nothing to such a mount: it is data.

use crate::attributes::FileType;
use crate::tree::Xattr;

const PREFIX: &str = "trusted.";
const OWN: &[u8] = b"overlay.";

/// Whether an inode of a layer may have an xattr, as far as overlay is concerned.
pub(crate) fn may_have(file_type: FileType, xattr: &Xattr<'_>) -> bool {
    let own = if xattr.prefix() == PREFIX { xattr.suffix().strip_prefix(OWN) } else { None };
    match own {
        None => true,
        Some(b"opaque") => file_type == FileType::Directory && xattr.value == b"y",
        Some(rest) => rest.starts_with(OWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_opaque_directories_and_what_is_escaped() {
        let may = |file_type, name: &str, value: &[u8]| {
            may_have(file_type, &Xattr::new(name.as_bytes(), value).expect("the name is legal"))
        };
        let (directory, file) = (FileType::Directory, FileType::Regular);
        assert!(may(directory, "trusted.overlay.opaque", b"y"));
        assert!(!may(directory, "trusted.overlay.opaque", b"x"));
        assert!(!may(file, "trusted.overlay.opaque", b"y"));
        for name in ["redirect", "metacopy", "origin", "impure", "nlink", "whiteout", "opaque.", "novel", ""] {
            assert!(!may(directory, &format!("trusted.overlay.{name}"), b"y"), "{name}");
            assert!(!may(file, &format!("trusted.overlay.{name}"), b""), "{name}");
            assert!(may(file, &format!("trusted.overlay.overlay.{name}"), b""), "{name}");
            assert!(may(file, &format!("user.overlay.{name}"), b""), "{name}");
        }
        assert!(may(file, "trusted.overlay", b"") && may(file, "trusted.overlays.redirect", b""));
    }
}
