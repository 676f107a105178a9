//! The layers that the kernel may ask about, by slot and by name.
//!
//! A layer is *offered* while it is mounted: it can be looked up. It stays *known* until the kernel has let go of all of
//! it, so that a layer that was detached while in use goes on answering. The kernel's uses are one counter a layer:
//! nothing is kept for an inode.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::layer::Layer;

#[derive(Debug)]
struct Known {
    layer: Arc<Layer>,
    offered: bool,
    uses: AtomicU64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Served {
    by_slot: RwLock<HashMap<u32, Known>>,
}

impl Served {
    fn read<T>(&self, then: impl FnOnce(&HashMap<u32, Known>) -> T) -> T {
        then(&self.by_slot.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, then: impl FnOnce(&mut HashMap<u32, Known>) -> T) -> T {
        then(&mut self.by_slot.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Offers a layer. One that is still known from before goes on with the layer it had.
    pub fn offer(&self, layer: &Arc<Layer>) {
        self.write(|known| {
            let new = || Known { layer: Arc::clone(layer), offered: true, uses: AtomicU64::new(0) };
            known.entry(layer.slot()).or_insert_with(new).offered = true;
        });
    }

    /// The layer of a slot that is known but may not be offered.
    pub fn known(&self, slot: u32) -> Option<Arc<Layer>> {
        self.read(|known| known.get(&slot).map(|known| Arc::clone(&known.layer)))
    }

    /// Offers a layer no more.
    pub fn withdraw(&self, slot: u32) {
        self.write(|known| {
            let unused = known.get_mut(&slot).is_some_and(|known| {
                known.offered = false;
                known.uses.load(Ordering::Relaxed) == 0
            });
            if unused {
                known.remove(&slot);
            }
        });
    }

    /// The layer of a slot; the kernel uses it `uses` times more from now on.
    pub fn take(&self, slot: u32, uses: u64) -> Option<Arc<Layer>> {
        self.read(|known| {
            let known = known.get(&slot)?;
            known.uses.fetch_add(uses, Ordering::Relaxed);
            Some(Arc::clone(&known.layer))
        })
    }

    /// The kernel has ended `uses` of its uses.
    pub fn give_back(&self, slot: u32, uses: u64) {
        let last = self.read(|known| {
            known.get(&slot).is_some_and(|known| {
                let before = known.uses.fetch_sub(uses, Ordering::Relaxed);
                before <= uses && !known.offered
            })
        });
        if last {
            self.write(|known| {
                let unused =
                    known.get(&slot).is_some_and(|known| !known.offered && known.uses.load(Ordering::Relaxed) == 0);
                if unused {
                    known.remove(&slot);
                }
            });
        }
    }

    /// The offered layer whose digest has these hexadecimal digits.
    pub fn find(&self, hex: &str) -> Option<Arc<Layer>> {
        self.read(|known| {
            let mut offered = known.values().filter(|known| known.offered);
            offered.find(|known| known.layer.digest().hex() == hex).map(|known| Arc::clone(&known.layer))
        })
    }

    /// All offered layers, by slot.
    pub fn offered(&self) -> Vec<Arc<Layer>> {
        let mut layers: Vec<_> = self.read(|known| {
            let offered = known.values().filter(|known| known.offered);
            offered.map(|known| Arc::clone(&known.layer)).collect()
        });
        layers.sort_by_key(|layer| layer.slot());
        layers
    }
}
