//! What a check can mend without asking anybody: objects that are not what their names say are set aside, so that they
//! count as missing and whoever has them brings them again; locations are made anew from the packs' own tables.
//!
//! Nothing is deleted: what was set aside lies in the quarantine of the store, for whoever wants to look at it.

use dsec_format::LayerDigest;
use dsec_format::digest::PackDigest;
use dsec_format::{EnvironmentDigest, ImageDigest};

use super::{Finding, check_pack, unpack};
use crate::error::{Error, Result};
use crate::layout::{Kind, Object};
use crate::local::LocalStore;
use crate::source::Source;

/// What a check has found to mend.
#[derive(Default)]
pub(super) struct Wanted {
    /// Objects that are damaged; of locations also those that lead elsewhere.
    pub(super) bad: Vec<Object>,
    /// Layers that lack chunks where their locations say they are.
    pub(super) displaced: Vec<LayerDigest>,
}

/// Mends; gives what was done.
pub(super) fn repair(store: &LocalStore, wanted: Wanted) -> Result<Vec<Finding>> {
    let mut done = Vec::new();
    let (locations, others): (Vec<_>, Vec<_>) =
        wanted.bad.into_iter().partition(|object| object.kind == Kind::Locations);
    for object in others {
        set_aside(store, object, &mut done)?;
    }
    let displaced = wanted.displaced.iter().copied();
    let mut layers: Vec<_> =
        locations.iter().map(|object| LayerDigest::from_bytes(object.digest)).chain(displaced).collect();
    layers.sort_unstable();
    layers.dedup();
    for layer in layers {
        match store.relocate(&layer) {
            Ok(()) => done.push(Finding::Relocated { layer }),
            // Some chunk is in no pack: a writer brings it, and makes locations then. Those that mislead are in its way.
            Err(Error::NotFound { .. } | Error::Damaged { .. }) => {
                let object = Object::locations(&layer);
                if locations.contains(&object) {
                    set_aside(store, object, &mut done)?;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn set_aside(store: &LocalStore, object: Object, done: &mut Vec<Finding>) -> Result<()> {
    if let Some(path) = store.set_aside(object, &|| is_bad(store, object))? {
        done.push(Finding::SetAside { object: object.to_string(), path });
    }
    Ok(())
}

/// Whether an object is still damaged: somebody may have brought it anew since it was checked.
fn is_bad(store: &LocalStore, object: Object) -> bool {
    let checked = match object.kind {
        Kind::Pack => check_pack(&object.path(store.path()), &PackDigest::from_bytes(object.digest), false),
        Kind::Layer => unpack(store, &LayerDigest::from_bytes(object.digest), &mut Vec::new()).map(drop),
        Kind::Image => store.read_image(&ImageDigest::from_bytes(object.digest)).map(drop),
        Kind::Environment => store.read_environment(&EnvironmentDigest::from_bytes(object.digest)).map(drop),
        // Made from others, so it is no loss.
        Kind::Locations => return true,
    };
    matches!(checked, Err(Error::Damaged { .. }))
}
