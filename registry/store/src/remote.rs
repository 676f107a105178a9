//! The client of a registry: a store behind HTTP.
//!
//! Every request has deadlines; what may be repeated is repeated a few times, with growing pauses, when the network or
//! the registry fails. A short answer is such a failure, never data. What has a digest is checked against it here, like
//! what a local store reads.
//!
//! Must not be used on a thread of an async runtime: it waits.

mod http;
mod object;
mod upload;
mod waits;

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use dsec_format::environment::Environment;
use dsec_format::image::Image;
use dsec_format::json::MAX_JSON_BYTES;
use dsec_format::layer::Layer;
use dsec_format::locations::Locations;
use dsec_format::protocol::registry::{Expected, MAX_QUERY_CHUNKS, RefList, RemoveRef, SetRef};
use dsec_format::refs::{Ref, RefName, Target};
use dsec_format::{ChunkDigest, EnvironmentDigest, ImageDigest, LayerDigest, PackDigest, digest};
use fs_err as fs;
use reqwest::{Method, Url};

use crate::error::{Damage, Error, Result};
use crate::layer::{self, MAX_IN_MEMORY_BYTES};
use crate::layout::Object;
use crate::local::unnamed::Unnamed;
use crate::source::{Session, Source, Store};
use http::{Call, Failure, Http};

/// Deadlines and sizes of a [`RemoteStore`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest wait for an answer to begin, and for more of it.
    pub progress_timeout: Duration,
    /// Longest time for one operation with all its repetitions; a wait that has begun before may still use up its own
    /// timeout. An upload is made of many operations. What may be of any size (a layer, locations, the registry's check
    /// of what was uploaded) may take longer, by a second for each 64 KiB.
    pub overall_timeout: Duration,
    /// Most tries of one request.
    pub attempts: u32,
    /// Pause before the second try; doubled before each further one, with jitter.
    pub pause: Duration,
    /// Bytes of one piece of an upload.
    pub piece_bytes: u64,
    /// Once this is set, every wait ends soon and every method gives [`Error::Interrupted`].
    pub interrupt: Option<Arc<AtomicBool>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            progress_timeout: Duration::from_secs(60),
            overall_timeout: Duration::from_secs(180),
            attempts: 5,
            pause: Duration::from_millis(100),
            piece_bytes: 8 << 20,
            interrupt: None,
        }
    }
}

/// A store behind a registry.
#[derive(Debug)]
pub struct RemoteStore {
    http: Arc<Http>,
}

impl RemoteStore {
    /// Prepares a client; nothing is sent yet. `token` is what the registry asks for, if it does.
    ///
    /// # Errors
    /// [`Error::Url`] when the URL is not `http://HOST[:PORT][/PATH]`.
    pub fn connect(url: &str, token: Option<&str>, options: Options) -> Result<Self> {
        Ok(Self { http: Arc::new(Http::new(url, token, options)?) })
    }

    /// Whether the registry answers.
    ///
    /// # Errors
    /// [`Error::Unreachable`] and what else can happen to a request.
    pub fn ping(&self) -> Result<()> {
        self.http.call(&self.http.get("v1/health"), |response| response.bytes(1024)).map(|_| ())
    }

    fn object_path(object: Object) -> String {
        format!("v1/{}/{}", object.kind.directory(), PackDigest::from_bytes(object.digest).hex())
    }

    fn read_object(&self, object: Object, path: &str, allowed_bytes: u64) -> Result<Vec<u8>> {
        let call = self.http.get(path).of(object.to_string());
        self.http.call(&call, |response| response.bytes(allowed_bytes))
    }

    /// Reads an object that may be large, when `bound` allows its size: after a lost connection it goes on where it was.
    fn read_large(&self, object: Object, path: &str, bound: &dyn Fn(u64) -> Result<()>) -> Result<Vec<u8>> {
        let reader = object::Reader::open(Arc::clone(&self.http), path, object)?;
        let total = reader.total();
        bound(total)?;
        let mut bytes = Vec::new();
        let read = reader.take(total).read_to_end(&mut bytes);
        // The stream sends the store's own error through the reader.
        read.map_err(|error| error.downcast::<Error>().unwrap_or_else(Error::Io))?;
        Ok(bytes)
    }

    fn read_json(&self, object: Object) -> Result<Vec<u8>> {
        self.read_object(object, &Self::object_path(object), MAX_JSON_BYTES as u64)
    }

    fn has(&self, object: Object) -> Result<bool> {
        let call = self.http.request(Method::HEAD, &Self::object_path(object)).of(object.to_string());
        match self.http.call(&call, |_| Ok(())) {
            Ok(()) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn put_bytes(&self, object: Object, bytes: Vec<u8>) -> Result<()> {
        let call = self.http.request(Method::PUT, &Self::object_path(object)).of(object.to_string());
        self.http.call(&call.with(Bytes::from(bytes)), |_| Ok(()))
    }

    fn damaged(&self, object: Object, damage: impl Into<Damage>) -> Error {
        Error::Damaged { object: object.to_string(), store: self.describe(), source: damage.into() }
    }

    fn ref_call(&self, method: Method, name: &RefName) -> Call {
        let mut call = self.http.request(method, &format!("v1/refs/{name}")).of(format!("ref {name}"));
        call.name = Some(name.clone());
        call
    }

    fn parse_ref(call: &Call, name: &RefName, bytes: &[u8]) -> Result<Ref, Failure> {
        let record = Ref::decode(bytes).map_err(|error| call.malformed(&error))?;
        if record.name != *name {
            return Err(call.malformed(&Damage::Name { found: record.name }));
        }
        Ok(record)
    }
}

impl Source for RemoteStore {
    fn describe(&self) -> String {
        self.http.url().to_owned()
    }

    fn requests(&self) -> u64 {
        self.http.requests()
    }

    fn read_ref(&self, name: &RefName) -> Result<Ref> {
        let call = self.ref_call(Method::GET, name);
        self.http.call(&call, |response| Self::parse_ref(&call, name, &response.bytes(MAX_JSON_BYTES as u64)?))
    }

    fn list_refs(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<RefList> {
        let mut call = self.http.get("v1/refs");
        call.query.push(("prefix", prefix.to_owned()));
        call.query.push(("limit", limit.to_string()));
        call.query.extend(after.map(|after| ("after", after.to_owned())));
        self.http.call(&call, |response| {
            let bytes = response.bytes(64 << 20)?;
            serde_json::from_slice(&bytes).map_err(|error| call.malformed(&error))
        })
    }

    fn read_image(&self, digest: &ImageDigest) -> Result<Image> {
        let object = Object::image(digest);
        Image::decode(&self.read_json(object)?, digest).map_err(|error| self.damaged(object, error))
    }

    fn read_environment(&self, digest: &EnvironmentDigest) -> Result<Environment> {
        let object = Object::environment(digest);
        Environment::decode(&self.read_json(object)?, digest).map_err(|error| self.damaged(object, error))
    }

    fn open_layer(&self, digest: &LayerDigest) -> Result<Box<dyn Read + Send>> {
        let object = Object::layer(digest);
        let reader = object::Reader::open(Arc::clone(&self.http), &Self::object_path(object), object)?;
        Ok(Box::new(reader))
    }

    fn read_layer(&self, digest: &LayerDigest) -> Result<Layer> {
        let object = Object::layer(digest);
        let bound = |have_bytes| {
            let (object, allowed_bytes) = (object.to_string(), MAX_IN_MEMORY_BYTES);
            if have_bytes > allowed_bytes { Err(Error::TooLarge { object, have_bytes, allowed_bytes }) } else { Ok(()) }
        };
        let bytes = self.read_large(object, &Self::object_path(object), &bound)?;
        layer::decode(&bytes, digest, &self.describe())
    }

    fn read_locations(&self, digest: &LayerDigest, chunks: u64) -> Result<Locations> {
        let object = Object::locations(digest);
        let path = format!("{}/locations", Self::object_path(Object::layer(digest)));
        let bound = |bytes| layer::bound_locations(digest, chunks, bytes, &self.describe());
        let bytes = self.read_large(object, &path, &bound)?;
        Locations::decode(&bytes, digest).map_err(|error| self.damaged(object, error))
    }

    fn read_pack(&self, digest: &PackDigest, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let object = Object::pack(digest);
        let call = self.http.get(&Self::object_path(object)).of(object.to_string()).range(offset, bytes);
        self.http.call(&call, |response| response.range(offset, bytes))
    }

    fn pack_bytes(&self, digest: &PackDigest) -> Result<u64> {
        let object = Object::pack(digest);
        let call = self.http.request(Method::HEAD, &Self::object_path(object)).of(object.to_string());
        self.http.call(&call, |response| response.stated_bytes())
    }
}

/// The registry's own keeper removes what nothing names.
struct RemoteSession;

impl Session for RemoteSession {
    fn give_up(&mut self) -> Result<Unnamed> {
        Ok(Unnamed::in_use())
    }
}

impl Store for RemoteStore {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RemoteSession))
    }

    fn missing_chunks(&self, chunks: &[ChunkDigest]) -> Result<Vec<ChunkDigest>> {
        let mut missing = Vec::new();
        for asked in chunks.chunks(MAX_QUERY_CHUNKS) {
            let body: Vec<u8> = asked.iter().flat_map(|chunk| *chunk.as_bytes()).collect();
            let call = self.http.request(Method::POST, "v1/chunks/missing").with(Bytes::from(body));
            missing.extend(self.http.call(&call, |response| {
                let bytes = response.bytes((asked.len() * digest::DIGEST_BYTES) as u64)?;
                subsequence(asked, &bytes).ok_or_else(|| call.malformed(&"it names chunks that were not asked for"))
            })?);
        }
        Ok(missing)
    }

    fn has_layer(&self, digest: &LayerDigest) -> Result<bool> {
        self.has(Object::layer(digest))
    }

    fn has_image(&self, digest: &ImageDigest) -> Result<bool> {
        self.has(Object::image(digest))
    }

    fn put_pack(&self, digest: &PackDigest, file: &Path) -> Result<()> {
        upload::upload(&self.http, file, ("pack", digest.hex()), || self.has(Object::pack(digest)))
    }

    fn put_layer(&self, digest: &LayerDigest, file: &Path) -> Result<()> {
        if fs::metadata(file)?.len() <= self.http.options.piece_bytes {
            return self.put_bytes(Object::layer(digest), fs::read(file)?);
        }
        upload::upload(&self.http, file, ("layer", digest.hex()), || self.has_layer(digest))
    }

    fn put_image(&self, image: &Image) -> Result<ImageDigest> {
        let digest = image.digest();
        self.put_bytes(Object::image(&digest), image.encode())?;
        Ok(digest)
    }

    fn put_environment(&self, environment: &Environment) -> Result<EnvironmentDigest> {
        let digest = environment.digest();
        self.put_bytes(Object::environment(&digest), environment.encode())?;
        Ok(digest)
    }

    fn set_ref(&self, name: &RefName, target: Target, expected: Expected) -> Result<Ref> {
        let body = serde_json::to_vec(&SetRef { target, expected }).expect("digests and strings only");
        let call = self.ref_call(Method::PUT, name).with(Bytes::from(body));
        let (result, tries) = self
            .http
            .call_counted(&call, |response| Self::parse_ref(&call, name, &response.bytes(MAX_JSON_BYTES as u64)?));
        match result {
            // The first try may have done it, with its answer lost.
            Err(Error::Conflict { .. }) if tries > 1 => match self.read_ref(name)? {
                record if record.target == target => Ok(record),
                _ => result,
            },
            result => result,
        }
    }

    fn remove_ref(&self, name: &RefName, expected: Expected) -> Result<()> {
        let body = serde_json::to_vec(&RemoveRef { expected }).expect("digests and strings only");
        let call = self.ref_call(Method::DELETE, name).with(Bytes::from(body));
        match self.http.call_counted(&call, |_| Ok(())) {
            (Err(Error::NotFound { .. }), tries) if tries > 1 => Ok(()),
            (result, _) => result,
        }
    }
}

/// The digests in `bytes`, when they are some of `asked`, in its order.
fn subsequence(asked: &[ChunkDigest], bytes: &[u8]) -> Option<Vec<ChunkDigest>> {
    let (digests, rest) = bytes.as_chunks::<{ digest::DIGEST_BYTES }>();
    let found: Vec<_> = digests.iter().map(|bytes| ChunkDigest::from_bytes(*bytes)).collect();
    let mut asked = asked.iter();
    (rest.is_empty() && found.iter().all(|chunk| asked.any(|asked| asked == chunk))).then_some(found)
}

/// Checks a registry's URL.
fn parse_url(url: &str) -> Result<Url> {
    let refuse = |reason| Error::Url { url: url.to_owned(), reason };
    let parsed = Url::parse(url).map_err(|_| refuse("it is no URL; one looks like http://registry.example:7300"))?;
    match parsed.scheme() {
        "http" => {}
        "https" => return Err(refuse("this version has no TLS; put a TLS proxy of this machine in front of it")),
        _ => return Err(refuse("it must start with http://")),
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(refuse("a token is given apart, not in the URL"));
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return Err(refuse("it must end with the path"));
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for good in ["http://h", "http://h:1/", "http://127.0.0.1:7300/a/b/"] {
            RemoteStore::connect(good, None, Options::default()).unwrap();
        }
        for (bad, reason) in [
            ("h:7300", "http://"),
            ("", "no URL"),
            ("https://h", "TLS"),
            ("ftp://h", "http://"),
            ("http://u:p@h", "token"),
            ("http://h/?x=1", "path"),
        ] {
            let error = RemoteStore::connect(bad, None, Options::default()).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
        }
        assert!(
            !format!("{:?}", RemoteStore::connect("http://h", Some("geheim"), Options::default())).contains("geheim")
        );
    }

    #[test]
    fn answers_about_chunks_are_checked() {
        let chunk = |n: u8| ChunkDigest::of(&[n]);
        let asked = [chunk(1), chunk(2), chunk(3)];
        let bytes = |chunks: &[ChunkDigest]| chunks.iter().flat_map(|chunk| *chunk.as_bytes()).collect::<Vec<u8>>();
        assert_eq!(subsequence(&asked, &bytes(&[chunk(1), chunk(3)])), Some(vec![chunk(1), chunk(3)]));
        assert_eq!(subsequence(&asked, &[]), Some(vec![]));
        for bad in [vec![chunk(4)], vec![chunk(3), chunk(1)], vec![chunk(2), chunk(2)]] {
            assert_eq!(subsequence(&asked, &bytes(&bad)), None);
        }
        assert_eq!(subsequence(&asked, &[0; 31]), None);
    }
}
