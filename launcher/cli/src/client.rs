//! Requests to an edge: HTTP over its Unix socket, a connection a request.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use dsec_format::protocol::edge::ErrorBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::failure::Failure;

/// An answer that is no stream is not longer.
const ANSWER_BYTES: usize = 64 << 20;

/// A client of one edge.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client; nothing is connected yet.
    pub(crate) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// Sends a request; the answer's head, if it is a success.
    pub(crate) async fn send<B>(&self, method: Method, path: &str, body: B) -> Result<Response<Incoming>, Failure>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let no_edge = |source| Failure::NoEdge { socket: self.socket.clone(), source };
        let stream = UnixStream::connect(&self.socket).await.map_err(no_edge)?;
        let broken = |error: hyper::Error| Failure::Broken(error.into());
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // What goes wrong with the connection shows in the answer.
        tokio::spawn(connection);
        // Why an answer ends early comes behind it.
        let request = Request::builder().method(method).uri(path).header("host", "edge").header("te", "trailers");
        let request = request.body(body);
        let request = request.map_err(|error| Failure::Unexpected { what: error.to_string() })?;
        let response = sender.send_request(request).await.map_err(broken)?;
        if response.status().is_success() { Ok(response) } else { Err(refusal(response).await) }
    }

    /// Sends a request with a JSON body.
    pub(crate) async fn send_json<T: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: &T,
    ) -> Result<Response<Incoming>, Failure> {
        let bytes = serde_json::to_vec(body).map_err(Failure::Encode)?;
        self.send(method, path, Full::new(Bytes::from(bytes))).await
    }

    /// Sends a request without a body.
    pub(crate) async fn send_empty(&self, method: Method, path: &str) -> Result<Response<Incoming>, Failure> {
        self.send(method, path, Full::new(Bytes::new())).await
    }
}

async fn refusal(response: Response<Incoming>) -> Failure {
    let status = response.status();
    match json::<ErrorBody>(response).await {
        Ok(error) => Failure::Refused { kind: error.kind, message: error.message },
        Err(_) => Failure::Unexpected { what: format!("status {status}") },
    }
}

/// The whole of a JSON answer.
pub(crate) async fn json<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T, Failure> {
    let body = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES);
    let bytes = body.collect().await.map_err(Failure::Broken)?.to_bytes();
    serde_json::from_slice(&bytes).map_err(|error| Failure::Unexpected { what: error.to_string() })
}

/// A text as part of a query.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => escaped.push(byte.into()),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// A request body whose parts come from a thread.
#[derive(Debug)]
pub(crate) struct Parts(mpsc::Receiver<std::io::Result<Bytes>>);

impl Parts {
    /// A body, and where its bytes go. Dropping the sender ends it.
    pub(crate) fn channel() -> (mpsc::Sender<std::io::Result<Bytes>>, Self) {
        let (sender, receiver) = mpsc::channel(4);
        (sender, Self(receiver))
    }
}

impl Body for Parts {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|part| part.map(|part| part.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_a_query_would_misread_is_escaped() {
        assert_eq!(super::escape("/a b&c=d%é"), "/a%20b%26c%3Dd%25%C3%A9");
    }
}
