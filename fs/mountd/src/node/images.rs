//! Image records on this node: small files, so that an image named by its digest can be mounted while no source answers.
//!
//! They have a budget. Beyond it the records that were not asked for the longest go, but never one of an image that is
//! mounted. The modification time of a record says when it was asked for last.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use dsec_format::ImageDigest;
use dsec_format::image::Image;

use crate::fetch::Sources;
use crate::layer::touch;

const TEMPORARY: &str = "tmp-";

#[derive(Debug)]
pub(super) struct Images {
    root: PathBuf,
    budget_bytes: u64,
}

/// A record on the disk.
#[derive(Debug)]
struct Kept {
    used: SystemTime,
    path: PathBuf,
    name: String,
    bytes: u64,
}

impl Images {
    /// The records below `root`, which are to use `budget_bytes` on the disk. What an interrupted write left is removed.
    pub(super) fn open(root: &Path, budget_bytes: u64) -> std::io::Result<Self> {
        fs_err::create_dir_all(root)?;
        for entry in fs_err::read_dir(root)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
                fs_err::remove_file(entry.path())?;
            }
        }
        let images = Self { root: root.to_owned(), budget_bytes };
        images.make_room(&BTreeSet::new());
        Ok(images)
    }

    /// The image of a digest: the local record if it is sound, else from the sources. Records of `mounted` images stay.
    pub(super) fn read(
        &self,
        digest: &ImageDigest,
        sources: &Sources,
        mut mounted: BTreeSet<String>,
    ) -> Result<Image, dsec_store::Error> {
        let path = self.root.join(digest.hex());
        let local = fs_err::read(&path).ok().and_then(|bytes| Image::decode(&bytes, digest).ok());
        if let Some(image) = local {
            if let Err(error) = touch(&path) {
                tracing::debug!(image = %digest, %error, "the record does not say when it was used");
            }
            return Ok(image);
        }
        let image = sources.ask(|source| source.read_image(digest))?;
        if let Err(error) = self.keep(digest, &path, &image) {
            tracing::warn!(image = %digest, %error, "an image record is not kept");
        }
        mounted.insert(digest.hex());
        self.make_room(&mounted);
        Ok(image)
    }

    /// Bytes on the disk and number of the records.
    pub(super) fn used(&self) -> (u64, u64) {
        let kept = self.kept().unwrap_or_default();
        (kept.iter().map(|record| record.bytes).sum(), kept.len() as u64)
    }

    fn keep(&self, digest: &ImageDigest, path: &Path, image: &Image) -> std::io::Result<()> {
        // The directory may have been removed by hand.
        fs_err::create_dir_all(&self.root)?;
        let temporary = self.root.join(format!("{TEMPORARY}{}", digest.hex()));
        fs_err::write(&temporary, image.encode())?;
        fs_err::rename(&temporary, path)
    }

    fn make_room(&self, mounted: &BTreeSet<String>) {
        if let Err(error) = self.remove_unused(mounted) {
            tracing::warn!(%error, "image records that nobody uses stay on the disk");
        }
    }

    fn remove_unused(&self, mounted: &BTreeSet<String>) -> std::io::Result<()> {
        let mut kept = self.kept()?;
        kept.sort_by_key(|record| record.used);
        let mut bytes: u64 = kept.iter().map(|record| record.bytes).sum();
        for record in kept.iter().filter(|record| !mounted.contains(&record.name)) {
            if bytes <= self.budget_bytes {
                break;
            }
            fs_err::remove_file(&record.path)?;
            bytes -= record.bytes;
        }
        Ok(())
    }

    /// All records. One that goes meanwhile is left out.
    fn kept(&self) -> std::io::Result<Vec<Kept>> {
        let mut kept = Vec::new();
        for entry in fs_err::read_dir(&self.root)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Some(metadata) = entry.metadata().ok().filter(|_| !name.starts_with(TEMPORARY)) else { continue };
            let Ok(used) = metadata.modified() else { continue };
            kept.push(Kept { used, path: entry.path(), name, bytes: metadata.blocks() * 512 });
        }
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsec_format::LayerDigest;
    use dsec_format::image::{Config, Image};
    use dsec_store::LocalStore;

    #[test]
    fn records_stay_within_their_budget_and_those_of_mounted_images_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let store = LocalStore::create(&directory.path().join("store")).unwrap();
        let image = |number: u32| {
            let config = Config {
                env: vec![format!("NUMBER={number}"), "X=".to_owned() + &"x".repeat(5000)],
                ..Config::default()
            };
            let layer = dsec_format::image::LayerRecord {
                digest: LayerDigest::of(b"layer"),
                metadata_bytes: 0,
                data_bytes: 0,
                logical_bytes: 0,
                inodes: 1,
            };
            Image::new("amd64", vec![layer], config)
        };
        let digests: Vec<ImageDigest> = (0..40).map(|number| image(number).digest()).collect();
        for number in 0..40 {
            let file =
                dsec_store::layout::Object::image(&digests[number as usize]).path(&directory.path().join("store"));
            fs_err::create_dir_all(file.parent().unwrap()).unwrap();
            fs_err::write(file, image(number).encode()).unwrap();
        }
        let sources = Sources::new(vec![Box::new(store)]);
        let root = directory.path().join("images");
        let images = Images::open(&root, 64 << 10).unwrap();
        let mounted = BTreeSet::from([digests[0].hex(), digests[1].hex()]);
        for digest in &digests {
            images.read(digest, &sources, mounted.clone()).unwrap();
            assert!(images.used().0 <= 64 << 10, "{:?}", images.used());
            // Times of files come from a clock that stands still between two ticks.
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let there = |number: usize| root.join(digests[number].hex()).exists();
        assert!(there(0) && there(1), "what is mounted stays");
        assert!(!there(2) && there(39), "the oldest go first");
        // Without a source, what is here is enough, and being asked for makes a record young.
        let nobody = Sources::new(Vec::new());
        let oldest = (2..40).find(|number| there(*number)).unwrap();
        images.read(&digests[oldest], &nobody, BTreeSet::new()).unwrap();
        images.read(&digests[2], &sources, BTreeSet::new()).unwrap();
        assert!(there(oldest) && there(2) && !there(0));
        // More mounted images than the budget has room for are all kept.
        let all: BTreeSet<String> = digests.iter().map(ImageDigest::hex).collect();
        for digest in &digests {
            images.read(digest, &sources, all.clone()).unwrap();
        }
        assert_eq!(images.used().1, 40);
        // The next start brings them back within it, and removes what a kill left.
        fs_err::write(root.join("tmp-x"), "half").unwrap();
        assert!(Images::open(&root, 64 << 10).unwrap().used().0 <= 64 << 10);
        assert!(!root.join("tmp-x").exists());
        // Removed by hand: it begins anew.
        fs_err::remove_dir_all(&root).unwrap();
        images.read(&digests[5], &sources, BTreeSet::new()).unwrap();
        assert_eq!(images.used().1, 1);
    }
}
