//! From an error to an answer.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use dsec_format::protocol::registry::{ErrorBody, ErrorKind, OFFSET_HEADER};
use dsec_store::Error;

/// A request that failed: what the client is told.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    body: ErrorBody,
    offset: Option<u64>,
}

impl Failure {
    fn new(status: StatusCode, kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { status, body: ErrorBody { kind, message: message.into(), object: None, present: None }, offset: None }
    }

    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorKind::Malformed, message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, ErrorKind::Unauthorized, "a valid bearer token is needed")
    }

    pub(crate) fn no_route() -> Self {
        Self::new(StatusCode::NOT_FOUND, ErrorKind::Malformed, "no such path: this registry speaks /v1")
    }

    pub(crate) fn method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, ErrorKind::Malformed, "no such method on this path")
    }

    pub(crate) fn too_large(allowed_bytes: u64) -> Self {
        let message = format!("the body is longer than the {allowed_bytes} bytes that are allowed");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::TooLarge, message)
    }

    pub(crate) fn range(message: impl Into<String>) -> Self {
        Self::new(StatusCode::RANGE_NOT_SATISFIABLE, ErrorKind::Malformed, message)
    }

    pub(crate) fn damaged(error: &dyn std::error::Error) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, ErrorKind::Damaged, chain(error))
    }

    pub(crate) fn slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, ErrorKind::Malformed, "the body did not arrive in time")
    }

    pub(crate) fn busy() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Busy, "too many requests at a time, try again soon")
    }

    pub(crate) fn too_many_uploads() -> Self {
        let message = "too many uploads were begun and not finished, try again later";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Busy, message)
    }

    pub(crate) fn no_room() -> Self {
        let message = "unfinished uploads take all the space that they may";
        Self::new(StatusCode::INSUFFICIENT_STORAGE, ErrorKind::Full, message)
    }

    pub(crate) fn offset(present: u64) -> Self {
        let message = format!("the upload has {present} bytes, not as many as the request says");
        let mut failure = Self::new(StatusCode::CONFLICT, ErrorKind::Conflict, message);
        failure.offset = Some(present);
        failure
    }

    pub(crate) fn internal(message: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorKind::Internal, message)
    }

    /// For reads: what is damaged is the registry's own, not what was sent.
    pub(crate) fn of_own(error: Error) -> Self {
        match error {
            Error::Damaged { .. } => own(&error),
            error => error.into(),
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let part = error.to_string();
        if !text.ends_with(&part) {
            text = format!("{text}: {part}");
        }
        source = error.source();
    }
    text
}

fn own(error: &Error) -> Failure {
    // Paths of the server are for its log; the client learns what, not where.
    tracing::error!(error = chain(error), "request failed");
    Failure::internal(&match error {
        Error::Damaged { object, .. } => format!("{object} is damaged in this registry"),
        _ => "the store of this registry failed".to_owned(),
    })
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match &error {
            Error::NotFound { object, .. } => {
                let message = format!("{object} is not in this registry");
                let mut failure = Self::new(StatusCode::NOT_FOUND, ErrorKind::NotFound, message);
                failure.body.object = Some(object.clone());
                failure
            }
            Error::Damaged { object, source, .. } => {
                let message = format!("{object} is damaged: {}", chain(source));
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, ErrorKind::Damaged, message)
            }
            Error::Conflict { present, .. } => {
                let mut failure = Self::new(StatusCode::CONFLICT, ErrorKind::Conflict, error.to_string());
                failure.body.present = Some(present.clone());
                failure
            }
            Error::TooLarge { .. } => Self::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::TooLarge, error.to_string()),
            error if error.is_full() => {
                tracing::error!(error = chain(&error), "request failed");
                Self::new(StatusCode::INSUFFICIENT_STORAGE, ErrorKind::Full, "no space left on its disk")
            }
            Error::Io(_)
            | Error::Full { .. }
            | Error::NoStore { .. }
            | Error::NotAStore { .. }
            | Error::Unreachable { .. }
            | Error::RegistryFull { .. }
            | Error::Refused { .. }
            | Error::Url { .. }
            | Error::Interrupted => own(&error),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.body).unwrap_or_default();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        if let Some(offset) = self.offset {
            headers.insert(OFFSET_HEADER, HeaderValue::from(offset));
        }
        response
    }
}
