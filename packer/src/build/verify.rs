//! Reading back what was built, before an image names it.
//!
//! First everything that the image reaches is read from the store and checked against its digests. Then the image is
//! compared with its source: a directory by walking it once more; an archive, whose entries were read and are gone, with
//! the tree that they made and with their data, read again.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use dsec_erofs::{FileType, Image as Metadata, Inode, InodeId, Nid, Tree, image};
use dsec_format::LayerDigest;
use dsec_format::extents::{Extent, Map};
use dsec_format::image::Image;
use dsec_store::{LocalStore, Source};

use super::buffer::Pool;
use super::error::Error;
use super::publish::path_of;
use super::read::{self, Batch, FileChunks};
use crate::compare::Difference;
use crate::input::Part;
use crate::monitor::Stage;
use crate::paths::{Shown, join};
use crate::verify::{Finding, verify_against, verify_image};
use crate::{Cancel, Monitor};

/// Findings and differences that an error repeats.
const SHOWN: usize = 10;

/// What is checked, and who is told.
#[derive(Clone, Copy)]
pub(super) struct Verification<'a> {
    pub(super) store: &'a LocalStore,
    pub(super) image: &'a Image,
    pub(super) monitor: &'a dyn Monitor,
    pub(super) cancel: &'a Cancel,
}

impl Verification<'_> {
    /// Everything in the store is there and is what its name says.
    pub(super) fn whole(self) -> Result<(), Error> {
        let mut findings: Vec<Finding> = Vec::new();
        let mut found = |finding| {
            if findings.len() < SHOWN {
                findings.push(finding);
            }
        };
        let verified = verify_image(self.store, self.image, self.monitor, self.cancel, &mut found)?;
        let first = findings.first().map(|finding| format!("{}: {}", finding.object, finding.what));
        match first {
            None => Ok(()),
            Some(first) => Err(Error::NotWhole { findings: verified.findings, first }),
        }
    }

    /// The image shows what the directory has.
    pub(super) fn against_directory(self, directory: &Path) -> Result<(), Error> {
        let mut first: Option<Difference> = None;
        let mut found = |difference| {
            first.get_or_insert(difference);
        };
        let totals = verify_against(self.store, self.image, directory, &[], self.monitor, self.cancel, &mut found)?;
        match first {
            None => Ok(()),
            Some(first) => Err(Error::Differs { differences: totals.differences, first: first.to_string() }),
        }
    }

    /// Each layer has what its archive had.
    pub(super) fn against_archives(self, parts: &[(LayerDigest, Part<'_>)]) -> Result<(), Error> {
        self.monitor.begin(Stage::Verify, None);
        for (digest, part) in parts {
            let layer = self.store.read_layer(digest)?;
            let metadata = Metadata::open(layer.metadata.as_slice()).map_err(differs(b""))?;
            let comparison = Comparison { tree: &part.tree, metadata: &metadata, known: HashMap::new() };
            comparison.run(self)?;
            let Ok(map) = Map::decode(&layer.extents) else {
                return Err(differs(b"")("its extent map"));
            };
            self.data(part, map.extents())?;
        }
        Ok(())
    }

    /// Reads the data of all files once more and looks for its chunks where the layer has them.
    fn data(self, part: &Part<'_>, extents: &[Extent]) -> Result<(), Error> {
        let pool = Arc::new(Pool::default());
        for job in part.contents.jobs(&part.tree) {
            let mut next = Some(Batch::Files(vec![job?]));
            let mut at = None;
            while let Some(batch) = next.take() {
                let chunks = read::read(batch, &pool, self.cancel)?;
                for file in &chunks.files {
                    if follow(&part.tree, extents, file, &mut at).is_break() {
                        return Err(differs(&path_of(&part.tree, file.inode))("its data"));
                    }
                }
                next = chunks.rest.map(Batch::Rest);
            }
        }
        Ok(())
    }
}

/// Follows the chunks of a file along the extents of its runs; `at` is the index of the next extent.
fn follow(tree: &Tree, extents: &[Extent], file: &FileChunks, at: &mut Option<usize>) -> ControlFlow<()> {
    for chunk in &file.chunks {
        if let Some(offset) = chunk.run_offset {
            *at = tree.segments(file.inode).find_map(|segment| {
                let inside = offset.checked_sub(segment.file_offset).filter(|inside| *inside < segment.bytes)?;
                let device_offset = segment.device_offset + inside;
                extents.binary_search_by_key(&device_offset, |extent| extent.device_offset.get()).ok()
            });
        }
        let extent = at.and_then(|index| extents.get(index));
        match extent {
            Some(extent) if extent.chunk == chunk.digest && extent.bytes.get() == chunk.bytes => {}
            _ => return ControlFlow::Break(()),
        }
        *at = at.map(|index| index + 1);
    }
    ControlFlow::Continue(())
}

/// A tree beside the metadata image that was made of it.
struct Comparison<'a> {
    tree: &'a Tree,
    metadata: &'a Metadata<&'a [u8]>,
    /// Which inode of the image an inode of the tree is.
    known: HashMap<InodeId, Nid>,
}

impl Comparison<'_> {
    fn run(mut self, verification: Verification<'_>) -> Result<(), Error> {
        let mut directories = vec![(Vec::new(), Tree::ROOT, self.metadata.root_nid())];
        self.inode(b"", Tree::ROOT, self.metadata.root_nid())?;
        while let Some((path, directory, nid)) = directories.pop() {
            verification.cancel.check()?;
            let inode = self.metadata.inode(nid).map_err(differs(&path))?;
            let mut there = self
                .metadata
                .read_dir(&inode, 0)
                .filter(|entry| entry.as_ref().map_or(true, |entry| !matches!(entry.name, b"." | b"..")));
            let here =
                self.tree.entries(directory).map_err(|source| Error::File { path: Shown::new(&path), source })?;
            for (name, child) in here {
                let path = join(&path, name);
                let entry = there.next().ok_or_else(|| differs(&path)("it is missing"))?.map_err(differs(&path))?;
                if entry.name != name {
                    return Err(differs(&path)("its name"));
                }
                self.inode(&path, child, entry.nid)?;
                if self.tree.file_type(child) == FileType::Directory {
                    directories.push((path, child, entry.nid));
                }
            }
            if there.next().is_some() {
                return Err(differs(&path)("it has more entries"));
            }
            verification.monitor.advance(1);
        }
        Ok(())
    }

    fn inode(&mut self, path: &[u8], here: InodeId, there: Nid) -> Result<(), Error> {
        if *self.known.entry(here).or_insert(there) != there {
            return Err(differs(path)("its links"));
        }
        let inode = self.metadata.inode(there).map_err(differs(path))?;
        let kind = self.metadata.kind(&inode).map_err(differs(path))?;
        let (tree, wrong) = (self.tree, differs(path));
        if kind != tree.kind(here) {
            return Err(wrong("its kind, size, target or device"));
        }
        if inode.attributes != tree.attributes(here) || inode.nlink != tree.nlink(here) {
            return Err(wrong("its attributes"));
        }
        if !self.xattrs_agree(here, &inode).map_err(differs(path))? {
            return Err(wrong("its extended attributes"));
        }
        if inode.file_type == FileType::Regular {
            let segments: Vec<_> = self.metadata.segments(&inode).collect::<Result<_, _>>().map_err(differs(path))?;
            if !tree.segments(here).eq(segments) {
                return Err(wrong("where its data lies"));
            }
        }
        Ok(())
    }

    fn xattrs_agree(&self, here: InodeId, there: &Inode) -> Result<bool, image::Error> {
        let mut left: Vec<_> = self.tree.xattrs(here).map(|xattr| (xattr.name(), xattr.value)).collect();
        let right = self.metadata.xattrs(there)?.map(|xattr| xattr.map(|xattr| (xattr.name(), xattr.value)));
        let mut right: Vec<_> = right.collect::<Result<_, _>>()?;
        left.sort_unstable();
        right.sort_unstable();
        Ok(left == right)
    }
}

/// The entry at `path` is not what it was made of.
fn differs<T: std::fmt::Display>(path: &[u8]) -> impl Fn(T) -> Error {
    let path = Shown::new(path);
    move |what| Error::Differs { differences: 1, first: format!("{path}: {what}") }
}
