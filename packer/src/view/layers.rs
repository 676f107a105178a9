//! The layers of an image, in memory and checked: what a [`super::View`] looks at.

use dsec_erofs::{Attributes, FileType, Image as Metadata, Inode, Nid, Segment};
use dsec_format::LayerDigest;
use dsec_format::extents::Map;
use dsec_format::layer::Layer;
use dsec_store::Source;

use super::{OPAQUE, OVERLAY_PREFIX};
use crate::tree::{Error, Kind, Node};

/// The metadata and extent maps of one image that are held in memory have no more bytes in all, whatever its layers
/// state: those of some 20 million files.
pub const MAX_PLAIN_BYTES: u64 = 2 << 30;

/// Layers, the base first, each with its plain metadata and extent map in memory: some 100 bytes an inode and 48 bytes
/// a chunk, at most [`MAX_PLAIN_BYTES`]. Their digests and the structure of their metadata have been checked.
#[derive(Debug)]
pub struct Layers {
    layers: Vec<(LayerDigest, Layer)>,
}

impl Layers {
    /// Reads layers from a store.
    ///
    /// # Errors
    /// The store's: a layer is missing or damaged. [`Error::Unsound`] and [`Error::TooLarge`].
    pub fn load(source: &dyn Source, digests: impl IntoIterator<Item = LayerDigest>) -> Result<Self, Error> {
        let digests: Vec<LayerDigest> = digests.into_iter().collect();
        let mut have_bytes = 0_u64;
        for digest in &digests {
            have_bytes = have_bytes.saturating_add(plain_bytes(source, digest)?);
            if have_bytes > MAX_PLAIN_BYTES {
                return Err(Error::TooLarge { layer: *digest, have_bytes });
            }
        }
        let mut layers = Vec::new();
        for digest in digests {
            let layer = source.read_layer(&digest)?;
            dsec_erofs::check(&layer.metadata).map_err(|source| Error::Unsound { layer: digest, source })?;
            layers.push((digest, layer));
        }
        Ok(Self { layers })
    }

    /// Layers that are in memory already, and have been checked.
    #[must_use]
    pub fn of(layers: Vec<Layer>) -> Self {
        Self { layers: layers.into_iter().map(|layer| (layer.digest(), layer)).collect() }
    }

    /// The layers, the base first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&LayerDigest, &Layer)> {
        self.layers.iter().map(|(digest, layer)| (digest, layer))
    }

    /// All of them, opened, the topmost first: the order in which they are looked at.
    pub(super) fn open(&self) -> Result<Vec<LayerView<'_>>, Error> {
        self.layers.iter().rev().map(|(digest, layer)| LayerView::open(*digest, layer)).collect()
    }
}

/// What a layer comes to in memory, as its checked header states. A header that is damaged counts nothing: reading the
/// layer says what is wrong with it.
fn plain_bytes(source: &dyn Source, digest: &LayerDigest) -> Result<u64, Error> {
    let header = dsec_store::layer::read_header(&mut source.open_layer(digest)?, digest);
    Ok(header
        .map_or(0, |header| header.identity.metadata_bytes.get().saturating_add(header.identity.extents_bytes.get())))
}

/// One layer, ready to be looked at.
#[derive(Debug)]
pub(super) struct LayerView<'a> {
    pub(super) digest: LayerDigest,
    pub(super) map: Map<'a>,
    metadata: Metadata<&'a [u8]>,
}

impl<'a> LayerView<'a> {
    fn open(digest: LayerDigest, layer: &'a Layer) -> Result<Self, Error> {
        let metadata =
            Metadata::open(layer.metadata.as_slice()).map_err(|source| Error::Layer { layer: digest, source })?;
        let map = Map::decode(&layer.extents).map_err(|source| Error::Extents { layer: digest, source })?;
        Ok(Self { digest, map, metadata })
    }

    fn sound<T>(&self, result: Result<T, dsec_erofs::image::Error>) -> Result<T, Error> {
        result.map_err(|source| Error::Layer { layer: self.digest, source })
    }

    fn inode(&self, nid: Nid) -> Result<Inode, Error> {
        self.sound(self.metadata.inode(nid))
    }

    pub(super) fn root(&self) -> Nid {
        self.metadata.root_nid()
    }

    pub(super) fn file_type(&self, nid: Nid) -> Result<FileType, Error> {
        Ok(self.inode(nid)?.file_type)
    }

    pub(super) fn attributes(&self, nid: Nid) -> Result<Attributes, Error> {
        Ok(self.inode(nid)?.attributes)
    }

    pub(super) fn is_whiteout(&self, nid: Nid) -> Result<bool, Error> {
        Ok(self.inode(nid)?.is_whiteout())
    }

    /// What a name in a directory is; nothing is in anything else.
    pub(super) fn lookup(&self, directory: Nid, name: &[u8]) -> Result<Option<Nid>, Error> {
        let inode = self.inode(directory)?;
        if inode.file_type != FileType::Directory {
            return Ok(None);
        }
        Ok(self.sound(self.metadata.lookup(&inode, name))?.map(|entry| entry.nid))
    }

    pub(super) fn for_each_name(&self, directory: Nid, mut found: impl FnMut(&[u8])) -> Result<(), Error> {
        let inode = self.inode(directory)?;
        for entry in self.metadata.read_dir(&inode, 0) {
            let entry = self.sound(entry)?;
            if !matches!(entry.name, b"." | b"..") {
                found(entry.name);
            }
        }
        Ok(())
    }

    pub(super) fn is_opaque(&self, directory: Nid) -> Result<bool, Error> {
        let inode = self.inode(directory)?;
        let value = self.sound(self.metadata.xattr(&inode, &[OVERLAY_PREFIX, OPAQUE].concat()))?;
        Ok(value == Some(b"y"))
    }

    /// The inode as it is stored. Its link identity is without a layer.
    pub(super) fn node(&self, nid: Nid) -> Result<Node, Error> {
        let inode = self.inode(nid)?;
        let mut xattrs = Vec::new();
        for xattr in self.sound(self.metadata.xattrs(&inode))? {
            let xattr = self.sound(xattr)?;
            xattrs.push((xattr.name(), xattr.value.to_vec()));
        }
        xattrs.sort_unstable();
        let linked = inode.file_type != FileType::Directory && inode.nlink > 1;
        Ok(Node {
            attributes: inode.attributes,
            kind: Kind::from(self.sound(self.metadata.kind(&inode))?),
            xattrs,
            links: linked.then_some((0, 0, nid.0)),
        })
    }

    /// Where the data of a regular file lies on the layer's device.
    pub(super) fn segments(&self, nid: Nid) -> Result<Vec<Segment>, Error> {
        let inode = self.inode(nid)?;
        self.sound(self.metadata.segments(&inode).collect())
    }
}
