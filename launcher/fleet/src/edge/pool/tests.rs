//! Numbers in place of spares.

use super::*;

const KEEP: Duration = Duration::from_secs(60);

fn shape(name: &str) -> Shape {
    Shape { image: ImageDigest::of(name.as_bytes()), limits: Limits::default() }
}

fn spec(name: &str) -> Spec {
    name.parse().unwrap()
}

struct World {
    pool: Pool<u32>,
    now: Instant,
    next: u32,
    removed: Vec<u32>,
}

impl World {
    fn new(most: usize) -> Self {
        Self { pool: Pool::new(Bounds { most, keep: KEEP }), now: Instant::now(), next: 0, removed: Vec::new() }
    }

    fn asked(&self, name: &str) {
        self.pool.asked(&spec(name), shape(name), self.now);
    }

    /// Does what is to be done, until there is nothing.
    fn settle(&mut self, short: bool) {
        loop {
            match self.pool.step(self.now, short) {
                Step::Make(shape) => {
                    self.next += 1;
                    let id: Id = format!("s-{}", self.next).parse().unwrap();
                    self.pool.making(&id);
                    assert!(self.pool.knows(id.as_str()));
                    self.pool.add(shape, id, self.next);
                }
                Step::Remove(spare) => self.removed.push(spare),
                Step::Wait(_) | Step::Done => return,
            }
            assert!(self.pool.count() <= self.pool.bounds.most);
        }
    }

    fn of(&self, name: &str) -> usize {
        let mut state = self.pool.lock();
        state.kind(shape(name)).map_or(0, |kind| kind.spares.len())
    }
}

#[test]
fn as_many_as_were_asked_for_lately_and_none_for_what_nobody_asks_for() {
    let mut world = World::new(8);
    world.settle(false);
    assert_eq!(world.pool.count(), 0);
    world.asked("a");
    world.settle(false);
    assert_eq!(world.of("a"), 1);
    world.now += KEEP / 2;
    world.asked("a");
    world.asked("a");
    world.settle(false);
    assert_eq!(world.of("a"), 3);
    world.now += KEEP / 2 + Duration::from_secs(1);
    world.settle(false);
    assert_eq!(world.of("a"), 2);
    world.now += KEEP;
    world.settle(false);
    assert_eq!((world.pool.count(), world.removed.len()), (0, 3));
    assert_eq!(world.pool.take(&spec("a"), Limits::default()), None);
}

#[test]
fn one_that_is_taken_is_gone_and_made_again() {
    let mut world = World::new(8);
    world.asked("a");
    world.settle(false);
    let (id, first) = world.pool.take(&spec("a"), Limits::default()).unwrap();
    assert_eq!((id.as_str(), first, world.pool.take(&spec("a"), Limits::default())), ("s-1", 1, None));
    assert!(!world.pool.knows("s-1"));
    world.settle(false);
    assert!(world.pool.knows("s-2"));
    let digest = Spec::Digest(shape("a").image);
    assert_eq!(world.pool.take(&digest, Limits { pids: 7, ..Limits::default() }), None);
    assert_eq!(world.pool.take(&spec("b"), Limits::default()), None);
    assert_eq!(world.pool.take(&digest, Limits::default()).unwrap().1, 2);
}

#[test]
fn where_one_does_not_fit_the_others_are_not_given_either() {
    let mut world = World::new(4);
    (0..3).for_each(|_| world.asked("a"));
    world.settle(false);
    world.pool.take(&spec("a"), Limits::default()).unwrap();
    world.pool.retire(shape("a"));
    assert!(world.pool.count() == 2 && world.pool.knows("s-1"));
    assert_eq!(world.pool.take(&spec("a"), Limits::default()), None);
    assert_eq!(world.pool.take_any().unwrap().1, 1, "what it occupies can be had");
    world.settle(false);
    assert_eq!((world.removed.as_slice(), world.of("a")), ([2].as_slice(), 3));
    assert_eq!(world.pool.take(&spec("a"), Limits::default()).unwrap().1, 6);
}

#[test]
fn a_name_means_what_it_meant_last_and_its_demand_goes_with_it() {
    let mut world = World::new(8);
    world.pool.asked(&spec("name"), shape("old"), world.now);
    world.pool.asked(&spec("name"), shape("old"), world.now);
    world.settle(false);
    world.pool.asked(&spec("name"), shape("new"), world.now);
    assert_eq!((world.of("old"), world.of("new")), (2, 0));
    world.settle(false);
    assert_eq!((world.of("old"), world.of("new")), (0, 3));
    world.pool.take(&spec("name"), Limits::default()).unwrap();
    assert_eq!(world.of("new"), 2);
}

#[test]
fn shapes_share_evenly_within_the_bound() {
    let mut world = World::new(8);
    (0..20).for_each(|_| world.asked("a"));
    world.settle(false);
    assert_eq!(world.of("a"), 8);
    world.asked("b");
    world.settle(false);
    assert_eq!((world.of("a"), world.of("b")), (7, 1));
    (0..20).for_each(|_| world.asked("c"));
    world.settle(false);
    assert_eq!((world.of("a"), world.of("b"), world.of("c")), (4, 1, 3));
    let many: Vec<_> = (0..200).map(|number| format!("n{number}")).collect();
    many.iter().for_each(|name| world.asked(name));
    world.settle(false);
    assert!(world.pool.count() == 8 && world.pool.lock().kinds.len() <= KINDS_MAX);
}

#[test]
fn they_give_way_to_starts_to_want_of_memory_and_to_the_end() {
    let mut world = World::new(4);
    (0..4).for_each(|_| world.asked("a"));
    let starting = world.pool.starting();
    assert!(matches!(world.pool.step(world.now, false), Step::Wait(_)));
    drop(starting);
    assert!(matches!(world.pool.step(world.now, false), Step::Wait(time) if time <= QUIET * 2));
    world.now = Instant::now() + QUIET;
    world.settle(false);
    assert_eq!(world.pool.count(), 4);
    assert_eq!(world.pool.take_any().unwrap().1, 1);
    world.settle(true);
    assert_eq!(world.pool.count(), 0);
    world.pool.failed(shape("a"), world.now);
    world.settle(false);
    assert_eq!(world.pool.count(), 0);
    world.now += PAUSE;
    world.settle(false);
    assert_eq!(world.pool.count(), 4);
    world.pool.close();
    world.settle(false);
    assert!(world.pool.count() == 0 && world.pool.step(world.now, false) == Step::Done);
}

#[test]
fn one_that_cannot_be_made_holds_up_its_like_only() {
    let mut world = World::new(8);
    world.asked("broken");
    world.asked("sound");
    assert_eq!(world.pool.step(world.now, false), Step::Make(shape("broken")));
    world.pool.failed(shape("broken"), world.now);
    world.settle(false);
    assert_eq!((world.of("broken"), world.of("sound")), (0, 1));
    world.now += PAUSE - Duration::from_millis(1);
    world.asked("sound");
    world.settle(false);
    assert_eq!((world.of("broken"), world.of("sound")), (0, 2));
    world.now += Duration::from_millis(1);
    world.settle(false);
    assert_eq!((world.of("broken"), world.of("sound")), (1, 2));
}

#[test]
fn none_at_all_remembers_nothing() {
    let mut world = World::new(0);
    world.asked("a");
    world.settle(false);
    assert!(world.pool.count() == 0 && world.pool.lock().kinds.is_empty() && world.pool.lock().names.is_empty());
}
