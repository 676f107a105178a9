//! The layers of an image, in memory and checked: what a [`super::View`] looks at.

use dsec_erofs::{Attributes, FileType, Image as Metadata, Inode, Nid, Segment};
use dsec_format::LayerDigest;
use dsec_format::extents::Map;
use dsec_format::layer::Layer;
use dsec_store::Source;

use super::{OPAQUE, OVERLAY_PREFIX};
use crate::tree::{Error, Kind, Node};

/// The metadata and extent maps of one image that are held in memory have no more bytes in all, whatever its layers
/// state: those of some 20 million files. While a layer is read, its stored form is there as well.
pub const MAX_PLAIN_BYTES: u64 = 2 << 30;

/// Layers, the base first, each with its plain metadata and extent map in memory: some 100 bytes an inode and 48 bytes
/// a chunk, at most [`MAX_PLAIN_BYTES`]. Their digests, the structure of their metadata and every entry of their extent
/// maps have been checked, once.
#[derive(Debug)]
pub struct Layers {
    layers: Vec<Opened>,
}

impl Layers {
    /// Reads layers from a store.
    ///
    /// # Errors
    /// The store's: a layer is missing or damaged. [`Error::Unsound`], [`Error::Extents`] and [`Error::TooLarge`].
    pub fn load(source: &dyn Source, digests: impl IntoIterator<Item = LayerDigest>) -> Result<Self, Error> {
        let digests: Vec<LayerDigest> = digests.into_iter().collect();
        let mut have_bytes = 0_u64;
        for digest in &digests {
            have_bytes = have_bytes.saturating_add(plain_bytes(source, digest)?);
            if have_bytes > MAX_PLAIN_BYTES {
                return Err(Error::TooLarge { layer: *digest, have_bytes });
            }
        }
        let mut layers = Vec::with_capacity(digests.len());
        for digest in digests {
            let layer = source.read_layer(&digest)?;
            dsec_erofs::check(&layer.metadata).map_err(|source| Error::Unsound { layer: digest, source })?;
            layers.push(Opened::new(digest, layer)?);
        }
        Ok(Self { layers })
    }

    /// One layer that is in memory already, and whose metadata has been checked.
    ///
    /// # Errors
    /// [`Error::Layer`], [`Error::Extents`].
    pub fn of(layer: Layer) -> Result<Self, Error> {
        Ok(Self { layers: vec![Opened::new(layer.digest(), layer)?] })
    }

    pub(super) fn as_slice(&self) -> &[Opened] {
        &self.layers
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
pub(super) struct Opened {
    pub(super) digest: LayerDigest,
    metadata: Metadata<Vec<u8>>,
    extents: Vec<u8>,
}

impl Opened {
    fn new(digest: LayerDigest, layer: Layer) -> Result<Self, Error> {
        let metadata = Metadata::open(layer.metadata).map_err(|source| Error::Layer { layer: digest, source })?;
        Map::decode(&layer.extents).map_err(|source| Error::Extents { layer: digest, source })?;
        Ok(Self { digest, metadata, extents: layer.extents })
    }

    /// Its extent map. The entries were looked at when the layer was opened.
    pub(super) fn map(&self) -> Result<Map<'_>, Error> {
        Map::decode_trusted(&self.extents).map_err(|source| Error::Extents { layer: self.digest, source })
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
