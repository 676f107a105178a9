//! Starting a command inside a sandbox, from outside.
//!
//! Nothing of ours waits inside: the command's process is born in the sandbox's namespaces, gives up what a tenant must
//! not have, and becomes the program ([`dsec_sys::starter`]). Where the program is, is found by trying, inside; what cannot
//! be started is an error, never a made-up exit status. How long that takes is the tenant's doing as well (it may be out
//! of CPU time, or stop what it sees), so a start is a value to wait for, and nothing else waits with it.

use crate::cgroup::{self, Groups};
use crate::init;
use crate::policy;
use crate::process::{Process, Running};
use crate::runtime::Shared;
use crate::sandbox::Sandbox;
use crate::spec::{Id, Profile, is_variable};
use crate::user::{self, Resolved, User};
use dsec_sys::process as pidfd;
use dsec_sys::starter::{self, Request, Step, WorkingDirectory};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A command to run.
#[derive(Debug)]
pub struct ExecSpec {
    /// The program and its arguments. A name without a slash is looked for in `PATH`, inside.
    pub argv: Vec<String>,
    /// Variables beside the sandbox's own, which they replace.
    pub env: Vec<(String, String)>,
    /// The working directory; the user's home if none is given, or `/` where that is missing.
    pub cwd: Option<String>,
    /// Who runs it; root if not given.
    pub user: Option<User>,
    /// Standard input, output and error.
    pub stdio: [OwnedFd; 3],
}

/// Why a command did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no program of that name.
    #[error("there is no program {program:?} in the sandbox")]
    NotFound {
        /// What was asked for.
        program: String,
    },
    /// It is there and cannot be run: not executable for this user, or no program.
    #[error("program {program:?} in the sandbox cannot be run")]
    NotExecutable {
        /// What was asked for.
        program: String,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// The working directory is not there, or closed to the user.
    #[error("cannot change to {path} in the sandbox")]
    WorkingDirectory {
        /// Which one.
        path: String,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// No such user.
    #[error(transparent)]
    User(#[from] user::Error),
    /// No command at all.
    #[error("the command is empty")]
    Empty,
    /// An argument, a variable or the working directory that no program can be handed.
    #[error("{what} {text:?} has a null byte, or is not of the form that the kernel takes")]
    Text {
        /// Which one.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// The sandbox does not run any more.
    #[error("sandbox {id} is not running")]
    NotRunning {
        /// Which one.
        id: Id,
    },
    /// The command's cgroup.
    #[error(transparent)]
    Cgroup(#[from] cgroup::Error),
    /// Its descriptors.
    #[error("cannot prepare a command's start")]
    Prepare(#[source] std::io::Error),
    /// A step on the way failed.
    #[error("a command in the sandbox cannot {step}")]
    Step {
        /// Which one.
        step: Step,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// It was killed, by the tenant or because its time was up, before it was its program.
    #[error("a command was killed before its program began")]
    Killed,
    /// It could not be made.
    #[error("cannot start a process in the sandbox")]
    Start(#[source] starter::Error),
}

/// Where programs are looked for if the environment does not say.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(crate) fn start(sandbox: &Sandbox, spec: &ExecSpec) -> Result<Starting, Error> {
    let program = spec.argv.first().filter(|name| !name.is_empty()).ok_or(Error::Empty)?.clone();
    let not_running = || Error::NotRunning { id: sandbox.state.id.clone() };
    let user = match &spec.user {
        None => Resolved::root(),
        Some(user) => user.resolve(&sandbox.root().map_err(|_| not_running())?)?,
    };
    let texts = Texts::new(sandbox, spec, &program, &user)?;
    let oom_kills_before = sandbox.groups.oom_kills()?;
    let command = sandbox.next_command()?;
    let mut starting = Starting {
        shared: sandbox.shared.clone(),
        id: sandbox.state.id.clone(),
        groups: sandbox.groups.clone(),
        pid_1: sandbox.pidfd.try_clone().map_err(Error::Prepare)?,
        oom_kills_before,
        command: Some(command),
        inner: None,
        program,
        cwd: spec.cwd.clone().unwrap_or_default(),
    };
    match starting.begin(sandbox, spec, texts, &user) {
        Ok(inner) => starting.inner = Some(inner),
        Err(error) => return Err(starting.failed(error)),
    }
    Ok(starting)
}

/// What a program is handed.
struct Texts {
    paths: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
    cwd: WorkingDirectory,
}

impl Texts {
    fn new(sandbox: &Sandbox, spec: &ExecSpec, name: &str, user: &Resolved) -> Result<Self, Error> {
        let env = environment(&sandbox.state.env, &spec.env, user)?;
        let path = env.get("PATH").map_or(PATH_DEFAULT, String::as_str);
        let pairs = env.iter().map(|(name, value)| c_string("variable", &format!("{name}={value}")));
        Ok(Self {
            paths: candidates(name, path)?,
            argv: spec.argv.iter().map(|text| c_string("argument", text)).collect::<Result<_, _>>()?,
            env: pairs.collect::<Result<_, _>>()?,
            cwd: match &spec.cwd {
                Some(cwd) => WorkingDirectory::At(c_string("working directory", cwd)?),
                None => WorkingDirectory::IfThere(c_string("home", &user.home)?),
            },
        })
    }
}

/// A command on its way to its program.
///
/// Its descriptor ([`AsFd`]) is readable whenever [`Starting::poll`] may know more. How long it is waited for is the
/// caller's to say: dropping it kills the command.
#[derive(Debug)]
pub struct Starting {
    shared: Arc<Shared>,
    id: Id,
    groups: Groups,
    pid_1: OwnedFd,
    oom_kills_before: u64,
    /// Until it is the process's.
    command: Option<cgroup::Command>,
    /// Until it is decided.
    inner: Option<starter::Starting>,
    program: String,
    cwd: String,
}

impl Starting {
    fn begin(
        &self,
        sandbox: &Sandbox,
        spec: &ExecSpec,
        texts: Texts,
        user: &Resolved,
    ) -> Result<starter::Starting, Error> {
        let cgroup = match &self.command {
            Some(command) => command.open()?,
            None => return Err(Error::Killed),
        };
        let joins = self.groups.open_joins()?;
        let profile = sandbox.state.profile;
        let [stdin, stdout, stderr] = &spec.stdio;
        let request = Request {
            sandbox: self.pid_1.as_fd(),
            namespaces: init::NAMESPACES | libc::CLONE_NEWCGROUP,
            cgroup: cgroup.as_fd(),
            joins: joins.iter().map(AsFd::as_fd).collect(),
            stdio: [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
            limits: &self.shared.limits,
            ignored_signals: self.shared.ignored_signals,
            capabilities: policy::bounding_set(profile),
            last_capability: self.shared.last_capability,
            no_new_privileges: profile == Profile::Strict,
            uid: user.uid,
            gid: user.gid,
            groups: &user.groups,
            cwd: texts.cwd,
            filter: &self.shared.filter,
            paths: texts.paths,
            argv: texts.argv,
            env: texts.env,
        };
        self.shared.starter.start(&request).map_err(Error::Start)
    }

    /// The command once it runs its program; `None` while it is on its way. Never blocks.
    ///
    /// # Errors
    /// [`Error`]; a program that is not there or may not be run is an error of its own. Nothing is left of the command.
    pub fn poll(&mut self) -> Result<Option<Process>, Error> {
        let polled = self.inner.as_mut().map_or(Ok(None), starter::Starting::poll);
        self.decide(polled)
    }

    /// Waits for it; kills it when the time is up.
    ///
    /// # Errors
    /// As [`Starting::poll`], and [`Error::Killed`] after the time.
    pub fn wait(mut self, timeout: Duration) -> Result<Process, Error> {
        let waited = self.inner.take().map_or(Err(starter::Error::Killed), |inner| inner.wait(timeout));
        self.decide(waited.map(Some))?.ok_or(Error::Killed)
    }

    fn decide(
        &mut self,
        decided: Result<Option<dsec_sys::child::Child>, starter::Error>,
    ) -> Result<Option<Process>, Error> {
        let child = match decided {
            Ok(None) => return Ok(None),
            Ok(Some(child)) => child,
            Err(error) => return Err(self.failed(Error::Start(error))),
        };
        self.inner = None;
        let Some(command) = self.command.take() else { return Err(Error::Killed) };
        let running = Running::new(self.groups.clone(), child, self.oom_kills_before, command);
        Ok(Some(Process::new(self.shared.clone(), self.id.clone(), running)))
    }

    /// A failure in terms of what was asked for. Whatever the cause, in a sandbox that does not run it is that.
    fn failed(&mut self, error: Error) -> Error {
        self.clean_up();
        if pidfd::wait_ended(&self.pid_1, 0).unwrap_or(true) {
            return Error::NotRunning { id: self.id.clone() };
        }
        let (step, errno) = match error {
            Error::Start(starter::Error::Step { step, errno }) => (step, errno),
            Error::Start(starter::Error::Killed) => return Error::Killed,
            other => return other,
        };
        let program = self.program.clone();
        match (step, errno) {
            (Step::Exec, Errno::NOENT | Errno::NOTDIR) => Error::NotFound { program },
            (Step::Exec, errno) => Error::NotExecutable { program, errno },
            (Step::WorkingDirectory, errno) => Error::WorkingDirectory { path: self.cwd.clone(), errno },
            (step, errno) => Error::Step { step, errno },
        }
    }

    fn clean_up(&mut self) {
        let undecided = self.inner.take().is_some();
        if let Some(command) = self.command.take() {
            // It may have been its program for a moment, and have started others.
            if undecided && let Err(error) = command.kill() {
                tracing::warn!(sandbox = %self.id, %error, "a command that nobody waits for cannot be killed");
            }
            self.shared.children.linger(&self.id, command);
        }
    }
}

impl AsFd for Starting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_ref().map_or(self.pid_1.as_fd(), AsFd::as_fd)
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.clean_up();
    }
}

fn environment<'a>(
    base: &'a [(String, String)],
    own: &'a [(String, String)],
    user: &Resolved,
) -> Result<BTreeMap<&'a str, String>, Error> {
    let mut env = BTreeMap::from([("PATH", PATH_DEFAULT.to_owned()), ("HOME", user.home.clone())]);
    for (name, value) in base.iter().chain(own) {
        if !is_variable(name, value) {
            return Err(Error::Text { what: "variable", text: name.clone() });
        }
        env.insert(name, value.clone());
    }
    Ok(env)
}

/// The kernel's PATH_MAX: what is longer is no path, wherever it leads.
const PATH_BYTES_MAX: usize = 4096;
/// Paths that a name may be looked for under, together. A `PATH` may be the image's, and the name the caller's.
const CANDIDATE_BYTES_MAX: usize = 1 << 20;

/// The paths under which a program may be.
fn candidates(name: &str, path: &str) -> Result<Vec<CString>, Error> {
    if name.contains('/') {
        return Ok(vec![c_string("program", name)?]);
    }
    let (mut candidates, mut bytes) = (Vec::new(), 0);
    for directory in path.split(':') {
        // An empty entry means the working directory, as in every shell.
        let directory = if directory.is_empty() { "." } else { directory };
        let length = directory.len() + 1 + name.len();
        if length >= PATH_BYTES_MAX {
            continue;
        }
        bytes += length;
        if bytes > CANDIDATE_BYTES_MAX {
            return Err(Error::NotExecutable { program: name.to_owned(), errno: Errno::TOOBIG });
        }
        candidates.push(c_string("program", &format!("{directory}/{name}"))?);
    }
    Ok(candidates)
}

fn c_string(what: &'static str, text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Text { what, text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_for_and_a_path_is_not() {
        let all = candidates("sh", "/usr/bin::/bin").unwrap();
        assert_eq!(all, [c"/usr/bin/sh".into(), c"./sh".into(), CString::from(c"/bin/sh")]);
        assert_eq!(candidates("./sh", "/bin").unwrap(), [CString::from(c"./sh")]);
        assert!(matches!(candidates("a\0b", "/bin"), Err(Error::Text { .. })));
        assert!(candidates(&"x".repeat(1 << 20), &":/bin".repeat(1 << 20)).unwrap().is_empty());
        let many = "/some/directory:".repeat(100_000);
        assert!(matches!(candidates("sh", &many), Err(Error::NotExecutable { errno: Errno::TOOBIG, .. })));
    }

    #[test]
    fn the_commands_variables_replace_the_sandboxs() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let (base, own) = ([pair("A", "1"), pair("B", "2")], [pair("B", "3")]);
        let env = environment(&base, &own, &Resolved::root()).unwrap();
        assert_eq!((env["A"].as_str(), env["B"].as_str(), env["HOME"].as_str()), ("1", "3", "/root"));
    }
}
