//! The 32 bytes that open every binary object: magic, version and feature bits.
//!
//! The rule for features is that of file systems: an unknown `compat` bit may be ignored, an unknown `ro_compat` bit
//! forbids writing, an unknown `incompat` bit forbids reading. Reserved bytes are zero and checked.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes in a preamble.
pub const PREAMBLE_BYTES: usize = 32;
/// The version that this code writes, and the newest one that it reads.
pub const VERSION: u16 = 1;

/// Opens every binary object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Preamble {
    /// What the object is.
    pub magic: [u8; 8],
    /// Version of the format, from 1.
    pub version: U16,
    /// Zero.
    pub reserved0: U16,
    /// Features that a reader may ignore.
    pub compat: U32,
    /// Features that a writer must know.
    pub ro_compat: U32,
    /// Features that a reader must know.
    pub incompat: U32,
    /// Zero.
    pub reserved1: U64,
}

const _: () = assert!(size_of::<Preamble>() == PREAMBLE_BYTES);

/// Why an object is not what it should be, told from its first bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than the fixed part needs.
    #[error("{object} is truncated: {have_bytes} bytes, at least {need_bytes} needed")]
    Truncated {
        /// What was decoded.
        object: &'static str,
        /// Bytes needed.
        need_bytes: u64,
        /// Bytes there.
        have_bytes: u64,
    },
    /// Another magic.
    #[error("not a {object}: magic is {found:02x?}")]
    Magic {
        /// What was decoded.
        object: &'static str,
        /// The magic that stands there.
        found: [u8; 8],
    },
    /// A version that this program does not know.
    #[error("{object} has version {found}, this program reads up to {VERSION}")]
    Version {
        /// What was decoded.
        object: &'static str,
        /// The version that stands there.
        found: u16,
    },
    /// An incompatible feature that this program does not know.
    #[error("{object} uses unknown incompatible features {bits:#x}")]
    Features {
        /// What was decoded.
        object: &'static str,
        /// The unknown bits.
        bits: u32,
    },
    /// Reserved bytes are not zero.
    #[error("{object} has non-zero reserved bytes")]
    Reserved {
        /// What was decoded.
        object: &'static str,
    },
}

impl Preamble {
    /// The preamble of a new object.
    #[must_use]
    pub fn new(magic: [u8; 8]) -> Self {
        Self {
            magic,
            version: U16::new(VERSION),
            reserved0: U16::ZERO,
            compat: U32::ZERO,
            ro_compat: U32::ZERO,
            incompat: U32::ZERO,
            reserved1: U64::ZERO,
        }
    }

    /// Checks magic, version, features and reserved bytes, in this order. No incompatible feature is known.
    ///
    /// # Errors
    /// One variant a check.
    pub fn check(&self, object: &'static str, magic: [u8; 8]) -> Result<(), Error> {
        self.check_with(object, magic, 0)
    }

    /// As [`Preamble::check`], with the incompatible features that the caller knows.
    ///
    /// # Errors
    /// One variant a check.
    pub fn check_with(&self, object: &'static str, magic: [u8; 8], known_incompat: u32) -> Result<(), Error> {
        if self.magic != magic {
            return Err(Error::Magic { object, found: self.magic });
        }
        if self.version.get() == 0 || self.version.get() > VERSION {
            return Err(Error::Version { object, found: self.version.get() });
        }
        let unknown = self.incompat.get() & !known_incompat;
        if unknown != 0 {
            return Err(Error::Features { object, bits: unknown });
        }
        if self.reserved0.get() != 0 || self.reserved1.get() != 0 {
            return Err(Error::Reserved { object });
        }
        Ok(())
    }
}

/// Reads a fixed-size record from the front of `bytes`.
pub(crate) fn read<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    object: &'static str,
    bytes: &[u8],
) -> Result<T, Error> {
    T::read_from_prefix(bytes).map(|(value, _)| value).map_err(|_| Error::Truncated {
        object,
        need_bytes: size_of::<T>() as u64,
        have_bytes: bytes.len() as u64,
    })
}
