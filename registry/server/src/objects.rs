//! Packs, layers, locations, images, environments: sent as they are stored, checked when they arrive.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use dsec_format::environment::Environment;
use dsec_format::image::Image;
use dsec_format::json::MAX_JSON_BYTES;
use dsec_format::protocol::registry::MAX_QUERY_CHUNKS;
use dsec_format::{ChunkDigest, EnvironmentDigest, ImageDigest, LayerDigest, PackDigest, digest};
use dsec_store::Store;
use dsec_store::layout::Object;

use crate::app::{App, Shared};
use crate::body;
use crate::failure::Failure;

type Answer = Result<Response, Failure>;

fn parse<T>(hex: &str, parse: fn(&str) -> Result<T, digest::Error>) -> Result<T, Failure> {
    parse(hex).map_err(|error| Failure::malformed(error.to_string()))
}

pub(crate) async fn pack(State(app): App, Path(hex): Path<String>, headers: HeaderMap) -> Answer {
    send(&app, Object::pack(&parse(&hex, PackDigest::from_hex)?), &headers).await
}

pub(crate) async fn pack_head(State(app): App, Path(hex): Path<String>) -> Answer {
    head(&app, Object::pack(&parse(&hex, PackDigest::from_hex)?)).await
}

pub(crate) async fn layer(State(app): App, Path(hex): Path<String>, headers: HeaderMap) -> Answer {
    send(&app, Object::layer(&parse(&hex, LayerDigest::from_hex)?), &headers).await
}

/// Whether the layer is there, whole.
pub(crate) async fn layer_head(State(app): App, Path(hex): Path<String>) -> Answer {
    let digest = parse(&hex, LayerDigest::from_hex)?;
    if !app.blocking(move |store| store.has_layer(&digest)).await? {
        return Ok(StatusCode::NOT_FOUND.into_response());
    }
    head(&app, Object::layer(&digest)).await
}

pub(crate) async fn locations(State(app): App, Path(hex): Path<String>, headers: HeaderMap) -> Answer {
    send(&app, Object::locations(&parse(&hex, LayerDigest::from_hex)?), &headers).await
}

pub(crate) async fn image(State(app): App, Path(hex): Path<String>, headers: HeaderMap) -> Answer {
    send(&app, Object::image(&parse(&hex, ImageDigest::from_hex)?), &headers).await
}

/// Whether the image is there, whole.
pub(crate) async fn image_head(State(app): App, Path(hex): Path<String>) -> Answer {
    let digest = parse(&hex, ImageDigest::from_hex)?;
    if !app.blocking(move |store| store.has_image(&digest)).await? {
        return Ok(StatusCode::NOT_FOUND.into_response());
    }
    head(&app, Object::image(&digest)).await
}

pub(crate) async fn environment(State(app): App, Path(hex): Path<String>, headers: HeaderMap) -> Answer {
    send(&app, Object::environment(&parse(&hex, EnvironmentDigest::from_hex)?), &headers).await
}

pub(crate) async fn environment_head(State(app): App, Path(hex): Path<String>) -> Answer {
    head(&app, Object::environment(&parse(&hex, EnvironmentDigest::from_hex)?)).await
}

pub(crate) async fn put_image(State(app): App, Path(hex): Path<String>, body: Body) -> Answer {
    let digest = parse(&hex, ImageDigest::from_hex)?;
    let bytes = body::read(body, MAX_JSON_BYTES, app.limits.progress).await?;
    let image = Image::decode(&bytes, &digest).map_err(|error| Failure::damaged(&error))?;
    app.blocking(move |store| store.put_image(&image)).await?;
    Ok(StatusCode::CREATED.into_response())
}

pub(crate) async fn put_environment(State(app): App, Path(hex): Path<String>, body: Body) -> Answer {
    let digest = parse(&hex, EnvironmentDigest::from_hex)?;
    let bytes = body::read(body, MAX_JSON_BYTES, app.limits.progress).await?;
    let environment = Environment::decode(&bytes, &digest).map_err(|error| Failure::damaged(&error))?;
    app.blocking(move |store| store.put_environment(&environment)).await?;
    Ok(StatusCode::CREATED.into_response())
}

pub(crate) async fn put_layer(State(app): App, Path(hex): Path<String>, body: Body) -> Answer {
    let digest = parse(&hex, LayerDigest::from_hex)?;
    let _turn = app.upload_turn()?;
    let (scratch, file) = app
        .blocking(|store| {
            let scratch = store.scratch()?;
            let file = fs_err::File::create(scratch.path().join("layer"))?;
            Ok((scratch, file))
        })
        .await?;
    body::drain(body, app.limits.upload_bytes, app.limits.progress, file, |file, bytes| {
        std::io::Write::write_all(file, bytes).map_err(dsec_store::Error::Io)
    })
    .await?;
    app.blocking(move |store| store.take_layer(&digest, &scratch.path().join("layer"))).await?;
    Ok(StatusCode::CREATED.into_response())
}

pub(crate) async fn missing_chunks(State(app): App, body: Body) -> Answer {
    let allowed = MAX_QUERY_CHUNKS * digest::DIGEST_BYTES;
    let bytes = body::read(body, allowed, app.limits.progress).await?;
    let (digests, rest) = bytes.as_chunks::<{ digest::DIGEST_BYTES }>();
    if !rest.is_empty() {
        return Err(Failure::malformed("the body is no list of 32-byte digests"));
    }
    let chunks: Vec<ChunkDigest> = digests.iter().map(|bytes| ChunkDigest::from_bytes(*bytes)).collect();
    let missing = app.blocking(move |store| store.missing_chunks(&chunks)).await?;
    Ok(octets(missing.iter().flat_map(|chunk| *chunk.as_bytes()).collect::<Vec<u8>>()))
}

fn octets(body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    response
}

async fn head(app: &Shared, object: Object) -> Answer {
    let bytes = app.blocking(move |store| Ok(store.open_object(object)?.metadata()?.len())).await?;
    let mut response = octets(Body::empty());
    describe(&mut response, bytes);
    Ok(response)
}

async fn send(app: &Shared, object: Object, headers: &HeaderMap) -> Answer {
    let (file, total) = app
        .blocking(move |store| {
            let file = store.open_object(object)?;
            let total = file.metadata()?.len();
            Ok((file.into_parts().0, total))
        })
        .await?;
    let Some(range) = headers.get(header::RANGE) else {
        let mut response = octets(body::of_file(file, 0, total));
        describe(&mut response, total);
        return Ok(response);
    };
    let range = range.to_str().ok().and_then(|text| Range::parse(text, total));
    let Some(range) = range else {
        let mut response = Failure::range(format!("one range inside the {total} bytes is needed")).into_response();
        set(&mut response, header::CONTENT_RANGE, &format!("bytes */{total}"));
        return Ok(response);
    };
    let mut response = octets(body::of_file(file, range.start, range.bytes()));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    describe(&mut response, range.bytes());
    set(&mut response, header::CONTENT_RANGE, &format!("bytes {}-{}/{total}", range.start, range.last));
    Ok(response)
}

fn describe(response: &mut Response, bytes: u64) {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
}

fn set(response: &mut Response, name: header::HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        response.headers_mut().insert(name, value);
    }
}

/// One range of an object, both ends inside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: u64,
    last: u64,
}

impl Range {
    /// Parses one range of RFC 9110, 14.1.2: `bytes=a-b`, `bytes=a-` or `bytes=-n`. Several are not served.
    fn parse(text: &str, total: u64) -> Option<Self> {
        let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
        let end = total.checked_sub(1)?;
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
        let range = match (first, last) {
            ("", suffix) => Self { start: total - number(suffix).filter(|n| *n > 0)?.min(total), last: end },
            (first, "") => Self { start: number(first)?, last: end },
            (first, last) => Self { start: number(first)?, last: number(last)? },
        };
        if range.start > range.last || range.start > end {
            return None;
        }
        Some(Self { last: range.last.min(end), ..range })
    }

    fn bytes(self) -> u64 {
        self.last - self.start + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let range = |text| Range::parse(text, 10).map(|range| (range.start, range.bytes()));
        for (text, expected) in [
            ("bytes=0-9", (0, 10)),
            ("bytes=3-3", (3, 1)),
            ("bytes=4-", (4, 6)),
            ("bytes=-4", (6, 4)),
            ("bytes=-40", (0, 10)),
            ("bytes=5-400", (5, 5)),
        ] {
            assert_eq!(range(text), Some(expected), "{text}");
        }
        for text in
            ["", "bytes=", "bytes=-", "bytes=-0", "bytes=10-", "bytes=5-4", "bytes=0-1,3-4", "lines=0-1", "bytes=+1-2"]
        {
            assert_eq!(range(text), None, "{text}");
        }
        assert_eq!(Range::parse("bytes=0-", 0), None);
    }
}
