//! Page-aligned buffers, for O_DIRECT.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Alignment of offsets, lengths and memory that O_DIRECT is given.
pub(super) const ALIGN_BYTES: u32 = 4096;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// A buffer of whole pages at a page boundary, reused by its owner.
#[derive(Default)]
pub(super) struct Aligned {
    pages: Vec<Page>,
}

impl Aligned {
    pub(super) const fn new() -> Self {
        Self { pages: Vec::new() }
    }

    /// At least `bytes` bytes, rounded up to whole pages; what is in them is left over from before.
    pub(super) fn bytes_mut(&mut self, bytes: usize) -> &mut [u8] {
        let pages = bytes.div_ceil(size_of::<Page>());
        if self.pages.len() < pages {
            self.pages.resize(pages, Page::new_zeroed());
        }
        self.pages.get_mut(..pages).unwrap_or_default().as_mut_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_at_a_page_boundary() {
        let mut buffer = Aligned::new();
        for bytes in [1, 4096, 4097, 300_000] {
            let slice = buffer.bytes_mut(bytes);
            assert_eq!(slice.len(), bytes.div_ceil(4096) * 4096);
            assert_eq!(slice.as_ptr() as usize % 4096, 0);
        }
    }
}
