//! One sandbox in the edge's table: what was asked for, where it is in its life, what runs in it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dsec_format::ImageDigest;
use dsec_format::protocol::edge::{CreateRequest, Sandbox, State};
use dsec_sandbox::{Id, Limits};
use tokio::sync::{Mutex as AsyncMutex, RwLock, Semaphore, watch};

use super::arguments::Arguments;
use super::error::Error;
use super::exec::Exec;
use super::journal::{Record, Standing};
use super::spares::Spare;

/// Commands that may run at once in one sandbox. Each costs the edge five descriptors.
pub(crate) const COMMANDS_MAX: usize = 1024;

/// Where a sandbox is in its life, as long as the edge runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Being made.
    Creating,
    /// It stands: [`Entry::live`] has it.
    Running,
    /// Being removed, or removal has failed and can be asked for again.
    Destroying,
    /// Nothing of it is left.
    Gone,
}

/// How far the making of a sandbox is. Up to its layers it may be left without waiting for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Making {
    /// Before anything, or waiting for the layers.
    Layers,
    /// On its way to stand: whoever wants it gone waits for that.
    Begun,
    /// It will not be made.
    Left,
}

/// A sandbox that stands.
#[derive(Debug)]
pub(crate) struct Live {
    /// It.
    pub sandbox: dsec_sandbox::Sandbox,
    /// What it was made of.
    pub standing: Standing,
}

/// One sandbox.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its first record.
    pub reserved: Record,
    phase: watch::Sender<Phase>,
    /// Apart from the phase: whoever waits for this alone is not woken when it stands.
    leaving: watch::Sender<bool>,
    making: Mutex<Making>,
    /// What it is to be made of, unless that turns out not to fit. Its record has been written.
    spare: Mutex<Option<Spare>>,
    live: OnceLock<Arc<Live>>,
    failure: OnceLock<Arc<Error>>,
    execs: Mutex<BTreeMap<String, Arc<Exec>>>,
    /// Read by what changes the sandbox's files or starts commands, written by a hold.
    pub gate: Arc<RwLock<()>>,
    held: AtomicBool,
    /// Places for commands that run, or have left something running.
    pub commands: Arc<Semaphore>,
    /// Room for what its starts hold.
    pub(super) arguments: Arguments,
    /// Held while it is made or removed, so that the one waits for the other; true once it is removed.
    pub removed: AsyncMutex<bool>,
}

impl Entry {
    /// A sandbox that is about to be made, of a spare if there is one.
    #[must_use]
    pub(crate) fn new(reserved: Record, spare: Option<Spare>) -> Arc<Self> {
        Arc::new(Self {
            reserved,
            phase: watch::Sender::new(Phase::Creating),
            leaving: watch::Sender::new(false),
            making: Mutex::new(Making::Layers),
            spare: Mutex::new(spare),
            live: OnceLock::new(),
            failure: OnceLock::new(),
            execs: Mutex::default(),
            gate: Arc::default(),
            commands: Arc::new(Semaphore::new(COMMANDS_MAX)),
            arguments: Arguments::default(),
            held: AtomicBool::new(false),
            removed: AsyncMutex::new(false),
        })
    }

    /// Its id.
    #[must_use]
    pub(crate) fn id(&self) -> &Id {
        &self.reserved.id
    }

    /// What was asked for.
    #[must_use]
    pub(crate) fn request(&self) -> &CreateRequest {
        &self.reserved.request
    }

    /// Where it is.
    #[must_use]
    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Whether it is to be made of a spare.
    #[must_use]
    pub(crate) fn has_spare(&self) -> bool {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The spare that it is to be made of; it has none afterwards.
    #[must_use]
    pub(crate) fn take_spare(&self) -> Option<Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn making(&self) -> MutexGuard<'_, Making> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its making begins with its record, and then waits for its layers.
    ///
    /// # Errors
    /// [`Error::Leaving`] when it has been left; what `record` answers.
    pub(crate) fn wait_for_layers(&self, record: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        // Locked for as long as that takes: what is left is removed, and must not appear after that.
        match *self.making() {
            Making::Left => Err(Error::Leaving { id: self.id().to_string() }),
            Making::Layers | Making::Begun => record(),
        }
    }

    /// Its layers are there; `false` when it has been left.
    pub(crate) fn begin(&self) -> bool {
        let mut making = self.making();
        if *making == Making::Layers {
            *making = Making::Begun;
        }
        *making == Making::Begun
    }

    /// Leaves it, if it waits for its layers: whoever makes it learns that, and makes nothing.
    pub(crate) fn leave(&self) -> bool {
        let mut making = self.making();
        if *making == Making::Layers {
            *making = Making::Left;
        }
        *making == Making::Left
    }

    /// It stands from now on, unless its removal has been asked for meanwhile.
    pub(crate) fn made(&self, live: Live) {
        let _ = self.live.set(Arc::new(live));
        self.phase.send_if_modified(|phase| {
            let creating = *phase == Phase::Creating;
            if creating {
                *phase = Phase::Running;
            }
            creating
        });
    }

    /// It could not be made, for this reason.
    pub(crate) fn failed(&self, error: Error) -> Arc<Error> {
        Arc::clone(self.failure.get_or_init(|| Arc::new(error)))
    }

    /// It is on its way out.
    pub(crate) fn leaving(&self) {
        self.phase.send_if_modified(|phase| {
            let change = matches!(phase, Phase::Creating | Phase::Running);
            if change {
                *phase = Phase::Destroying;
            }
            change
        });
        self.leaving.send_replace(true);
    }

    /// Nothing of it is left.
    pub(crate) fn gone(&self) {
        self.phase.send_replace(Phase::Gone);
        self.leaving.send_replace(true);
    }

    /// Waits until it is on its way out.
    pub(crate) async fn wait_leaving(&self) {
        // The sender lives as long as this value.
        let _ = self.leaving.subscribe().wait_for(|leaving| *leaving).await;
    }

    /// Waits until it has been made.
    ///
    /// # Errors
    /// Why it has not been; [`Error::Leaving`] when it is being removed.
    pub(crate) async fn wait_made(&self) -> Result<Arc<Live>, Error> {
        let _ = self.phase.subscribe().wait_for(|phase| *phase != Phase::Creating).await;
        if let Some(error) = self.failure.get() {
            return Err(Error::Shared(Arc::clone(error)));
        }
        self.live()
    }

    /// The sandbox, if it takes requests.
    ///
    /// # Errors
    /// [`Error::Leaving`], [`Error::NotUp`].
    pub(crate) fn live(&self) -> Result<Arc<Live>, Error> {
        match (self.phase(), self.live.get()) {
            (Phase::Running, Some(live)) => Ok(Arc::clone(live)),
            (Phase::Creating, _) => Err(Error::NotUp { id: self.id().to_string() }),
            _ => Err(Error::Leaving { id: self.id().to_string() }),
        }
    }

    /// The sandbox, whatever it is doing, if it ever stood.
    #[must_use]
    pub(crate) fn standing(&self) -> Option<&Arc<Live>> {
        self.live.get()
    }

    fn execs(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Exec>>> {
        self.execs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a command.
    pub(crate) fn add_exec(&self, exec: Arc<Exec>) {
        self.execs().insert(exec.id.clone(), exec);
    }

    /// A command by its id.
    #[must_use]
    pub(crate) fn exec(&self, id: &str) -> Option<Arc<Exec>> {
        self.execs().get(id).cloned()
    }

    /// Forgets a command.
    pub(crate) fn forget_exec(&self, id: &str) {
        self.execs().remove(id);
    }

    /// Marks it held; `false` when it is already.
    pub(crate) fn begin_hold(&self) -> bool {
        !self.held.swap(true, Ordering::AcqRel)
    }

    /// No longer held.
    pub(crate) fn end_hold(&self) {
        self.held.store(false, Ordering::Release);
    }

    /// As callers see it.
    #[must_use]
    pub(crate) fn show(&self) -> Sandbox {
        let running = self.execs().values().filter(|exec| exec.outcome().is_none()).count();
        let request = self.request();
        let image = self.live.get().map(|live| live.standing.image);
        Sandbox {
            id: self.id().to_string(),
            state: self.state(),
            spec: request.image.clone(),
            image: image.or(match &request.image {
                dsec_format::refs::Spec::Digest(digest) => Some(*digest),
                dsec_format::refs::Spec::Name(_) => None,
            }),
            created_ms: self.reserved.created_ms,
            limits: shown_limits(&self.reserved.limits),
            labels: request.labels.clone(),
            running: u32::try_from(running).unwrap_or(u32::MAX),
        }
    }

    fn state(&self) -> State {
        match self.phase() {
            Phase::Creating => State::Creating,
            Phase::Running if self.held.load(Ordering::Acquire) => State::Frozen,
            Phase::Running => State::Running,
            Phase::Destroying | Phase::Gone => State::Destroying,
        }
    }

    /// The image, if it is known.
    #[must_use]
    pub(crate) fn image(&self) -> Option<ImageDigest> {
        self.live.get().map(|live| live.standing.image)
    }
}

fn shown_limits(limits: &Limits) -> dsec_format::environment::Limits {
    dsec_format::environment::Limits {
        memory_bytes: Some(limits.memory_bytes),
        cpu_millis: Some(limits.cpu_millis),
        pids: Some(limits.pids),
    }
}
