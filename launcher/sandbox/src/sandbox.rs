//! A running sandbox.

use crate::cgroup::{self, Groups};
use crate::exec;
use crate::remove;
use crate::runtime::{Error, Shared};
use crate::spec::{Id, Limits, Profile, Spec, SpecError, is_variable};
use dsec_sys::child::Child;
use dsec_sys::process as pidfd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Pid, getpriority_process, setpriority_process};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What must be kept of a running sandbox to find it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Its id.
    pub id: Id,
    /// Its directory.
    pub directory: PathBuf,
    /// The first of its host ids.
    pub id_base: u32,
    /// What it may use.
    pub limits: Limits,
    /// How much it may do.
    pub profile: Profile,
    /// The environment that every command begins with.
    pub env: Vec<(String, String)>,
    /// Pid 1's number on the host.
    pub pid: u32,
    /// When pid 1 started, in clock ticks since the host's: tells it from a later process of that number.
    pub start_ticks: u64,
    /// The inode of its pid namespace: tells it from one of another boot.
    pub pid_namespace: u64,
}

/// What a sandbox uses now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Memory, in bytes, page cache included.
    pub memory_bytes: u64,
    /// CPU time so far, in microseconds.
    pub cpu_us: u64,
    /// Processes and threads, pid 1 included.
    pub pids: u64,
    /// How often the kernel has killed a process for want of memory.
    pub oom_kills: u64,
}

/// A running sandbox. Dropping this value leaves it running; [`Sandbox::destroy`] ends it.
#[derive(Debug)]
pub struct Sandbox {
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: State,
    pub(crate) groups: Groups,
    pub(crate) pidfd: OwnedFd,
    next_command: AtomicU64,
}

/// How long pid 1, killed, may take to end; it does once every process of its namespace has.
pub(crate) const END_TIMEOUT_MS: u64 = 10_000;

impl Sandbox {
    pub(crate) fn new(shared: Arc<Shared>, spec: &Spec, child: Child) -> Result<Self, Error> {
        let gone = |reason| move |_| Error::Gone { id: spec.id.clone(), reason };
        let (start_ticks, pid_namespace) = identity(child.pid).map_err(gone("pid 1 ended at once"))?;
        let state = State {
            id: spec.id.clone(),
            directory: spec.directory.clone(),
            id_base: spec.id_base,
            limits: spec.limits,
            profile: spec.profile,
            env: spec.env.clone(),
            pid: child.pid,
            start_ticks,
            pid_namespace,
        };
        let groups = shared.layout.groups(&state.id);
        let copy = child.pidfd.try_clone()?;
        shared.children.born(&state.id, copy);
        Ok(Self { shared, state, groups, pidfd: child.pidfd, next_command: AtomicU64::new(0) })
    }

    pub(crate) fn adopt(shared: Arc<Shared>, state: State) -> Result<Self, Error> {
        let gone = |reason| Error::Gone { id: state.id.clone(), reason };
        // The descriptor first: what is then read under that number is read of this process, or of none.
        // Only what the kernel says of the process itself means that it is gone; a full table of files does not.
        let pidfd = pidfd::open(state.pid).map_err(|errno| match errno {
            Errno::SRCH => gone("there is no process of its pid 1's number"),
            errno => std::io::Error::from(errno).into(),
        })?;
        let found = identity(state.pid);
        if pidfd::wait_ended(&pidfd, 0).map_err(std::io::Error::from)? {
            return Err(gone("its pid 1 has ended"));
        }
        if found? != (state.start_ticks, state.pid_namespace) {
            return Err(gone("another process has its pid 1's number"));
        }
        let groups = shared.layout.groups(&state.id);
        let next = groups.commands()?.into_iter().max().map_or(0, |last| last + 1);
        Ok(Self { shared, state, groups, pidfd, next_command: AtomicU64::new(next) })
    }

    /// What to keep, to find it again.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Replaces the environment that every command begins with; what runs keeps its own.
    ///
    /// # Errors
    /// [`SpecError::Variable`]; nothing is changed then.
    pub fn set_env(&mut self, env: Vec<(String, String)>) -> Result<(), SpecError> {
        if let Some((name, _)) = env.iter().find(|(name, value)| !is_variable(name, value)) {
            return Err(SpecError::Variable { id: self.state.id.clone(), name: name.clone() });
        }
        self.state.env = env;
        Ok(())
    }

    /// Gives pid 1 the priority of this process, where a thread of less has made it.
    ///
    /// # Errors
    /// When it does not run any more, or the kernel refuses.
    pub fn reset_priority(&self) -> Result<(), Errno> {
        let own = getpriority_process(None)?;
        let pid = i32::try_from(self.state.pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        setpriority_process(Some(pid), own)?;
        // The number could be another process's, unless ours still runs.
        if self.is_running() { Ok(()) } else { Err(Errno::SRCH) }
    }

    /// Whether pid 1 runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !pidfd::wait_ended(&self.pidfd, 0).unwrap_or(true)
    }

    /// Begins to start a command inside; does not wait for anything that the sandbox does.
    ///
    /// # Errors
    /// [`exec::Error`].
    pub fn exec(&self, spec: exec::ExecSpec) -> Result<exec::Starting, exec::Error> {
        self.shared.children.settle(&self.state.id);
        exec::start(self, &spec)
    }

    /// The cgroup of the next command.
    pub(crate) fn next_command(&self) -> Result<cgroup::Command, cgroup::Error> {
        self.groups.create_command(self.next_command.fetch_add(1, Ordering::Relaxed))
    }

    /// Its root, as a place to open files below. Everything in it is the tenant's: resolve with `RESOLVE_IN_ROOT`.
    ///
    /// # Errors
    /// When it does not run any more.
    pub fn root(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, format!("/proc/{}/root", self.state.pid), flags, Mode::empty())?;
        // The number could be another process's by now, unless ours still runs after the look-up.
        if self.is_running() { Ok(root) } else { Err(Errno::SRCH) }
    }

    /// The directory that holds what the sandbox has written; on-disk ids are those inside.
    #[must_use]
    pub fn upper(&self) -> PathBuf {
        self.state.directory.join(crate::directory::UPPER)
    }

    /// Stops all processes, and waits until they have.
    ///
    /// # Errors
    /// [`cgroup::Error`].
    pub fn freeze(&self) -> Result<(), cgroup::Error> {
        self.groups.freeze(true)
    }

    /// Lets all processes go on.
    ///
    /// # Errors
    /// [`cgroup::Error`].
    pub fn thaw(&self) -> Result<(), cgroup::Error> {
        self.groups.freeze(false)
    }

    /// What it uses now.
    ///
    /// # Errors
    /// [`cgroup::Error`].
    pub fn usage(&self) -> Result<Usage, cgroup::Error> {
        Ok(Usage {
            memory_bytes: self.groups.memory_bytes()?,
            cpu_us: self.groups.cpu_us()?,
            pids: self.groups.pids()?,
            oom_kills: self.groups.oom_kills()?,
        })
    }

    /// Ends all processes and removes everything: mounts and namespaces (they go with the processes), cgroups, files.
    /// Works from any state, frozen and half-removed ones too.
    ///
    /// # Errors
    /// [`Error`]; destroying again goes on where it stopped.
    pub fn destroy(&self) -> Result<(), Error> {
        self.stop()?;
        self.groups.remove()?;
        self.shared.systems.remove(&self.state.id)?;
        Ok(remove::tree(&self.state.directory)?)
    }

    /// Ends all processes, and with them every mount and namespace; cgroups and files stay, for [`Sandbox::destroy`].
    ///
    /// # Errors
    /// [`Error`].
    pub fn stop(&self) -> Result<(), Error> {
        self.groups.kill()?;
        let failed = |errno| Error::Process { what: "end pid 1 of a sandbox", errno };
        pidfd::kill(&self.pidfd).map_err(failed)?;
        let children = self.shared.children.reap(&self.state.id, END_TIMEOUT_MS).map_err(failed)?;
        // An adopted one is not this process's child; whoever is its parent now waits for it.
        if children && pidfd::wait_ended(&self.pidfd, END_TIMEOUT_MS).map_err(failed)? {
            Ok(())
        } else {
            Err(Error::Lives { id: self.state.id.clone(), timeout_ms: END_TIMEOUT_MS })
        }
    }
}

/// What tells a process from any other: when it started, and its pid namespace.
fn identity(pid: u32) -> std::io::Result<(u64, u64)> {
    let process = Path::new("/proc").join(pid.to_string());
    let stat = fs_err::read_to_string(process.join("stat"))?;
    // The second field is the program's name in parentheses, which may hold anything; the start is the 22nd.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let start_ticks = fields.split_whitespace().nth(19).and_then(|field| field.parse().ok());
    let start_ticks = start_ticks.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData))?;
    Ok((start_ticks, fs_err::metadata(process.join("ns/pid"))?.ino()))
}
