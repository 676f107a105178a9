//! All sandboxes of an edge by id, the keys of creates, and which ended commands are still remembered.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::entry::Entry;
use super::error::Error;
use super::exec::Exec;

/// The table.
#[derive(Debug, Default)]
pub(super) struct Table {
    state: Mutex<State>,
    ended: Mutex<Ended>,
}

#[derive(Debug, Default)]
struct State {
    sandboxes: BTreeMap<String, Arc<Entry>>,
    keys: HashMap<String, String>,
    stopping: bool,
}

/// Ended commands, the oldest first.
#[derive(Debug, Default)]
struct Ended {
    all: VecDeque<EndedExec>,
    bytes: u64,
}

#[derive(Debug)]
struct EndedExec {
    sandbox: String,
    exec: String,
    bytes: u64,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a sandbox that `make` makes, unless the request's key has one already. The second value tells whether it is
    /// new.
    ///
    /// # Errors
    /// [`Error::KeyConflict`], [`Error::Stopping`], and what `make` answers.
    pub(super) fn reserve(
        &self,
        request: &dsec_format::protocol::edge::CreateRequest,
        make: impl FnOnce() -> Result<Arc<Entry>, Error>,
    ) -> Result<(Arc<Entry>, bool), Error> {
        let mut state = self.lock();
        if state.stopping {
            return Err(Error::Stopping);
        }
        let key = request.idempotency_key.as_deref();
        let present = key.and_then(|key| state.keys.get(key)).and_then(|id| state.sandboxes.get(id));
        if let Some(entry) = present {
            if entry.request() != request {
                let key = key.unwrap_or_default().to_owned();
                return Err(Error::KeyConflict { key, id: entry.id().to_string() });
            }
            return Ok((Arc::clone(entry), false));
        }
        let entry = make()?;
        state.add(Arc::clone(&entry));
        Ok((entry, true))
    }

    /// Adds a sandbox that exists already.
    pub(super) fn add(&self, entry: Arc<Entry>) {
        self.lock().add(entry);
    }

    /// A sandbox by its id.
    ///
    /// # Errors
    /// [`Error::NoSandbox`].
    pub(super) fn get(&self, id: &str) -> Result<Arc<Entry>, Error> {
        // What is not there may be of any length.
        let cut = || id.chars().take(80).collect();
        self.lock().sandboxes.get(id).cloned().ok_or_else(|| Error::NoSandbox { id: cut() })
    }

    /// All of them, in the order of their ids.
    #[must_use]
    pub(super) fn all(&self) -> Vec<Arc<Entry>> {
        self.lock().sandboxes.values().cloned().collect()
    }

    /// How many there are.
    #[must_use]
    pub(super) fn count(&self) -> usize {
        self.lock().sandboxes.len()
    }

    /// Takes no new sandboxes from now on.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
    }

    /// Forgets a sandbox that is gone, and its key.
    pub(super) fn forget(&self, entry: &Entry) {
        let id = entry.id().as_str();
        {
            let mut state = self.lock();
            state.sandboxes.remove(id);
            if let Some(key) = &entry.request().idempotency_key
                && state.keys.get(key).is_some_and(|owner| owner == id)
            {
                state.keys.remove(key);
            }
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.all.retain(|exec| exec.sandbox != id);
        ended.bytes = ended.all.iter().map(|exec| exec.bytes).sum();
    }

    /// Remembers an ended command, and forgets the oldest ones over the bounds.
    pub(super) fn exec_ended(&self, entry: &Entry, exec: &Exec, most: usize, most_bytes: u64) {
        let bytes = exec.stdout.charged_bytes() + exec.stderr.charged_bytes();
        let mut over = Vec::new();
        {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            ended.bytes += bytes;
            ended.all.push_back(EndedExec { sandbox: entry.id().to_string(), exec: exec.id.clone(), bytes });
            while ended.all.len() > most || (ended.bytes > most_bytes && ended.all.len() > 1) {
                let Some(oldest) = ended.all.pop_front() else { break };
                ended.bytes -= oldest.bytes;
                over.push(oldest);
            }
        }
        for exec in over {
            if let Ok(entry) = self.get(&exec.sandbox) {
                entry.forget_exec(&exec.exec);
            }
        }
    }
}

impl State {
    fn add(&mut self, entry: Arc<Entry>) {
        let id = entry.id().to_string();
        if let Some(key) = &entry.request().idempotency_key {
            self.keys.insert(key.clone(), id.clone());
        }
        self.sandboxes.insert(id, entry);
    }
}
