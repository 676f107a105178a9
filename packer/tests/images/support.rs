//! A store in a temporary directory, and images of directories in it.
//!
//! The packer here is the simplest that writes valid layers: every range of data in chunks of at most 64 KiB. So these
//! tests say something about reading whatever `build` does.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dsec_erofs::{InodeId, Segment, Tree};
use dsec_format::ChunkDigest;
use dsec_format::extents::{Extent, encode};
use dsec_format::image::{Config, Image, LayerRecord};
use dsec_format::layer::{Layer, Totals};
use dsec_pack::build::{Options, Request};
use dsec_pack::input::{self, Input, Location};
use dsec_pack::tree::{Content, Directory, FileTree, Kind};
use dsec_pack::{Cancel, Silent};
use dsec_store::pack::{FrameBuilder, PackWriter};
use dsec_store::{LocalStore, Source, Store};

pub(crate) const CHUNK_BYTES: u64 = 64 << 10;

/// A temporary directory with a store in it.
pub(crate) struct Lab {
    directory: tempfile::TempDir,
    pub(crate) store: LocalStore,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = LocalStore::create(&directory.path().join("store")).unwrap();
        Self { directory, store }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A new empty directory.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs_err::create_dir(&path).unwrap();
        path
    }

    /// An image with a layer of each directory, the base first.
    pub(crate) fn image(&self, layers: &[&Path]) -> Image {
        let layers = layers.iter().map(|path| self.layer(&Directory::open(path).unwrap())).collect();
        let image = Image::new("amd64", layers, Config::default());
        self.store.put_image(&image).unwrap();
        image
    }

    /// The image that `build` makes of a directory.
    pub(crate) fn built(&self, directory: &Path) -> Image {
        let input = Input {
            location: Location::Path(directory.to_owned()),
            kind: Some(input::Kind::Directory),
            cross_mounts: false,
            oci_ref: None,
            architecture: "amd64".to_owned(),
        };
        let request = Request { input, name: None, config: Config::default(), verify: false };
        let options = Options { level: 3, threads: 2 };
        let built = dsec_pack::build(&self.store, &request, options, &Silent, &Cancel::new()).unwrap();
        self.store.read_image(&built.image).unwrap()
    }

    /// A layer of a tree, as it is.
    pub(crate) fn layer<T: FileTree>(&self, tree: &T) -> LayerRecord {
        self.crafted(tree, |_| {})
    }

    /// A layer of a tree, whose metadata somebody has changed.
    pub(crate) fn crafted<T: FileTree>(&self, tree: &T, change: impl FnOnce(&mut Vec<u8>)) -> LayerRecord {
        let scratch = self.store.scratch().unwrap();
        let mut packer = Packer::new(tree, PackWriter::new(scratch.path()));
        let root = tree.root().unwrap();
        let node = tree.node(&root).unwrap();
        packer.tree.set_attributes(Tree::ROOT, node.attributes).unwrap();
        packer.set_xattrs(Tree::ROOT, &node);
        packer.fill(Tree::ROOT, &root);
        packer.frames.extend(packer.pack.close().unwrap());
        for pack in &packer.frames {
            self.store.put_pack(&pack.digest(), pack.path()).unwrap();
        }
        let layer = packer.finish(change);
        let file = self.path("layer");
        fs_err::write(&file, layer.encode(3)).unwrap();
        self.store.put_layer(&layer.digest(), &file).unwrap();
        LayerRecord {
            digest: layer.digest(),
            metadata_bytes: layer.identity.metadata_bytes.get(),
            data_bytes: layer.identity.data_bytes.get(),
            logical_bytes: layer.identity.logical_bytes.get(),
            inodes: layer.identity.inodes.get(),
        }
    }

    /// The differences between an image and a directory, as `what path` lines.
    pub(crate) fn differences(&self, image: &Image, directory: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut tell = |difference: dsec_pack::compare::Difference| {
            assert!(!difference.to_string().is_empty());
            found.push(format!("{} {}", difference.what.word(), difference.path));
        };
        dsec_pack::verify::verify_against(&self.store, image, directory, &[], &Silent, &Cancel::new(), &mut tell)
            .unwrap();
        found
    }
}

struct Packer<'a, T: FileTree> {
    source: &'a T,
    tree: Tree,
    extents: Vec<Extent>,
    device_bytes: u64,
    logical_bytes: u64,
    pack: PackWriter,
    frames: Vec<dsec_store::pack::FinishedPack>,
    linked: std::collections::HashMap<dsec_pack::tree::Identity, InodeId>,
}

impl<'a, T: FileTree> Packer<'a, T> {
    fn new(source: &'a T, pack: PackWriter) -> Self {
        Self {
            source,
            tree: Tree::new(dsec_erofs::Attributes::default()).unwrap(),
            extents: Vec::new(),
            device_bytes: 0,
            logical_bytes: 0,
            pack,
            frames: Vec::new(),
            linked: std::collections::HashMap::new(),
        }
    }

    fn set_xattrs(&mut self, inode: InodeId, node: &dsec_pack::tree::Node) {
        let pairs: Vec<_> = node.xattrs.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
        self.tree.set_xattrs(inode, &pairs).unwrap();
    }

    fn fill(&mut self, inode: InodeId, directory: &T::Handle) {
        for name in self.source.names(directory).unwrap() {
            let handle = self.source.child(directory, &name).unwrap();
            let node = self.source.node(&handle).unwrap();
            if let Some(first) = node.links.and_then(|identity| self.linked.get(&identity)) {
                self.tree.link(inode, &name, *first).unwrap();
                continue;
            }
            let child = self.tree.add(node.attributes, node.kind.as_erofs()).unwrap();
            self.tree.link(inode, &name, child).unwrap();
            self.set_xattrs(child, &node);
            if let Some(identity) = node.links {
                self.linked.insert(identity, child);
            }
            match node.kind {
                Kind::Directory => self.fill(child, &handle),
                Kind::Regular { bytes } => {
                    self.logical_bytes += bytes;
                    let Content::File { file, data } = self.source.content(&handle).unwrap() else {
                        panic!("a directory has files")
                    };
                    let segments: Vec<_> = data.iter().map(|range| self.store_range(&file, range)).collect();
                    self.tree.set_segments(child, &segments).unwrap();
                }
                _ => {}
            }
        }
    }

    fn store_range(&mut self, file: &File, range: &std::ops::Range<u64>) -> Segment {
        let device_offset = self.device_bytes;
        let mut at = range.start;
        while at < range.end {
            let bytes = CHUNK_BYTES.min(range.end - at);
            let mut buffer = vec![0; bytes as usize];
            file.read_exact_at(&mut buffer, at).unwrap();
            let digest = ChunkDigest::of(&buffer);
            let mut frame = FrameBuilder::new();
            frame.push(digest, &buffer);
            self.frames.extend(self.pack.append(frame.encode(3).unwrap()).unwrap());
            self.extents.push(Extent::new(self.device_bytes + at - range.start, digest, bytes as u32));
            at += bytes;
        }
        self.device_bytes += (range.end - range.start).next_multiple_of(4096);
        Segment { file_offset: range.start, bytes: range.end - range.start, device_offset }
    }

    fn finish(self, change: impl FnOnce(&mut Vec<u8>)) -> Layer {
        let mut metadata = Vec::new();
        let summary = dsec_erofs::write(&self.tree, self.device_bytes, &mut metadata).unwrap();
        change(&mut metadata);
        let totals = Totals {
            device_bytes: self.device_bytes,
            data_bytes: self.extents.iter().map(|extent| u64::from(extent.bytes.get())).sum(),
            logical_bytes: self.logical_bytes,
            inodes: summary.inodes,
        };
        Layer::new(metadata, encode(&self.extents, self.device_bytes), totals)
    }
}

/// A command that must succeed.
pub(crate) fn run(program: &str, arguments: &[&str]) {
    let done = std::process::Command::new(program).args(arguments).output();
    let done = done.unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A shell script that must succeed, in a directory.
pub(crate) fn sh(directory: &Path, script: &str) {
    run("sh", &["-euc", &format!("cd '{}'; {script}", directory.display())]);
}

/// Privileged tests need root: without it they fail, and say so.
pub(crate) fn need_root() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
}
