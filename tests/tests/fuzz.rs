//! The fuzz targets without a fuzzing compiler: every decoder on flipped bits and truncations of its frozen sample (all of them, of a
//! small one), and on random changes of it for a while (`DSEC_FUZZ_SECS`, one second in all by default).

// Public for the fuzz targets, which are another crate.
#[allow(unreachable_pub)]
#[path = "../../fuzz/src/lib.rs"]
mod decoders;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use dsec_format::frame;
use dsec_format::protocol::stream::{Header, Kind};
use dsec_tests::frozen;
use fs_err as fs;

/// Longest sample whose every byte is damaged; of a longer one so many are, spread over all of it.
const EVERY_BYTE: usize = 1024;

/// A valid input of a target.
fn seed(target: &str) -> Vec<u8> {
    let file = |name: &str| fs::read(frozen::directory().join(name)).unwrap();
    match target {
        "image" | "environment" => file(&format!("{target}.json")),
        "reference" => file("ref.json"),
        "stream" => Header { kind: Kind::Stderr, bytes: 77 }.encode().to_vec(),
        "frame" => {
            let plain = b"some text ".repeat(100);
            let (codec, stored) = frame::encode(&plain, 3).unwrap();
            let size = u32::try_from(plain.len()).unwrap().to_le_bytes();
            [&[codec as u8], &size[..], &stored].concat()
        }
        "erofs" => fs::read(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/erofs/v1.erofs"))).unwrap(),
        name => file(name),
    }
}

#[test]
fn every_target_of_the_fuzz_crate_is_here() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/fuzz_targets");
    let mut files: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let mut targets: Vec<_> = decoders::TARGETS.iter().map(|(name, _)| format!("{name}.rs")).collect();
    files.sort();
    targets.sort();
    assert_eq!(files, targets);
}

#[test]
fn flipped_bits_and_truncations_are_handled() {
    for (name, decode) in decoders::TARGETS {
        let seed = seed(name);
        decode(&seed);
        let step = seed.len().div_ceil(EVERY_BYTE);
        for at in (0..seed.len()).step_by(step) {
            decode(&seed[..at]);
            for bit in 0..8 {
                let mut bad = seed.clone();
                bad[at] ^= 1 << bit;
                decode(&bad);
            }
        }
    }
}

/// xorshift64*: enough to choose where to change what, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33).unwrap() % bound.max(1)
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        const INTERESTING: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
        if bytes.is_empty() {
            bytes.push(0);
        }
        let at = self.below(bytes.len());
        match self.below(6) {
            0 => bytes[at] = u8::try_from(self.below(256)).unwrap(),
            1 => {
                let value = INTERESTING[self.below(INTERESTING.len())].to_le_bytes();
                let width = [1, 2, 4, 8][self.below(4)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&value[..width]);
            }
            2 => bytes.truncate(at),
            3 => {
                let tail = bytes.split_off(at);
                bytes.extend(std::iter::repeat_n(0, self.below(64)));
                bytes.extend(tail);
            }
            4 => {
                let (from, length) = (self.below(bytes.len()), self.below(64));
                let piece: Vec<u8> = bytes[from..].iter().take(length).copied().collect();
                let end = (at + piece.len()).min(bytes.len());
                bytes.splice(at..end, piece);
            }
            _ => bytes[at] = bytes[at].wrapping_add(1),
        }
    }
}

#[test]
fn random_changes_are_handled() {
    let secs = std::env::var("DSEC_FUZZ_SECS").map_or(1, |text| text.parse().unwrap());
    let share = Duration::from_secs(secs) / u32::try_from(decoders::TARGETS.len()).unwrap();
    for (number, (name, decode)) in (1..).zip(decoders::TARGETS) {
        let (seed, mut random) = (seed(name), Random(0x9E37_79B9_7F4A_7C15 ^ number));
        let (start, mut runs) = (Instant::now(), 0u64);
        while start.elapsed() < share || runs < 100 {
            let mut bytes = seed.clone();
            (0..=random.below(8)).for_each(|_| random.mutate(&mut bytes));
            decode(&bytes);
            runs += 1;
        }
        println!("{name}: {runs} runs");
    }
}
