//! Small images for tests of stores: real packs, extent maps and identities over data that a seed decides.
//!
//! The metadata is no EROFS image: a store does not look into it.

use std::path::Path;

use anyhow::Result;
use dsec_format::chunk::BLOCK_BYTES;
use dsec_format::extents::{self, Extent};
use dsec_format::image::{Config, Image, LayerRecord};
use dsec_format::layer::{Layer, Totals};
use dsec_format::{ChunkDigest, LayerDigest};
use dsec_store::Store;
use dsec_store::pack::{FinishedPack, FrameBuilder, PackWriter};
use fs_err as fs;

/// Level of compression of every sample.
pub const LEVEL: i32 = 3;

/// Bytes that a seed decides: halfway compressible.
#[must_use]
pub fn data(seed: u64, bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes + 64);
    let mut counter = 0u64;
    while out.len() < bytes {
        let noise = *blake3_of(seed, counter).as_bytes();
        out.extend_from_slice(&noise);
        out.extend_from_slice(&[noise[0]; 32]);
        counter += 1;
    }
    out.truncate(bytes);
    out
}

fn blake3_of(seed: u64, counter: u64) -> ChunkDigest {
    ChunkDigest::of(&[seed.to_le_bytes(), counter.to_le_bytes()].concat())
}

/// One layer: its chunks in the order of the device, and the layer that names them.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The chunks; one may occur twice.
    pub chunks: Vec<Vec<u8>>,
    /// The layer.
    pub layer: Layer,
}

impl Sample {
    /// A layer of chunks, each a run of its own.
    #[must_use]
    pub fn of(chunks: Vec<Vec<u8>>) -> Self {
        let block = u64::from(BLOCK_BYTES);
        let (mut extents, mut offset, mut data_bytes) = (Vec::new(), 0, 0);
        for chunk in &chunks {
            let bytes = u32::try_from(chunk.len()).expect("samples are small");
            extents.push(Extent::new(offset, ChunkDigest::of(chunk), bytes));
            offset = (offset + chunk.len() as u64).next_multiple_of(block);
            data_bytes += chunk.len() as u64;
        }
        let totals =
            Totals { device_bytes: offset, data_bytes, logical_bytes: data_bytes, inodes: chunks.len() as u64 + 1 };
        let metadata = data(chunks.len() as u64, 2 * BLOCK_BYTES as usize);
        Self { layer: Layer::new(metadata, extents::encode(&extents, offset), totals), chunks }
    }

    /// A layer of `count` chunks of `bytes` bytes, those of the seeds from `first`.
    #[must_use]
    pub fn seeded(first: u64, count: u64, bytes: usize) -> Self {
        Self::of((first..first + count).map(|seed| data(seed, bytes)).collect())
    }

    /// Its name.
    #[must_use]
    pub fn digest(&self) -> LayerDigest {
        self.layer.digest()
    }

    /// What an image says of it.
    #[must_use]
    pub fn record(&self) -> LayerRecord {
        let identity = &self.layer.identity;
        LayerRecord {
            digest: self.digest(),
            metadata_bytes: identity.metadata_bytes.get(),
            data_bytes: identity.data_bytes.get(),
            logical_bytes: identity.logical_bytes.get(),
            inodes: identity.inodes.get(),
        }
    }

    /// Its chunks in packs of about `pack_bytes`, as files of `directory`.
    ///
    /// # Errors
    /// Writing failed.
    pub fn packs(&self, directory: &Path, pack_bytes: u64) -> Result<Vec<FinishedPack>> {
        let mut writer = PackWriter::with_target(directory, pack_bytes);
        let (mut packs, mut frame) = (Vec::new(), FrameBuilder::new());
        for chunk in &self.chunks {
            if !frame.takes(chunk.len()) {
                packs.extend(writer.append(std::mem::take(&mut frame).encode(LEVEL)?)?);
            }
            frame.push(ChunkDigest::of(chunk), chunk);
        }
        if !frame.is_empty() {
            packs.extend(writer.append(frame.encode(LEVEL)?)?);
        }
        packs.extend(writer.close()?);
        Ok(packs)
    }

    /// Puts packs and layer into a store.
    ///
    /// # Errors
    /// The store's failure.
    pub fn put(&self, store: &dyn Store, pack_bytes: u64) -> Result<()> {
        let directory = tempfile::tempdir()?;
        for pack in self.packs(directory.path(), pack_bytes)? {
            store.put_pack(&pack.digest(), pack.path())?;
        }
        let file = directory.path().join("layer");
        fs::write(&file, self.layer.encode(LEVEL))?;
        store.put_layer(&self.digest(), &file)?;
        Ok(())
    }
}

/// An image of samples, the base first.
#[must_use]
pub fn image(samples: &[&Sample]) -> Image {
    Image::new("amd64", samples.iter().map(|sample| sample.record()).collect(), Config::default())
}
