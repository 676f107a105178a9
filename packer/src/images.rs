//! From what a person writes to an image of a store.

use dsec_format::ImageDigest;
use dsec_format::image::Image;
use dsec_format::refs::{RefName, Spec, Target};
use dsec_store::Source;

/// Why there is no image of that name.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed, or has no such ref or image.
    #[error("cannot find image {spec}")]
    Store {
        /// As asked for.
        spec: Spec,
        /// What the store says.
        #[source]
        source: Box<dsec_store::Error>,
    },
    /// The ref names an environment.
    #[error("ref {name} names an environment, not an image")]
    Environment {
        /// The ref.
        name: RefName,
    },
}

/// Finds an image and reads it.
///
/// # Errors
/// As [`Error`].
pub fn find(source: &dyn Source, spec: &Spec) -> Result<(ImageDigest, Image), Error> {
    let failed = |source| Error::Store { spec: spec.clone(), source: Box::new(source) };
    let digest = match spec {
        Spec::Digest(digest) => *digest,
        Spec::Name(name) => match source.read_ref(name).map_err(failed)?.target {
            Target::Image(digest) => digest,
            Target::Environment(_) => return Err(Error::Environment { name: name.clone() }),
        },
    };
    Ok((digest, source.read_image(&digest).map_err(failed)?))
}

/// Shows every ref of a source whose `NAME:TAG` starts with `prefix`, sorted, page by page.
///
/// # Errors
/// The store's; [`dsec_store::Error::Damaged`] for the first damaged ref, after all others were shown; or whatever `found` answers.
pub fn each_ref<E: From<dsec_store::Error>>(
    source: &dyn Source,
    prefix: &str,
    found: &mut dyn FnMut(dsec_format::refs::Ref) -> Result<(), E>,
) -> Result<(), E> {
    const PAGE: usize = 1000;
    let (mut after, mut damaged): (Option<String>, _) = (None, None);
    loop {
        let page = source.list_refs(prefix, after.as_deref(), PAGE)?;
        page.refs.into_iter().try_for_each(&mut *found)?;
        damaged = damaged.or(page.damaged.into_iter().next());
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    // Reading it says what is wrong with it; unless it was mended meanwhile.
    damaged.map_or(Ok(()), |name| source.read_ref(&name).map(|_| ()).map_err(E::from))
}
