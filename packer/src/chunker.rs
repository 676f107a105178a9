//! Cutting runs of file data into chunks, by the rule of [`dsec_format::chunk`].

use dsec_format::chunk::{CDC_AVERAGE_BYTES, CDC_MAX_BYTES, CDC_MIN_BYTES};
use fastcdc::v2020::{FastCDC, Normalization};

/// Lengths of the chunks at the beginning of a run of data.
///
/// `window` holds the next bytes of the run; `is_end` says that the run ends with it. Otherwise the last part of the
/// window, shorter than the longest chunk, is left for the next window, which has to begin with it: where a cut falls
/// depends on that many bytes after the one before.
pub(crate) fn cut(window: &[u8], is_end: bool) -> impl Iterator<Item = usize> {
    let (min, average, max) = (CDC_MIN_BYTES as usize, CDC_AVERAGE_BYTES as usize, CDC_MAX_BYTES as usize);
    let cutter = FastCDC::with_level(window, min, average, max, Normalization::Level1);
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = window.len() - at;
        if left == 0 || (left < max && !is_end) {
            return None;
        }
        let (_, end) = cutter.cut(at, left);
        let length = end - at;
        at = end;
        Some(length)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(bytes: usize) -> Vec<u8> {
        let mut noise = vec![0; bytes];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        noise
    }

    #[test]
    fn windows_do_not_move_cuts() {
        let data = noise(5_000_001);
        let whole: Vec<usize> = cut(&data, true).collect();
        assert_eq!(whole.iter().sum::<usize>(), data.len());
        assert!(whole.iter().rev().skip(1).all(|length| (32 << 10..=512 << 10).contains(length)), "{whole:?}");
        for window_bytes in [600_000, 1 << 20, 4 << 20] {
            let mut windowed = Vec::new();
            let mut at = 0;
            while at < data.len() {
                let end = data.len().min(at + window_bytes);
                for length in cut(&data[at..end], end == data.len()) {
                    windowed.push(length);
                    at += length;
                }
            }
            assert_eq!(windowed, whole, "windows of {window_bytes}");
        }
    }

    #[test]
    fn short_runs_are_one_chunk_and_cuts_are_frozen() {
        assert_eq!(cut(&[7; 32 << 10], true).collect::<Vec<_>>(), [32 << 10]);
        assert_eq!(cut(&[], true).count(), 0);
        assert_eq!(cut(&vec![0; 1_200_000], true).collect::<Vec<_>>(), [524_288, 524_288, 151_424]);
        // Part of what a layer digest covers: these numbers never change within a format version.
        assert_eq!(cut(&noise(600_000), true).collect::<Vec<_>>(), [149_670, 381_545, 68_785]);
    }
}
