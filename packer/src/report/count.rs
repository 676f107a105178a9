//! The arithmetic of a report: who pays for what.
//!
//! A chunk's stored bytes are its share of the frame that it lies in. Shares are fractions, so they are added up in units
//! of 2^-20 byte and rounded once, when a figure is given.

use std::collections::HashMap;
use std::iter::Sum;
use std::ops::{Add, AddAssign};

use super::sort::Record;

/// Bytes, in units of 2^-20.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Share(u128);

const UNIT_BITS: u32 = 20;

impl Share {
    /// What `bytes` of a frame of `plain_bytes` are of its `stored_bytes`.
    pub(super) fn of(bytes: u32, plain_bytes: u32, stored_bytes: u32) -> Self {
        let units = (u128::from(bytes) * u128::from(stored_bytes)) << UNIT_BITS;
        Self(units / u128::from(plain_bytes.max(1)))
    }

    pub(super) fn whole(bytes: u64) -> Self {
        Self(u128::from(bytes) << UNIT_BITS)
    }

    /// Rounded to the nearest byte.
    pub(super) fn bytes(self) -> u64 {
        u64::try_from((self.0 + (1 << (UNIT_BITS - 1))) >> UNIT_BITS).unwrap_or(u64::MAX)
    }

    /// A chunk is at most 1 MiB, so its share has at most 40 bits.
    pub(super) fn to_bits(self) -> u64 {
        u64::try_from(self.0).unwrap_or(u64::MAX)
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits.into())
    }
}

impl Add for Share {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Share {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Share {
    fn sum<I: Iterator<Item = Self>>(shares: I) -> Self {
        shares.fold(Self::default(), Add::add)
    }
}

/// What one image takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) unique: Share,
    pub(super) shared: Share,
    pub(super) marginal: Share,
    /// Bytes of the image and its layers, chunks apart.
    pub(super) metadata: u64,
}

/// What all take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) images: Vec<Count>,
    pub(super) chunks: u64,
    pub(super) stored: Share,
    pub(super) shared: Share,
}

/// Distributes bytes to the images that use them.
pub(super) struct Counter<'a> {
    /// For each layer its images, ascending.
    images_of: &'a [Vec<u32>],
    counted: Counted,
    /// Bytes by the set of layers that has them; emptied when it grows, so it is bounded.
    by_layers: HashMap<Vec<u32>, Share>,
}

/// Sets of layers that are held before they are distributed.
const MAX_SETS: usize = 1 << 16;

impl<'a> Counter<'a> {
    pub(super) fn new(images_of: &'a [Vec<u32>], images: usize) -> Self {
        let counted = Counted {
            images: vec![Count::default(); images],
            chunks: 0,
            stored: Share::default(),
            shared: Share::default(),
        };
        Self { images_of, counted, by_layers: HashMap::new() }
    }

    /// The bytes of a layer itself.
    pub(super) fn add_metadata(&mut self, layer: u32, bytes: u64) {
        for image in &self.images_of[layer as usize] {
            self.counted.images[*image as usize].metadata += bytes;
        }
        self.distribute(&[layer], Share::whole(bytes));
    }

    /// The bytes of an image itself.
    pub(super) fn add_image(&mut self, image: usize, bytes: u64) {
        let count = &mut self.counted.images[image];
        count.metadata += bytes;
        count.unique += Share::whole(bytes);
        count.marginal += Share::whole(bytes);
        self.counted.stored += Share::whole(bytes);
    }

    /// One chunk: a record for each layer that has it, at least one.
    pub(super) fn add_chunk(&mut self, same: &[Record]) {
        self.counted.chunks += 1;
        let mut layers: Vec<u32> = same.iter().map(|record| record.layer).collect();
        layers.sort_unstable();
        layers.dedup();
        // A store may hold a chunk twice; each layer reads the one that its locations name. The lowest layer's counts.
        let share = same.iter().min_by_key(|record| (record.layer, record.share)).map(|record| record.share);
        *self.by_layers.entry(layers).or_default() += share.unwrap_or_default();
        if self.by_layers.len() >= MAX_SETS {
            self.flush();
        }
    }

    fn flush(&mut self) {
        for (layers, share) in std::mem::take(&mut self.by_layers) {
            self.distribute(&layers, share);
        }
    }

    /// Bytes that each of `layers` has.
    fn distribute(&mut self, layers: &[u32], share: Share) {
        let mut images: Vec<u32> = Vec::new();
        for layer in layers {
            images.extend_from_slice(&self.images_of[*layer as usize]);
        }
        images.sort_unstable();
        images.dedup();
        let counts = &mut self.counted.images;
        if let Some(first) = images.first() {
            counts[*first as usize].marginal += share;
            self.counted.stored += share;
        }
        match images.as_slice() {
            [only] => counts[*only as usize].unique += share,
            several => {
                several.iter().for_each(|image| counts[*image as usize].shared += share);
                self.counted.shared += if several.is_empty() { Share::default() } else { share };
            }
        }
    }

    pub(super) fn finish(mut self) -> Counted {
        self.flush();
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsec_format::ChunkDigest;

    #[test]
    fn shares_of_a_frame_add_up_to_it() {
        let shares: Share =
            [(3, 7), (1, 7), (3, 7)].map(|(bytes, plain)| Share::of(bytes, plain, 100)).into_iter().sum();
        assert_eq!(shares.bytes(), 100);
        assert_eq!(Share::of(1 << 20, 1 << 20, 1 << 20).to_bits(), 1 << 40);
        assert_eq!(Share::from_bits(Share::whole(5).to_bits()).bytes(), 5);
    }

    #[test]
    fn who_pays_for_what() {
        // Layers 0 (images 0, 1), 1 (image 0), 2 (image 1). Chunk a in 0: 10 bytes; b in 1 and 2: 4; c in 2: 1.
        let images_of = [vec![0, 1], vec![0], vec![1]];
        let mut counter = Counter::new(&images_of, 2);
        let record =
            |chunk: &[u8], layer, bytes| Record { chunk: ChunkDigest::of(chunk), layer, share: Share::whole(bytes) };
        counter.add_chunk(&[record(b"a", 0, 10), record(b"a", 0, 10)]);
        counter.add_chunk(&[record(b"b", 2, 4), record(b"b", 1, 4)]);
        counter.add_chunk(&[record(b"c", 2, 1)]);
        counter.add_metadata(0, 100);
        counter.add_metadata(2, 7);
        counter.add_image(1, 1000);
        let counted = counter.finish();
        let bytes =
            |count: &Count| (count.unique.bytes(), count.shared.bytes(), count.marginal.bytes(), count.metadata);
        assert_eq!(bytes(&counted.images[0]), (0, 114, 114, 100));
        assert_eq!(bytes(&counted.images[1]), (1008, 114, 1008, 1107));
        assert_eq!((counted.chunks, counted.stored.bytes(), counted.shared.bytes()), (3, 1122, 114));
    }
}
