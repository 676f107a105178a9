//! A bound on the time that a stream may take: a source that drips is a source that fails.

use std::io::Read;
use std::time::{Duration, Instant};

/// A stream that fails when it has not brought a least number of bytes a second, after a first while.
#[derive(Debug)]
pub struct Paced<R> {
    stream: R,
    started: Instant,
    grace: Duration,
    bytes_per_second: u64,
    have_bytes: u64,
}

impl<R> Paced<R> {
    /// Time that every stream may take.
    pub const GRACE: Duration = Duration::from_secs(30);
    /// Slower than any link that images are worth serving over.
    pub const BYTES_PER_SECOND: u64 = 32 << 10;

    /// A stream that has `grace`, and a second more for each `bytes_per_second` that it has brought.
    pub fn new(stream: R, grace: Duration, bytes_per_second: u64) -> Self {
        Self { stream, started: Instant::now(), grace, bytes_per_second: bytes_per_second.max(1), have_bytes: 0 }
    }
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let have = self.stream.read(buffer)?;
        self.have_bytes += have as u64;
        let earned = Duration::from_secs(self.have_bytes / self.bytes_per_second);
        if have > 0 && self.started.elapsed() > self.grace.saturating_add(earned) {
            return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "the source is too slow"));
        }
        Ok(have)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Drip;

    impl Read for Drip {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            std::thread::sleep(Duration::from_millis(5));
            buffer.fill(1);
            Ok(buffer.len().min(1))
        }
    }

    #[test]
    fn who_drips_is_cut_off_and_who_flows_is_not() {
        let start = Instant::now();
        let error = std::io::copy(&mut Paced::new(Drip, Duration::from_millis(50), 1000), &mut std::io::sink());
        assert_eq!(error.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(2));
        let mut fast = Paced::new(Drip.take(20), Duration::ZERO, 1);
        assert_eq!(fast.read_to_end(&mut Vec::new()).unwrap(), 20);
    }
}
