//! Who is connected, and who has to go when there are too many.
//!
//! Whoever has sent the head of a request is served to the end. A connection that waits for one, new or idle, costs
//! little and is worth little: when there is no room, the oldest of these makes room. So connections that say nothing
//! shut nobody out, however many there are. One client may have a part of all connections only.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

/// All connections of a registry.
pub(crate) struct Connections {
    most: usize,
    most_of_client: usize,
    table: Mutex<Table>,
    /// Somebody has left, or waits for a request.
    changed: Notify,
}

#[derive(Default)]
struct Table {
    next: u64,
    entries: BTreeMap<u64, Entry>,
    of_client: HashMap<IpAddr, usize>,
}

struct Entry {
    client: IpAddr,
    /// Since when it has been waiting for a head; `None` while a request is under way.
    waiting: Option<Instant>,
    end: Arc<Notify>,
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A head is due: the connection is new, or a part of a head has come.
    Head = 0,
    /// A request is under way.
    Request = 1,
    /// Nothing has come since the last request.
    Idle = 2,
}

/// The place of one connection. Left when dropped.
pub(crate) struct Seat {
    id: u64,
    connections: Arc<Connections>,
    phase: AtomicU8,
    end: Arc<Notify>,
}

/// What became of a connection that wants in.
enum Entrance {
    In(u64, Arc<Notify>),
    /// The client has as many as it may, all of them in use.
    TooMany,
    /// All connections are in use.
    Full,
}

/// What counts as one client: an address, and of an IPv6 address the network, since every host has many in one.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address @ IpAddr::V4(_) => address,
    }
}

impl Connections {
    pub(crate) fn new(most: usize, most_of_client: usize) -> Arc<Self> {
        Arc::new(Self { most, most_of_client, table: Mutex::default(), changed: Notify::new() })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No change of the table can be left half done.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection from `address`, as soon as there is one; `None` when this client has too many. Must not
    /// be waited for by two at a time.
    pub(crate) async fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Arc<Seat>> {
        loop {
            let entrance = self.table().enter(client_of(address), self.most, self.most_of_client);
            match entrance {
                Entrance::In(id, end) => {
                    let phase = AtomicU8::new(Phase::Head as u8);
                    return Some(Arc::new(Seat { id, connections: Arc::clone(self), phase, end }));
                }
                Entrance::TooMany => return None,
                Entrance::Full => self.changed.notified().await,
            }
        }
    }
}

impl Table {
    fn enter(&mut self, client: IpAddr, most: usize, most_of_client: usize) -> Entrance {
        if self.of_client.get(&client).is_some_and(|present| *present >= most_of_client) {
            if !self.end_oldest_waiting(|entry| entry.client == client) {
                return Entrance::TooMany;
            }
        } else if self.entries.len() >= most && !self.end_oldest_waiting(|_| true) {
            return Entrance::Full;
        }
        let (id, end) = (self.next, Arc::new(Notify::new()));
        self.next += 1;
        self.entries.insert(id, Entry { client, waiting: Some(Instant::now()), end: Arc::clone(&end) });
        *self.of_client.entry(client).or_default() += 1;
        Entrance::In(id, end)
    }

    /// Ends the connection that has been waiting for a head for longest, of those that `may` end.
    fn end_oldest_waiting(&mut self, may: impl Fn(&Entry) -> bool) -> bool {
        let waiting = self.entries.iter().filter(|(_, entry)| may(entry));
        let oldest = waiting.filter_map(|(id, entry)| Some((entry.waiting?, *id))).min();
        let Some((_, id)) = oldest else { return false };
        if let Some(entry) = self.leave(id) {
            entry.end.notify_one();
        }
        true
    }

    fn leave(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        if let Some(present) = self.of_client.get_mut(&entry.client) {
            *present -= 1;
            if *present == 0 {
                self.of_client.remove(&entry.client);
            }
        }
        Some(entry)
    }

    fn set_waiting(&mut self, id: u64, waiting: Option<Instant>) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.waiting = waiting;
        }
    }
}

impl Seat {
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Head,
            1 => Phase::Request,
            _ => Phase::Idle,
        }
    }

    fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// The first bytes of a further head have come.
    pub(crate) fn head(&self) {
        self.set_phase(Phase::Head);
    }

    /// A head was complete: a request begins.
    pub(crate) fn begin(&self) {
        self.set_phase(Phase::Request);
        self.connections.table().set_waiting(self.id, None);
    }

    /// A request was answered.
    pub(crate) fn idle(&self) {
        self.set_phase(Phase::Idle);
        self.connections.table().set_waiting(self.id, Some(Instant::now()));
        self.connections.changed.notify_one();
    }

    /// Done when the connection has to make room.
    pub(crate) fn ended(&self) -> Notified<'_> {
        self.end.notified()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connections.table().leave(self.id);
        self.connections.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    async fn is_ended(seat: &Seat) -> bool {
        tokio::time::timeout(Duration::from_millis(1), seat.ended()).await.is_ok()
    }

    #[tokio::test]
    async fn who_has_waited_longest_makes_room() {
        let connections = Connections::new(3, 3);
        let mut seats = Vec::new();
        for _ in 0..3 {
            seats.push(connections.enter(address(1)).await.unwrap());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // The first is being served, and the second has just been.
        seats[0].begin();
        seats[1].begin();
        seats[1].idle();
        let new = connections.enter(address(2)).await.unwrap();
        assert!(is_ended(&seats[2]).await && !is_ended(&seats[0]).await && !is_ended(&seats[1]).await);
        new.begin();
        let newer = connections.enter(address(2)).await.unwrap();
        assert!(is_ended(&seats[1]).await && !is_ended(&seats[0]).await);
        newer.begin();
        // All are in use: whoever comes now waits.
        let enter = connections.enter(address(3));
        tokio::pin!(enter);
        assert!(tokio::time::timeout(Duration::from_millis(100), &mut enter).await.is_err());
        seats[0].idle();
        assert!(tokio::time::timeout(Duration::from_secs(10), enter).await.unwrap().is_some());
        assert!(is_ended(&seats[0]).await);
    }

    #[tokio::test]
    async fn one_client_has_its_part_only() {
        let connections = Connections::new(10, 2);
        let (one, two) = (connections.enter(address(1)).await.unwrap(), connections.enter(address(1)).await.unwrap());
        one.begin();
        let three = connections.enter(address(1)).await.unwrap();
        assert!(is_ended(&two).await && !is_ended(&one).await);
        three.begin();
        assert!(connections.enter(address(1)).await.is_none());
        assert!(connections.enter(address(2)).await.is_some());
        drop(one);
        // A connection that was ended leaves once, whenever its seat is dropped.
        drop(two);
        assert!(connections.enter(address(1)).await.is_some());
        assert_eq!(connections.table().of_client.len(), 1);
    }

    #[test]
    fn a_network_is_one_client() {
        let parse = |text: &str| client_of(text.parse().unwrap());
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:1"));
        assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
        assert_eq!(parse("::ffff:10.0.0.1"), parse("10.0.0.1"));
        assert_ne!(parse("10.0.0.1"), parse("10.0.0.2"));
    }
}
