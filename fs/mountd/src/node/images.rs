//! Image records on this node: small files, so that an image named by its digest can be mounted while no source answers.

use std::path::{Path, PathBuf};

use dsec_format::ImageDigest;
use dsec_format::image::Image;

use crate::fetch::Sources;

#[derive(Debug)]
pub(super) struct Images {
    root: PathBuf,
}

impl Images {
    pub(super) fn open(root: &Path) -> std::io::Result<Self> {
        fs_err::create_dir_all(root)?;
        Ok(Self { root: root.to_owned() })
    }

    /// The image of a digest: the local record if it is sound, else from the sources.
    pub(super) fn read(&self, digest: &ImageDigest, sources: &Sources) -> Result<Image, dsec_store::Error> {
        let path = self.root.join(digest.hex());
        let local = fs_err::read(&path).ok().and_then(|bytes| Image::decode(&bytes, digest).ok());
        if let Some(image) = local {
            return Ok(image);
        }
        let image = sources.ask(|source| source.read_image(digest))?;
        let temporary = self.root.join(format!("tmp-{}", digest.hex()));
        let written = fs_err::write(&temporary, image.encode()).and_then(|()| fs_err::rename(&temporary, &path));
        if let Err(error) = written {
            tracing::warn!(image = %digest, %error, "an image record is not kept");
        }
        Ok(image)
    }
}
