//! What to ask for: frames that hold the wanted chunks, joined where they lie next to each other.

use crate::layer::{FrameKey, Layer, Located};

/// Extents that lie further apart than this are not read in order.
const NEAR_EXTENTS: u32 = 8;
/// So often readers go on where they stopped before anything is fetched ahead: programs that start go on now and then by
/// chance, and what is fetched for them then is for nobody.
const STEPS_BEFORE_AHEAD: u32 = 3;
/// More than these are not remembered. A step aside costs one: who reads a tree steps aside now and then.
const MAX_STEPS: u32 = 16;
/// What is fetched ahead the first time; it doubles each time.
const FIRST_AHEAD_BYTES: u64 = 256 << 10;

/// One ranged read: all extents of the layer whose chunks are in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) extents: Vec<u32>,
}

/// The runs that bring the chunks of `wanted`, with all else that the layer has in the same frames.
pub(super) fn runs(located: &Located, wanted: &[u32], join_bytes: u64) -> Vec<Run> {
    let mut frames: Vec<FrameKey> = Vec::with_capacity(wanted.len());
    let mut lost = Vec::new();
    for extent in wanted {
        match located.chunk(*extent) {
            Some(chunk) => frames.push(chunk.frame),
            // These locations do not know it; another source's may.
            None => lost.push(*extent),
        }
    }
    frames.sort_unstable();
    frames.dedup();
    let groups = join(&frames, join_bytes).into_iter();
    let mut runs: Vec<Run> = groups
        .map(|group| Run { extents: group.iter().flat_map(|frame| located.extents_of(*frame)).collect() })
        .collect();
    if !lost.is_empty() {
        runs.push(Run { extents: lost });
    }
    runs
}

/// Groups of frames, sorted, that one ranged read brings: each begins where the one before ends.
pub(super) fn join(frames: &[FrameKey], join_bytes: u64) -> Vec<&[FrameKey]> {
    let mut groups = Vec::new();
    let mut start = 0;
    for index in 1..=frames.len() {
        let goes_on = match (frames.get(start), frames.get(index - 1), frames.get(index)) {
            (Some(first), Some(last), Some(next)) => {
                next.pack == first.pack && next.offset == last.end() && next.end() - first.offset <= join_bytes
            }
            _ => false,
        };
        if !goes_on {
            groups.extend(frames.get(start..index).filter(|group| !group.is_empty()));
            start = index;
        }
    }
    groups
}

/// Where the reader of a layer was last, and how far to go ahead of it.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The extent after the last one that was asked for or fetched ahead.
    next: u32,
    /// How often demands went on there, lately.
    steps: u32,
    bytes: u64,
}

impl Ahead {
    /// Notes a demand for the extents `first..=last`. True when what follows is to be fetched ahead.
    fn note(&mut self, first: u32, last: u32) -> bool {
        let in_order = first.checked_sub(self.next).is_some_and(|gap| gap <= NEAR_EXTENTS) && self.next > 0;
        self.steps = if in_order { (self.steps + 1).min(MAX_STEPS) } else { self.steps.saturating_sub(1) };
        self.next = last.saturating_add(1);
        in_order && self.steps >= STEPS_BEFORE_AHEAD
    }

    /// A demand for the extents `first..=last`. Answers the extents to fetch ahead of it.
    pub(super) fn advance(&mut self, first: u32, last: u32, layer: &Layer, limit_bytes: u64) -> std::ops::Range<u32> {
        let more = (self.bytes * 2).max(FIRST_AHEAD_BYTES).min(limit_bytes);
        self.bytes = if self.note(first, last) { more } else { 0 };
        let start = last.saturating_add(1);
        let mut end = start;
        let mut bytes = 0;
        while bytes < self.bytes
            && let Some(extent) = layer.extent(end)
        {
            bytes += u64::from(extent.bytes.get());
            end += 1;
        }
        self.next = end;
        start..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_goes_on_often_has_something_fetched_ahead() {
        let mut ahead = Ahead::default();
        let mut go = |at: u32| ahead.note(at, at);
        // A start: here and there, two in a row by chance.
        assert_eq!([5, 6, 400, 401, 402, 90, 91, 700, 701].map(&mut go), [false; 9]);
        // A reader of a tree: long in order, then elsewhere.
        assert!((1000..1010).map(&mut go).last().unwrap());
        assert!(!go(3000), "nobody knows yet where it goes from here");
        assert!(go(3001), "but a reader in order it is");
    }

    #[test]
    fn only_neighbours_of_one_pack_are_joined_up_to_the_bound() {
        let frame = |pack, offset, stored_bytes| FrameKey { pack, offset, stored_bytes };
        let frames = [
            frame(0, 32, 10),
            frame(0, 42, 10),
            frame(0, 60, 10),
            frame(1, 70, 10),
            frame(1, 80, 50),
            frame(1, 130, 60),
        ];
        let groups: Vec<usize> = join(&frames, 100).iter().map(|group| group.len()).collect();
        assert_eq!(groups, [2, 1, 2, 1]);
        assert!(join(&[], 100).is_empty());
    }
}
