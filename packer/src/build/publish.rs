//! One layer: its file data through the pipeline, then its metadata and extent map, then the layer object.

use std::collections::HashSet;
use std::io::{BufWriter, Write};

use dsec_erofs::{InodeId, Kind, Tree};
use dsec_format::extents;
use dsec_format::image::LayerRecord;
use dsec_format::layer::Totals;
use dsec_store::{Store, layer};
use fs_err as fs;

use super::BuiltLayer;
use super::error::Error;
use super::pipeline::{self, Target};
use crate::input::Part;
use crate::monitor::Stage;
use crate::paths::Shown;

/// Stores one layer of an input.
pub(super) fn layer(part: &mut Part<'_>, target: &Target<'_>) -> Result<BuiltLayer, Error> {
    let Part { tree, contents } = part;
    let (entries, logical_bytes) = totals(tree);
    target.monitor.begin(Stage::Pack, Some(logical_bytes));
    let (layout, stored) = pipeline::run(tree, &**contents, target)?;

    target.monitor.begin(Stage::Publish, None);
    let (extents, device_bytes, data_bytes) = layout
        .finish(tree)
        .map_err(|(inode, source)| Error::File { path: Shown::new(&path_of(tree, inode)), source })?;
    let [metadata_file, extents_file, layer_file] =
        ["metadata", "extents", "layer"].map(|name| target.scratch.path().join(name));
    let mut out = BufWriter::with_capacity(1 << 20, fs::File::create(&metadata_file).map_err(Error::Scratch)?);
    let summary = dsec_erofs::write(tree, device_bytes, &mut out)?;
    out.flush().map_err(Error::Scratch)?;
    drop(out);
    fs::write(&extents_file, extents::encode(&extents, device_bytes)).map_err(Error::Scratch)?;
    drop(extents);

    let totals = Totals { device_bytes, data_bytes, logical_bytes, inodes: summary.inodes };
    let level = target.options.level;
    let identity = layer::write(&metadata_file, &extents_file, totals, level, &layer_file).map_err(Error::Scratch)?;
    let digest = identity.digest();
    let reused = target.store.has_layer(&digest)?;
    let layer_stored_bytes = if reused { 0 } else { fs::metadata(&layer_file).map_err(Error::Scratch)?.len() };
    target.cancel.check()?;
    if !reused {
        target.store.take_layer(&digest, &layer_file)?;
    }
    let record = LayerRecord {
        digest,
        metadata_bytes: identity.metadata_bytes.get(),
        data_bytes,
        logical_bytes,
        inodes: summary.inodes,
    };
    Ok(BuiltLayer { record, reused, entries, stored, layer_stored_bytes })
}

/// Names in a tree, and the sum of its file sizes, each file once.
fn totals(tree: &Tree) -> (u64, u64) {
    let (mut entries, mut logical_bytes) = (0, 0_u64);
    let mut seen = HashSet::new();
    let mut walk = tree.walk();
    while let Some(step) = walk.advance() {
        entries += 1;
        if let Kind::Regular { bytes } = tree.kind(step.inode)
            && (tree.nlink(step.inode) == 1 || seen.insert(step.inode))
        {
            logical_bytes = logical_bytes.saturating_add(bytes);
        }
    }
    (entries, logical_bytes)
}

/// The first path of an inode; only for errors, because it walks.
pub(super) fn path_of(tree: &Tree, inode: InodeId) -> Vec<u8> {
    let mut walk = tree.walk();
    while let Some(step) = walk.advance() {
        if step.inode == inode {
            return step.path.to_vec();
        }
    }
    Vec::new()
}
