//! What this node has, for those who decide whether it can serve and for those who want to know why not.
//!
//! Every answer is found by trying, not by the kernel's version. What all sandboxes need and a node lacks is an error of
//! [`crate::Runtime::open`] as well; nothing is replaced by something weaker.

use crate::cgroup::Layout;
use crate::init::{GATE_IDS, Step};
use crate::root;
use crate::runtime::{flags, map_ids};
use crate::spec::{IDS, Limits, Profile, Spec};
use dsec_sys::child::{Op, Options, Program, Strings, stage};
use dsec_sys::mount::new_file_system;
use dsec_sys::reaper::Reaper;
use fs_err as fs;
use rustix::mount::MountAttrFlags;
use serde::Serialize;
use std::os::fd::AsFd;
use std::path::Path;

/// Where the cgroup controllers are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "layout")]
pub enum CgroupLayout {
    /// All on version 2.
    Unified,
    /// Some on version 1, beside a hierarchy of version 2 that freezes and kills.
    Hybrid {
        /// Which controllers are on version 1.
        version_1: Vec<String>,
    },
    /// Not usable.
    Unusable {
        /// Why.
        reason: String,
    },
}

/// What a node has. Each `Err` says why it has not.
#[derive(Debug, Clone, Serialize)]
pub struct Node {
    /// The kernel's release.
    pub kernel: String,
    /// Cgroups: needed.
    pub cgroups: CgroupLayout,
    /// User namespaces with ids of their own, and a program from a sealed memfd as pid 1: needed.
    pub namespaces: Result<(), String>,
    /// An overlay over identity-mapped layers: needed.
    pub mapped_overlay: Result<(), String>,
    /// Seccomp filters: needed.
    pub seccomp: bool,
    /// Whether dumps of programs that change ids are safe (`fs.suid_dumpable` is not 1): needed.
    pub dumps_safe: bool,
    /// Version of Landlock, 0 for none.
    pub landlock: u32,
    /// Security modules that are on.
    pub security_modules: Vec<String>,
    /// Whether BPF programs can be security modules.
    pub bpf_lsm: bool,
    /// Whether AppArmor is on.
    pub apparmor: bool,
    /// Whether the kernel tells pressure (PSI).
    pub pressure: bool,
    /// Whether swap is on, which a pause uses.
    pub swap: bool,
}

impl Node {
    /// Whether sandboxes can be made at all.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !matches!(self.cgroups, CgroupLayout::Unusable { .. })
            && self.namespaces.is_ok()
            && self.mapped_overlay.is_ok()
            && self.seccomp
            && self.dumps_safe
    }
}

/// Looks at this node. `cgroup_parent` is made on each hierarchy, as for [`crate::Runtime::open`].
#[must_use]
pub fn probe(cgroup_parent: &str) -> Node {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let modules = dsec_sys::node::security_modules();
    let has = |name: &str| modules.iter().any(|module| module == name);
    let (namespaces, mapped_overlay) = match try_namespaces() {
        Ok(overlay) => (Ok(()), overlay),
        Err(error) => (Err(error.clone()), Err(error)),
    };
    Node {
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        cgroups: cgroups(cgroup_parent),
        namespaces,
        mapped_overlay,
        seccomp: read("/proc/sys/kernel/seccomp/actions_avail").split_whitespace().any(|action| action == "errno"),
        dumps_safe: read("/proc/sys/fs/suid_dumpable").trim() != "1",
        landlock: dsec_sys::node::landlock_version(),
        bpf_lsm: has("bpf"),
        apparmor: has("apparmor"),
        pressure: Path::new("/proc/pressure/cpu").exists(),
        swap: read("/proc/swaps").lines().count() > 1,
        security_modules: modules,
    }
}

fn cgroups(parent: &str) -> CgroupLayout {
    match Layout::probe(parent) {
        Ok(layout) => {
            let version_1: Vec<String> = layout.version_1().map(str::to_owned).collect();
            if version_1.is_empty() { CgroupLayout::Unified } else { CgroupLayout::Hybrid { version_1 } }
        }
        Err(error) => CgroupLayout::Unusable { reason: with_causes(&error) },
    }
}

/// Makes a process in new namespaces that becomes the reaper, and an overlay with its ids on the way.
fn try_namespaces() -> Result<Result<(), String>, String> {
    let reaper = Reaper::new().map_err(|error| with_causes(&error))?;
    let mut program = Program::new();
    program.push(Step::Ids, Op::Gate(GATE_IDS));
    let argv = Strings::new(vec![c"probe".into()]);
    program.push(Step::Exec, Op::ExecFd { fd: reaper.as_fd(), argv, env: Strings::new(Vec::new()) });
    let options = Options { namespaces: flags(crate::init::NAMESPACES), cgroup: None };
    let staged = stage(&program, options, |staged| -> Result<_, Failed> {
        // A range that no sandbox has: the last one.
        let user_ns = map_ids(staged.pid(), (IDS - 2) * IDS).map_err(|error| Failed(with_causes(&error)))?;
        Ok(try_overlay(user_ns.as_fd()))
    });
    let (child, overlay) = staged.map_err(|error| error.0)?;
    let ended = dsec_sys::process::kill(&child.pidfd).and_then(|()| dsec_sys::process::wait(&child.pidfd));
    ended.map_err(|error| with_causes(&error))?;
    Ok(overlay)
}

fn try_overlay(user_ns: std::os::fd::BorrowedFd<'_>) -> Result<(), String> {
    let scratch = new_file_system("tmpfs", &[("size", Some("1m"))], MountAttrFlags::empty());
    let scratch = scratch.map_err(|error| with_causes(&error))?;
    let at = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&scratch));
    let made = ["layer", "system", "own", "own/upper", "own/work"]
        .iter()
        .try_for_each(|name| rustix::fs::mkdirat(&scratch, *name, rustix::fs::Mode::from_raw_mode(0o755)));
    made.map_err(|error| with_causes(&error))?;
    let spec = Spec {
        id: "probe".parse().map_err(|error: crate::spec::IdError| with_causes(&error))?,
        layers: vec![format!("{at}/layer").into()],
        directory: format!("{at}/own").into(),
        limits: Limits::default(),
        id_base: (IDS - 2) * IDS,
        hostname: "probe".into(),
        env: Vec::new(),
        nameservers: Vec::new(),
        profile: Profile::Default,
    };
    let system = dsec_sys::mount::clone_at(&scratch, c"system")
        .and_then(|mount| dsec_sys::mount::map_ids(&mount, user_ns, MountAttrFlags::empty()).map(|()| mount));
    let system = system.map_err(|error| with_causes(&error))?;
    root::mount(&spec, system, user_ns).map(drop).map_err(|error| with_causes(&error))
}

/// A failure as text: a probe is read by people.
struct Failed(String);

impl From<dsec_sys::child::Error> for Failed {
    fn from(error: dsec_sys::child::Error) -> Self {
        Self(with_causes(&error))
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
