//! A small packer for tests: turns a directory into a layer and an image in a local store.
//!
//! Chunks are cut at fixed places that are no multiple of the block, so reads cross them everywhere.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use dsec_erofs::{Attributes, Device, InodeId, Kind, Segment, Timestamp, Tree};
use dsec_format::extents::{self, Extent};
use dsec_format::image::{Config, Image, LayerRecord};
use dsec_format::layer::{Layer, Totals};
use dsec_format::protocol::registry::Expected;
use dsec_format::refs::{RefName, Target};
use dsec_format::{ChunkDigest, ImageDigest, LayerDigest};
use dsec_store::pack::{FrameBuilder, PackWriter};
use dsec_store::{LocalStore, Store};
use rustix::fs::{SeekFrom, seek};

const BLOCK: u64 = 4096;
/// Longest chunk.
pub(crate) const CHUNK_BYTES: usize = 100_000;

/// What was built.
pub(crate) struct Built {
    pub(crate) image: ImageDigest,
    pub(crate) layer: LayerDigest,
    /// The bytes of the data device, padding included.
    pub(crate) device: Vec<u8>,
    /// Frames in the packs.
    pub(crate) frames: u64,
}

struct Builder<'a> {
    tree: Tree,
    links: HashMap<(u64, u64), InodeId>,
    device: Vec<u8>,
    extents: Vec<Extent>,
    frame: FrameBuilder,
    packs: PackWriter,
    store: &'a LocalStore,
    inodes: u64,
    logical_bytes: u64,
    frames: u64,
}

/// Builds an image of one layer from a directory and names it.
pub(crate) fn build(store: &LocalStore, directory: &Path, name: &str) -> Built {
    let scratch = tempfile::tempdir().unwrap();
    let metadata = std::fs::symlink_metadata(directory).unwrap();
    let mut builder = Builder {
        tree: Tree::new(attributes(&metadata)).unwrap(),
        links: HashMap::new(),
        device: Vec::new(),
        extents: Vec::new(),
        frame: FrameBuilder::new(),
        packs: PackWriter::with_target(scratch.path(), 4 << 20),
        store,
        inodes: 1,
        logical_bytes: 0,
        frames: 0,
    };
    builder.copy_xattrs(directory, Tree::ROOT);
    builder.directory(directory, Tree::ROOT);
    builder.finish(name)
}

fn attributes(metadata: &std::fs::Metadata) -> Attributes {
    Attributes {
        mode: (metadata.mode() & 0o7777) as u16,
        uid: metadata.uid(),
        gid: metadata.gid(),
        mtime: Timestamp { secs: metadata.mtime(), nanos: metadata.mtime_nsec() as u32 },
    }
}

impl Builder<'_> {
    fn directory(&mut self, path: &Path, inode: InodeId) {
        let mut entries: Vec<_> = std::fs::read_dir(path).unwrap().map(Result::unwrap).collect();
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let key = (metadata.dev(), metadata.ino());
            let known = self.links.get(&key).copied().filter(|_| !metadata.is_dir());
            let child = known.unwrap_or_else(|| self.inode(&path, &metadata));
            self.tree.link(inode, entry.file_name().as_bytes(), child).unwrap();
            if metadata.is_dir() {
                self.directory(&path, child);
            }
            self.links.insert(key, child);
        }
    }

    fn inode(&mut self, path: &Path, metadata: &std::fs::Metadata) -> InodeId {
        self.inodes += 1;
        let kind = metadata.file_type();
        let number = Device { major: rustix::fs::major(metadata.rdev()), minor: rustix::fs::minor(metadata.rdev()) };
        let target = std::fs::read_link(path).unwrap_or_default();
        let kind = match kind {
            _ if kind.is_dir() => Kind::Directory,
            _ if kind.is_symlink() => Kind::Symlink(target.as_os_str().as_bytes()),
            _ if kind.is_char_device() => Kind::CharDevice(number),
            _ if kind.is_block_device() => Kind::BlockDevice(number),
            _ if kind.is_fifo() => Kind::Fifo,
            _ if kind.is_socket() => Kind::Socket,
            _ => Kind::Regular { bytes: metadata.len() },
        };
        let inode = self.tree.add(attributes(metadata), kind).unwrap();
        if metadata.is_file() {
            self.logical_bytes += metadata.len();
            self.data(path, inode);
        }
        self.copy_xattrs(path, inode);
        inode
    }

    fn copy_xattrs(&mut self, path: &Path, inode: InodeId) {
        let mut names = vec![0; 65_536];
        let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
        let mut value = vec![0; 65_536];
        for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            self.tree.add_xattr(inode, name, &value[..length]).unwrap();
        }
    }

    fn data(&mut self, path: &Path, inode: InodeId) {
        let file = std::fs::File::open(path).unwrap();
        let bytes = std::fs::read(path).unwrap();
        let mut segments = Vec::new();
        let mut at = 0;
        while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
            let start = start / BLOCK * BLOCK;
            let end = seek(&file, SeekFrom::Hole(start)).unwrap();
            let end = end.next_multiple_of(BLOCK).min(bytes.len() as u64);
            let run = &bytes[start as usize..end as usize];
            segments.push(Segment {
                file_offset: start,
                bytes: run.len() as u64,
                device_offset: self.device.len() as u64,
            });
            self.run(run);
            at = end;
            if at >= bytes.len() as u64 {
                break;
            }
        }
        self.tree.set_segments(inode, &segments).unwrap();
    }

    fn run(&mut self, run: &[u8]) {
        for chunk in run.chunks(CHUNK_BYTES) {
            let digest = ChunkDigest::of(chunk);
            self.extents.push(Extent::new(self.device.len() as u64, digest, chunk.len() as u32));
            self.device.extend_from_slice(chunk);
            if !self.frame.takes(chunk.len()) {
                self.close_frame();
            }
            self.frame.push(digest, chunk);
        }
        self.device.resize(self.device.len().next_multiple_of(BLOCK as usize), 0);
    }

    fn close_frame(&mut self) {
        let frame = std::mem::take(&mut self.frame);
        if frame.is_empty() {
            return;
        }
        self.frames += 1;
        if let Some(pack) = self.packs.append(frame.encode(3).unwrap()).unwrap() {
            self.store.put_pack(&pack.digest(), pack.path()).unwrap();
        }
    }

    fn finish(mut self, name: &str) -> Built {
        self.close_frame();
        if let Some(pack) = self.packs.close().unwrap() {
            self.store.put_pack(&pack.digest(), pack.path()).unwrap();
        }
        let device_bytes = self.device.len() as u64;
        let mut metadata = Vec::new();
        let summary = dsec_erofs::write(&self.tree, device_bytes, &mut metadata).unwrap();
        let data_bytes = self.extents.iter().map(|extent| u64::from(extent.bytes.get())).sum();
        let totals = Totals { device_bytes, data_bytes, logical_bytes: self.logical_bytes, inodes: summary.inodes };
        assert_eq!(summary.inodes, self.inodes);
        let layer = Layer::new(metadata, extents::encode(&self.extents, device_bytes), totals);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), layer.encode(3)).unwrap();
        self.store.put_layer(&layer.digest(), file.path()).unwrap();
        let record = LayerRecord {
            digest: layer.digest(),
            metadata_bytes: layer.metadata.len() as u64,
            data_bytes,
            logical_bytes: self.logical_bytes,
            inodes: self.inodes,
        };
        let image = Image::new("amd64", vec![record], Config::default());
        let digest = self.store.put_image(&image).unwrap();
        let name: RefName = name.parse().unwrap();
        self.store.set_ref(&name, Target::Image(digest), Expected::Anything).unwrap();
        Built { image: digest, layer: layer.digest(), device: self.device, frames: self.frames }
    }
}
