//! What is mounted at a path, from the kernel's table of mounts.
//!
//! The table answers also when what is mounted does not: a file system whose daemon was killed cannot be asked.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use dsec_format::LayerDigest;

use super::SOURCE;

/// The table of this process's mount namespace: proc_pid_mountinfo(5).
const TABLE: &str = "/proc/self/mountinfo";
/// The source of the FUSE mounts of `dsec-mountd`.
const DAEMON_SOURCE: &[u8] = b"dsec-mountd";
/// The file that `dsec-mountd` mounts for a layer, in a directory named by the layer.
const METADATA_FILE: &str = "metadata.erofs";

/// A mount.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    file_system: Vec<u8>,
    source: Vec<u8>,
}

impl Entry {
    /// The topmost mount whose root is at `path`.
    pub(super) fn at(path: &Path) -> io::Result<Option<Self>> {
        let table = fs_err::read(TABLE)?;
        Ok(find(&table, path.as_os_str().as_bytes()))
    }

    /// Whether this is what [`super::mount`] attaches: a union of layers, or the one layer of an image.
    pub(super) fn is_an_image(&self) -> bool {
        match self.file_system.as_slice() {
            b"overlay" => self.source == SOURCE.as_bytes(),
            b"fuse" => self.source == DAEMON_SOURCE,
            b"erofs" => is_layer_file(Path::new(std::ffi::OsStr::from_bytes(&self.source))),
            _ => false,
        }
    }
}

fn is_layer_file(path: &Path) -> bool {
    let directory = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    path.ends_with(METADATA_FILE) && directory.is_some_and(|name| LayerDigest::from_hex(name).is_ok())
}

fn find(table: &[u8], path: &[u8]) -> Option<Entry> {
    table.split(|byte| *byte == b'\n').filter_map(|line| entry(line, path)).next_back()
}

/// The mount of a line, when its mount point is `path`.
fn entry(line: &[u8], path: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|byte| *byte == b' ');
    if unescape(fields.nth(4)?) != path {
        return None;
    }
    fields.find(|field| *field == b"-")?;
    Some(Entry { file_system: unescape(fields.next()?), source: unescape(fields.next()?) })
}

/// The kernel writes blank, tab, newline and backslash as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let octal = |digits: &[u8]| {
        let text = std::str::from_utf8(digits).ok()?;
        u8::from_str_radix(text, 8).ok()
    };
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..3).filter(|_| *first == b'\\').and_then(octal);
        plain.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &after[3..] } else { after };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> String {
        let digest = "84a514ceb8a698f0c17f3cec5eb780c21f1c75ad219e074689183b3805c7b7d5";
        [
            "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw",
            "43 27 0:39 / /below ro - overlay dsec-pack ro",
            "44 27 0:40 / /over\\040the\\134top ro master:2 - ext4 /dev/other rw",
            &format!("45 27 0:40 / /over\\040the\\134top ro - erofs /cache/layers/{digest}/metadata.erofs ro"),
            "46 27 0:41 /x /tree ro - fuse dsec-mountd ro",
            "47 27 0:42 / /other ro - erofs /images/metadata.erofs ro",
        ]
        .join("\n")
    }

    #[test]
    fn the_topmost_mount_of_a_path_is_found() {
        let of = |path: &str| find(table().as_bytes(), path.as_bytes());
        assert_eq!(of("/below/it"), None);
        let ours = |path: &str| of(path).unwrap().is_an_image();
        assert!(ours("/below") && ours("/over the\\top") && ours("/tree"));
        assert!(!ours("/") && !ours("/other"));
    }

    #[test]
    fn the_table_of_this_process_is_read() {
        assert!(Entry::at(Path::new("/")).unwrap().is_some());
        assert_eq!(Entry::at(Path::new("/no such place")).unwrap(), None);
    }
}
