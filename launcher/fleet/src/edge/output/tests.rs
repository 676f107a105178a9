//! Output against a plain list of bytes.

use super::*;

const CAPS: Caps = Caps { head_bytes: 1000, tail_bytes: 1000, stall: Duration::from_millis(200) };

fn pattern(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[1]).collect()
}

async fn read_all(reader: Reader) -> (Vec<u8>, u64) {
    let (mut bytes, mut skipped) = (Vec::new(), 0);
    while let Some(piece) = reader.next().await {
        match piece {
            Piece::Bytes(part) => bytes.extend_from_slice(&part),
            Piece::Skipped { bytes, .. } => skipped += bytes,
        }
    }
    (bytes, skipped)
}

#[tokio::test]
async fn without_a_reader_head_and_tail_are_kept_and_the_rest_is_counted() {
    let budget = Budget::new(1 << 20);
    let output = Output::new(CAPS, Arc::clone(&budget));
    let all = pattern(0, 50_000);
    for part in all.chunks(777) {
        output.push(part).await;
    }
    output.end();
    assert_eq!(output.totals(), Totals { bytes: 50_000, truncated: true });
    let reader = output.reader(0);
    let mut pieces = Vec::new();
    while let Some(piece) = reader.next().await {
        pieces.push(piece);
    }
    assert_eq!(pieces.first(), Some(&Piece::Bytes(Bytes::copy_from_slice(&all[..1000]))));
    assert_eq!(pieces.get(1), Some(&Piece::Skipped { from: 1000, bytes: 48_000 }));
    let tail: Vec<u8> = pieces[2..]
        .iter()
        .flat_map(|piece| if let Piece::Bytes(part) = piece { part.to_vec() } else { vec![] })
        .collect();
    assert_eq!(tail, all[49_000..]);
    assert!(budget.used_bytes() <= 2000, "{}", budget.used_bytes());
    drop((reader, output));
    assert_eq!(budget.used_bytes(), 0);
}

#[tokio::test]
async fn any_offset_within_what_is_kept() {
    let output = Output::new(CAPS, Budget::new(1 << 20));
    let all = pattern(0, 1900);
    output.push(&all).await;
    output.end();
    for from in [0, 1, 999, 1000, 1001, 1899, 1900, 5000] {
        let (bytes, skipped) = read_all(output.reader(from as u64)).await;
        assert_eq!((bytes.as_slice(), skipped), (all.get(from..).unwrap_or_default(), 0), "from {from}");
    }
    assert!(!output.totals().truncated);
}

#[tokio::test]
async fn an_attached_reader_gets_every_byte_and_comes_back_after_a_break() {
    let output = Output::new(CAPS, Budget::new(1 << 20));
    let all = pattern(0, 200_000);
    let reader = output.reader(0);
    let writer = {
        let (output, all) = (Arc::clone(&output), all.clone());
        tokio::spawn(async move {
            for part in all.chunks(333) {
                output.push(part).await;
            }
            output.end();
        })
    };
    let mut got = Vec::new();
    while got.len() < 60_000 {
        let Some(Piece::Bytes(part)) = reader.next().await else { panic!("bytes were skipped") };
        got.extend_from_slice(&part);
    }
    drop(reader);
    // As if the last bytes had been lost on the way.
    got.truncate(got.len() - 300);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (rest, skipped) = read_all(output.reader(got.len() as u64)).await;
    got.extend_from_slice(&rest);
    assert_eq!(skipped, 0);
    assert_eq!(got, all);
    assert!(!output.totals().truncated);
    writer.await.unwrap();
}

#[tokio::test]
async fn a_reader_that_stands_still_is_not_waited_for() {
    let output = Output::new(CAPS, Budget::new(1 << 20));
    let reader = output.reader(0);
    let all = pattern(0, 100_000);
    let begun = std::time::Instant::now();
    output.push(&all).await;
    output.end();
    assert!(begun.elapsed() >= CAPS.stall && begun.elapsed() < CAPS.stall * 10);
    let mut kept = 0;
    let mut skipped = 0;
    while let Some(piece) = reader.next().await {
        match piece {
            Piece::Bytes(part) => kept += part.len(),
            Piece::Skipped { bytes, .. } => skipped += bytes,
        }
    }
    assert_eq!(kept as u64 + skipped, 100_000);
    assert!(skipped > 0 && output.totals().truncated);
}

#[tokio::test]
async fn a_reader_that_left_is_waited_for_once() {
    let output = Output::new(CAPS, Budget::new(1 << 20));
    drop(output.reader(0));
    let begun = std::time::Instant::now();
    output.push(&pattern(0, 100_000)).await;
    assert!(begun.elapsed() >= CAPS.stall);
    let begun = std::time::Instant::now();
    output.push(&pattern(0, 100_000)).await;
    assert!(begun.elapsed() < CAPS.stall);
}

#[tokio::test]
async fn the_budget_bounds_all_outputs_together() {
    let budget = Budget::new(3000);
    let outputs: Vec<_> = (0..5).map(|_| Output::new(CAPS, Arc::clone(&budget))).collect();
    let all = pattern(0, 10_000);
    for output in &outputs {
        output.push(&all).await;
        output.end();
        assert_eq!(output.totals(), Totals { bytes: 10_000, truncated: true });
    }
    assert!(budget.used_bytes() <= 3000);
    for output in outputs {
        let (bytes, skipped) = read_all(output.reader(0)).await;
        assert_eq!(bytes.len() as u64 + skipped, 10_000);
    }
    assert_eq!(budget.used_bytes(), 0);
}
