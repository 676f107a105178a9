//! From a command's pipe into its [`Output`], to the end and a bounded while beyond.
//!
//! What the command's leader wrote arrives in full, however slow the reader: when the leader has ended, the bytes in the
//! pipe are counted and taken first. What it left running may write for the drain time more, then the output is closed.
//! Until all of that has ended too, the pipe is read and the bytes dropped, so that nobody blocks or dies of SIGPIPE.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;

use super::output::Output;

/// Most that is read at once: what a pipe holds by default.
const READ_BYTES: usize = 64 << 10;

/// One pipe.
#[derive(Debug)]
pub(super) struct Pump {
    pipe: Receiver,
    output: Arc<Output>,
}

/// What a read brought.
enum Read {
    Bytes(u64),
    Nothing,
    End,
}

impl Pump {
    /// Takes the reading end of a pipe.
    ///
    /// # Errors
    /// When it is no pipe, or the edge has no descriptors left for it.
    pub(super) fn new(pipe: OwnedFd, output: Arc<Output>) -> std::io::Result<Self> {
        Ok(Self { pipe: Receiver::from_owned_fd(pipe)?, output })
    }

    /// Reads until the end of the pipe, or `drain` after `leader_ended` turned true. The output is ended then. What is
    /// given back has a pipe that others still write to.
    pub(super) async fn run(self, mut leader_ended: watch::Receiver<bool>, drain: Duration) -> Option<Self> {
        let open = self.while_leader_runs(&mut leader_ended).await && self.beyond(drain).await;
        self.output.end();
        open.then_some(self)
    }

    /// Reads and drops, until the last writer is gone.
    pub(super) async fn discard(self) {
        let mut buffer = vec![0; 4 << 10];
        loop {
            match self.pipe.try_read(&mut buffer) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if self.pipe.readable().await.is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Whether the pipe is open still.
    async fn while_leader_runs(&self, leader_ended: &mut watch::Receiver<bool>) -> bool {
        loop {
            tokio::select! {
                biased;
                _ = leader_ended.wait_for(|ended| *ended) => return true,
                ready = self.pipe.readable() => if ready.is_err() { return false },
            }
            if matches!(self.read().await, Read::End) {
                return false;
            }
        }
    }

    /// Whether the pipe is open still.
    async fn beyond(&self, drain: Duration) -> bool {
        let mut left = rustix::io::ioctl_fionread(&self.pipe).unwrap_or(0);
        while left > 0 {
            match self.read().await {
                Read::Bytes(bytes) => left = left.saturating_sub(bytes),
                // They are there, unless a process of the sandbox has opened the pipe and taken them.
                Read::Nothing => match tokio::time::timeout(drain, self.pipe.readable()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return false,
                    Err(_) => break,
                },
                Read::End => return false,
            }
        }
        let deadline = tokio::time::Instant::now() + drain;
        while tokio::time::Instant::now() < deadline {
            match self.read().await {
                Read::Bytes(_) => {}
                Read::Nothing => match tokio::time::timeout_at(deadline, self.pipe.readable()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return false,
                    Err(_) => return true,
                },
                Read::End => return false,
            }
        }
        true
    }

    /// One read, into the output.
    async fn read(&self) -> Read {
        // Made for each burst of output: a quiet command costs no buffer.
        let mut buffer = Vec::with_capacity(READ_BYTES);
        match self.pipe.try_read_buf(&mut buffer) {
            Ok(0) => Read::End,
            Ok(count) => {
                self.output.push(&buffer).await;
                Read::Bytes(count as u64)
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Read::Nothing,
            Err(error) => {
                tracing::warn!(%error, "a command's output cannot be read");
                Read::End
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::output::{Budget, Caps, Piece};
    use super::*;
    use std::io::Write;

    async fn all(output: &Arc<Output>) -> Vec<u8> {
        let (reader, mut bytes) = (output.reader(0), Vec::new());
        while let Some(piece) = reader.next().await {
            let Piece::Bytes(part) = piece else { panic!("bytes were skipped") };
            bytes.extend_from_slice(&part);
        }
        bytes
    }

    #[tokio::test]
    async fn what_the_leader_wrote_arrives_even_to_a_slow_reader() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let caps = Caps { head_bytes: 100, tail_bytes: 1000, stall: Duration::from_secs(5) };
        let output = Output::new(caps, Budget::new(1 << 20));
        let slow = output.reader(0);
        let (ended, leader_ended) = watch::channel(false);
        let pump = Pump::new(reader.into(), Arc::clone(&output)).unwrap();
        let pump = tokio::spawn(pump.run(leader_ended, Duration::from_millis(50)));
        writer.write_all(&[7; 60_000]).unwrap();
        ended.send(true).unwrap();
        let mut got = 0;
        while let Some(piece) = slow.next().await {
            let Piece::Bytes(part) = piece else { panic!("bytes were skipped") };
            got += part.len();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(got, 60_000);
        assert!(pump.await.unwrap().is_some(), "the writer is open still");
        drop(writer);
    }

    #[tokio::test]
    async fn one_left_behind_neither_holds_it_up_nor_blocks() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let output = Output::new(Caps::default(), Budget::new(8 << 20));
        let (ended, leader_ended) = watch::channel(false);
        writer.write_all(b"hi").unwrap();
        ended.send(true).unwrap();
        let begun = std::time::Instant::now();
        let pump = Pump::new(reader.into(), Arc::clone(&output)).unwrap();
        let left = pump.run(leader_ended, Duration::from_millis(100)).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert_eq!(all(&output).await, b"hi");
        let discard = tokio::spawn(left.discard());
        let written = tokio::task::spawn_blocking(move || {
            for _ in 0..100 {
                writer.write_all(&[1; 10_000]).unwrap();
            }
        });
        written.await.unwrap();
        discard.await.unwrap();
        assert_eq!(output.totals().bytes, 2);
    }

    #[tokio::test]
    async fn the_end_of_the_pipe_is_the_end() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let output = Output::new(Caps::default(), Budget::new(8 << 20));
        let (_ended, leader_ended) = watch::channel(false);
        writer.write_all(b"bye").unwrap();
        drop(writer);
        let pump = Pump::new(reader.into(), Arc::clone(&output)).unwrap();
        assert!(pump.run(leader_ended, Duration::from_secs(100)).await.is_none());
        assert_eq!(all(&output).await, b"bye");
    }
}
