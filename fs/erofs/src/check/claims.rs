//! Which slots of 32 bytes are taken: one bit each.

use crate::format::SLOT_BYTES;

/// Bytes of a slot.
pub(super) const SLOT_LEN: usize = 32;
const _: () = assert!(SLOT_LEN as u64 == SLOT_BYTES);

#[derive(Debug)]
pub(super) struct Claims {
    words: Vec<u64>,
}

impl Claims {
    pub(super) fn new(bytes: u64) -> Claims {
        let words = bytes.div_ceil(SLOT_BYTES).div_ceil(64);
        // One word stands for 2 KiB that are in memory.
        Claims { words: vec![0; usize::try_from(words).unwrap_or(0)] }
    }

    /// Takes the slots of a range; false if one is taken already, or lies outside. The range is not empty.
    pub(super) fn claim(&mut self, start: u64, bytes: u64) -> bool {
        let last = start.saturating_add(bytes - 1) / SLOT_BYTES;
        (start / SLOT_BYTES..=last).all(|slot| {
            let bit = 1 << (slot % 64);
            let word = usize::try_from(slot / 64).ok().and_then(|index| self.words.get_mut(index));
            word.is_some_and(|word| {
                let free = *word & bit == 0;
                *word |= bit;
                free
            })
        })
    }

    pub(super) fn has(&self, slot: u64) -> bool {
        let word = usize::try_from(slot / 64).ok().and_then(|index| self.words.get(index));
        word.is_some_and(|word| word & (1 << (slot % 64)) != 0)
    }
}
