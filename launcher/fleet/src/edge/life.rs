//! The life of a sandbox: reserve, start commands, remove. How it is made is in `make`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dsec_format::protocol::edge::{CreateRequest, ExecRequest, Reason};
use dsec_sandbox::{Id, Limits, Starting};
use tokio::sync::{OwnedRwLockReadGuard, OwnedSemaphorePermit};

use super::arguments::Full;
use super::entry::{COMMANDS_MAX, Entry, Live};
use super::error::Error;
use super::exec::{Exec, Pipes, Place};
use super::journal::Step;
use super::spares::Spare;
use super::start::{Command, START_PATIENCE, Start, decided};
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

    /// An id and a range of ids, with the spare whose they are, if there is one: of the shape that is asked for, or,
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
        let timeout = request.timeout_ms.map(Duration::from_millis);
        let command = Command::new(&live, request)?;
        // Before it has anything that is for all sandboxes: this may take as long as the tenant likes.
        let began = Instant::now();
        let room = match room(entry, command.bytes(&live), timeout).await {
            Ok(room) => room,
            Err(Start::Failed(error)) => return Err(error),
            Err(Start::Ended(reason)) => {
                let (exec, readers) = self.new_exec(entry, attach);
                exec.not_started(reason);
                self.exec_ended(entry, &exec);
                return Ok((exec, readers));
            }
        };
        let timeout = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
        let place = self.place(entry)?;
        let gate = self.pass_gate(entry).await?;
        let in_flight = self.spares.starting();
        let (exec, readers) = self.new_exec(entry, attach);
        let started = blocking(&self.starting, move || command.start(&live)).await;
        // From here on its cgroup holds it: whoever freezes the sandbox freezes it too. How long it takes is its own affair.
        drop((gate, in_flight));
        let started = started.unwrap_or_else(|error| Err(Start::Failed(error)));
        self.begun(entry, &exec, started, timeout, place).await?;
        drop(room);
        Ok((exec, readers))
    }

    /// Makes a reserved sandbox and starts a command in it: one hand-over to the pool, not two. Nothing of
    /// a tenant's runs there yet that could hold it up.
    pub(crate) async fn make_and_exec(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        request: ExecRequest,
    ) -> Result<(Arc<Exec>, Readers), Error> {
        let timeout = request.timeout_ms.map(Duration::from_millis);
        let place = self.place(entry)?;
        let gate = self.pass_gate(entry).await?;
        let in_flight = self.spares.starting();
        let start = |live: &Live| Ok::<_, Error>(Command::new(live, request)?.start(live));
        let Some(started) = self.make(entry, start).await else {
            entry.wait_made().await?;
            return Err(Error::Leaving { id: entry.id().to_string() });
        };
        drop((gate, in_flight));
        let (exec, readers) = self.new_exec(entry, true);
        let readers = readers.unwrap_or_else(|| exec.readers(0, 0));
        self.begun(entry, &exec, started?, timeout, place).await?;
        Ok((exec, readers))
    }

    fn new_exec(&self, entry: &Entry, attach: bool) -> (Arc<Exec>, Option<Readers>) {
        let exec = Exec::new(self.next_exec_id(), now_ms(), self.new_output(), self.new_output());
        let readers = attach.then(|| exec.readers(0, 0));
        entry.add_exec(Arc::clone(&exec));
        (exec, readers)
    }

    /// What follows a start: the command becomes its program, or does not.
    async fn begun(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        exec: &Arc<Exec>,
        started: Result<(Starting, Pipes), Start>,
        timeout: Option<Duration>,
        place: Place,
    ) -> Result<(), Error> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let decided = match started {
            Ok((starting, pipes)) => decided(entry, starting, deadline).await.map(|process| (process, pipes)),
            Err(failed) => Err(failed),
        };
        match decided {
            Ok((process, pipes)) => self.watch(entry, exec, process, pipes, deadline, place),
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
        deadline: Option<Instant>,
        place: Place,
    ) -> Result<(), Error> {
        let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
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

/// Room for what a start holds, within its own time.
async fn room(entry: &Entry, bytes: usize, timeout: Option<Duration>) -> Result<OwnedSemaphorePermit, Start> {
    let began = Instant::now();
    let patience = timeout.unwrap_or(START_PATIENCE).min(START_PATIENCE);
    entry.arguments.room(bytes, patience).await.map_err(|full| {
        if full == Full::Time && timeout == Some(patience) {
            return Start::Ended(Reason::Timeout);
        }
        let waited_ms = began.elapsed().as_millis();
        Start::Failed(Error::StartsHold { id: entry.id().to_string(), waited_ms })
    })
}

/// `KEY=VALUE` entries, taken apart.
pub(super) fn pairs(entries: &[String]) -> Result<Vec<(String, String)>, Error> {
    let split = |entry: &String| match entry.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Error::Variable { entry: entry.clone() }),
    };
    entries.iter().map(split).collect()
}
