//! Progress of long operations on stores, and the caller's wish to end them.

/// A part of an operation that is worth showing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Transfer: moving chunks. Amounts are plain bytes of layers, moved or found to be there already.
    Move,
    /// Transfer: layers, images and refs. Amounts are objects.
    Publish,
    /// Check of a store. Amounts are objects.
    Check,
}

/// Told by the library how far it is. Called from several threads; must not block.
pub trait Monitor: Send + Sync {
    /// A stage begins and the one before it is over. `total` is what [`Monitor::advance`] will add up to, when known.
    fn begin(&self, stage: Stage, total: Option<u64>);

    /// `amount` more is done of the present stage, in its unit.
    fn advance(&self, amount: u64);

    /// Whether the caller wants the operation to end, with [`crate::Error::Interrupted`]. Asked often.
    fn interrupted(&self) -> bool {
        false
    }
}

/// Shows nothing and goes on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Monitor for Silent {
    fn begin(&self, _stage: Stage, _total: Option<u64>) {}

    fn advance(&self, _amount: u64) {}
}
