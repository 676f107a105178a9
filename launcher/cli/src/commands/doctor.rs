//! `dsec doctor`: what this node has for sandboxes, and how its edge is.

use std::process::ExitCode;

use dsec_commandline::Exit;
use dsec_fleet::{CgroupLayout, Node, probe};
use dsec_format::protocol::edge::Health;
use serde::Serialize;

use crate::failure::Failure;
use crate::print;

/// The cgroup that the edge puts its sandboxes below.
const CGROUP_PARENT: &str = "dsec";

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    node: &'a Node,
    /// Absent when none answers.
    edge: Option<&'a Health>,
}

/// `dsec doctor`, with what the edge says of itself if one answers.
pub(crate) fn doctor(edge: Option<Health>, json: bool) -> Result<ExitCode, Failure> {
    let node = probe(CGROUP_PARENT);
    let code = if node.is_usable() { ExitCode::SUCCESS } else { Exit::Failure.into() };
    if json {
        print::json(&Report { node: &node, edge: edge.as_ref() })?;
        return Ok(code);
    }
    print::table(&["WHAT", "STATE", "NEEDED", "DETAIL"], &rows(&node, edge.as_ref()))?;
    Ok(code)
}

fn rows(node: &Node, edge: Option<&Health>) -> Vec<Vec<String>> {
    let (cgroups, layout) = match &node.cgroups {
        CgroupLayout::Unified => (true, "version 2".to_owned()),
        CgroupLayout::Hybrid { version_1 } => (true, format!("version 2, with {} on version 1", version_1.join(", "))),
        CgroupLayout::Unusable { reason } => (false, reason.clone()),
    };
    let why = |result: &Result<(), String>| result.clone().err().unwrap_or_default();
    let row = |what: &str, has: bool, needed: bool, detail: String| {
        let words = [what, if has { "yes" } else { "no" }, if needed { "yes" } else { "" }];
        words.map(str::to_owned).into_iter().chain([detail]).collect()
    };
    let none = String::new;
    let edge_detail = match edge {
        Some(edge) => format!("version {}, {} sandboxes, {} spares", edge.version, edge.sandboxes, edge.spares),
        None => "none answers".to_owned(),
    };
    vec![
        row("kernel", true, true, node.kernel.clone()),
        row("cgroups", cgroups, true, layout),
        row("namespaces", node.namespaces.is_ok(), true, why(&node.namespaces)),
        row("overlay with mapped ids", node.mapped_overlay.is_ok(), true, why(&node.mapped_overlay)),
        row("seccomp", node.seccomp, true, none()),
        row("safe core dumps", node.dumps_safe, true, none()),
        row("landlock", node.landlock > 0, false, format!("version {}", node.landlock)),
        row("BPF LSM", node.bpf_lsm, false, node.security_modules.join(", ")),
        row("AppArmor", node.apparmor, false, none()),
        row("pressure (PSI)", node.pressure, false, none()),
        row("swap", node.swap, false, none()),
        row("edge", edge.is_some(), false, edge_detail),
    ]
}
