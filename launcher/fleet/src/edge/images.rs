//! Layers of images for sandboxes: asked of mountd, kept warm, given back.
//!
//! - A sandbox's layers are held as `sandbox/ID`. The ref is resolved by mountd every time, so a ref that moved is followed.
//! - The layers of an image that a sandbox has used are also held by the edge itself (`edge/TAG/DIGEST`) for a while, so
//!   that the next sandbox on it costs no mount.
//! - Giving back is never on the way of a request: the keeper does it, again and again until mountd has answered.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dsec_format::ImageDigest;
use dsec_format::protocol::mountd::Mounted;
use dsec_format::refs::Spec;
use tokio::sync::Notify;

use super::ids::Tag;
use crate::mountd::{Client, Error};

/// First wait before a failed release is tried again; doubled up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// Longest wait between two tries.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The layers of an edge's sandboxes.
#[derive(Debug)]
pub(super) struct Images {
    mountd: Client,
    tag: Tag,
    warm_time: Duration,
    warm_max: usize,
    state: Mutex<State>,
    work: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// When an image was used last.
    warm: HashMap<ImageDigest, Instant>,
    release: VecDeque<String>,
}

impl Images {
    /// Nothing is asked yet.
    #[must_use]
    pub(super) fn new(mountd: Client, tag: Tag, warm_time: Duration, warm_max: usize) -> Arc<Self> {
        Arc::new(Self { mountd, tag, warm_time, warm_max, state: Mutex::default(), work: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn warm_holder(&self, image: &ImageDigest) -> String {
        format!("edge/{}/{image}", self.tag)
    }

    /// Mounts an image for a sandbox, and keeps it warm from then on. Blocks.
    ///
    /// # Errors
    /// What mountd answers.
    pub(super) fn mount(self: &Arc<Self>, image: &Spec, sandbox: &str) -> Result<Mounted, Error> {
        let mounted = self.hold(image, sandbox)?;
        if self.warm_max > 0 && self.lock().warm.insert(mounted.image, Instant::now()).is_none() {
            let (images, image) = (Arc::clone(self), mounted.image);
            tokio::spawn(async move {
                if let Err(error) = images.mountd.mount(&Spec::Digest(image), &images.warm_holder(&image)).await {
                    tracing::warn!(%image, %error, "the image cannot be kept mounted");
                    images.lock().warm.remove(&image);
                }
            });
        }
        Ok(mounted)
    }

    /// Mounts an image for a sandbox. Blocks.
    ///
    /// # Errors
    /// What mountd answers.
    pub(super) fn hold(&self, image: &Spec, sandbox: &str) -> Result<Mounted, Error> {
        self.mountd.blocking().mount(image, &sandbox_holder(sandbox))
    }

    /// Gives a sandbox's layers back, some time soon.
    pub(super) fn release(&self, sandbox: &str) {
        self.lock().release.push_back(sandbox_holder(sandbox));
        self.work.notify_one();
    }

    /// Makes mountd agree with what lived when the edge started: gives back what dead sandboxes and a former edge hold, and
    /// holds again what `live` ones miss. `known` says which sandboxes are the edge's, by now.
    ///
    /// # Errors
    /// When mountd does not answer; nothing is changed then.
    pub(super) async fn reconcile(
        &self,
        live: &HashMap<String, ImageDigest>,
        known: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        let status = self.mountd.status().await?;
        let holders: HashSet<&String> = status.images.iter().flat_map(|image| &image.holders).collect();
        for holder in &holders {
            let sandbox = holder.strip_prefix("sandbox/");
            let dead = sandbox.is_some_and(|id| self.tag.owns(id) && !known(id));
            let warm = holder.strip_prefix(&format!("edge/{}/", self.tag));
            let cold = warm.is_some_and(|image| !self.is_warm(image));
            if dead || cold {
                self.lock().release.push_back((*holder).clone());
            }
        }
        for (id, image) in live {
            let holder = sandbox_holder(id);
            if holders.contains(&holder) {
                continue;
            }
            if let Err(error) = self.mountd.mount(&Spec::Digest(*image), &holder).await {
                tracing::warn!(sandbox = %id, %image, %error, "the layers of an adopted sandbox cannot be held again");
            }
        }
        self.work.notify_one();
        Ok(())
    }

    fn is_warm(&self, image: &str) -> bool {
        image.parse().is_ok_and(|image: ImageDigest| self.lock().warm.contains_key(&image))
    }

    /// Takes every image off the warm list, so that the keeper gives them back.
    pub(super) fn cool_down(&self) {
        self.expire(Instant::now() + self.warm_time + Duration::from_secs(1));
    }

    fn expire(&self, now: Instant) {
        let mut state = self.lock();
        let mut used: Vec<_> = state.warm.iter().map(|(image, used)| (*used, *image)).collect();
        used.sort_unstable();
        let over = used.len().saturating_sub(self.warm_max);
        for (index, (used, image)) in used.into_iter().enumerate() {
            if index < over || now.saturating_duration_since(used) > self.warm_time {
                state.warm.remove(&image);
                let holder = self.warm_holder(&image);
                state.release.push_back(holder);
            }
        }
    }

    /// Gives back what waits for it; `false` when mountd did not answer.
    pub(super) async fn release_waiting(&self) -> bool {
        loop {
            let Some(holder) = self.lock().release.front().cloned() else { return true };
            if let Err(error) = self.mountd.release(&holder).await {
                tracing::warn!(holder, %error, "layers cannot be given back yet");
                return false;
            }
            let mut state = self.lock();
            if state.release.front() == Some(&holder) {
                state.release.pop_front();
            }
        }
    }

    /// Keeps house for as long as it is polled: gives back, and lets images that were not used for a while go.
    pub(super) async fn keep(self: Arc<Self>) {
        let mut retry = RETRY_FIRST;
        loop {
            self.expire(Instant::now());
            if self.release_waiting().await {
                retry = RETRY_FIRST;
                let look_again = (self.warm_time / 4).max(Duration::from_millis(50));
                let _ = tokio::time::timeout(look_again, self.work.notified()).await;
            } else {
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(RETRY_MAX);
            }
        }
    }
}

fn sandbox_holder(id: &str) -> String {
    format!("sandbox/{id}")
}
