//! Frames: the unit of compression and of a ranged read. A frame holds one or several whole chunks.
//!
//! Invariants: a frame's plain size is at most [`MAX_FRAME_PLAIN_BYTES`]; its stored size is at most its plain size,
//! because data that zstd does not shrink is stored as it is. So a read of any byte never fetches more than that.
//! A decoder allocates the plain size that the (bounded) entry states, never what the compressed stream claims.

use serde::{Deserialize, Serialize};

/// Greatest plain size of a frame.
pub const MAX_FRAME_PLAIN_BYTES: u32 = 1024 * 1024;
/// A writer closes a frame when the next chunk would bring it over this plain size.
pub const TARGET_FRAME_PLAIN_BYTES: u32 = 256 * 1024;

/// How a frame is stored. The number is what stands in packs and locations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Codec {
    /// The plain bytes.
    Plain = 0,
    /// One zstd frame (RFC 8878) without a dictionary.
    Zstd = 1,
}

/// Why a frame cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An unknown codec number.
    #[error("frame has unknown codec {found}")]
    Codec {
        /// The number that stands there.
        found: u8,
    },
    /// The stated plain size is over the limit or zero.
    #[error("frame states {plain_bytes} plain bytes, allowed are 1 to {MAX_FRAME_PLAIN_BYTES}")]
    Size {
        /// The stated size.
        plain_bytes: u32,
    },
    /// The frame does not decompress to the stated number of bytes.
    #[error("frame does not decompress to its {plain_bytes} bytes")]
    Decompress {
        /// The stated size.
        plain_bytes: u32,
    },
}

impl Codec {
    /// The codec of a number.
    ///
    /// # Errors
    /// [`Error::Codec`] for a number that is not assigned.
    pub const fn from_number(number: u8) -> Result<Self, Error> {
        match number {
            0 => Ok(Self::Plain),
            1 => Ok(Self::Zstd),
            found => Err(Error::Codec { found }),
        }
    }
}

/// Compresses the plain bytes of a frame at a zstd `level`; keeps them plain when that is no smaller.
///
/// # Errors
/// [`Error::Size`] when `plain` is empty or over [`MAX_FRAME_PLAIN_BYTES`].
pub fn encode(plain: &[u8], level: i32) -> Result<(Codec, Vec<u8>), Error> {
    check_size(plain.len())?;
    match zstd::bulk::compress(plain, level) {
        Ok(stored) if stored.len() < plain.len() => Ok((Codec::Zstd, stored)),
        _ => Ok((Codec::Plain, plain.to_vec())),
    }
}

/// Gives back the plain bytes of a frame. The caller still checks each chunk against its digest.
///
/// # Errors
/// [`Error::Size`] or [`Error::Decompress`]; never allocates more than `plain_bytes`, which is bounded first.
pub fn decode(codec: Codec, stored: &[u8], plain_bytes: u32) -> Result<Vec<u8>, Error> {
    check_size(plain_bytes as usize)?;
    let plain = match codec {
        Codec::Plain => stored.to_vec(),
        Codec::Zstd => {
            zstd::bulk::decompress(stored, plain_bytes as usize).map_err(|_| Error::Decompress { plain_bytes })?
        }
    };
    if plain.len() == plain_bytes as usize { Ok(plain) } else { Err(Error::Decompress { plain_bytes }) }
}

fn check_size(plain_bytes: usize) -> Result<(), Error> {
    if plain_bytes == 0 || plain_bytes > MAX_FRAME_PLAIN_BYTES as usize {
        return Err(Error::Size { plain_bytes: u32::try_from(plain_bytes).unwrap_or(u32::MAX) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_incompressible_stays_plain() {
        let text = b"hello ".repeat(1000);
        let (codec, stored) = encode(&text, 3).unwrap();
        assert_eq!(codec, Codec::Zstd);
        assert_eq!(decode(codec, &stored, text.len() as u32).unwrap(), text);

        let noise: Vec<u8> = (0..32).flat_map(|i: u8| *blake3::hash(&[i]).as_bytes()).collect();
        let (codec, stored) = encode(&noise, 3).unwrap();
        assert_eq!((codec, stored.len()), (Codec::Plain, noise.len()));
    }

    #[test]
    fn a_wrong_stated_size_is_an_error() {
        let (codec, stored) = encode(&[7; 5000], 3).unwrap();
        for wrong in [0, 1, 4999, 5001, u32::MAX] {
            assert!(decode(codec, &stored, wrong).is_err(), "{wrong}");
        }
    }
}
