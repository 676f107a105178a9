//! Progress, as the library tells it: stages that follow one another, each with an amount done.

/// A part of an operation that is worth showing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Finding out what there is: entries.
    Walk,
    /// Reading, hashing, compressing and writing file data: bytes.
    Pack,
    /// Writing layer, image and ref: objects.
    Publish,
    /// Comparing with the source: entries.
    Verify,
    /// Writing files: bytes.
    Unpack,
    /// Sending objects: bytes.
    Push,
    /// Receiving objects: bytes.
    Pull,
    /// Checking objects: objects.
    Check,
}

impl Stage {
    /// Whether amounts are bytes.
    #[must_use]
    pub fn counts_bytes(self) -> bool {
        matches!(self, Self::Pack | Self::Unpack | Self::Push | Self::Pull)
    }

    /// A word for people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Walk => "walking",
            Self::Pack => "packing",
            Self::Publish => "publishing",
            Self::Verify => "verifying",
            Self::Unpack => "unpacking",
            Self::Push => "pushing",
            Self::Pull => "pulling",
            Self::Check => "checking",
        }
    }
}

/// Told by the library how far it is. Called from several threads; must not block.
pub trait Monitor: Send + Sync {
    /// A stage begins and the one before it is over. `total` is what [`Monitor::advance`] will add up to, when known.
    fn begin(&self, stage: Stage, total: Option<u64>);

    /// `amount` more is done of the present stage, in its unit.
    fn advance(&self, amount: u64);
}

/// Shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Monitor for Silent {
    fn begin(&self, _stage: Stage, _total: Option<u64>) {}

    fn advance(&self, _amount: u64) {}
}
