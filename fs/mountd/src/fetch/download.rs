//! The requests themselves: one source after the other, checked, again after a while, until the deadline.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dsec_format::ChunkDigest;
use dsec_format::frame;
use dsec_format::locations::RECORD_BYTES;
use dsec_store::Error;
use dsec_store::error::Damage;

use super::flight::Landed;
use super::plan::{self, Run};
use super::sources::{Remote, is_transient};
use super::{Chunks, Shared};
use crate::chain::chain;
use crate::layer::{FrameKey, Layer, Located};

/// The pause after the first round in which no source helped; it doubles each time, and is varied.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Rounds in which all sources answer and none has the right bytes, before that is believed.
const MAX_WRONG_ROUNDS: u32 = 4;

/// How a round over the sources went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// A source could not be asked.
    Transient,
    /// All answered, none with the right bytes.
    Wrong,
}

impl Shared {
    /// Where a layer's chunks are, from the first source that says it.
    pub(super) fn locate_anywhere(&self, layer: &Layer, deadline: Instant) -> Result<Arc<Located>, Error> {
        let mut round = 0;
        loop {
            if let Some(located) = layer.any_located() {
                return Ok(located);
            }
            let mut failure = None;
            for (index, remote) in self.sources.in_order() {
                match self.locate_at(layer, index, remote) {
                    Ok(located) => return Ok(located),
                    Err(error) => failure = Some(error),
                }
            }
            round += 1;
            let failure = failure.unwrap_or_else(|| no_sources(layer));
            let wrong_for_good = !is_transient(&failure) && round >= MAX_WRONG_ROUNDS;
            if wrong_for_good || !pause(round, deadline) {
                return Err(failure);
            }
            self.counters.retries.increment();
        }
    }

    fn locate_at(&self, layer: &Layer, index: usize, remote: &Remote) -> Result<Arc<Located>, Error> {
        if let Some(located) = layer.located(index) {
            return Ok(located);
        }
        let answer = remote.source().read_locations(layer.digest(), layer.map().extents().len() as u64);
        remote.note(&answer);
        let locations = answer?;
        // One record an extent: before anything is made of what may be far more.
        let (need, have) = (layer.map().extents().len(), locations.records.len());
        if have != need {
            let bytes = |records: usize| (records * RECORD_BYTES) as u64;
            return Err(Error::Damaged {
                object: format!("locations of layer {}", layer.digest()),
                store: remote.source().describe(),
                source: Damage::Length { need_bytes: bytes(need), have_bytes: bytes(have) },
            });
        }
        let path = layer.directory().join(format!("locations-{index}"));
        let located = Arc::new(Located::create(&locations, &path));
        layer.set_located(index, Some(Arc::clone(&located)));
        Ok(located)
    }

    /// Brings the chunks of a run, as many as can be had before the deadline.
    pub(super) fn download(&self, layer: &Layer, run: &Run, deadline: Instant) -> Landed {
        let mut chunks = Chunks::with_capacity(run.extents.len());
        let (mut round, mut wrong_rounds) = (0, 0);
        loop {
            let Some(trouble) = self.round(layer, run, &mut chunks) else {
                return Landed { chunks, may_retry: false };
            };
            round += 1;
            wrong_rounds += u32::from(trouble == Trouble::Wrong);
            if wrong_rounds >= MAX_WRONG_ROUNDS {
                return Landed { chunks, may_retry: false };
            }
            if !pause(round, deadline) {
                return Landed { chunks, may_retry: true };
            }
            self.counters.retries.increment();
        }
    }

    /// Asks each source once for what is missing. None when nothing is.
    fn round(&self, layer: &Layer, run: &Run, chunks: &mut Chunks) -> Option<Trouble> {
        let mut trouble = Trouble::Wrong;
        for (index, remote) in self.sources.in_order() {
            let missing = missing(layer, run, chunks);
            if missing.is_empty() {
                return None;
            }
            let result = self
                .locate_at(layer, index, remote)
                .and_then(|located| self.download_from((index, remote), layer, &located, &missing, chunks));
            match result {
                Ok(()) => {}
                Err(error) => {
                    layer.set_trouble(chain(&error));
                    if is_transient(&error) {
                        trouble = Trouble::Transient;
                    } else {
                        if matches!(error, Error::Damaged { .. }) {
                            self.counters.corrupt.increment();
                        }
                        // The store may have moved its chunks.
                        layer.set_located(index, None);
                    }
                }
            }
        }
        if missing(layer, run, chunks).is_empty() { None } else { Some(trouble) }
    }

    /// Reads the frames that hold `extents` from one source. What is right is added to `chunks`.
    fn download_from(
        &self,
        (index, remote): (usize, &Remote),
        layer: &Layer,
        located: &Located,
        extents: &[u32],
        chunks: &mut Chunks,
    ) -> Result<(), Error> {
        let mut frames: BTreeMap<FrameKey, Vec<u32>> = BTreeMap::new();
        for extent in extents {
            let Some(chunk) = located.chunk(*extent) else { continue };
            frames.entry(chunk.frame).or_default().push(*extent);
        }
        let keys: Vec<FrameKey> = frames.keys().copied().collect();
        let mut wrong = false;
        for group in plan::join(&keys, self.options.join_bytes) {
            let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
            let Some(pack) = located.pack(first.pack) else { continue };
            let length = last.end() - first.offset;
            let stored = {
                let _pass = self.gate.enter(length);
                self.counters.requests.increment();
                let answer = remote.source().read_pack(pack, first.offset, length);
                remote.note(&answer);
                answer?
            };
            self.counters.bytes.add(stored.len() as u64);
            layer.fetched_bytes.add(stored.len() as u64);
            for frame in group {
                let start = usize::try_from(frame.offset - first.offset).unwrap_or(usize::MAX);
                let bytes = stored.get(start..start.saturating_add(frame.stored_bytes as usize));
                let wanted = frames.get(frame).map(Vec::as_slice).unwrap_or_default();
                let sound = bytes.is_some_and(|bytes| open_frame(layer, located, wanted, bytes, chunks));
                if !sound {
                    self.counters.corrupt.increment();
                    let (source, offset) = (remote.source().describe(), frame.offset);
                    layer.set_trouble(format!("pack {pack} of {source} has wrong bytes in its frame at {offset}"));
                    wrong = true;
                }
            }
        }
        if wrong {
            // The bytes were damaged, or the store has moved its chunks since it said where they are.
            layer.set_located(index, None);
        }
        Ok(())
    }
}

/// Decodes a frame and takes the wanted chunks whose digests are right. False when one is not.
fn open_frame(layer: &Layer, located: &Located, wanted: &[u32], stored: &[u8], chunks: &mut Chunks) -> bool {
    let mut decoded: HashMap<u32, Option<Vec<u8>>> = HashMap::new();
    let mut sound = true;
    for index in wanted {
        let (Some(chunk), Some(extent)) = (located.chunk(*index), layer.extent(*index)) else { continue };
        // Records of one frame may state different sizes: each is only good for the chunks that state it.
        let plain = decoded
            .entry(chunk.plain_bytes)
            .or_insert_with(|| frame::decode(chunk.codec, stored, chunk.plain_bytes).ok());
        let start = chunk.offset as usize;
        let range = start..start.saturating_add(extent.bytes.get() as usize);
        let bytes = plain.as_ref().and_then(|plain| plain.get(range));
        match bytes.filter(|bytes| ChunkDigest::of(bytes) == extent.chunk) {
            Some(bytes) => {
                chunks.entry(extent.chunk).or_insert_with(|| Arc::from(bytes));
            }
            None => sound = false,
        }
    }
    sound
}

fn missing(layer: &Layer, run: &Run, chunks: &Chunks) -> Vec<u32> {
    let lacks = |index: &u32| layer.extent(*index).is_some_and(|extent| !chunks.contains_key(&extent.chunk));
    run.extents.iter().copied().filter(lacks).collect()
}

fn no_sources(layer: &Layer) -> Error {
    Error::NotFound { object: format!("layer {}", layer.digest()), store: "a daemon without sources".to_owned() }
}

/// Waits before the next round. False when the deadline would pass.
fn pause(round: u32, deadline: Instant) -> bool {
    let pause = FIRST_PAUSE.saturating_mul(1 << round.min(10).saturating_sub(1)).min(LONGEST_PAUSE);
    // Between one half and the whole: the nanoseconds of the clock are random enough to spread what failed together.
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let pause = pause / 2 + pause.mul_f64(f64::from(clock.subsec_nanos() % 1000) / 2000.0);
    if Instant::now() + pause >= deadline {
        return false;
    }
    std::thread::sleep(pause);
    true
}
