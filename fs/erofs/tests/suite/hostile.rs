//! Images that break one rule each: the checker names it.

use dsec_erofs::image::Error as ImageError;
use dsec_erofs::{Attributes, Image, Kind, Nid, Tree, check, check::Error};

use crate::sample::{Sample, attributes};

/// An image under attack. Its directories have neither xattrs nor whole blocks, so their entries lie inline.
struct Victim {
    bytes: Vec<u8>,
}

impl Victim {
    /// `dir/sub/`, `dir/file` with two names and a hole, `dir/symlink`, `fifo`, with shared and inline xattrs.
    fn new() -> Victim {
        let mut sample = Sample::new();
        let dir = sample.dir(Tree::ROOT, b"dir");
        let sub = sample.dir(dir, b"sub");
        let file = sample.sparse(dir, b"file", 12_288, &[(0, 4096), (8192, 4096)]);
        sample.tree.link(sub, b"link", file).unwrap();
        let symlink = sample.add(dir, b"symlink", attributes(0o777), Kind::Symlink(b"target"));
        let fifo = sample.add(Tree::ROOT, b"fifo", attributes(0o600), Kind::Fifo);
        sample.tree.set_xattrs(fifo, &[(b"trusted.a", b"1"), (b"trusted.b", b"2")]).unwrap();
        sample.tree.set_xattrs(symlink, &[(b"trusted.a", b"1")]).unwrap();
        let bytes = sample.image();
        check(&bytes).unwrap();
        Victim { bytes }
    }

    fn nid(&self, path: &[&str]) -> u64 {
        let image = Image::open(self.bytes.as_slice()).unwrap();
        let walk = path.iter().try_fold(image.root_nid(), |nid, name| {
            let entry = image.lookup(&image.inode(nid).unwrap(), name.as_bytes()).unwrap();
            entry.map(|entry| entry.nid)
        });
        walk.unwrap().0
    }

    fn inode_at(&self, path: &[&str]) -> usize {
        usize::try_from(self.nid(path) * 32).unwrap()
    }

    /// Where the entry of a name lies.
    fn entry_at(&self, dir: &[&str], name: &str) -> usize {
        let image = Image::open(self.bytes.as_slice()).unwrap();
        let inode = image.inode(Nid(self.nid(dir))).unwrap();
        let index = image.read_dir(&inode, 0).position(|entry| entry.unwrap().name == name.as_bytes());
        self.inode_at(dir) + 64 + index.unwrap() * 12
    }

    fn put(&mut self, at: usize, value: &[u8]) -> &mut Victim {
        self.bytes[at..at + value.len()].copy_from_slice(value);
        self
    }

    fn error(&self) -> Error {
        check(&self.bytes).unwrap_err()
    }
}

fn rule(error: &Error) -> &'static str {
    match error {
        Error::Inode { rule, .. } | Error::Entry { rule, .. } => rule,
        other => panic!("{other}"),
    }
}

#[test]
fn orders_to_overlay_mounts_in_shared_and_inline_xattrs() {
    // A name that the tree takes, and one of the same length that it would not take.
    let shown = |name: &str, value: &[u8], two: bool| {
        let mut sample = Sample::new();
        let dir = sample.dir(Tree::ROOT, b"dir");
        let file = sample.file(Tree::ROOT, b"file", 5);
        let harmless = name.replace("overlay.", "overlay_");
        sample.tree.set_xattrs(dir, &[(harmless.as_bytes(), value)]).unwrap();
        if two {
            sample.tree.set_xattrs(file, &[(harmless.as_bytes(), value)]).unwrap();
        }
        let mut bytes = sample.image();
        check(&bytes).unwrap();
        let (from, to) = (&harmless.as_bytes()["trusted.".len()..], &name.as_bytes()["trusted.".len()..]);
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to);
        check(&bytes)
    };
    let order = "an xattr would be an order to overlay mounts";
    for two in [false, true] {
        for name in ["trusted.overlay.redirect", "trusted.overlay.metacopy", "trusted.overlay.whiteout"] {
            assert_eq!(rule(&shown(name, b"/elsewhere", two).unwrap_err()), order, "{name} {two}");
        }
        shown("trusted.other.redirect", b"/elsewhere", two).unwrap();
    }
    shown("trusted.overlay.opaque", b"y", false).unwrap();
    assert_eq!(rule(&shown("trusted.overlay.opaque", b"x", false).unwrap_err()), order);
    // On the file.
    assert_eq!(rule(&shown("trusted.overlay.opaque", b"y", true).unwrap_err()), order);
    let mut tree = Tree::new(attributes(0o755)).unwrap();
    let refused = tree.add_xattr(Tree::ROOT, b"trusted.overlay.redirect", b"/a").unwrap_err();
    assert!(refused.to_string().contains("trusted.overlay.redirect"), "{refused}");
}

#[test]
fn a_directory_that_contains_its_parent() {
    let mut victim = Victim::new();
    let (sub, dir) = (victim.entry_at(&["dir"], "sub"), victim.nid(&["dir"]));
    assert_eq!(rule(&victim.put(sub, &dir.to_le_bytes()).error()), "is a second name of a directory");
    let mut victim = Victim::new();
    let dir = victim.entry_at(&[], "dir");
    assert_eq!(rule(&victim.put(dir, &128_u64.to_le_bytes()).error()), "is a second name of a directory");
}

#[test]
fn dots_that_lead_elsewhere() {
    for (name, target) in [(".", 128_u64), ("..", 130)] {
        let mut victim = Victim::new();
        let at = victim.entry_at(&["dir"], name);
        assert_eq!(rule(&victim.put(at, &target.to_le_bytes()).error()), "names another inode");
    }
    // No `.` at all: its name becomes another.
    let mut victim = Victim::new();
    let at = victim.entry_at(&["dir", "sub"], ".") + 2 * 12 + 12;
    assert_eq!(victim.bytes[at], b'.');
    assert_eq!(rule(&victim.put(at, b"-").error()), "is a second name of a directory");
}

#[test]
fn names_that_are_unsorted_or_illegal() {
    let names_at = |victim: &Victim| victim.entry_at(&["dir"], ".") + 5 * 12;
    for (name, expected) in [
        (&b"zile"[..], "is not sorted behind the one before it"),
        (b"f/le", "is no legal name"),
        (b"fi\0e", "is no legal name"),
    ] {
        let mut victim = Victim::new();
        let at = names_at(&victim) + 3;
        assert_eq!(&victim.bytes[at..at + 4], b"file");
        assert_eq!(rule(&victim.put(at, name).error()), expected);
    }
}

#[test]
fn types_and_link_counts_that_lie() {
    let mut victim = Victim::new();
    let at = victim.entry_at(&["dir"], "file") + 10;
    assert_eq!(rule(&victim.put(at, &[7]).error()), "states another type than its inode");
    for (path, nlink, expected) in [
        (&["dir"][..], 2_u32, "link count is not 2 and one per subdirectory"),
        (&["dir", "file"], 1, "is one name more than the link count says"),
        (&["fifo"], 0, "link count is zero"),
    ] {
        let mut victim = Victim::new();
        let at = victim.inode_at(path) + 44;
        assert_eq!(rule(&victim.put(at, &nlink.to_le_bytes()).error()), expected);
    }
    let mut victim = Victim::new();
    let (at, nid) = (victim.inode_at(&["dir", "file"]) + 44, Nid(victim.nid(&["dir", "file"])));
    assert_eq!(victim.put(at, &3_u32.to_le_bytes()).error(), Error::TooFewNames { nid });
}

#[test]
fn data_outside_the_device_or_on_another() {
    let outside = |what| move |nid| Error::Image(ImageError::Outside { what, nid });
    let index = |number: usize, field: usize, value: &[u8]| {
        let mut victim = Victim::new();
        let (inode, nid) = (victim.inode_at(&["dir", "file"]), Nid(victim.nid(&["dir", "file"])));
        (victim.put(inode + 64 + number * 8 + field, value).error(), nid)
    };
    // The device has two blocks.
    let (error, nid) = index(2, 4, &2_u32.to_le_bytes());
    assert_eq!(error, outside("data on the device")(nid));
    for (number, field, value) in [(0, 2, 0_u16), (0, 2, 2), (0, 0, 1), (1, 2, 1)] {
        let (error, nid) = index(number, field, &value.to_le_bytes());
        assert_eq!(error, Error::Image(ImageError::Invalid { what: "chunk index", nid }));
    }
}

#[test]
fn inodes_that_overlap_or_leave_the_image() {
    let mut victim = Victim::new();
    let at = victim.inode_at(&["dir", "file"]) + 8;
    assert!(matches!(victim.put(at, &(1_u64 << 40).to_le_bytes()).error(), Error::Image(ImageError::Outside { .. })));
    let mut victim = Victim::new();
    let at = victim.inode_at(&["dir", "file"]) + 8;
    let error = victim.put(at, &(32_u64 * 4096).to_le_bytes()).error();
    assert!(matches!(error, Error::Overlap { .. } | Error::Image(ImageError::Invalid { .. })), "{error}");
    // An inode within another.
    let mut victim = Victim::new();
    let at = victim.entry_at(&[], "fifo");
    assert!(check(&victim.put(at, &129_u64.to_le_bytes()).bytes).is_err());
}

#[test]
fn xattrs_that_are_unsorted_or_missing() {
    let fifo = |victim: &Victim| victim.inode_at(&["fifo"]) + 64;
    // Header, one shared id, then the inline entry `trusted.b`.
    let mut victim = Victim::new();
    let at = fifo(&victim) + 12 + 4 + 4;
    assert_eq!(victim.bytes[at], b'b');
    assert_eq!(rule(&victim.put(at, b"a").error()), "an xattr is there twice");
    let mut victim = Victim::new();
    let at = fifo(&victim) + 4;
    assert!(matches!(victim.put(at, &[200]).error(), Error::Image(ImageError::Invalid { what: "xattr header", .. })));
    let mut victim = Victim::new();
    let at = fifo(&victim) + 12;
    assert!(matches!(victim.put(at, &[0xFF; 4]).error(), Error::Image(ImageError::Outside { .. })));
    let mut victim = Victim::new();
    let at = fifo(&victim) + 12 + 4 + 1;
    assert!(matches!(victim.put(at, &[5]).error(), Error::Image(ImageError::Invalid { what: "xattr", .. })));
}

#[test]
fn bytes_where_nothing_is() {
    let mut victim = Victim::new();
    let last = victim.bytes.len() - 1;
    assert!(matches!(victim.put(last, &[1]).error(), Error::Unused { .. }));
    let mut victim = Victim::new();
    assert!(matches!(victim.put(0, &[1]).error(), Error::Unused { offset: 0 }));
}

#[test]
fn an_owner_that_is_none() {
    let nobody = Attributes { uid: u32::MAX, ..attributes(0o644) };
    assert!(Tree::new(nobody).is_err());
    let mut victim = Victim::new();
    let at = victim.inode_at(&["fifo"]) + 24;
    assert!(matches!(victim.put(at, &[0xFF; 4]).error(), Error::Image(ImageError::Invalid { what: "owner", .. })));
}
