//! Resumable uploads.

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use dsec_format::protocol::registry::{OFFSET_HEADER, Upload};
use dsec_format::{LayerDigest, PackDigest};
use dsec_store::LocalStore;
use dsec_store::local::upload::{Finish, UploadId, UploadWriter};
use serde::Deserialize;

use crate::app::{App, Shared};
use crate::body;
use crate::failure::Failure;
use crate::refs::json;

fn parse_id(text: &str) -> Result<UploadId, Failure> {
    UploadId::parse(text).ok_or_else(|| Failure::malformed("this is no id of an upload"))
}

pub(crate) async fn begin(State(app): App) -> Result<Response, Failure> {
    let most = app.limits.unfinished_uploads;
    let begin = move |store: &LocalStore| {
        let (present, _) = store.unfinished_uploads()?;
        if present < most { store.begin_upload().map(Some) } else { Ok(None) }
    };
    let id = app.blocking(begin).await?.ok_or_else(Failure::too_many_uploads)?;
    let upload = Upload { id: id.to_string(), offset: 0 };
    let bytes = serde_json::to_vec(&upload).map_err(|_| Failure::internal("the id cannot be written"))?;
    let mut response = json(bytes);
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

fn with_offset(offset: u64) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    response.headers_mut().insert(OFFSET_HEADER, HeaderValue::from(offset));
    response
}

pub(crate) async fn offset(State(app): App, Path(id): Path<String>) -> Result<Response, Failure> {
    let id = parse_id(&id)?;
    Ok(with_offset(app.blocking(move |store| store.upload_offset(&id)).await?))
}

/// Opens an upload; while somebody else has it open (a connection that the client has given up, and this server not
/// yet), the client is told to come back.
async fn open(app: &Arc<Shared>, id: UploadId) -> Result<UploadWriter, Failure> {
    app.blocking(move |store| store.open_upload(&id)).await?.ok_or_else(Failure::busy)
}

pub(crate) async fn append(
    State(app): App,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let stated =
        headers.get(OFFSET_HEADER).and_then(|value| value.to_str().ok()).and_then(|text| text.parse::<u64>().ok());
    let stated = stated.ok_or_else(|| Failure::malformed(format!("the header {OFFSET_HEADER} is needed")))?;
    let _turn = app.upload_turn()?;
    let upload = open(&app, parse_id(&id)?).await?;
    if upload.offset() != stated {
        return Err(Failure::offset(upload.offset()));
    }
    let allowed = app.limits.upload_bytes.saturating_sub(stated);
    let _room = app.room(body.size_hint().upper().map_or(allowed, |bytes| bytes.min(allowed))).await?;
    let upload = body::drain(body, allowed, app.limits.progress, upload, |upload, bytes| upload.append(bytes)).await?;
    Ok(with_offset(upload.offset()))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct What {
    pack: Option<String>,
    layer: Option<String>,
}

impl What {
    fn parse(&self) -> Result<Finish, Failure> {
        let malformed = |error: dsec_format::digest::Error| Failure::malformed(error.to_string());
        match (&self.pack, &self.layer) {
            (Some(hex), None) => PackDigest::from_hex(hex).map(Finish::Pack).map_err(malformed),
            (None, Some(hex)) => LayerDigest::from_hex(hex).map(Finish::Layer).map_err(malformed),
            _ => Err(Failure::malformed("an upload becomes one thing: ?pack=HEX or ?layer=HEX")),
        }
    }
}

pub(crate) async fn finish(
    State(app): App,
    Path(id): Path<String>,
    what: Result<Query<What>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Failure> {
    let Query(what) = what.map_err(|error| Failure::malformed(error.body_text()))?;
    let what = what.parse()?;
    let upload = open(&app, parse_id(&id)?).await?;
    app.blocking(move |store| store.finish_upload(upload, what)).await?;
    Ok(StatusCode::CREATED.into_response())
}
