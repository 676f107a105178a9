//! A sandbox's cgroups.
//!
//! Version 2 is needed on every node: it freezes and kills as one step. Memory, CPU and pids are controlled there too
//! where the controllers are on it; on nodes of the hybrid layout they are on hierarchies of version 1, and each sandbox
//! has a cgroup of the same name on each of those.
//!
//! ```text
//! ROOT/PARENT/ID/        pid 1; the limits
//! ROOT/PARENT/ID/eN/     one command and all its descendants (version 2 only)
//! ```
//!
//! A process is born in its version 2 cgroup (`CLONE_INTO_CGROUP`) and writes itself into those of version 1. Such a write
//! waits for an RCU grace period, some milliseconds, unless the kernel has been told to favour it; [`Layout::probe`] does so
//! by mounting, attached nowhere, a hierarchy of our own with that option: it has no controller and changes none of the
//! node's, and it goes away with this process.

use crate::spec::{Id, Limits};
use fs_err as fs;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why a cgroup is not as wanted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no hierarchy of version 2.
    #[error("this node has no cgroup hierarchy of version 2")]
    NoUnified,
    /// The kernel cannot kill a cgroup (before Linux 5.14).
    #[error("the kernel has no cgroup.kill")]
    NoKill,
    /// A limit could not be held.
    #[error("this node has no {controller} controller in any cgroup hierarchy")]
    NoController {
        /// Which one.
        controller: &'static str,
    },
    /// Swap could be used without bound.
    #[error("this kernel has swap and does not account it to cgroups (boot parameter swapaccount)")]
    NoSwapLimit,
    /// A file of a cgroup could not be read or written.
    #[error(transparent)]
    File(#[from] io::Error),
    /// A cgroup could not be opened or removed.
    #[error("cannot {what} cgroup {}", path.display())]
    Group {
        /// What was tried.
        what: &'static str,
        /// Which one.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// Its processes did not end, or freeze, in time.
    #[error("cgroup {} is not {wanted} after {timeout_ms} ms", path.display())]
    Timeout {
        /// Which one.
        path: PathBuf,
        /// What was waited for.
        wanted: &'static str,
        /// How long.
        timeout_ms: u64,
    },
}

/// How long processes may take to end once killed, or to freeze. They can be held up by a slow disk only.
const PATIENCE_MS: u64 = 10_000;

/// The period over which CPU time is counted, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;

/// The processes of a cgroup, of either version.
const PROCESSES_FILE: &str = "cgroup.procs";
/// Version 1: the limit of memory and swap together.
const MEMORY_AND_SWAP_FILE: &str = "memory.memsw.limit_in_bytes";
/// Version 2: the limit of swap alone.
const SWAP_FILE: &str = "memory.swap.max";

/// A controller that limits need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    Memory,
    Cpu,
    Pids,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
        }
    }
}

/// Where this node's cgroups are.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The cgroup below which all sandboxes are, on every hierarchy.
    parent: String,
    /// Where the hierarchy of version 2 is mounted.
    unified: PathBuf,
    /// Controllers on hierarchies of version 1, with their mount points.
    version_1: Vec<(Controller, PathBuf)>,
    /// Whether the kernel has swap, which is then limited too.
    swap: bool,
    /// Holds the hierarchy that makes moving processes quick.
    _quick: Option<OwnedFd>,
}

impl Layout {
    /// Looks where the controllers are, and makes the parent cgroup on each hierarchy.
    pub(crate) fn probe(parent: &str) -> Result<Self, Error> {
        let mounts = hierarchies(&fs::read_to_string("/proc/self/mountinfo")?);
        let unified = mounts.iter().find(|mount| mount.version_2).ok_or(Error::NoUnified)?.path.clone();
        let on_unified = fs::read_to_string(unified.join("cgroup.controllers"))?;
        let mut version_1 = Vec::new();
        for controller in Controller::ALL {
            let name = controller.name();
            if on_unified.split_whitespace().any(|word| word == name) {
                continue;
            }
            let mount = mounts.iter().find(|mount| mount.controllers.iter().any(|word| word == name));
            let mount = mount.ok_or(Error::NoController { controller: name })?;
            version_1.push((controller, mount.path.clone()));
        }
        let quick = if version_1.is_empty() { None } else { favour_moves() };
        let mut layout = Self { parent: parent.to_owned(), unified, version_1, swap: false, _quick: quick };
        layout.make_parent()?;
        let old = layout.version_1.iter().find(|(controller, _)| *controller == Controller::Memory);
        let swap = match old {
            Some((_, root)) => root.join(parent).join(MEMORY_AND_SWAP_FILE),
            None => layout.unified.join(parent).join(SWAP_FILE),
        };
        layout.swap = swap.exists();
        if !layout.swap && Path::new("/proc/swaps").exists() {
            return Err(Error::NoSwapLimit);
        }
        Ok(layout)
    }

    /// Controllers on version 1 hierarchies, by name.
    pub(crate) fn version_1(&self) -> impl Iterator<Item = &'static str> {
        self.version_1.iter().map(|(controller, _)| controller.name())
    }

    /// Files of the parent cgroups of version 1 that a process writes "0" into to join.
    pub(crate) fn parent_joins(&self) -> Vec<CString> {
        let file = |root: &Path| root.join(&self.parent).join(PROCESSES_FILE);
        self.version_1.iter().map(|(_, root)| crate::init::path(&file(root))).collect()
    }

    fn make_parent(&self) -> Result<(), Error> {
        let unified = self.unified.join(&self.parent);
        make(&unified)?;
        if !unified.join("cgroup.kill").exists() {
            return Err(Error::NoKill);
        }
        for (_, root) in &self.version_1 {
            make(&root.join(&self.parent))?;
        }
        let wanted = Controller::ALL.into_iter().filter(|one| !self.version_1.iter().any(|(other, _)| one == other));
        let wanted: String = wanted.map(|controller| format!("+{} ", controller.name())).collect();
        if !wanted.is_empty() {
            fs::write(self.unified.join("cgroup.subtree_control"), &wanted)?;
            fs::write(unified.join("cgroup.subtree_control"), &wanted)?;
        }
        Ok(())
    }

    /// The cgroups of a sandbox, whether they are there or not.
    pub(crate) fn groups(&self, id: &Id) -> Groups {
        let below = |root: &Path| root.join(&self.parent).join(id.as_str());
        Groups {
            unified: below(&self.unified),
            version_1: self.version_1.iter().map(|(controller, root)| (*controller, below(root))).collect(),
            swap: self.swap,
        }
    }
}

/// One mounted cgroup hierarchy.
struct Hierarchy {
    path: PathBuf,
    version_2: bool,
    controllers: Vec<String>,
}

/// All of them, from the text of `mountinfo`.
fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    let hierarchy = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let path = PathBuf::from(left.split(' ').nth(4)?);
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let controllers = options.split(',').map(str::to_owned).collect();
        match kind {
            "cgroup2" => Some(Hierarchy { path, version_2: true, controllers: Vec::new() }),
            "cgroup" => Some(Hierarchy { path, version_2: false, controllers }),
            _ => None,
        }
    };
    mountinfo.lines().filter_map(hierarchy).collect()
}

/// A hierarchy of our own that tells the kernel to make moving processes quick (`favordynmods`, Linux 6.0).
fn favour_moves() -> Option<OwnedFd> {
    let options = [("none", None), ("name", Some("dsec")), ("favordynmods", None)];
    match dsec_sys::mount::new_file_system("cgroup", &options, rustix::mount::MountAttrFlags::empty()) {
        Ok(mount) => Some(mount),
        Err(errno) => {
            tracing::warn!(%errno, "moving a process into a cgroup will take milliseconds on this kernel");
            None
        }
    }
}

fn make(path: &Path) -> Result<(), Error> {
    match new(path) {
        Err(Error::Group { errno: Errno::EXIST, .. }) => Ok(()),
        other => other,
    }
}

fn new(path: &Path) -> Result<(), Error> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)).map_err(|errno| Error::Group {
        what: "make",
        path: path.to_owned(),
        errno,
    })
}

/// The cgroups of one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    unified: PathBuf,
    version_1: Vec<(Controller, PathBuf)>,
    swap: bool,
}

impl Groups {
    /// Makes the one of version 2: from here on the id is this sandbox's. Fails with EEXIST when another has it.
    pub(crate) fn claim(&self) -> Result<(), Error> {
        new(&self.unified)
    }

    /// Makes the others and sets the limits. The caller removes them when this fails half way.
    pub(crate) fn create(&self, limits: &Limits) -> Result<(), Error> {
        for (_, path) in &self.version_1 {
            new(path)?;
        }
        for controller in Controller::ALL {
            self.limit(controller, limits)?;
        }
        Ok(())
    }

    fn limit(&self, controller: Controller, limits: &Limits) -> Result<(), Error> {
        let quota_us = u64::from(limits.cpu_millis) * CPU_PERIOD_US / 1000;
        let old = self.version_1.iter().find(|(other, _)| *other == controller).map(|(_, path)| path);
        let (path, file, value) = match (old, controller) {
            (Some(path), Controller::Memory) => (path, "memory.limit_in_bytes", limits.memory_bytes.to_string()),
            (Some(path), Controller::Cpu) => (path, "cpu.cfs_quota_us", quota_us.to_string()),
            (Some(path), Controller::Pids) => (path, "pids.max", limits.pids.to_string()),
            (None, Controller::Memory) => (&self.unified, "memory.max", limits.memory_bytes.to_string()),
            (None, Controller::Cpu) => (&self.unified, "cpu.max", format!("{quota_us} {CPU_PERIOD_US}")),
            (None, Controller::Pids) => (&self.unified, "pids.max", limits.pids.to_string()),
        };
        write(&path.join(file), &value)?;
        match (controller, old) {
            // Memory and swap together; it cannot be below the limit of memory, so it comes second.
            (Controller::Memory, Some(path)) if self.swap => Ok(write(&path.join(MEMORY_AND_SWAP_FILE), &value)?),
            (Controller::Memory, None) if self.swap => Ok(write(&self.unified.join(SWAP_FILE), "0")?),
            _ => Ok(()),
        }
    }

    /// Files of version 1 that a process writes "0" into to join.
    pub(crate) fn joins(&self) -> impl Iterator<Item = PathBuf> {
        self.version_1.iter().map(|(_, path)| path.join(PROCESSES_FILE))
    }

    /// The same files, open, for a process that does not see the host's.
    pub(crate) fn open_joins(&self) -> Result<Vec<OwnedFd>, Error> {
        let open = |path: PathBuf| {
            let opened = rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
            opened.map_err(|errno| Error::Group { what: "open", path, errno })
        };
        self.joins().map(open).collect()
    }

    /// The cgroup that pid 1 is born in.
    pub(crate) fn open(&self) -> Result<OwnedFd, Error> {
        open(&self.unified)
    }

    /// The cgroup of a command, made.
    pub(crate) fn create_command(&self, number: u64) -> Result<Command, Error> {
        let path = self.unified.join(format!("e{number}"));
        new(&path)?;
        Ok(Command { path })
    }

    /// The numbers of the commands whose cgroups are there.
    pub(crate) fn commands(&self) -> Result<Vec<u64>, Error> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.unified)? {
            let name = entry?.file_name();
            let number: Option<u64> =
                name.to_str().and_then(|name| name.strip_prefix('e')).and_then(|rest| rest.parse().ok());
            numbers.extend(number);
        }
        Ok(numbers)
    }

    /// The cgroups of commands that are there.
    pub(crate) fn existing_commands(&self) -> Result<Vec<Command>, Error> {
        let numbers = self.commands()?.into_iter();
        Ok(numbers.map(|number| Command { path: self.unified.join(format!("e{number}")) }).collect())
    }

    /// How often the kernel has killed a process of the sandbox for want of memory.
    pub(crate) fn oom_kills(&self) -> Result<u64, Error> {
        let old = self.version_1.iter().find(|(controller, _)| *controller == Controller::Memory);
        let file = match old {
            Some((_, path)) => path.join("memory.oom_control"),
            None => self.unified.join("memory.events"),
        };
        Ok(field(&read(&file)?, "oom_kill").unwrap_or(0))
    }

    /// Bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> Result<u64, Error> {
        let old = self.version_1.iter().find(|(controller, _)| *controller == Controller::Memory);
        let file = match old {
            Some((_, path)) => path.join("memory.usage_in_bytes"),
            None => self.unified.join("memory.current"),
        };
        Ok(read(&file)?.trim().parse().unwrap_or(0))
    }

    /// Processes and threads.
    pub(crate) fn pids(&self) -> Result<u64, Error> {
        let old = self.version_1.iter().find(|(controller, _)| *controller == Controller::Pids);
        let path = old.map_or(&self.unified, |(_, path)| path);
        Ok(read(&path.join("pids.current"))?.trim().parse().unwrap_or(0))
    }

    /// CPU time used so far, in microseconds.
    pub(crate) fn cpu_us(&self) -> Result<u64, Error> {
        Ok(field(&read(&self.unified.join("cpu.stat"))?, "usage_usec").unwrap_or(0))
    }

    /// Stops or continues all processes, and waits until it is so.
    pub(crate) fn freeze(&self, frozen: bool) -> Result<(), Error> {
        write(&self.unified.join("cgroup.freeze"), if frozen { "1" } else { "0" })?;
        wait_for(&self.unified, "frozen", u64::from(frozen), if frozen { "frozen" } else { "thawed" })
    }

    /// Kills all processes, the frozen ones too. A cgroup that is not there has none.
    pub(crate) fn kill(&self) -> Result<(), Error> {
        kill(&self.unified)
    }

    /// Removes the cgroups, once their processes have ended. What is gone already is no error.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        if self.unified.exists() {
            wait_for(&self.unified, "populated", 0, "empty")?;
            for number in self.commands()? {
                remove(&self.unified.join(format!("e{number}")))?;
            }
        }
        for path in [&self.unified].into_iter().chain(self.version_1.iter().map(|(_, path)| path)) {
            remove(path)?;
        }
        Ok(())
    }
}

/// The cgroup of one command.
#[derive(Debug)]
pub(crate) struct Command {
    path: PathBuf,
}

impl Command {
    pub(crate) fn open(&self) -> Result<OwnedFd, Error> {
        open(&self.path)
    }

    /// Numbers of its processes, on the host; none when it is gone.
    pub(crate) fn pids(&self) -> Result<Vec<u32>, Error> {
        match read(&self.path.join(PROCESSES_FILE)) {
            Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Kills the command and all its descendants, and waits until they are gone.
    pub(crate) fn kill(&self) -> Result<(), Error> {
        kill(&self.path)?;
        if self.path.exists() { wait_for(&self.path, "populated", 0, "empty") } else { Ok(()) }
    }

    /// Removes it if nothing of the command runs any more; whether it is gone.
    pub(crate) fn remove_if_empty(&self) -> bool {
        matches!(rustix::fs::rmdir(&self.path), Ok(()) | Err(Errno::NOENT))
    }
}

fn open(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| Error::Group {
        what: "open",
        path: path.to_owned(),
        errno,
    })
}

fn kill(path: &Path) -> Result<(), Error> {
    match write(&path.join("cgroup.kill"), "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => Ok(other?),
    }
}

/// Removes a cgroup. Its last process may be still on its way out, which shows as EBUSY for a moment.
fn remove(path: &Path) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        match rustix::fs::rmdir(path) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) if begun.elapsed() < Duration::from_millis(PATIENCE_MS) => pause(begun),
            Err(errno) => return Err(Error::Group { what: "remove", path: path.to_owned(), errno }),
        }
    }
}

fn wait_for(path: &Path, key: &str, value: u64, wanted: &'static str) -> Result<(), Error> {
    let begun = Instant::now();
    let file = path.join("cgroup.events");
    while field(&read(&file)?, key) != Some(value) {
        if begun.elapsed() > Duration::from_millis(PATIENCE_MS) {
            return Err(Error::Timeout { path: path.to_owned(), wanted, timeout_ms: PATIENCE_MS });
        }
        pause(begun);
    }
    Ok(())
}

/// A short sleep, longer the longer one has waited.
fn pause(begun: Instant) {
    std::thread::sleep((begun.elapsed() / 4).clamp(Duration::from_micros(20), Duration::from_millis(5)));
}

fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
}

/// Writes to a file that is there; `O_CREAT` on a cgroup would say EACCES where ENOENT is meant.
fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// The number behind a key in a file of "key number" lines.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let text = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                    32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:4 - cgroup cgroup rw,cpu,cpuacct\n\
                    41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let found = hierarchies(text);
        assert_eq!(found.len(), 2);
        assert!(found[0].controllers.contains(&"cpu".to_owned()) && !found[0].version_2);
        assert!(found[1].version_2 && found[1].path == Path::new("/sys/fs/cgroup/unified"));
    }

    #[test]
    fn a_key_is_not_taken_for_a_longer_one() {
        let text = "low 0\noom 1\noom_kill 3\noom_group_kill 9\n";
        assert_eq!(field(text, "oom_kill"), Some(3));
        assert_eq!(field(text, "oom"), Some(1));
        assert_eq!(field(text, "max"), None);
    }
}
