//! Refs.

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use dsec_format::protocol::registry::{RemoveRef, SetRef};
use dsec_format::refs::RefName;
use dsec_store::{Source, Store};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::body;
use crate::failure::Failure;

/// Most refs on a page, and how many when the request does not say.
const PAGE_REFS: usize = 1000;
/// Longest body of a change.
const CHANGE_BYTES: usize = 64 * 1024;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Page {
    prefix: String,
    after: Option<String>,
    limit: Option<usize>,
}

pub(crate) async fn list(
    State(app): App,
    page: Result<Query<Page>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Failure> {
    let Query(page) = page.map_err(|error| Failure::malformed(error.body_text()))?;
    let limit = page.limit.unwrap_or(PAGE_REFS).clamp(1, PAGE_REFS);
    let list = move |store: &dsec_store::LocalStore| Ok(store.list_refs(&page.prefix, page.after.as_deref(), limit));
    let list = app.blocking(list).await?.map_err(Failure::of_own)?;
    let bytes = serde_json::to_vec(&list).map_err(|_| Failure::internal("the list cannot be written"))?;
    Ok(json(bytes))
}

pub(crate) async fn read(State(app): App, Path(name): Path<String>) -> Result<Response, Failure> {
    let name = parse_name(&name)?;
    let record = app.blocking(move |store| Ok(store.read_ref(&name))).await?.map_err(Failure::of_own)?;
    Ok(json(record.encode()))
}

pub(crate) async fn set(State(app): App, Path(name): Path<String>, body: Body) -> Result<Response, Failure> {
    let name = parse_name(&name)?;
    let change: SetRef = parse_change(&body::read(body, CHANGE_BYTES, app.limits.progress).await?)?;
    let set = move |store: &dsec_store::LocalStore| Ok(store.set_ref(&name, change.target, change.expected));
    let record = app.blocking(set).await?.map_err(Failure::of_own)?;
    Ok(json(record.encode()))
}

pub(crate) async fn remove(State(app): App, Path(name): Path<String>, body: Body) -> Result<Response, Failure> {
    let name = parse_name(&name)?;
    let bytes = body::read(body, CHANGE_BYTES, app.limits.progress).await?;
    let change: RemoveRef = if bytes.is_empty() { RemoveRef::default() } else { parse_change(&bytes)? };
    let removed = app.blocking(move |store| Ok(store.remove_ref(&name, change.expected))).await?;
    removed.map_err(Failure::of_own)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn parse_name(text: &str) -> Result<RefName, Failure> {
    // The default tag is the client's convenience; here a ref is named in full.
    if !text.contains(':') {
        return Err(Failure::malformed("a ref is named NAME:TAG"));
    }
    text.parse().map_err(|error: dsec_format::refs::NameError| Failure::malformed(error.to_string()))
}

fn parse_change<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|error| Failure::malformed(format!("the body is malformed: {error}")))
}

pub(crate) fn json(bytes: Vec<u8>) -> Response {
    let mut response = bytes.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
