//! What starts hold until they are decided: arguments and variables, in memory that no limit of a sandbox counts.
//!
//! A tenant can stop its own commands on their way, and with them what they hold. So each sandbox has room for so much,
//! and a start that finds none waits; what waits is bounded as well. Nobody but that sandbox's callers waits here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room for what one sandbox's starts hold. A larger one has all of it.
const ROOM_BYTES: u32 = 16 << 20;
/// Room for what its starts hold that wait for that.
const WAITING_BYTES: u32 = 64 << 20;

/// One sandbox's room.
#[derive(Debug)]
pub(super) struct Arguments {
    room: Arc<Semaphore>,
    waiting: Semaphore,
}

/// Why a start gets no room.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// So much waits already that it may not even wait.
    Queue,
    /// Its time is up.
    Time,
}

impl Default for Arguments {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(ROOM_BYTES as usize)), waiting: Semaphore::new(WAITING_BYTES as usize) }
    }
}

impl Arguments {
    /// Room for a start that holds so much, for as long as the answer lives.
    ///
    /// # Errors
    /// [`Full`], after `patience` at the latest.
    pub(super) async fn room(&self, bytes: usize, patience: Duration) -> Result<OwnedSemaphorePermit, Full> {
        let within = |most: u32| u32::try_from(bytes).map_or(most, |bytes| bytes.min(most));
        let wanted = within(ROOM_BYTES);
        if let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(wanted) {
            return Ok(room);
        }
        let _waits = self.waiting.try_acquire_many(within(WAITING_BYTES)).map_err(|_| Full::Queue)?;
        match tokio::time::timeout(patience, Arc::clone(&self.room).acquire_many_owned(wanted)).await {
            // Neither is ever closed.
            Ok(room) => room.map_err(|_| Full::Time),
            Err(_) => Err(Full::Time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const SOON: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn what_finds_no_room_waits_for_it_or_until_its_time_is_up() {
        let arguments = Arguments::default();
        let mut held = Vec::new();
        for _ in 0..16 {
            held.push(arguments.room(MIB, SOON).await.unwrap());
        }
        assert_eq!(arguments.room(1, SOON).await.unwrap_err(), Full::Time);
        let freed = async {
            tokio::time::sleep(SOON).await;
            held.pop();
        };
        let (room, ()) = tokio::join!(arguments.room(MIB, SOON * 100), freed);
        assert!(room.is_ok());
    }

    #[tokio::test]
    async fn what_is_larger_than_the_room_has_it_alone() {
        let arguments = Arguments::default();
        let small = arguments.room(1, SOON).await.unwrap();
        assert_eq!(arguments.room(40 * MIB, SOON).await.unwrap_err(), Full::Time);
        drop(small);
        let large = arguments.room(usize::MAX, SOON).await.unwrap();
        assert_eq!(arguments.room(1, SOON).await.unwrap_err(), Full::Time);
        drop(large);
        assert!(arguments.room(1, SOON).await.is_ok());
    }

    #[tokio::test]
    async fn what_waits_is_bounded_too() {
        let arguments = Arguments::default();
        let _all = arguments.room(16 * MIB, SOON).await.unwrap();
        let waits = || arguments.room(32 * MIB, SOON * 10);
        let one_more = async {
            tokio::time::sleep(SOON).await;
            arguments.room(1, SOON).await.map(drop)
        };
        let (first, second, third) = tokio::join!(waits(), waits(), one_more);
        assert_eq!((first.unwrap_err(), second.unwrap_err(), third), (Full::Time, Full::Time, Err(Full::Queue)));
        assert_eq!(arguments.room(1, SOON).await.unwrap_err(), Full::Time, "what waited has gone");
    }
}
