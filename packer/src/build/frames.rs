//! Grouping new chunks into frames, in the order in which they come.

use std::ops::Range;
use std::sync::Arc;

use dsec_format::ChunkDigest;
use dsec_format::frame::{self, TARGET_FRAME_PLAIN_BYTES};
use dsec_store::pack::{EncodedFrame, FrameBuilder};

use super::buffer::Buffer;

/// A frame whose chunks are known but not yet compressed.
#[derive(Debug, Default)]
pub(super) struct Draft {
    parts: Vec<(ChunkDigest, Part)>,
    bytes: usize,
}

/// Where the bytes of a chunk are.
#[derive(Debug)]
enum Part {
    Shared { buffer: Arc<Buffer>, range: Range<usize> },
    Owned(Vec<u8>),
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared { buffer, range } => &buffer[range.clone()],
            Self::Owned(bytes) => bytes,
        }
    }
}

impl Draft {
    /// Whether a chunk of `bytes` still belongs into this frame.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        self.parts.is_empty() || self.bytes + bytes <= TARGET_FRAME_PLAIN_BYTES as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds a chunk that lies in a buffer.
    pub(super) fn push(&mut self, digest: ChunkDigest, buffer: &Arc<Buffer>, range: Range<usize>) {
        self.bytes += range.len();
        self.parts.push((digest, Part::Shared { buffer: Arc::clone(buffer), range }));
    }

    /// Copies the chunks, so that a frame which waits for more keeps no buffer from being used again.
    pub(super) fn own(&mut self) {
        for (_, part) in &mut self.parts {
            if let Part::Shared { .. } = part {
                *part = Part::Owned(part.bytes().to_vec());
            }
        }
    }

    /// Compresses the frame.
    pub(super) fn encode(self, level: i32) -> Result<EncodedFrame, frame::Error> {
        let mut builder = FrameBuilder::new();
        for (digest, part) in &self.parts {
            builder.push(*digest, part.bytes());
        }
        drop(self.parts);
        builder.encode(level)
    }
}
