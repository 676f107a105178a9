//! A read-only map of a file.
//!
//! A map whose file is truncated afterwards kills the process that reads past the new end (SIGBUS). So map only files
//! that nobody else can shorten: sealed memfds, or files in a directory that only this system writes, which are replaced
//! by rename and never changed in place.

use std::os::fd::AsFd;

/// The bytes of a file, read-only, for as long as this value lives.
#[derive(Debug)]
pub struct Mapped {
    map: memmap2::Mmap,
}

impl Mapped {
    /// Maps the whole of `file` as it is now. See the module's warning about truncation.
    ///
    /// # Errors
    /// What `mmap` answers: among others EACCES when the file is not open for reading.
    pub fn open(file: impl AsFd) -> std::io::Result<Self> {
        use std::os::fd::AsRawFd;
        let descriptor = file.as_fd().as_raw_fd();
        // SAFETY: the map is private to reading; that the file keeps its length is the caller's part, stated above, and
        // breaking it ends the process by a signal but reads no memory that is not the file's.
        let map = unsafe { memmap2::MmapOptions::new().map(descriptor)? };
        Ok(Self { map })
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl std::ops::Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn shows_the_files_bytes() {
        let fd = rustix::fs::memfd_create("mapped", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(fd);
        file.write_all(b"seven bytes").unwrap();
        let mapped = Mapped::open(&file).unwrap();
        assert_eq!(&mapped[..], b"seven bytes");
    }

    #[test]
    fn an_empty_file_is_an_empty_map() {
        let fd = rustix::fs::memfd_create("mapped", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(Mapped::open(&fd).unwrap().is_empty());
    }
}
