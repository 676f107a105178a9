//! From ids of this node to those inside a sandbox.

use super::Error;

/// The ids of a sandbox on this node: `first` is 0 inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    first: u32,
    count: u32,
}

impl IdRange {
    /// Ids are the same inside and outside.
    pub const IDENTITY: Self = Self { first: 0, count: u32::MAX };
    /// Ids of a sandbox with a range of its own.
    const SANDBOX_IDS: u32 = 65_536;

    /// The range that begins at `id_base`; none of its own when that is 0.
    #[must_use]
    pub fn from_base(id_base: u32) -> Self {
        if id_base == 0 { Self::IDENTITY } else { Self { first: id_base, count: Self::SANDBOX_IDS } }
    }

    /// The id inside.
    pub(super) fn inside(self, id: u32) -> Result<u32, Error> {
        let inside = id.checked_sub(self.first).filter(|inside| *inside < self.count);
        inside.ok_or(Error::Id { id, first: self.first, count: self.count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_mapped_back_and_others_refused() {
        let range = IdRange::from_base(100_000);
        assert_eq!(range.inside(100_000).unwrap(), 0);
        assert_eq!(range.inside(165_535).unwrap(), 65_535);
        assert!(range.inside(165_536).is_err());
        assert!(range.inside(0).is_err());
        assert_eq!(IdRange::from_base(0).inside(4_294_967_294).unwrap(), 4_294_967_294);
    }
}
