//! The HTTP of an edge: what `dsec_format::protocol::edge` lists, and nothing else.
//!
//! Handlers translate; what is done is done by [`Edge`]. Whatever must not stop half way when a client goes away runs in
//! a task of its own.

mod execs;
mod files;
mod sandboxes;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Edge;
use super::error::Error;

/// No request but an upload or standard input has a longer body.
const BODY_BYTES: usize = 4 << 20;

/// All routes.
pub(crate) fn router(edge: Arc<Edge>) -> Router {
    Router::new()
        .route("/v1/health", get(sandboxes::health))
        .route("/v1/run", post(execs::run))
        .route("/v1/sandboxes", get(sandboxes::list).post(sandboxes::create))
        .route("/v1/sandboxes/{id}", get(sandboxes::show).delete(sandboxes::remove))
        .route("/v1/sandboxes/{id}/hold", post(sandboxes::hold))
        .route("/v1/sandboxes/{id}/files", get(files::download).put(files::upload))
        .route("/v1/sandboxes/{id}/execs", post(execs::start))
        .route("/v1/sandboxes/{id}/execs/{exec}", get(execs::show).delete(execs::kill))
        .route("/v1/sandboxes/{id}/execs/{exec}/stdin", post(execs::stdin))
        .route("/v1/sandboxes/{id}/execs/{exec}/output", get(execs::output))
        .fallback(no_route)
        .method_not_allowed_fallback(no_route)
        .with_state(edge)
}

async fn no_route(method: Method, uri: Uri) -> Error {
    Error::NoRoute { method: method.to_string(), path: uri.path().chars().take(200).collect() }
}

/// A JSON body.
async fn body<T: DeserializeOwned>(edge: &Edge, body: Body) -> Result<T, Error> {
    let bytes = in_time(edge, to_bytes(body, BODY_BYTES)).await?;
    let bytes = bytes.map_err(|_| Error::BodySize { most_bytes: BODY_BYTES })?;
    serde_json::from_slice(&bytes).map_err(Error::Body)
}

/// What a client has to do within [`Config::progress`](super::Config::progress).
async fn in_time<T>(edge: &Edge, doing: impl Future<Output = T>) -> Result<T, Error> {
    let after = edge.config.progress;
    tokio::time::timeout(after, doing).await.map_err(|_| Error::Stalled { after_ms: after.as_millis() })
}

/// A JSON answer.
fn json<T: Serialize>(value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => ([(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(source) => {
            tracing::error!(error = %source, "an answer has no JSON form");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// The query of a request, by name.
#[derive(Debug)]
struct Query(Vec<(String, String)>);

impl Query {
    fn of(uri: &Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Self(pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(decode_pair).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &'static str) -> Result<Option<u64>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| Error::Query {
            name,
            value: value.chars().take(80).collect(),
            expected: "a number",
        })
    }
}

fn decode_pair((key, value): (&str, &str)) -> (String, String) {
    (decode(key), decode(value))
}

/// Percent-decoding; what is no escape stays.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let query = Query::of(&"/x?path=%2Fa%20b%2525&n=17&flag&bad=%zz%4".parse().unwrap());
        assert_eq!(query.get("path"), Some("/a b%25"));
        assert_eq!(query.number("n").unwrap(), Some(17));
        assert_eq!(query.number("absent").unwrap(), None);
        assert_eq!((query.get("flag"), query.get("bad")), (Some(""), Some("%zz%4")));
        assert!(matches!(query.number("path"), Err(Error::Query { name: "path", .. })));
    }
}
