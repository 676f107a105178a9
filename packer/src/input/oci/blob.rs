//! Files of an image, each checked against the digest that names it.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256, Sha512};

use super::Error;
use super::document::{Descriptor, Index, LayoutFile};
use super::files::{File, Files};
use crate::cancel::Cancel;

/// No JSON document is larger.
const MAX_JSON_BYTES: u64 = 4 << 20;

/// The files of an image.
pub(super) struct Layout {
    files: Files,
}

impl Layout {
    pub(super) fn new(files: Files) -> Self {
        Self { files }
    }

    /// The index of an OCI layout.
    pub(super) fn index(&self) -> Result<Index, Error> {
        let file: LayoutFile = parse("oci-layout", &self.small_file("oci-layout")?)?;
        if file.version != "1.0.0" {
            return Err(Error::Version { found: file.version });
        }
        parse("index.json", &self.small_file("index.json")?)
    }

    pub(super) fn file(&self, name: &str) -> Result<File, Error> {
        self.files.open(name)
    }

    pub(super) fn small_file(&self, name: &str) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let file = self.files.open(name)?;
        file.take(MAX_JSON_BYTES + 1).read_to_end(&mut bytes).map_err(Error::Read)?;
        check_json_size(name, bytes.len() as u64)?;
        Ok(bytes)
    }

    /// A checked JSON document.
    pub(super) fn json<T: DeserializeOwned>(&self, descriptor: &Descriptor) -> Result<T, Error> {
        check_json_size(&descriptor.digest, descriptor.size)?;
        let mut bytes = Vec::new();
        let mut file = self.verified(descriptor, &Cancel::new())?;
        file.read_to_end(&mut bytes).map_err(Error::Read)?;
        parse(&descriptor.digest, &bytes)
    }

    /// A blob from its beginning, after all of it was read and checked once.
    pub(super) fn verified(&self, descriptor: &Descriptor, cancel: &Cancel) -> Result<File, Error> {
        let digest = &descriptor.digest;
        let (mut hasher, expected) = Hasher::of(digest)?;
        let (algorithm, hex) = digest.split_once(':').unwrap_or_default();
        let mut file = self.files.open(&format!("blobs/{algorithm}/{hex}"))?;
        let have_bytes = file.length_bytes().map_err(Error::Read)?;
        if have_bytes != descriptor.size {
            return Err(Error::Size { digest: digest.clone(), need_bytes: descriptor.size, have_bytes });
        }
        let mut buffer = vec![0; 1 << 20];
        loop {
            cancel.check()?;
            match file.read(&mut buffer).map_err(Error::Read)? {
                0 => break,
                length => hasher.update(&buffer[..length]),
            }
        }
        if hasher.finish() != expected {
            return Err(Error::Digest { digest: digest.clone() });
        }
        file.rewind().map_err(Error::Read)?;
        Ok(file)
    }
}

/// Whether bytes are those that a digest names.
pub(super) fn check(digest: &str, bytes: &[u8]) -> Result<(), Error> {
    let (mut hasher, expected) = Hasher::of(digest)?;
    hasher.update(bytes);
    if hasher.finish() == expected { Ok(()) } else { Err(Error::Digest { digest: digest.to_owned() }) }
}

fn check_json_size(name: &str, bytes: u64) -> Result<(), Error> {
    if bytes <= MAX_JSON_BYTES {
        return Ok(());
    }
    Err(Error::TooLarge { name: name.to_owned(), bytes, most: MAX_JSON_BYTES })
}

pub(super) fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|source| Error::Document { name: name.to_owned(), source })
}

/// Either of the two algorithms that the specification registers.
enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    /// For a digest in text form, with its bytes. What passes is also safe as a file name.
    fn of(digest: &str) -> Result<(Self, Vec<u8>), Error> {
        let malformed = || Error::DigestSyntax { digest: digest.chars().take(200).collect() };
        let (algorithm, hex) = digest.split_once(':').ok_or_else(malformed)?;
        let hasher = match algorithm {
            "sha256" => Self::Sha256(Sha256::new()),
            "sha512" => Self::Sha512(Sha512::new()),
            _ => return Err(malformed()),
        };
        let expected = parse_hex(hex).filter(|bytes| bytes.len() == hasher.bytes()).ok_or_else(malformed)?;
        Ok((hasher, expected))
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Sha256(_) => 32,
            Self::Sha512(_) => 64,
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    fn finish(&mut self) -> Vec<u8> {
        match self {
            Self::Sha256(hasher) => hasher.finalize_reset().to_vec(),
            Self::Sha512(hasher) => hasher.finalize_reset().to_vec(),
        }
    }
}

/// Lower-case digits only, as the specification has them.
fn parse_hex(hex: &str) -> Option<Vec<u8>> {
    let nibble = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| Some(nibble(*pair.first()?)? << 4 | nibble(*pair.get(1)?)?)).collect()
}

/// A reader whose bytes are hashed as they go by.
pub(super) struct Checked {
    reader: Box<dyn Read + Send>,
    hasher: Arc<Mutex<Hasher>>,
}

/// Says at the end whether they were the right ones.
pub(super) struct Check {
    hasher: Arc<Mutex<Hasher>>,
    expected: Vec<u8>,
    diff_id: String,
}

impl Checked {
    pub(super) fn new(reader: Box<dyn Read + Send>, diff_id: &str) -> Result<(Self, Check), Error> {
        let (hasher, expected) = Hasher::of(diff_id)?;
        let hasher = Arc::new(Mutex::new(hasher));
        let check = Check { hasher: Arc::clone(&hasher), expected, diff_id: diff_id.to_owned() };
        Ok((Self { reader, hasher }, check))
    }
}

fn lock(hasher: &Mutex<Hasher>) -> MutexGuard<'_, Hasher> {
    hasher.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Read for Checked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.reader.read(buffer)?;
        lock(&self.hasher).update(&buffer[..length]);
        Ok(length)
    }
}

impl Check {
    /// After the reader has come to its end.
    pub(super) fn finish(self) -> Result<(), Error> {
        if lock(&self.hasher).finish() == self.expected { Ok(()) } else { Err(Error::DiffId { diff_id: self.diff_id }) }
    }
}
