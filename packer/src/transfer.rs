//! Push and pull: that of `dsec-store`, with this program's progress and request to stop.

use dsec_format::refs::{Ref, RefName, Spec, Target};
use dsec_store::transfer::{Options, Stats, transfer, transfer_ref};
use dsec_store::{Error, Source, Store};

use dsec_format::protocol::registry::Expected;

use crate::Cancel;
use crate::monitor::{Monitor, Stage};

/// A [`dsec_store::Monitor`] that passes on.
pub struct StoreMonitor<'a> {
    /// Told of progress.
    pub monitor: &'a dyn Monitor,
    /// Asked whether to stop.
    pub cancel: &'a Cancel,
    /// What moving chunks is called.
    pub moving: Stage,
}

impl dsec_store::Monitor for StoreMonitor<'_> {
    fn begin(&self, stage: dsec_store::Stage, total: Option<u64>) {
        let stage = match stage {
            dsec_store::Stage::Move => self.moving,
            dsec_store::Stage::Publish => Stage::Publish,
            dsec_store::Stage::Check => Stage::Check,
        };
        self.monitor.begin(stage, total);
    }

    fn advance(&self, amount: u64) {
        self.monitor.advance(amount);
    }

    fn interrupted(&self) -> bool {
        self.cancel.is_cancelled()
    }
}

/// What was moved.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Moved {
    /// What it was.
    pub target: Target,
    /// The ref that names it in the destination now.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub record: Option<Ref>,
    /// How much.
    #[serde(flatten)]
    pub stats: Stats,
}

/// Moves an image, or an environment, from one store to another. The name in the destination is `name`, or else the one
/// in the source; what is asked for by digest without a name gets none.
///
/// # Errors
/// Those of both stores.
pub fn copy(
    from: &dyn Source,
    spec: &Spec,
    to: &dyn Store,
    name: Option<&RefName>,
    options: &Options,
    monitor: &StoreMonitor<'_>,
) -> Result<Moved, Error> {
    match spec {
        Spec::Name(source) => {
            let name = name.unwrap_or(source);
            let (record, stats) = transfer_ref(from, source, to, name, Expected::Anything, options, monitor)?;
            Ok(Moved { target: record.target, record: Some(record), stats })
        }
        Spec::Digest(digest) => {
            let target = Target::Image(*digest);
            let stats = transfer(from, target, to, options, monitor)?;
            let record = name.map(|name| to.set_ref(name, target, Expected::Anything)).transpose()?;
            Ok(Moved { target, record, stats })
        }
    }
}
