//! What an inode is: attributes, kind, times and where its bytes lie. Shared by the tree, the writer and the reader.

use crate::format;

/// A point in time. Negative seconds lie before 1970; the nanoseconds always count forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z.
    pub secs: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanos: u32,
}

/// What every inode has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Attributes {
    /// Permissions with set-id and sticky bits, at most `0o7777`. The type is in [`Kind`].
    pub mode: u16,
    /// Owner, below 2^32 - 1.
    pub uid: u32,
    /// Group, below 2^32 - 1.
    pub gid: u32,
    /// Last modification. EROFS has no other time: it answers with this one for all of them.
    pub mtime: Timestamp,
}

/// A device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Device {
    /// At most [`format::MAJOR_MAX`].
    pub major: u32,
    /// At most [`format::MINOR_MAX`].
    pub minor: u32,
}

/// What an inode is, with what is particular to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind<'a> {
    /// A directory.
    Directory,
    /// A file of this many bytes; its segments say where they lie.
    Regular {
        /// Size of the file.
        bytes: u64,
    },
    /// A symbolic link to this target, 1 to 4,095 bytes without NUL.
    Symlink(&'a [u8]),
    /// A character device. 0:0 is overlay's whiteout.
    CharDevice(Device),
    /// A block device.
    BlockDevice(Device),
    /// A named pipe.
    Fifo,
    /// A Unix domain socket.
    Socket,
}

impl Kind<'_> {
    /// The type alone.
    pub fn file_type(&self) -> FileType {
        match self {
            Kind::Directory => FileType::Directory,
            Kind::Regular { .. } => FileType::Regular,
            Kind::Symlink(_) => FileType::Symlink,
            Kind::CharDevice(_) => FileType::CharDevice,
            Kind::BlockDevice(_) => FileType::BlockDevice,
            Kind::Fifo => FileType::Fifo,
            Kind::Socket => FileType::Socket,
        }
    }

    /// Whether overlay takes it for "nothing is here, whatever the layers below have".
    pub fn is_whiteout(&self) -> bool {
        *self == Kind::CharDevice(Device { major: 0, minor: 0 })
    }
}

/// The type of an inode. The discriminants are those of EROFS directory entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileType {
    /// A file with data.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A character device.
    CharDevice = 3,
    /// A block device.
    BlockDevice = 4,
    /// A named pipe.
    Fifo = 5,
    /// A Unix domain socket.
    Socket = 6,
    /// A symbolic link.
    Symlink = 7,
}

impl FileType {
    /// The type in a directory entry, if the byte is one.
    pub fn from_dirent(byte: u8) -> Option<FileType> {
        match byte {
            1 => Some(FileType::Regular),
            2 => Some(FileType::Directory),
            3 => Some(FileType::CharDevice),
            4 => Some(FileType::BlockDevice),
            5 => Some(FileType::Fifo),
            6 => Some(FileType::Socket),
            7 => Some(FileType::Symlink),
            _ => None,
        }
    }

    /// The type in an `st_mode`, if it is one.
    pub fn from_mode(mode: u16) -> Option<FileType> {
        match mode & 0o170_000 {
            0o100_000 => Some(FileType::Regular),
            0o040_000 => Some(FileType::Directory),
            0o020_000 => Some(FileType::CharDevice),
            0o060_000 => Some(FileType::BlockDevice),
            0o010_000 => Some(FileType::Fifo),
            0o140_000 => Some(FileType::Socket),
            0o120_000 => Some(FileType::Symlink),
            _ => None,
        }
    }

    /// The type bits of an `st_mode`.
    pub fn mode_bits(self) -> u16 {
        match self {
            FileType::Regular => 0o100_000,
            FileType::Directory => 0o040_000,
            FileType::CharDevice => 0o020_000,
            FileType::BlockDevice => 0o060_000,
            FileType::Fifo => 0o010_000,
            FileType::Socket => 0o140_000,
            FileType::Symlink => 0o120_000,
        }
    }
}

/// A range of a file that has data. What no segment covers is a hole.
///
/// All three numbers are multiples of 4,096, except that the last segment may end at the end of its file. On the
/// device a segment always takes whole blocks; what lies behind the end of the file there must read as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Where it starts in the file.
    pub file_offset: u64,
    /// Its length.
    pub bytes: u64,
    /// Where it starts on the layer's virtual data device.
    pub device_offset: u64,
}

/// A whole number of blocks of a file at one place of the device: a [`Segment`] in the unit of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) file_block: u64,
    pub(crate) device_block: u32,
    pub(crate) blocks: u32,
}

impl Run {
    pub(crate) fn file_end(&self) -> u64 {
        self.file_block + u64::from(self.blocks)
    }

    pub(crate) fn device_end(&self) -> u64 {
        u64::from(self.device_block) + u64::from(self.blocks)
    }

    /// The segment, which ends no later than the file.
    pub(crate) fn segment(&self, file_bytes: u64) -> Segment {
        let file_offset = self.file_block * format::BLOCK_BYTES;
        Segment {
            file_offset,
            bytes: (u64::from(self.blocks) * format::BLOCK_BYTES).min(file_bytes.saturating_sub(file_offset)),
            device_offset: u64::from(self.device_block) * format::BLOCK_BYTES,
        }
    }
}
