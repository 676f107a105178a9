//! Reading from what may have nothing to read for long: a pipe, a terminal, a socket.
//!
//! A reader never waits inside `read`: it waits until there is something to read, or the end, and looks meanwhile whether
//! it was asked to stop. A regular file always has something to read, so for it this is no more than that look.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::cancel::{Cancel, Cancelled};

/// How often the flag is looked at. It may be set by a signal that another thread gets, which ends no wait here.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// See the [module](self). Its reads fail with an error that holds [`Cancelled`] once somebody has asked.
#[derive(Debug)]
pub(super) struct Interruptible {
    file: File,
    cancel: Cancel,
}

impl Interruptible {
    pub(super) fn new(file: File, cancel: &Cancel) -> Self {
        Self { file, cancel: cancel.clone() }
    }

    /// Standard input, past the buffer that the process has for it.
    pub(super) fn stdin(cancel: &Cancel) -> io::Result<Self> {
        let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        Ok(Self::new(file, cancel))
    }

    /// Waits until a read does not wait.
    fn wait(&self) -> io::Result<()> {
        loop {
            self.cancel.check().map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&LOOK_EVERY)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Read for Interruptible {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.wait()?;
            match self.file.read(buffer) {
                // Somebody else reads there as well, and was first.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                read => return read,
            }
        }
    }
}

/// Whether a read failed because it was asked to stop.
pub(super) fn is_cancelled(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Cancelled>())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_there_is_is_read_and_a_wait_for_more_ends_when_asked() {
        let (reader, mut writer) = io::pipe().unwrap();
        let cancel = Cancel::new();
        let mut reader = Interruptible::new(File::from(std::os::fd::OwnedFd::from(reader)), &cancel);
        writer.write_all(b"abc").unwrap();
        let mut buffer = [0; 8];
        assert_eq!(reader.read(&mut buffer).unwrap(), 3);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| reader.read(&mut [0; 8]));
            std::thread::sleep(Duration::from_millis(200));
            assert!(!waiting.is_finished(), "it waits");
            cancel.cancel();
            let error = waiting.join().unwrap().unwrap_err();
            assert!(is_cancelled(&error), "{error:?}");
        });
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn the_end_is_seen() {
        let (reader, writer) = io::pipe().unwrap();
        let mut reader = Interruptible::new(File::from(std::os::fd::OwnedFd::from(reader)), &Cancel::new());
        drop(writer);
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
    }
}
