//! `doctor`: what this machine has of what the daemon needs.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use dsec_commandline::Exit;
use dsec_mountd::road;
use serde::Serialize;

use super::Global;

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
        global.output().print(&Report { findings: findings.iter().map(Line::of).collect() })?;
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

#[derive(Debug, Serialize)]
struct Report<'a> {
    findings: Vec<Line<'a>>,
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    what: &'a str,
    needed: bool,
    ok: bool,
    text: &'a str,
}

impl<'a> Line<'a> {
    fn of(finding: &'a Finding) -> Self {
        let (Ok(text) | Err(text)) = &finding.found;
        Self { what: finding.what, needed: finding.needed, ok: finding.found.is_ok(), text }
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings.iter().try_for_each(|Line { what, needed, ok, text }| {
            let mark = match (ok, needed) {
                (true, _) => "ok",
                (false, true) => "MISSING",
                (false, false) => "-",
            };
            writeln!(f, "{mark:<8} {what:<15} {text}")
        })
    }
}
