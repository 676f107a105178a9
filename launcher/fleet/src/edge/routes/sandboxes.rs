//! Sandboxes: make, list, show, remove, hold; and the edge's health.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use dsec_format::protocol::edge::{Health, Sandbox};

use super::{body, json};
use crate::edge::Edge;
use crate::edge::error::Error;

pub(super) async fn health(State(edge): State<Arc<Edge>>) -> Response {
    json(&Health {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        sandboxes: edge.table.count() as u64,
        spares: edge.spares.count() as u64,
    })
}

pub(super) async fn create(State(edge): State<Arc<Edge>>, request: Body) -> Result<Response, Error> {
    let entry = edge.create(body(&edge, request).await?).await?;
    Ok(json(&entry.show()))
}

pub(super) async fn list(State(edge): State<Arc<Edge>>) -> Response {
    let all: Vec<Sandbox> = edge.table.all().iter().map(|entry| entry.show()).collect();
    json(&all)
}

pub(super) async fn show(State(edge): State<Arc<Edge>>, Path(id): Path<String>) -> Result<Response, Error> {
    Ok(json(&edge.table.get(&id)?.show()))
}

pub(super) async fn remove(State(edge): State<Arc<Edge>>, Path(id): Path<String>) -> Result<Response, Error> {
    let entry = edge.table.get(&id)?;
    edge.destroy(&entry).await?;
    Ok(json(&entry.show()))
}

pub(super) async fn hold(State(edge): State<Arc<Edge>>, Path(id): Path<String>) -> Result<Response, Error> {
    let entry = edge.table.get(&id)?;
    Ok(edge.hold(&entry).await?.into_response())
}
