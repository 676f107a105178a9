//! Compressed streams, told apart by their first bytes.

use std::fs::Metadata;
use std::io::{self, Cursor, Read};
use std::os::unix::fs::FileTypeExt;

use liblzma::read::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

use super::tar::Error;

/// As many first bytes as the longest magic needs.
pub(super) const MAGIC_BYTES: usize = 6;

/// No xz stream may take more memory: twice what its highest level asks for.
const MAX_XZ_BYTES: u64 = 128 << 20;

/// How a stream is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
    Xz,
}

impl Compression {
    /// That of a stream that begins with `first`.
    pub(super) fn of(first: &[u8]) -> Result<Self, Error> {
        match first {
            [0x1f, 0x8b, ..] => Ok(Self::Gzip),
            // A zstd frame, or a skippable one (which pzstd and seekable zstd begin with).
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Self::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Ok(Self::Xz),
            [b'B', b'Z', b'h', ..] => Err(Error::Compression { name: "bzip2" }),
            [0x1f, 0x9d, ..] => Err(Error::Compression { name: "compress" }),
            [0x04, 0x22, 0x4d, 0x18, ..] => Err(Error::Compression { name: "lz4" }),
            [b'L', b'Z', b'I', b'P', ..] => Err(Error::Compression { name: "lzip" }),
            _ => Ok(Self::None),
        }
    }
}

/// The plain bytes of `reader`, whatever of the known kinds it is.
pub(super) fn decompress(mut reader: Box<dyn Read + Send>) -> Result<Box<dyn Read + Send>, Error> {
    let mut first = [0; MAGIC_BYTES];
    let length = read_first(&mut reader, &mut first).map_err(Error::read)?;
    let compression = Compression::of(&first[..length])?;
    let whole = Cursor::new(first).take(length as u64).chain(reader);
    Ok(match compression {
        Compression::None => Box::new(whole),
        Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        Compression::Xz => Box::new(xz(whole)?),
        Compression::Zstd => Box::new(zstd::stream::read::Decoder::new(whole).map_err(Error::Read)?),
    })
}

/// Several streams behind each other are one, as for `xz` itself.
fn xz<R: Read>(reader: R) -> Result<XzDecoder<R>, Error> {
    let stream = Stream::new_stream_decoder(MAX_XZ_BYTES, CONCATENATED).map_err(|error| Error::Read(error.into()))?;
    Ok(XzDecoder::new_stream(reader, stream))
}

/// Fills `first` as far as there are bytes.
pub(super) fn read_first(reader: &mut (impl Read + ?Sized), first: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < first.len() {
        match reader.read(&mut first[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// Whether it can only be read once, front to back.
pub(super) fn is_pipe(metadata: &Metadata) -> bool {
    let file_type = metadata.file_type();
    file_type.is_fifo() || file_type.is_char_device() || file_type.is_socket()
}
