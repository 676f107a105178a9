//! A command from its request to its program.
//!
//! Handing it over takes no time ([`Command::start`]); becoming its program takes as long as the sandbox makes it
//! ([`decided`]), and nothing but the request waits for that.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use dsec_format::image::Config as ImageConfig;
use dsec_format::protocol::edge::{ExecRequest, Reason};
use dsec_sandbox::{ExecError, ExecSpec, Starting, UserError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::entry::{Entry, Live};
use super::error::Error;
use super::exec::{Pipes, watch_fd};
use super::life::pairs;

/// How long a command may take to become its program. Most of that is reading it: a read of a lazy image has a deadline of
/// its own, which is shorter.
pub(super) const START_PATIENCE: Duration = Duration::from_secs(180);

/// Waits for a start to be decided, for as long as the sandbox needs: a tenant can hold up its own commands only.
pub(super) async fn decided(
    entry: &Entry,
    starting: Starting,
    deadline: Option<Instant>,
) -> Result<dsec_sandbox::Process, Start> {
    let patience = Instant::now() + START_PATIENCE;
    let until = deadline.map_or(patience, |deadline| deadline.min(patience));
    let mut starting = starting;
    let watched = starting.as_fd().try_clone_to_owned().and_then(watch_fd);
    let watched = watched.map_err(|source| Start::Failed(Error::WatchStart { id: entry.id().to_string(), source }))?;
    let waiting = async {
        loop {
            match starting.poll() {
                Ok(Some(process)) => return Ok(process),
                Ok(None) => {}
                Err(error) => return Err(sort(entry.id().as_str(), error)),
            }
            match watched.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                Err(source) => return Err(Start::Failed(Error::WatchStart { id: entry.id().to_string(), source })),
            }
        }
    };
    match tokio::time::timeout_at(until.into(), waiting).await {
        Ok(decided) => decided,
        Err(_) => {
            // Killing waits for the kernel.
            drop(tokio::task::spawn_blocking(move || drop(starting)));
            let own = deadline.is_some_and(|deadline| deadline <= patience);
            Err(if own {
                Start::Ended(Reason::Timeout)
            } else {
                Start::Failed(Error::StartTooLong { id: entry.id().to_string(), after_ms: START_PATIENCE.as_millis() })
            })
        }
    }
}

/// Why a command was not started.
pub(super) enum Start {
    /// An outcome: its own fault or the image's, or that the image cannot be read.
    Ended(Reason),
    /// The platform's fault, as an error.
    Failed(Error),
}

/// A command with everything that starting it needs.
pub(super) struct Command {
    argv: Vec<String>,
    env: Vec<(String, String)>,
    cwd: Option<String>,
    user: Option<String>,
    stdin: bool,
}

impl Command {
    pub(super) fn new(live: &Live, request: ExecRequest) -> Result<Self, Error> {
        let config = &live.standing.config;
        let argv = if request.argv.is_empty() { command_of(config) } else { request.argv };
        if argv.is_empty() {
            return Err(Error::NoCommand { image: live.standing.image.to_string() });
        }
        let or_image = |own: Option<String>, image: &str| own.or_else(|| (!image.is_empty()).then(|| image.to_owned()));
        Ok(Self {
            argv,
            env: pairs(&request.env)?,
            cwd: or_image(request.working_dir, &config.working_dir),
            user: or_image(request.user, &config.user),
            stdin: request.stdin,
        })
    }

    /// How many bytes it holds in the edge until it is decided, about: what every start has, each text with its length and
    /// place, and a name that is tried in every directory of `PATH`.
    pub(super) fn bytes(&self, live: &Live) -> usize {
        const START: usize = 8 << 10;
        const EACH: usize = 32;
        let env = || live.standing.handle.env.iter().chain(&self.env);
        let texts = self.argv.iter().map(String::len).chain(env().map(|(name, value)| name.len() + value.len()));
        let path = env().rfind(|(name, _)| name == "PATH").map_or("", |(_, value)| value.as_str());
        let tries = match self.argv.first() {
            Some(name) if !name.contains('/') => {
                path.split(':').map(|directory| directory.len() + name.len() + EACH).fold(0, usize::saturating_add)
            }
            _ => 0,
        };
        texts.map(|bytes| bytes + EACH).fold(tries.saturating_add(START), usize::saturating_add)
    }

    /// Begins to start it.
    pub(super) fn start(self, live: &Live) -> Result<(Starting, Pipes), Start> {
        let failed = |what| move |errno: Errno| Start::Failed(Error::Descriptors { what, errno });
        let (stdin, stdin_ours) = if self.stdin {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("make a pipe"))?;
            (reader, Some(writer))
        } else {
            (
                rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                    .map_err(failed("open /dev/null"))?,
                None,
            )
        };
        let (stdout_ours, stdout) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("make a pipe"))?;
        let (stderr_ours, stderr) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("make a pipe"))?;
        let user =
            self.user.map(|user| user.parse()).transpose().map_err(|error: UserError| refused(&error, Errno::INVAL))?;
        let spec = ExecSpec { argv: self.argv, env: self.env, cwd: self.cwd, user, stdio: [stdin, stdout, stderr] };
        let starting = live.sandbox.exec(spec).map_err(|error| sort(live.standing.handle.id.as_str(), error))?;
        Ok((starting, Pipes { stdin: stdin_ours, stdout: stdout_ours, stderr: stderr_ours }))
    }
}

fn refused(error: &(dyn std::error::Error + 'static), errno: Errno) -> Start {
    let (errno, message) = (errno.raw_os_error(), super::chain(error));
    Start::Ended(Reason::NotStarted { errno, no_program: false, message })
}

/// Whose fault it is that a command was not started.
fn sort(id: &str, error: ExecError) -> Start {
    // A dead or cut-off dsec-mountd; a program on a sound image gives neither.
    if about(&error, &[Errno::IO, Errno::NOTCONN]).is_some() {
        let message = format!("{}: the files of its image cannot be read, is dsec-mountd gone?", super::chain(&error));
        return Start::Ended(Reason::InfraLost { message });
    }
    match &error {
        ExecError::NotFound { .. } => {
            let (errno, message) = (Errno::NOENT.raw_os_error(), super::chain(&error));
            Start::Ended(Reason::NotStarted { errno, no_program: true, message })
        }
        ExecError::NotExecutable { errno, .. } | ExecError::WorkingDirectory { errno, .. } => refused(&error, *errno),
        ExecError::User(_) | ExecError::Empty | ExecError::Text { .. } => refused(&error, Errno::INVAL),
        // The tenant's own limit of processes or memory is in the way.
        ExecError::Step { .. } if lacks(&error).is_some() => refused(&error, lacks(&error).unwrap_or(Errno::AGAIN)),
        // By someone in the sandbox, or for want of its memory.
        ExecError::Killed => refused(&error, Errno::CANCELED),
        ExecError::NotRunning { .. }
        | ExecError::Cgroup(_)
        | ExecError::Prepare(_)
        | ExecError::Step { .. }
        | ExecError::Start(_) => {
            Start::Failed(Error::Sandbox { id: id.to_owned(), verb: "given a command", source: error.into() })
        }
    }
}

/// EAGAIN or ENOMEM, if that is what an error is about.
fn lacks(error: &(dyn std::error::Error + 'static)) -> Option<Errno> {
    about(error, &[Errno::AGAIN, Errno::NOMEM])
}

/// One of these answers of the kernel, if that is what an error is about.
fn about(error: &(dyn std::error::Error + 'static), answers: &[Errno]) -> Option<Errno> {
    let own = error.downcast_ref::<Errno>().filter(|errno| answers.contains(errno));
    own.copied().or_else(|| error.source().and_then(|source| about(source, answers)))
}

fn command_of(config: &ImageConfig) -> Vec<String> {
    config.entrypoint.iter().chain(&config.cmd).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(error: ExecError) -> Reason {
        match sort("s-1", error) {
            Start::Ended(reason) => reason,
            Start::Failed(error) => panic!("{error}"),
        }
    }

    #[test]
    fn an_image_that_cannot_be_read_is_the_platforms_failure() {
        let program = || "sh".to_owned();
        for errno in [Errno::IO, Errno::NOTCONN] {
            let errors = [
                ExecError::NotExecutable { program: program(), errno },
                ExecError::WorkingDirectory { path: "/srv".into(), errno },
                ExecError::User(UserError::File(dsec_sandbox::FilesError::Refused {
                    what: "read",
                    path: "/etc/passwd".into(),
                    errno,
                })),
            ];
            for error in errors {
                let reason = reason(error);
                let Reason::InfraLost { message } = &reason else { panic!("{reason:?}") };
                assert!(message.contains("in the sandbox") && message.contains("dsec-mountd"), "{message}");
            }
        }
    }

    #[test]
    fn what_is_not_there_is_a_program_or_something_else() {
        let no_program = |error| match reason(error) {
            Reason::NotStarted { errno: 2, no_program, .. } => no_program,
            reason => panic!("{reason:?}"),
        };
        assert!(no_program(ExecError::NotFound { program: "x".into() }));
        assert!(!no_program(ExecError::WorkingDirectory { path: "/x".into(), errno: Errno::NOENT }));
    }
}
