//! `doctor`: what this machine has of what the daemon needs.

use std::path::PathBuf;

use clap::Args;
use dsec_mountd::road;

use super::Global;
use super::exit::Exit;

/// Say whether this machine has what the daemon needs, and whether a daemon answers
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// A directory on the file system that will hold the cache
    #[arg(long, value_name = "DIR", default_value = "/tmp")]
    scratch: PathBuf,
}

struct Finding {
    what: &'static str,
    needed: bool,
    found: Result<String, String>,
}

impl Doctor {
    pub(crate) fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let findings = [self.fuse(), self.mounting(), self.erofs(), daemon(global)];
        let healthy = findings.iter().all(|finding| finding.found.is_ok() || !finding.needed);
        let text = if global.json { as_json(&findings)? } else { as_text(&findings) };
        super::print(text.as_bytes())?;
        Ok(if healthy { Exit::Success } else { Exit::Failure })
    }

    fn fuse(&self) -> Finding {
        let opened = fs_err::OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let found = opened.map(|_| "can be opened".to_owned()).map_err(|error| error.to_string());
        Finding { what: "FUSE device", needed: true, found }
    }

    fn mounting(&self) -> Finding {
        use rustix::mount::{FsOpenFlags, fsopen};
        let found = match fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC) {
            Ok(_) => Ok("this process may mount FUSE".to_owned()),
            Err(errno) => Err(format!("FUSE cannot be mounted: {errno}")),
        };
        Finding { what: "right to mount", needed: true, found }
    }

    fn erofs(&self) -> Finding {
        let found = match road::probe(&self.scratch) {
            Ok(Ok(())) => Ok("EROFS is mounted from files: the erofs road works".to_owned()),
            Ok(Err(reason)) => Err(format!("{reason}; the fuse road is taken")),
            Err(error) => Err(error.to_string()),
        };
        Finding { what: "EROFS", needed: false, found }
    }
}

fn daemon(global: &Global) -> Finding {
    let client = dsec_mountd_client::Client::new(&global.socket, std::time::Duration::from_secs(5));
    let found = client
        .status()
        .map(|_| format!("answers on {}", global.socket.display()))
        .map_err(|_| format!("none answers on {}", global.socket.display()));
    Finding { what: "daemon", needed: false, found }
}

fn as_text(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let (mark, text) = match &finding.found {
            Ok(text) => ("ok", text),
            Err(text) if finding.needed => ("MISSING", text),
            Err(text) => ("-", text),
        };
        format!("{mark:<8} {:<15} {text}\n", finding.what)
    };
    findings.iter().map(line).collect()
}

fn as_json(findings: &[Finding]) -> anyhow::Result<String> {
    let object = |finding: &Finding| {
        let (Ok(text) | Err(text)) = &finding.found;
        serde_json::json!({
            "what": finding.what, "needed": finding.needed, "ok": finding.found.is_ok(), "text": text
        })
    };
    let findings: Vec<_> = findings.iter().map(object).collect();
    Ok(serde_json::to_string(&serde_json::json!({ "findings": findings }))? + "\n")
}
