//! Reads the chunks of an image's files from a store, checked: [`dsec_store::ChunkReader`] over several layers, each
//! opened when first read from.

use std::sync::{Mutex, PoisonError};

use dsec_format::LayerDigest;
use dsec_store::{ChunkReader as LayerReader, Error, Source};

use crate::view::Piece;

/// See the [module](self).
pub struct ChunkReader<'a> {
    source: &'a dyn Source,
    /// The base first, as [`Piece::layer`] counts.
    layers: Vec<Layer<'a>>,
}

struct Layer<'a> {
    digest: LayerDigest,
    reader: Mutex<Option<LayerReader<'a>>>,
}

impl<'a> ChunkReader<'a> {
    /// Reads the chunks of `layers`, the base first.
    #[must_use]
    pub fn new(source: &'a dyn Source, layers: impl IntoIterator<Item = LayerDigest>) -> Self {
        let layers = layers.into_iter().map(|digest| Layer { digest, reader: Mutex::new(None) }).collect();
        Self { source, layers }
    }

    /// The bytes of a piece of one of the layers. Its whole chunk is checked.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Panics
    /// When the piece is of other layers.
    pub fn piece(&self, piece: &Piece) -> Result<Vec<u8>, Error> {
        let layer = &self.layers[piece.layer];
        let mut reader = layer.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = match &mut *reader {
            Some(reader) => reader,
            none => none.insert(LayerReader::open(self.source, &layer.digest)?),
        };
        let chunk = reader.read(piece.extent)?;
        let start = piece.chunk_offset as usize;
        // A piece lies inside its chunk.
        Ok(chunk[start..start + piece.bytes as usize].to_vec())
    }
}
