//! The life of a sandbox: reserve, start commands, remove. How it is made is in `make`.

use std::sync::Arc;
use std::time::Duration;

use dsec_format::image::Config as ImageConfig;
use dsec_format::protocol::edge::{CreateRequest, ExecRequest, Reason};
use dsec_sandbox::{ExecError, ExecSpec, Id, Limits, UserError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::sync::OwnedRwLockReadGuard;

use super::entry::{COMMANDS_MAX, Entry, Live};
use super::error::Error;
use super::exec::{Exec, Pipes, Place};
use super::journal::Step;
use super::spares::Spare;
use super::stream::Readers;
use super::{Edge, LowPriority, blocking, now_ms};

impl Edge {
    /// Makes a sandbox, or finds the one that the key has made. A caller that goes away does not stop it.
    pub(crate) async fn create(self: &Arc<Self>, request: CreateRequest) -> Result<Arc<Entry>, Error> {
        let (entry, new) = self.reserve(request, false)?;
        if new {
            let (edge, entry) = (Arc::clone(self), Arc::clone(&entry));
            tokio::spawn(async move {
                let _starting = edge.spares.starting();
                edge.make(&entry, |_| ()).await
            });
        }
        entry.wait_made().await?;
        Ok(entry)
    }

    /// Takes a name and a range of ids, in memory.
    pub(crate) fn reserve(&self, request: CreateRequest, ephemeral: bool) -> Result<(Arc<Entry>, bool), Error> {
        let limits = self.limits(&request)?;
        pairs(&request.env)?;
        self.table.reserve(&request, || {
            let (id, id_base, spare) = self.place_for(&request, limits)?;
            let mut record = self.journal.reserve(id, request.clone(), limits, id_base, now_ms());
            record.ephemeral = ephemeral;
            Ok(Entry::new(record, spare))
        })
    }

    /// An id and a range of ids, with the spare whose they are, if there is one: of the environment that is asked for, or,
    /// where all ranges are taken, of another.
    fn place_for(&self, request: &CreateRequest, limits: Limits) -> Result<(Id, u32, Option<Spare>), Error> {
        let of = |(id, spare): (Id, Spare)| (id, spare.record.id_base, Some(spare));
        let fitting = || self.spares.take(&request.image, limits);
        if let Some(place) = request.hostname.is_none().then(fitting).flatten() {
            return Ok(of(place));
        }
        match self.ranges.take() {
            Ok(id_base) => Ok((self.draw_id()?, id_base, None)),
            Err(error) => self.spares.take_any().map(of).ok_or(Error::Ids(error)),
        }
    }

    /// Limits with the node's defaults, within what the node gives.
    fn limits(&self, request: &CreateRequest) -> Result<Limits, Error> {
        let (asked, default, most) = (&request.limits, &self.config.default_limits, &self.config.most_limits);
        let limits = Limits {
            memory_bytes: asked.memory_bytes.unwrap_or(default.memory_bytes.min(most.memory_bytes)),
            cpu_millis: asked.cpu_millis.unwrap_or(default.cpu_millis.min(most.cpu_millis)),
            pids: asked.pids.unwrap_or(default.pids.min(most.pids)),
        };
        for (what, asked, most) in [
            ("memory bytes", limits.memory_bytes, most.memory_bytes),
            ("cpu millis", limits.cpu_millis.into(), most.cpu_millis.into()),
            ("pids", limits.pids.into(), most.pids.into()),
        ] {
            if asked > most {
                return Err(Error::OverLimit { what, asked, most });
            }
        }
        Ok(limits)
    }

    /// Removes a sandbox, from any state. A caller that goes away does not stop it. Removing what is gone is no error.
    pub(crate) async fn destroy(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), Error> {
        entry.leaving();
        let (edge, entry) = (Arc::clone(self), Arc::clone(entry));
        tokio::spawn(async move { edge.remove(&entry).await }).await.map_err(|_| Error::Lost)?
    }

    pub(super) async fn remove(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), Error> {
        let mut removed = entry.removed.lock().await;
        if *removed {
            return Ok(());
        }
        let (edge, leaving) = (Arc::clone(self), Arc::clone(entry));
        // Nobody waits for the removal of a run's sandbox, and the next run should not either; but it must not fall behind.
        let gives_way = entry.reserved.ephemeral && self.removing.available_permits() > self.config.parallel / 2;
        blocking(&self.removing, move || {
            let _low = gives_way.then(LowPriority::take);
            edge.remove_all(&leaving)
        })
        .await??;
        self.images.release(entry.id().as_str());
        self.ranges.give_back(entry.reserved.id_base);
        self.table.forget(entry);
        entry.gone();
        *removed = true;
        Ok(())
    }

    /// The blocking part: what the sandbox has on this node, its record last.
    fn remove_all(&self, entry: &Entry) -> Result<(), Error> {
        let id = entry.id();
        if !entry.reserved.ephemeral && entry.standing().is_some() {
            let mut record = entry.reserved.clone();
            record.step = Step::Destroying;
            self.journal.write(&record)?;
        }
        match entry.standing() {
            Some(live) => live.sandbox.destroy(),
            None => self.runtime.sweep(id, &self.journal.disk(id)),
        }
        .map_err(|error| Error::Sandbox { id: id.to_string(), verb: "removed", source: error.into() })?;
        Ok(self.journal.forget(id.as_str())?)
    }

    /// Starts a command, and watches over it from then on. With `attach`, its output is read from the first byte.
    pub(crate) async fn exec(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        request: ExecRequest,
        attach: bool,
    ) -> Result<(Arc<Exec>, Option<Readers>), Error> {
        let live = entry.live()?;
        let timeout_ms = request.timeout_ms;
        let command = Command::new(&live, request)?;
        let place = self.place(entry)?;
        let gate = self.pass_gate(entry).await?;
        let _starting = self.spares.starting();
        let (exec, readers) = self.new_exec(entry, attach);
        let started = blocking(&self.starting, move || command.start(&live)).await;
        drop(gate);
        let started = started.unwrap_or_else(|error| Err(Start::Failed(error)));
        self.begun(entry, &exec, started, timeout_ms, place)?;
        Ok((exec, readers))
    }

    /// Makes a reserved sandbox and starts a command in it: one hand-over to the pool, not two.
    pub(crate) async fn make_and_exec(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        request: ExecRequest,
    ) -> Result<(Arc<Exec>, Readers), Error> {
        let timeout_ms = request.timeout_ms;
        let place = self.place(entry)?;
        let gate = self.pass_gate(entry).await?;
        let _starting = self.spares.starting();
        let start = |live: &Live| Ok::<_, Error>(Command::new(live, request)?.start(live));
        let Some(started) = self.make(entry, start).await else {
            entry.wait_made().await?;
            return Err(Error::Leaving { id: entry.id().to_string() });
        };
        drop(gate);
        let (exec, readers) = self.new_exec(entry, true);
        let readers = readers.unwrap_or_else(|| exec.readers(0, 0));
        self.begun(entry, &exec, started?, timeout_ms, place)?;
        Ok((exec, readers))
    }

    fn new_exec(&self, entry: &Entry, attach: bool) -> (Arc<Exec>, Option<Readers>) {
        let exec = Exec::new(self.next_exec_id(), now_ms(), self.new_output(), self.new_output());
        let readers = attach.then(|| exec.readers(0, 0));
        entry.add_exec(Arc::clone(&exec));
        (exec, readers)
    }

    /// What follows a start.
    fn begun(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        exec: &Arc<Exec>,
        started: Result<(dsec_sandbox::Process, Pipes), Start>,
        timeout_ms: Option<u64>,
        place: Place,
    ) -> Result<(), Error> {
        match started {
            Ok((process, pipes)) => self.watch(entry, exec, process, pipes, timeout_ms, place),
            Err(Start::Ended(reason)) => {
                exec.not_started(reason);
                self.exec_ended(entry, exec);
                Ok(())
            }
            Err(Start::Failed(error)) => {
                entry.forget_exec(&exec.id);
                Err(error)
            }
        }
    }

    /// A place for one more command.
    fn place(&self, entry: &Entry) -> Result<Place, Error> {
        let full = |what, most| move |_| Error::Commands { what, most };
        let of_sandbox = Arc::clone(&entry.commands).try_acquire_owned();
        let of_edge = Arc::clone(&self.commands).try_acquire_owned();
        Ok(Place {
            _of_sandbox: of_sandbox.map_err(full(format!("sandbox {}", entry.id()), COMMANDS_MAX))?,
            _of_edge: of_edge.map_err(full("all sandboxes".to_owned(), self.config.commands))?,
        })
    }

    /// Waits until nobody holds the sandbox; while the answer lives, nobody begins to.
    pub(crate) async fn pass_gate(&self, entry: &Entry) -> Result<OwnedRwLockReadGuard<()>, Error> {
        let waited_ms = self.config.held_wait.as_millis();
        tokio::time::timeout(self.config.held_wait, Arc::clone(&entry.gate).read_owned())
            .await
            .map_err(|_| Error::HeldTooLong { id: entry.id().to_string(), waited_ms })
    }

    fn watch(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        exec: &Arc<Exec>,
        process: dsec_sandbox::Process,
        pipes: Pipes,
        timeout_ms: Option<u64>,
        place: Place,
    ) -> Result<(), Error> {
        let timeout = timeout_ms.map(Duration::from_millis);
        let ended = exec.supervise(process, pipes, timeout, self.config.drain, place)?;
        let (edge, entry, exec) = (Arc::clone(self), Arc::clone(entry), Arc::clone(exec));
        tokio::spawn(async move {
            let process = ended.await;
            edge.exec_ended(&entry, &exec);
            // Removing a cgroup may wait for the kernel.
            drop(tokio::task::spawn_blocking(move || drop(process)));
        });
        Ok(())
    }

    fn exec_ended(&self, entry: &Entry, exec: &Exec) {
        self.table.exec_ended(entry, exec, self.config.ended_execs, self.config.ended_output_bytes);
    }

    /// Kills a command, with everything it started.
    pub(crate) async fn kill(&self, exec: &Arc<Exec>) -> Result<(), Error> {
        let (id, exec) = (exec.id.clone(), Arc::clone(exec));
        blocking(&self.removing, move || exec.kill()).await?.map_err(|error| Error::Sandbox {
            id,
            verb: "killed",
            source: error.into(),
        })
    }
}

/// Why a command was not started.
enum Start {
    /// An outcome: its own fault or the image's, or that the image cannot be read.
    Ended(Reason),
    /// The platform's fault, as an error.
    Failed(Error),
}

/// A command with everything that starting it needs.
struct Command {
    argv: Vec<String>,
    env: Vec<(String, String)>,
    cwd: Option<String>,
    user: Option<String>,
    stdin: bool,
}

impl Command {
    fn new(live: &Live, request: ExecRequest) -> Result<Self, Error> {
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

    /// Starts it. Blocks.
    fn start(self, live: &Live) -> Result<(dsec_sandbox::Process, Pipes), Start> {
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
        let process = live.sandbox.exec(spec).map_err(|error| sort(live.standing.handle.id.as_str(), error))?;
        Ok((process, Pipes { stdin: stdin_ours, stdout: stdout_ours, stderr: stderr_ours }))
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
        ExecError::Step { .. } | ExecError::Clone(_) if lacks(&error).is_some() => {
            refused(&error, lacks(&error).unwrap_or(Errno::AGAIN))
        }
        ExecError::NotRunning { .. } | ExecError::Cgroup(_) | ExecError::Step { .. } | ExecError::Clone(_) => {
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

/// `KEY=VALUE` entries, taken apart.
pub(super) fn pairs(entries: &[String]) -> Result<Vec<(String, String)>, Error> {
    let split = |entry: &String| match entry.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Error::Variable { entry: entry.clone() }),
    };
    entries.iter().map(split).collect()
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
