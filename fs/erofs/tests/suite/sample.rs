//! Trees to write: one with every oddity, and the data device that goes with it.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dsec_erofs::{Attributes, Device, InodeId, Kind, Segment, Timestamp, Tree};

/// A tree under construction, with the device that its files lie on.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) tree: Tree,
    pub(crate) device_bytes: u64,
}

pub(crate) fn attributes(mode: u16) -> Attributes {
    Attributes { mode, uid: 0, gid: 0, mtime: Timestamp { secs: 1_700_000_000, nanos: 1 } }
}

/// The byte of the device at an offset: never zero, and different in neighbouring blocks.
pub(crate) fn device_byte(offset: u64) -> u8 {
    let [low, ..] = (offset / 4096 * 37 + offset).to_le_bytes();
    low | 1
}

/// The data of a segment.
pub(crate) fn data_of(segment: &Segment) -> Vec<u8> {
    (segment.device_offset..segment.device_offset + segment.bytes).map(device_byte).collect()
}

impl Sample {
    pub(crate) fn new() -> Sample {
        Sample { tree: Tree::new(attributes(0o755)).unwrap(), device_bytes: 0 }
    }

    pub(crate) fn add(&mut self, dir: InodeId, name: &[u8], attributes: Attributes, kind: Kind<'_>) -> InodeId {
        let inode = self.tree.add(attributes, kind).unwrap();
        self.tree.link(dir, name, inode).unwrap();
        inode
    }

    pub(crate) fn dir(&mut self, dir: InodeId, name: &[u8]) -> InodeId {
        self.add(dir, name, attributes(0o755), Kind::Directory)
    }

    /// A file of one piece.
    pub(crate) fn file(&mut self, dir: InodeId, name: &[u8], bytes: u64) -> InodeId {
        let ranges: &[(u64, u64)] = if bytes == 0 { &[] } else { &[(0, bytes)] };
        self.sparse(dir, name, bytes, ranges)
    }

    /// A file with data in these ranges (offset, bytes) only.
    pub(crate) fn sparse(&mut self, dir: InodeId, name: &[u8], bytes: u64, ranges: &[(u64, u64)]) -> InodeId {
        let file = self.add(dir, name, attributes(0o644), Kind::Regular { bytes });
        let mut segments = Vec::new();
        for &(file_offset, bytes) in ranges {
            segments.push(Segment { file_offset, bytes, device_offset: self.device_bytes });
            self.device_bytes += bytes.next_multiple_of(4096);
        }
        self.tree.set_segments(file, &segments).unwrap();
        file
    }

    /// Every segment of every file of the tree.
    pub(crate) fn segments(&self) -> Vec<Segment> {
        let mut walk = self.tree.walk();
        let mut segments = Vec::new();
        while let Some(step) = walk.advance() {
            segments.extend(self.tree.segments(step.inode));
        }
        segments
    }

    pub(crate) fn image(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        dsec_erofs::write(&self.tree, self.device_bytes, &mut bytes).unwrap();
        bytes
    }

    /// Writes image and device into a directory and answers their paths.
    pub(crate) fn store(&self, dir: &Path) -> (PathBuf, PathBuf) {
        let (image, device) = (dir.join("image"), dir.join("device"));
        fs_err::write(&image, self.image()).unwrap();
        let file = fs_err::File::create(&device).unwrap();
        for segment in self.segments() {
            file.file().write_all_at(&data_of(&segment), segment.device_offset).unwrap();
        }
        file.set_len(self.device_bytes).unwrap();
        (image, device)
    }
}

/// An ACL as Linux passes it: version 2, then (tag, permissions, id) of 2, 2 and 4 bytes.
pub(crate) fn acl(named_user: u32) -> Vec<u8> {
    let any = u32::MAX;
    let entries = [(0x01_u16, 6_u16, any), (0x02, 4, named_user), (0x04, 4, any), (0x10, 4, any), (0x20, 0, any)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// A `security.capability` of version 2: cap_net_bind_service, permitted and effective.
pub(crate) fn capability() -> Vec<u8> {
    let words = [0x0200_0001_u32, 1 << 10, 0, 0, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Every inode kind and every oddity that a tree can have.
pub(crate) fn oddities() -> Sample {
    let mut sample = Sample::new();
    kinds(&mut sample);
    names_and_sizes(&mut sample);
    holes(&mut sample);
    xattrs(&mut sample);
    sample
}

fn kinds(sample: &mut Sample) {
    let root = Tree::ROOT;
    let dir = sample.dir(root, b"kinds");
    let device = |major, minor| Device { major, minor };
    for (name, kind) in [
        (&b"fifo"[..], Kind::Fifo),
        (b"socket", Kind::Socket),
        (b"char", Kind::CharDevice(device(4095, 1_048_575))),
        (b"block", Kind::BlockDevice(device(8, 257))),
        (b"whiteout", Kind::CharDevice(device(0, 0))),
        (b"symlink", Kind::Symlink(b"../elsewhere")),
        (b"symlink-inline-max", Kind::Symlink(&[b'i'; 2048])),
        (b"symlink-block-min", Kind::Symlink(&[b'b'; 2049])),
        (b"symlink-max", Kind::Symlink(&[b'm'; 4095])),
    ] {
        let inode = sample.add(dir, name, attributes(0o640), kind);
        sample.tree.link(dir, &[name, b".link"].concat(), inode).unwrap();
    }
    let file = sample.file(dir, b"file", 5000);
    sample.tree.link(root, b"hard-link-of-kinds-file", file).unwrap();

    let dir = sample.dir(root, b"attributes");
    let times = [(0, 0), (-1, 999_999_999), (-62_135_596_800, 1), (1 << 34, 5), (i64::from(u32::MAX) + 1, 0)];
    for (number, (secs, nanos)) in times.into_iter().enumerate() {
        let odd = Attributes {
            mode: [0o7777, 0o4755, 0o2711, 0o1777, 0][number],
            uid: [0, 1000, u32::MAX - 1, 1 << 31, 65_536][number],
            gid: [u32::MAX - 1, 0, 5, 70_000, 1 << 31][number],
            mtime: Timestamp { secs, nanos },
        };
        sample.add(dir, format!("file-{number}").as_bytes(), odd, Kind::Regular { bytes: 0 });
        sample.add(dir, format!("dir-{number}").as_bytes(), odd, Kind::Directory);
    }
}

fn names_and_sizes(sample: &mut Sample) {
    let dir = sample.dir(Tree::ROOT, b"names");
    for name in [&b"!before-dot"[..], b"-", b"...", b".hidden", b"\xff\xfe not utf-8", b"new\nline", b" ", b"\x01"] {
        sample.file(dir, name, 1);
    }
    sample.file(dir, &[b'n'; 255], 10);
    let dir = sample.dir(Tree::ROOT, b"sizes");
    for bytes in [0, 1, 4095, 4096, 4097, 8192, 12_288, 12_289, 100_000, 1 << 20] {
        sample.file(dir, bytes.to_string().as_bytes(), bytes);
    }
    // Directories whose last block is empty, small, at the border of inlining, and full.
    let dir = sample.dir(Tree::ROOT, b"directories");
    for entries in [0, 1, 50, 51, 52, 100, 101, 102, 103, 200, 1000] {
        let full = sample.dir(dir, format!("of-{entries}").as_bytes());
        for number in 0..entries {
            let name = format!("entry-with-a-name-{number:08}");
            sample.add(full, name.as_bytes(), attributes(0o600), Kind::Fifo);
        }
    }
    let mut deep = dir;
    for _ in 0..100 {
        deep = sample.dir(deep, b"deeper");
    }
}

fn holes(sample: &mut Sample) {
    let dir = sample.dir(Tree::ROOT, b"holes");
    let kib4 = 4096;
    sample.sparse(dir, b"only-a-hole", 123_456, &[]);
    sample.sparse(dir, b"huge-hole", 10 << 30, &[]);
    sample.sparse(dir, b"hole-first", 5 * kib4, &[(3 * kib4, 2 * kib4)]);
    sample.sparse(dir, b"hole-last", 5 * kib4 + 1, &[(0, kib4)]);
    sample.sparse(dir, b"hole-between", 9 * kib4 + 7, &[(0, 4 * kib4), (8 * kib4, kib4 + 7)]);
    sample.sparse(dir, b"sparse-10g", 10 << 30, &[(1 << 30, 1 << 20), ((10 << 30) - (1 << 20), 1 << 20)]);
    // One piece of the file in several places of the device, backwards.
    let file = sample.add(dir, b"backwards", attributes(0o644), Kind::Regular { bytes: 3 * kib4 });
    let base = sample.device_bytes;
    let segments = [2, 1, 0].map(|block| (base + block * kib4, (2 - block) * kib4));
    let segments = segments.map(|(device_offset, file_offset)| Segment { file_offset, bytes: kib4, device_offset });
    sample.tree.set_segments(file, &segments).unwrap();
    sample.device_bytes += 3 * kib4;
}

/// Files as large and as scattered as they get: millions of chunk indexes.
pub(crate) fn vast_files() -> Sample {
    let mut sample = Sample::new();
    let gib = 1 << 30;
    let ranges = [(0, 4096), (gib + 4096, 8192), (5 * gib, 1 << 20), (10 * gib - 4096, 4096)];
    sample.sparse(Tree::ROOT, b"sparse-10g", 10 * gib, &ranges);
    sample.sparse(Tree::ROOT, b"largest-hole", i64::MAX as u64, &[]);
    sample
}

fn xattrs(sample: &mut Sample) {
    let dir = sample.dir(Tree::ROOT, b"xattrs");
    sample.tree.set_xattrs(dir, &[(b"system.posix_acl_default", &acl(7)), (b"trusted.overlay.opaque", b"y")]).unwrap();
    let mut set = |name: &[u8], xattrs: &[(&[u8], &[u8])]| {
        let file = sample.file(dir, name, 3);
        sample.tree.set_xattrs(file, xattrs).unwrap();
    };
    set(b"empty", &[(b"user.empty", b"")]);
    set(b"largest", &[(b"user.large", &vec![b'v'; 65_535]), (b"user.large-too", &vec![b'w'; 65_535])]);
    set(b"longest-name", &[(&[&b"user."[..], &[b'n'; 250]].concat(), b"value")]);
    set(b"page-crossing", &[(b"user.page", &[b'p'; 500]), (b"user.page2", &[b'q'; 4096]), (b"user.z", &[b'z'; 9000])]);
    set(b"acl", &[(b"system.posix_acl_access", &acl(70_000))]);
    set(b"capability", &[(b"security.capability", &capability())]);
    set(b"capability-again", &[(b"security.capability", &capability()), (b"user.own", b"1")]);
    set(b"nested-overlay", &[(b"trusted.overlay.overlay.opaque", b"y"), (b"user.overlay.redirect", b"/x")]);
    let names: Vec<String> = (0..400).map(|number| format!("user.many-{number:04}")).collect();
    let many: Vec<(&[u8], &[u8])> =
        names.iter().map(|name| (name.as_bytes(), &b"same value in two files"[..])).collect();
    set(b"many-1", &many);
    set(b"many-2", &many[..300]);
    set(b"many-3", &many[..100]);
    let link = sample.add(dir, b"symlink", attributes(0o777), Kind::Symlink(&[b's'; 2000]));
    sample.tree.add_xattr(link, b"trusted.on-a-symlink", &[b'x'; 333]).unwrap();
    sample.tree.add_xattr(link, b"security.odd-length", b"1").unwrap();
}

/// A small tree with one of each: what the frozen sample of `fixtures/erofs` holds. It never changes.
pub(crate) fn frozen() -> Sample {
    let mut sample = Sample::new();
    let root = Tree::ROOT;
    let old = Attributes { mode: 0o4751, uid: 1 << 31, gid: 5, mtime: Timestamp { secs: -1, nanos: 999_999_999 } };
    let dir = sample.add(root, b"dir", old, Kind::Directory);
    sample.file(root, b"empty", 0);
    let file = sample.file(root, b"file", 5000);
    sample.tree.link(dir, b"hard-link", file).unwrap();
    sample.sparse(root, b"holes", 9 * 4096 + 7, &[(0, 4 * 4096), (8 * 4096, 4096 + 7)]);
    sample.sparse(dir, b"only-a-hole", 1 << 33, &[]);
    sample.add(dir, b"symlink", attributes(0o777), Kind::Symlink(b"../file"));
    sample.add(dir, b"long-symlink", attributes(0o777), Kind::Symlink(&[b't'; 3000]));
    sample.add(dir, b"char", attributes(0o600), Kind::CharDevice(Device { major: 4095, minor: 1_048_575 }));
    sample.add(dir, b"block", attributes(0o600), Kind::BlockDevice(Device { major: 8, minor: 257 }));
    sample.add(dir, b"whiteout", attributes(0), Kind::CharDevice(Device { major: 0, minor: 0 }));
    sample.add(dir, b"fifo", attributes(0o600), Kind::Fifo);
    sample.add(dir, b"socket", attributes(0o600), Kind::Socket);
    sample.file(dir, b"\xff not utf-8", 1);
    let large = sample.dir(root, b"large");
    for number in 0..180 {
        let name = format!("entry-with-a-name-{number:04}");
        sample.add(large, name.as_bytes(), attributes(0o600), Kind::Fifo);
    }
    let access = acl(7);
    let pairs: [(&[u8], &[u8]); 4] = [
        (b"user.shared", b"in two inodes"),
        (b"user.large", &[b'l'; 600]),
        (b"system.posix_acl_access", &access),
        (b"security.capability", &capability()),
    ];
    sample.tree.set_xattrs(file, &pairs).unwrap();
    sample.tree.set_xattrs(dir, &[(b"user.shared", b"in two inodes"), (b"trusted.overlay.opaque", b"y")]).unwrap();
    sample
}
