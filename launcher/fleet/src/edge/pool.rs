//! How many spares there are of which shape: counting, sharing, expiry. No sandbox is touched here.
//!
//! - As many are wanted of a shape as were asked for within the last while ([`Bounds::keep`]); so one that nobody
//!   asks for any more has none.
//! - All together are never more than [`Bounds::most`]. Where more are wanted, shapes share evenly, so that those
//!   which want little get it.
//! - None is made while a sandbox or a command is being started, nor right after: what was started wants the processors.
//! - Where one cannot be made, its shape waits for a while, and no other does.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dsec_format::ImageDigest;
use dsec_format::refs::Spec;
use dsec_sandbox::{Id, Limits};
use tokio::sync::Notify;

/// Shapes that are remembered; the one that was asked for longest ago gives way.
const KINDS_MAX: usize = 64;
/// Names whose last meaning is remembered; too many, and all are forgotten.
const NAMES_MAX: usize = 1024;
/// Between two looks while there are spares: memory may have become short.
const LOOK: Duration = Duration::from_secs(1);
/// The same without any: only a request changes anything.
const NOTHING: Duration = Duration::from_secs(3600);
/// After the last start. A short command has ended by then, and whoever asked for it has its end.
const QUIET: Duration = Duration::from_millis(2);
/// After a spare could not be made, until the next of its shape is tried.
const PAUSE: Duration = Duration::from_secs(5);

/// What is baked into a sandbox when it is made. A request that says anything else about that gets no spare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// The image, resolved.
    pub image: ImageDigest,
    /// Its limits.
    pub limits: Limits,
}

/// How many there may be, and for how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// All together; none at all when 0.
    pub most: usize,
    /// How long a request counts.
    pub keep: Duration,
}

/// Spares of type `S`, by shape.
#[derive(Debug)]
pub(super) struct Pool<S> {
    bounds: Bounds,
    state: Mutex<State<S>>,
    starts: AtomicUsize,
    work: Notify,
}

#[derive(Debug)]
struct State<S> {
    kinds: Vec<Kind<S>>,
    /// To be removed: see [`Pool::retire`].
    retired: VecDeque<(Id, S)>,
    /// What a name meant when it was last resolved: a guess, which every request checks.
    names: HashMap<String, ImageDigest>,
    /// The spare that is being made.
    making: Option<Id>,
    not_before: Option<Instant>,
    closed: bool,
}

#[derive(Debug)]
struct Kind<S> {
    shape: Shape,
    /// When it was asked for: the last [`Bounds::most`] times.
    asked: VecDeque<Instant>,
    spares: VecDeque<(Id, S)>,
    /// Since one could not be made: when to try again.
    retry: Option<Instant>,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<S> {
    /// Make one.
    Make(Shape),
    /// Remove this one.
    Remove(S),
    /// Nothing, for so long or until something changes.
    Wait(Duration),
    /// Nothing any more: there are none, and there will be none.
    Done,
}

/// While it lives, something is being started.
#[derive(Debug)]
pub(super) struct Starting<'a, S>(&'a Pool<S>);

impl<S> Drop for Starting<'_, S> {
    fn drop(&mut self) {
        if self.0.starts.fetch_sub(1, Ordering::AcqRel) == 1 && self.0.bounds.most > 0 {
            self.0.lock().not_before(Instant::now() + QUIET);
            self.0.work.notify_one();
        }
    }
}

impl<S> Pool<S> {
    /// No spares yet.
    pub(super) fn new(bounds: Bounds) -> Self {
        let state = State {
            kinds: Vec::new(),
            retired: VecDeque::new(),
            names: HashMap::new(),
            making: None,
            not_before: None,
            closed: false,
        };
        Self { bounds, state: Mutex::new(state), starts: AtomicUsize::new(0), work: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is being started, for as long as the answer lives.
    pub(super) fn starting(&self) -> Starting<'_, S> {
        self.starts.fetch_add(1, Ordering::AcqRel);
        Starting(self)
    }

    /// A spare for what is probably meant by `image`, with its id.
    pub(super) fn take(&self, image: &Spec, limits: Limits) -> Option<(Id, S)> {
        let mut state = self.lock();
        let image = match image {
            Spec::Digest(digest) => *digest,
            Spec::Name(_) => *state.names.get(&image.to_string())?,
        };
        let shape = Shape { image, limits };
        // The newest: what belongs to it is in the processor's caches still.
        state.kind(shape)?.spares.pop_back()
    }

    /// Any spare, with its id: what it occupies is wanted. One that is given to nobody else, or the one that is missed least.
    pub(super) fn take_any(&self) -> Option<(Id, S)> {
        let mut state = self.lock();
        if let Some(retired) = state.retired.pop_front() {
            return Some(retired);
        }
        let has = state.kinds.iter_mut().filter(|kind| !kind.spares.is_empty());
        has.min_by_key(|kind| kind.asked.back().copied())?.spares.pop_front()
    }

    /// One of these has turned out not to fit, so that the others are not to be relied on either: none of them is given any
    /// more.
    pub(super) fn retire(&self, shape: Shape) {
        let mut state = self.lock();
        let spares = state.kind(shape).map(|kind| std::mem::take(&mut kind.spares)).unwrap_or_default();
        state.retired.extend(spares);
    }

    /// Notes that a sandbox of this shape was asked for, under this name, and that there is one: a request that is
    /// refused counts for nothing.
    pub(super) fn asked(&self, image: &Spec, shape: Shape, now: Instant) {
        if self.bounds.most == 0 {
            return;
        }
        let mut state = self.lock();
        let mut asked = state.meant(image, shape);
        let kind = state.kind_or_new(shape);
        asked.extend(kind.asked.drain(..));
        asked.make_contiguous().sort_unstable();
        asked.push_back(now);
        asked.drain(..asked.len().saturating_sub(self.bounds.most));
        kind.asked = asked;
    }

    /// This one is being made: it is known from now on.
    pub(super) fn making(&self, id: &Id) {
        self.lock().making = Some(id.clone());
    }

    /// The one that was being made is there.
    pub(super) fn add(&self, shape: Shape, id: Id, spare: S) {
        let mut state = self.lock();
        state.making = None;
        state.kind_or_new(shape).spares.push_back((id, spare));
    }

    /// The one that was being made is not. Others may well be made.
    pub(super) fn failed(&self, shape: Shape, now: Instant) {
        let mut state = self.lock();
        state.making = None;
        if let Some(kind) = state.kind(shape) {
            kind.retry = Some(now + PAUSE);
        }
    }

    /// Whether there is a spare of this id, or one in the making.
    pub(super) fn knows(&self, id: &str) -> bool {
        let state = self.lock();
        let mut spares = state.kinds.iter().flat_map(|kind| &kind.spares).chain(&state.retired);
        state.making.as_ref().is_some_and(|making| making.as_str() == id) || spares.any(|(own, _)| own.as_str() == id)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        let state = self.lock();
        state.kinds.iter().map(|kind| kind.spares.len()).sum::<usize>() + state.retired.len()
    }

    /// Makes none from now on.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.work.notify_one();
    }

    /// Returns when there may be something to do.
    pub(super) async fn changed(&self) {
        self.work.notified().await;
    }

    /// What to do next; `short` says that memory is.
    pub(super) fn step(&self, now: Instant, short: bool) -> Step<S> {
        let mut state = self.lock();
        state.forget(now, self.bounds.keep);
        if let Some((_, spare)) = state.retired.pop_front() {
            return Step::Remove(spare);
        }
        if state.closed || short {
            return match state.kinds.iter_mut().find_map(|kind| kind.spares.pop_front()) {
                Some((_, spare)) => Step::Remove(spare),
                None if state.closed => Step::Done,
                None => Step::Wait(LOOK),
            };
        }
        if state.kinds.is_empty() {
            return Step::Wait(NOTHING);
        }
        let shares = state.shares(self.bounds.most);
        for (kind, share) in state.kinds.iter_mut().zip(&shares) {
            if kind.spares.len() > *share
                && let Some((_, spare)) = kind.spares.pop_front()
            {
                return Step::Remove(spare);
            }
        }
        let lacking = state.kinds.iter().zip(&shares).filter(|(kind, share)| kind.spares.len() < **share);
        let open = lacking.filter(|(kind, _)| kind.retry.is_none_or(|time| time <= now));
        let Some((kind, _)) = open.min_by_key(|(kind, _)| kind.spares.len()) else { return Step::Wait(LOOK) };
        let quiet = state.not_before.map(|time| time.saturating_duration_since(now)).filter(|left| !left.is_zero());
        match quiet {
            Some(left) => Step::Wait(left.min(LOOK)),
            None if self.starts.load(Ordering::Acquire) > 0 => Step::Wait(LOOK),
            None => Step::Make(kind.shape),
        }
    }
}

impl<S> State<S> {
    /// None is made before this time, and none before what was said earlier.
    fn not_before(&mut self, time: Instant) {
        self.not_before = self.not_before.max(Some(time));
    }

    fn kind(&mut self, shape: Shape) -> Option<&mut Kind<S>> {
        self.kinds.iter_mut().find(|kind| kind.shape == shape)
    }

    /// Notes what a name means. When it meant another image before, what was asked of that goes with the name.
    fn meant(&mut self, image: &Spec, shape: Shape) -> VecDeque<Instant> {
        let Spec::Name(_) = image else { return VecDeque::new() };
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        let before = self.names.insert(image.to_string(), shape.image);
        let before = before.filter(|before| *before != shape.image);
        let before = before.and_then(|image| self.kind(Shape { image, ..shape }));
        before.map(|kind| std::mem::take(&mut kind.asked)).unwrap_or_default()
    }

    fn kind_or_new(&mut self, shape: Shape) -> &mut Kind<S> {
        let at = self.kinds.iter().position(|kind| kind.shape == shape).unwrap_or_else(|| {
            let idle = |kind: &Kind<S>| kind.spares.is_empty();
            if self.kinds.len() >= KINDS_MAX
                && let Some(oldest) = (0..self.kinds.len())
                    .filter(|at| self.kinds.get(*at).is_some_and(idle))
                    .min_by_key(|at| self.kinds.get(*at).and_then(|kind| kind.asked.back().copied()))
            {
                self.kinds.remove(oldest);
            }
            self.kinds.push(Kind { shape, asked: VecDeque::new(), spares: VecDeque::new(), retry: None });
            self.kinds.len() - 1
        });
        // It was found, or has just been added.
        self.kinds.get_mut(at).expect("an index of a kind that is there")
    }

    /// Requests that count no more, shapes without any, and names of those.
    fn forget(&mut self, now: Instant, keep: Duration) {
        for kind in &mut self.kinds {
            while kind.asked.front().is_some_and(|time| now.saturating_duration_since(*time) > keep) {
                kind.asked.pop_front();
            }
        }
        self.kinds.retain(|kind| !kind.asked.is_empty() || !kind.spares.is_empty());
        let kinds = &self.kinds;
        self.names.retain(|_, image| kinds.iter().any(|kind| kind.shape.image == *image));
    }

    /// How many each shape gets of `most`: what it wants, or an even share. Where there is not one for each, those
    /// come first that are asked for most.
    fn shares(&self, most: usize) -> Vec<usize> {
        let mut shares = vec![0; self.kinds.len()];
        for _ in 0..most {
            let wants = self.kinds.iter().map(|kind| kind.asked.len());
            let open = shares.iter_mut().zip(wants).filter(|(share, wants)| **share < *wants);
            let Some((share, _)) = open.min_by_key(|(share, wants)| (**share, std::cmp::Reverse(*wants))) else {
                break;
            };
            *share += 1;
        }
        shares
    }
}

#[cfg(test)]
mod tests;
