//! What all sandboxes of a process share, and how one is made.

use crate::cgroup::{self, Groups, Layout};
use crate::closer::Closer;
use crate::directory;
use crate::init::{self, DEV, GATE_IDS, GATE_ROOT, NEW_NAMESPACES, ROOT, SYS, Step};
use crate::networks::{self, Networks};
use crate::policy::{self, MASKS, Mask};
use crate::process::Children;
use crate::remove;
use crate::root;
use crate::sandbox::{END_TIMEOUT_MS, Sandbox, State};
use crate::spec::{IDS, Id, Spec, SpecError};
use crate::system::{self, Systems};
use crate::template::{self, Template};
use dsec_sys::child::{self, Options, Staged};
use dsec_sys::limits::Limit;
use dsec_sys::ns::NetworkIn;
use dsec_sys::reaper::Reaper;
use dsec_sys::seccomp::Filter;
use dsec_sys::starter::{self, Starter};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The spec asks for something impossible.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Its directory.
    #[error(transparent)]
    Directory(#[from] directory::Error),
    /// Its cgroups.
    #[error(transparent)]
    Cgroup(#[from] cgroup::Error),
    /// Its system layer.
    #[error(transparent)]
    System(#[from] system::Error),
    /// Its network.
    #[error(transparent)]
    Network(#[from] networks::Error),
    /// Its root.
    #[error(transparent)]
    Root(#[from] root::Error),
    /// What sandboxes share.
    #[error(transparent)]
    Template(#[from] template::Error),
    /// Removing its files.
    #[error(transparent)]
    Remove(#[from] remove::Error),
    /// This process could not be made ready.
    #[error("cannot {what}")]
    Process {
        /// What failed.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// Commands could not be started.
    #[error(transparent)]
    Starter(#[from] starter::Error),
    /// The seccomp filter could not be built.
    #[error(transparent)]
    Filter(#[from] policy::Error),
    /// The kernel dumps processes that change their ids, and would show this process's memory inside a sandbox.
    #[error("fs.suid_dumpable is 1, which lets a sandbox look into the process that starts its commands")]
    SuidDumpable,
    /// A file of the host could not be read or written.
    #[error(transparent)]
    File(#[from] io::Error),
    /// The kernel made no process.
    #[error("cannot start pid 1 of sandbox {id}")]
    Clone {
        /// The sandbox.
        id: Id,
        /// Why.
        #[source]
        source: child::Error,
    },
    /// Pid 1 failed on its way.
    #[error("pid 1 of sandbox {id} cannot {step}")]
    Init {
        /// The sandbox.
        id: Id,
        /// At which step.
        step: Step,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// A sandbox that should be running is not.
    #[error("sandbox {id} is not running any more: {reason}")]
    Gone {
        /// The sandbox.
        id: Id,
        /// How that was found.
        reason: &'static str,
    },
    /// Pid 1 does not end though it was killed.
    #[error("pid 1 of sandbox {id} has not ended {timeout_ms} ms after it was killed")]
    Lives {
        /// The sandbox.
        id: Id,
        /// How long it was waited for.
        timeout_ms: u64,
    },
}

/// How the node is used.
#[derive(Debug, Clone)]
pub struct Config {
    /// The cgroup below which sandboxes are, on every hierarchy; it is made when it is missing.
    pub cgroup_parent: String,
}

impl Default for Config {
    fn default() -> Self {
        Self { cgroup_parent: "dsec".to_owned() }
    }
}

/// What sandboxes share. Cheap to clone; one per process is enough.
#[derive(Debug, Clone)]
pub struct Runtime {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) layout: Layout,
    pub(crate) template: Template,
    pub(crate) systems: Systems,
    closer: Closer,
    networks: Networks,
    pub(crate) children: Children,
    pub(crate) reaper: Reaper,
    pub(crate) filter: Filter,
    pub(crate) starter: Starter,
    pub(crate) last_capability: u8,
    /// Resource limits of every command.
    pub(crate) limits: Vec<Limit>,
    /// Paths of `/proc` to cover, of those that this kernel has.
    pub(crate) masks: Vec<Mask>,
    /// Signals that this process ignores (bit n - 1 for signal n), which commands must not inherit. Handlers are not
    /// inherited anyway.
    pub(crate) ignored_signals: u64,
}

impl Runtime {
    /// Prepares this process and node: makes the process undumpable, the parent cgroups, and what sandboxes share. Signals
    /// that this process wants to ignore must be ignored before: commands begin with those at their defaults.
    ///
    /// # Errors
    /// [`Error`] when the node lacks what every sandbox needs.
    pub fn open(config: &Config) -> Result<Self, Error> {
        dsec_sys::creds::set_undumpable()
            .map_err(|errno| Error::Process { what: "make this process undumpable", errno })?;
        if fs_err::read_to_string("/proc/sys/fs/suid_dumpable")?.trim() == "1" {
            return Err(Error::SuidDumpable);
        }
        let last: u8 = fs_err::read_to_string("/proc/sys/kernel/cap_last_cap")?.trim().parse().unwrap_or(63);
        let layout = Layout::probe(&config.cgroup_parent)?;
        // Before the others: it keeps a copy of what this process's memory is now.
        let starter = Starter::new(starter::Config { joins: layout.parent_joins() })?;
        let shared = Shared {
            layout,
            starter,
            template: Template::new()?,
            systems: Systems::new()
                .map_err(|errno| Error::Process { what: "mount the tmpfs of system layers", errno })?,
            closer: Closer::new()?,
            networks: Networks::new()?,
            children: Children::default(),
            reaper: Reaper::new().map_err(|errno| Error::Process { what: "write the reaper into a memfd", errno })?,
            filter: policy::build()?,
            last_capability: last,
            masks: MASKS.iter().filter(|mask| Path::new("/proc").join(mask.path).exists()).copied().collect(),
            ignored_signals: ignored_signals()?,
            limits: policy::rlimits()
                .map_err(|errno| Error::Process { what: "read this process's resource limits", errno })?,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Makes a sandbox. When it fails, nothing of it is left; what was there before under its id or directory is untouched.
    ///
    /// # Errors
    /// [`Error`].
    pub fn create(&self, spec: &Spec) -> Result<Sandbox, Error> {
        spec.check()?;
        directory::claim(spec)?;
        let groups = self.shared.layout.groups(&spec.id);
        groups.claim().inspect_err(|_| told(spec, remove::tree(&spec.directory)))?;
        // From here on id and directory are this sandbox's alone, and so is whatever is found under them.
        self.start(spec, &groups).inspect_err(|_| told(spec, self.sweep(&spec.id, &spec.directory)))
    }

    fn start(&self, spec: &Spec, groups: &Groups) -> Result<Sandbox, Error> {
        directory::fill(spec)?;
        self.shared.systems.create(spec)?;
        groups.create(&spec.limits)?;
        let cgroup = groups.open()?;
        let program = init::program(spec, groups, &self.shared);
        let options = Options { namespaces: flags(NEW_NAMESPACES), cgroup: Some(cgroup.as_fd()) };
        let network = self.shared.networks.take()?;
        let furnished = {
            let _born = NetworkIn::enter(network.as_fd(), self.shared.networks.own())
                .map_err(|errno| Error::Process { what: "enter the network namespace of a sandbox", errno })?;
            child::stage(&program, options, |staged| self.furnish(spec, staged))
        };
        let (child, spent) = furnished.map_err(|error| error.of(&spec.id))?;
        self.shared.closer.close(spent);
        Sandbox::new(self.shared.clone(), spec, child)
    }

    /// The outer half of making a sandbox: ids, `/dev` and `/sys`, then the root. What is to be closed afterwards.
    fn furnish(&self, spec: &Spec, staged: &Staged<'_>) -> Result<Vec<OwnedFd>, Failure> {
        let shared = &self.shared;
        let user_ns = map_ids(staged.pid(), spec.id_base)?;
        let template = |path| move |errno| Error::Template(template::Error { what: "clone", path, errno });
        staged.provide(DEV, shared.template.dev(user_ns.as_fd()).map_err(template("dev"))?);
        staged.provide(SYS, shared.template.sys(user_ns.as_fd()).map_err(template("sys"))?);
        staged.open_gate(GATE_IDS);
        let system = shared.systems.mount(&spec.id, user_ns.as_fd()).map_err(Error::System)?;
        let root = root::mount(spec, system, user_ns.as_fd()).map_err(Error::Root)?;
        staged.provide(ROOT, root.mount);
        staged.open_gate(GATE_ROOT);
        Ok(root.spent)
    }

    /// Finds a running sandbox again by what was kept of it.
    ///
    /// # Errors
    /// [`Error::Gone`] when it does not run any more; what it left is then for [`Runtime::sweep`].
    pub fn adopt(&self, state: State) -> Result<Sandbox, Error> {
        Sandbox::adopt(self.shared.clone(), state)
    }

    /// Ends and removes whatever there is of the sandbox of this id and directory: running, half made or half removed.
    ///
    /// # Errors
    /// [`Error`]; sweeping again goes on where it stopped.
    pub fn sweep(&self, id: &Id, directory: &Path) -> Result<(), Error> {
        let groups = self.shared.layout.groups(id);
        groups.kill()?;
        let ended = self.shared.children.reap(id, END_TIMEOUT_MS);
        if !ended.map_err(|errno| Error::Process { what: "wait for the processes of a sandbox", errno })? {
            return Err(Error::Lives { id: id.clone(), timeout_ms: END_TIMEOUT_MS });
        }
        groups.remove()?;
        self.shared.systems.remove(id)?;
        Ok(remove::tree(directory)?)
    }

    /// Which controllers are on hierarchies of version 1.
    #[must_use]
    pub fn controllers_on_version_1(&self) -> Vec<&'static str> {
        self.shared.layout.version_1().collect()
    }
}

/// Which signals this process ignores, as the kernel's mask.
fn ignored_signals() -> Result<u64, Error> {
    let status = fs_err::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no SigIgn in /proc/self/status").into())
}

/// After a failure the first error is the one to return; what could not be removed is the next sweep's.
fn told<E: std::error::Error>(spec: &Spec, removed: Result<(), E>) {
    if let Err(error) = removed {
        tracing::warn!(sandbox = %spec.id, %error, "a sandbox that was not made has left something");
    }
}

/// A failure of either side while pid 1 is on its way.
#[derive(Debug)]
enum Failure {
    Parent(Error),
    Child(child::Error),
}

impl From<child::Error> for Failure {
    fn from(error: child::Error) -> Self {
        Self::Child(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Parent(error)
    }
}

impl Failure {
    fn of(self, id: &Id) -> Error {
        let id = id.clone();
        match self {
            Self::Parent(error) => error,
            Self::Child(child::Error::Step { label, errno }) => Error::Init { id, step: Step::of(label), errno },
            Self::Child(source) => Error::Clone { id, source },
        }
    }
}

/// Gives a new process's user namespace its ids; the namespace.
pub(crate) fn map_ids(pid: u32, id_base: u32) -> Result<OwnedFd, Error> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let map = format!("0 {id_base} {IDS}");
    for file in ["uid_map", "gid_map"] {
        let path = process.join(file);
        io::Write::write_all(&mut fs_err::OpenOptions::new().write(true).open(path)?, map.as_bytes())?;
    }
    Ok(fs_err::File::open(process.join("ns/user"))?.into_parts().0.into())
}

/// `CLONE_*` flags as clone3 takes them.
pub(crate) fn flags(flags: i32) -> u64 {
    u64::from(flags.cast_unsigned())
}
