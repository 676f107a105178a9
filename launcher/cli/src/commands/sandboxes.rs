//! `dsec create`, `ps` and `rm`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dsec_commandline::{Exit, Report};
use dsec_format::environment::Limits;
use dsec_format::protocol::edge::{CreateRequest, ErrorKind, Health, Sandbox, State};
use hyper::Method;

use crate::args::{self, Create, Rm};
use crate::client::{self, Client, escape};
use crate::failure::Failure;
use crate::print;

/// How long an edge may take to say how it is.
const HEALTH_PATIENCE: Duration = Duration::from_secs(3);

/// The limits that were asked for.
pub(super) fn limits(sandbox: &args::Sandbox) -> Limits {
    Limits { memory_bytes: sandbox.memory, cpu_millis: sandbox.cpus, pids: sandbox.pids }
}

/// The labels that were asked for.
pub(super) fn labels(sandbox: &args::Sandbox) -> BTreeMap<String, String> {
    sandbox.labels.iter().cloned().collect()
}

/// `dsec create`.
pub(crate) async fn create(client: &Client, create: Create, json: bool) -> Result<ExitCode, Failure> {
    let request = CreateRequest {
        image: create.image,
        idempotency_key: create.key,
        limits: limits(&create.sandbox),
        env: create.env,
        hostname: create.sandbox.hostname.clone(),
        labels: labels(&create.sandbox),
    };
    let response = client.send_json(Method::POST, "/v1/sandboxes", &request).await?;
    let sandbox: Sandbox = client::json(response).await?;
    if json {
        return print::json(&sandbox);
    }
    print::line(&sandbox.id)?;
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client) -> Result<Vec<Sandbox>, Failure> {
    client::json(client.send_empty(Method::GET, "/v1/sandboxes").await?).await
}

/// How the edge is, if it says so soon.
pub(super) async fn health(client: &Client) -> Result<Option<Health>, Failure> {
    let asked = async { client::json(client.send_empty(Method::GET, "/v1/health").await?).await };
    tokio::time::timeout(HEALTH_PATIENCE, asked).await.ok().transpose()
}

/// `dsec ps`.
pub(crate) async fn ps(client: &Client, json: bool) -> Result<ExitCode, Failure> {
    let all = list(client).await?;
    if json {
        return print::json(&serde_json::json!({ "sandboxes": all }));
    }
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let row = |sandbox: &Sandbox| {
        let age_secs = now_ms.saturating_sub(sandbox.created_ms.into()) / 1000;
        let labels: Vec<_> = sandbox.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            sandbox.id.clone(),
            state(sandbox.state).to_owned(),
            sandbox.spec.to_string(),
            age(age_secs),
            sandbox.running.to_string(),
            labels.join(","),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    print::table(&["ID", "STATE", "IMAGE", "AGE", "RUNNING", "LABELS"], &rows)?;
    Ok(ExitCode::SUCCESS)
}

fn state(state: State) -> &'static str {
    match state {
        State::Creating => "creating",
        State::Running => "running",
        State::Frozen => "frozen",
        State::Destroying => "destroying",
    }
}

fn age(secs: u128) -> String {
    match secs {
        0..=119 => format!("{secs}s"),
        120..=7199 => format!("{}m", secs / 60),
        7200..=172_799 => format!("{}h", secs / 3600),
        _ => format!("{}d", secs / 86_400),
    }
}

/// `dsec rm`. Goes on after a failure, and tells of each.
pub(crate) async fn rm(client: &Client, rm: Rm, json: bool) -> Result<ExitCode, Failure> {
    let all = rm.all;
    let ids = if all { list(client).await?.into_iter().map(|sandbox| sandbox.id).collect() } else { rm.ids };
    let mut removed: Vec<Sandbox> = Vec::new();
    let mut failures = Vec::new();
    for id in ids {
        match remove(client, &id).await {
            Ok(sandbox) => removed.push(sandbox),
            // Without an edge there is none to ask about the next one.
            Err(failure @ Failure::NoEdge { .. }) => return Err(failure),
            // Gone since it was listed, by itself or by another hand: as wanted.
            Err(Failure::Refused { kind: ErrorKind::NotFound, .. }) if all => {}
            Err(failure) => failures.push(failure),
        }
    }
    let reports: Vec<Report> = failures.iter().map(Failure::report).collect();
    if json {
        print::json(&serde_json::json!({ "removed": removed, "errors": reports }))?;
    }
    let shown = reports.iter().map(|report| if json { report.exit() } else { report.show(false) });
    Ok(shown.fold(Exit::Success, |first, exit| if first == Exit::Success { exit } else { first }).into())
}

async fn remove(client: &Client, id: &str) -> Result<Sandbox, Failure> {
    client::json(client.send_empty(Method::DELETE, &format!("/v1/sandboxes/{}", escape(id))).await?).await
}
