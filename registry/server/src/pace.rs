//! How long one side of a transfer may keep the other waiting: for each next part of it, and in the long run.

use std::time::Duration;

/// Whoever is slower than this in the long run is given up.
const LEAST_BYTES_PER_SECOND: u32 = 16 * 1024;

/// Counts how far somebody is behind the least rate. Being ahead of it earns nothing: what the kernel has buffered at
/// once is no sign of life.
#[derive(Debug)]
pub(crate) struct Pace {
    progress: Duration,
    behind: Duration,
}

impl Pace {
    /// Somebody may be up to `progress` behind.
    pub(crate) fn new(progress: Duration) -> Self {
        Self { progress, behind: Duration::ZERO }
    }

    /// How long the next wait may be.
    pub(crate) fn patience(&self) -> Duration {
        self.progress.saturating_sub(self.behind)
    }

    /// A wait is over, and has brought `bytes`.
    pub(crate) fn passed(&mut self, waited: Duration, bytes: usize) {
        let worth = Duration::from_secs(bytes as u64) / LEAST_BYTES_PER_SECOND;
        self.behind = self.behind.saturating_add(waited).saturating_sub(worth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drip_is_given_up_and_a_stream_is_not() {
        for (bytes, lasts) in [(1, false), (16 * 1024, true), (1 << 20, true)] {
            let mut pace = Pace::new(Duration::from_secs(10));
            // What came at once is no reserve.
            pace.passed(Duration::ZERO, 1 << 30);
            for _ in 0..1000 {
                pace.passed(Duration::from_secs(1), bytes);
            }
            assert_eq!(!pace.patience().is_zero(), lasts, "{bytes} bytes a second");
            assert!(pace.patience() <= Duration::from_secs(10), "what was fast before may not stall for longer");
        }
    }
}
