//! Layers from the sources: one source after the other until one has brought the whole layer.

use dsec_format::image::LayerRecord;
use dsec_store::Error as StoreError;

use super::Sources;
use super::sources::is_transient;
use crate::layer::{Error, Layer, Layers, Paced};

/// Opens a layer that is here, or brings it. A stream that breaks off, drips or is not the layer is tried at the next
/// source.
///
/// # Errors
/// What this node has against it, else the failure that says most, as with [`Sources::ask`].
pub fn bring(layers: &Layers, sources: &Sources, record: &LayerRecord) -> Result<Layer, Error> {
    let mut failure: Option<Error> = None;
    for (_, remote) in sources.in_order() {
        let open = || {
            let answer = remote.source().open_layer(&record.digest);
            remote.note(&answer);
            let (grace, rate) = (Paced::<()>::GRACE, Paced::<()>::BYTES_PER_SECOND);
            Ok(Box::new(Paced::new(answer?, grace, rate)) as Box<dyn std::io::Read + Send>)
        };
        match layers.open_or_unpack(record, open) {
            Ok(layer) => return Ok(layer),
            Err(error) if is_of_the_node(&error) => return Err(error),
            Err(error) => {
                tracing::warn!(layer = %record.digest, source = remote.source().describe(), %error, "no layer from a source");
                if failure.as_ref().is_none_or(passes) {
                    failure = Some(error);
                }
            }
        }
    }
    match failure {
        Some(failure) => Err(failure),
        None => layers.open_or_unpack(record, || {
            let store = "a daemon without sources".to_owned();
            Err(StoreError::NotFound { object: format!("layer {}", record.digest), store })
        }),
    }
}

fn is_of_the_node(error: &Error) -> bool {
    match error {
        Error::Damaged { .. } | Error::Io { .. } | Error::Slots { .. } => true,
        Error::Store(_)
        | Error::Stream { .. }
        | Error::Layer { .. }
        | Error::Extents { .. }
        | Error::Metadata { .. } => false,
    }
}

/// Whether a failure says less than any other.
fn passes(error: &Error) -> bool {
    match error {
        Error::Store(error) => is_transient(error),
        Error::Stream { .. } => true,
        _ => false,
    }
}
