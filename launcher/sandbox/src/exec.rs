//! Starting a command inside a sandbox, from outside.
//!
//! Nothing of ours waits inside: the command's process is made here, born in the sandbox's pid namespace and in a cgroup
//! of its own, walks into the other namespaces, gives up what a tenant must not have, and becomes the program. Where the
//! program is, is found by trying, inside; what cannot be started is an error, never a made-up exit status.

use crate::cgroup;
use crate::init::{self, Step};
use crate::policy;
use crate::process::{Process, Running};
use crate::sandbox::Sandbox;
use crate::spec::{Profile, is_variable};
use crate::user::{self, Resolved, User};
use dsec_sys::child::{self, Fd, Op, Options, Program, Strings};
use dsec_sys::ns::ChildrenIn;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

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
        id: crate::spec::Id,
    },
    /// The command's cgroup.
    #[error(transparent)]
    Cgroup(#[from] cgroup::Error),
    /// A step on the way failed.
    #[error("a command in the sandbox cannot {step}")]
    Step {
        /// Which one.
        step: Step,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// The kernel made no process.
    #[error("cannot start a process in the sandbox")]
    Clone(#[source] child::Error),
}

/// Where programs are looked for if the environment does not say.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(crate) fn start(sandbox: &Sandbox, spec: ExecSpec) -> Result<Process, Error> {
    let name = spec.argv.first().filter(|name| !name.is_empty()).ok_or(Error::Empty)?.clone();
    let not_running = || Error::NotRunning { id: sandbox.state.id.clone() };
    let user = match &spec.user {
        None => Resolved::root(),
        Some(user) => user.resolve(&sandbox.root().map_err(|_| not_running())?)?,
    };
    let program = program(sandbox, &spec, &name, &user)?;
    let oom_kills_before = sandbox.groups.oom_kills()?;
    let command = sandbox.next_command()?;
    let spawned = spawn(sandbox, &program, &command);
    drop(program);
    match spawned {
        Ok(child) => {
            let running = Running::new(sandbox.groups.clone(), child, oom_kills_before, command);
            Ok(Process::new(sandbox.shared.clone(), sandbox.state.id.clone(), running))
        }
        Err(error) => {
            sandbox.shared.children.linger(&sandbox.state.id, command);
            Err(if sandbox.is_running() { named(error, name, &spec) } else { not_running() })
        }
    }
}

/// A failure before it is said in terms of what was asked for.
enum Failure {
    Early(Error),
    Child(child::Error),
}

fn spawn(sandbox: &Sandbox, program: &Program<'_>, command: &cgroup::Command) -> Result<child::Child, Failure> {
    let cgroup = command.open().map_err(|error| Failure::Early(error.into()))?;
    let _children = ChildrenIn::enter(sandbox.pidfd.as_fd(), sandbox.shared.own_pid_ns.as_fd())
        .map_err(|errno| Failure::Early(Error::Step { step: Step::Enter, errno }))?;
    child::spawn(program, Options { namespaces: 0, cgroup: Some(cgroup.as_fd()) }).map_err(Failure::Child)
}

fn named(failure: Failure, program: String, spec: &ExecSpec) -> Error {
    let (label, errno) = match failure {
        Failure::Early(error) => return error,
        Failure::Child(child::Error::Step { label, errno }) => (label, errno),
        Failure::Child(error) => return Error::Clone(error),
    };
    match (Step::of(label), errno) {
        (Step::Exec, Errno::NOENT | Errno::NOTDIR) => Error::NotFound { program },
        (Step::Exec, errno) => Error::NotExecutable { program, errno },
        (Step::WorkingDirectory, errno) => {
            Error::WorkingDirectory { path: spec.cwd.clone().unwrap_or_default(), errno }
        }
        (step, errno) => Error::Step { step, errno },
    }
}

fn program<'a>(sandbox: &'a Sandbox, spec: &'a ExecSpec, name: &str, user: &Resolved) -> Result<Program<'a>, Error> {
    let env = environment(&sandbox.state.env, &spec.env, user)?;
    let path = env.get("PATH").map_or(PATH_DEFAULT, String::as_str);
    let paths = candidates(name, path)?;
    let argv = spec.argv.iter().map(|text| c_string("argument", text)).collect::<Result<_, _>>()?;
    let pairs = env.iter().map(|(name, value)| c_string("variable", &format!("{name}={value}")));
    let env = Strings::new(pairs.collect::<Result<_, _>>()?);
    let mut program = Program::new();
    init::join(&mut program, &sandbox.groups);
    if sandbox.shared.oom_adjusted {
        program.push(Step::Rlimits, Op::Write { path: c"/proc/self/oom_score_adj".into(), bytes: b"0" });
    }
    let namespaces = init::NAMESPACES | libc::CLONE_NEWCGROUP;
    let inside = namespaces & !libc::CLONE_NEWPID;
    program.push(Step::Enter, Op::Enter { fd: Fd::Of(sandbox.pidfd.as_fd()), flags: inside });
    let [stdin, stdout, stderr] = &spec.stdio;
    program.push(Step::Stdio, Op::Stdio([stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]));
    program.push(Step::Stdio, Op::CloseOnExecFrom(3));
    for limit in &sandbox.shared.limits {
        program.push(Step::Rlimits, Op::Limit(*limit));
    }
    privileges(&mut program, sandbox, user);
    match &spec.cwd {
        Some(cwd) => program.push(Step::WorkingDirectory, Op::Chdir(c_string("working directory", cwd)?)),
        None => program.push(Step::WorkingDirectory, Op::ChdirIfThere(c_string("home", &user.home)?)),
    }
    program.push(Step::Seccomp, Op::Seccomp(&sandbox.shared.filter));
    program.push(Step::Exec, Op::Exec { paths, argv: Strings::new(argv), env });
    Ok(program)
}

fn privileges(program: &mut Program<'_>, sandbox: &Sandbox, user: &Resolved) {
    let profile = sandbox.state.profile;
    let mut push = |step, op| program.push(step, op);
    push(Step::Privileges, Op::NewSession);
    push(Step::Privileges, Op::Umask(0o022));
    push(Step::Privileges, Op::DefaultSignals { ignored: sandbox.shared.ignored_signals });
    let keep = policy::bounding_set(profile);
    push(Step::Privileges, Op::Bounding { keep, last: sandbox.shared.last_capability });
    push(Step::User, Op::Ids { uid: user.uid, gid: user.gid, groups: user.groups.clone() });
    if profile == Profile::Strict {
        push(Step::Privileges, Op::NoNewPrivileges);
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

/// The paths under which a program may be.
fn candidates(name: &str, path: &str) -> Result<Vec<CString>, Error> {
    if name.contains('/') {
        return Ok(vec![c_string("program", name)?]);
    }
    let in_directory = |directory: &str| match directory {
        // An empty entry means the working directory, as in every shell.
        "" => c_string("program", &format!("./{name}")),
        directory => c_string("program", &format!("{directory}/{name}")),
    };
    path.split(':').map(in_directory).collect()
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
    }

    #[test]
    fn the_commands_variables_replace_the_sandboxs() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let (base, own) = ([pair("A", "1"), pair("B", "2")], [pair("B", "3")]);
        let env = environment(&base, &own, &Resolved::root()).unwrap();
        assert_eq!((env["A"].as_str(), env["B"].as_str(), env["HOME"].as_str()), ("1", "3", "/root"));
    }
}
