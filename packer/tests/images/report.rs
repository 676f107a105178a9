//! `report` on an example that is computed by hand.

use dsec_format::image::Image;
use dsec_pack::report::{Subject, report};
use dsec_pack::{Cancel, Silent};
use dsec_store::Source;

use crate::support::{CHUNK_BYTES, Lab};

/// Bytes that do not compress, the same for the same seed.
fn noise(seed: u8, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut noise);
    noise
}

#[test]
fn bytes_are_counted_where_they_belong() {
    let lab = Lab::new();
    let [base, left, right] = ["base", "left", "right"].map(|name| lab.directory(name));
    // Incompressible chunks are stored as they are, one to a frame: so a chunk's stored bytes are its size.
    let (one, two, three) = (noise(1, CHUNK_BYTES as usize), noise(2, 10_000), noise(3, 5000));
    fs_err::write(base.join("one"), &one).unwrap();
    fs_err::write(base.join("one-again"), &one).unwrap();
    fs_err::write(left.join("two"), &two).unwrap();
    fs_err::write(right.join("two-too"), &two).unwrap();
    fs_err::write(right.join("three"), &three).unwrap();

    let (first, second) = (lab.image(&[&base, &left]), lab.image(&[&base, &right]));
    let layer_bytes = |image: &Image, number: usize| {
        let mut stored = Vec::new();
        let mut layer = lab.store.open_layer(&image.layers[number].digest).unwrap();
        std::io::Read::read_to_end(&mut layer, &mut stored).unwrap();
        stored.len() as u64
    };
    let image_bytes = |image: &Image| image.encode().len() as u64;
    let base_bytes = layer_bytes(&first, 0);
    let subject = |name: &str, image: &Image| Subject { names: vec![name.to_owned()], image: image.clone() };
    let subjects = vec![subject("first", &first), subject("second", &second)];
    let scratch = tempfile::tempdir().unwrap();
    let told = report(&lab.store, subjects, scratch.path(), &Silent, &Cancel::new()).unwrap();

    let rows = &told.images;
    assert_eq!((rows[0].logical_bytes, rows[1].logical_bytes), (2 * CHUNK_BYTES + 10_000, 2 * CHUNK_BYTES + 15_000));
    assert_eq!(rows[0].unique_bytes, layer_bytes(&first, 1) + image_bytes(&first));
    assert_eq!(rows[1].unique_bytes, 5000 + layer_bytes(&second, 1) + image_bytes(&second));
    let shared = CHUNK_BYTES + base_bytes + 10_000;
    assert_eq!((rows[0].shared_bytes, rows[1].shared_bytes), (shared, shared));
    assert_eq!(rows[0].stored_bytes, rows[0].unique_bytes + shared);
    assert_eq!((rows[0].marginal_bytes, rows[1].marginal_bytes), (rows[0].stored_bytes, rows[1].unique_bytes));
    assert_eq!(rows[0].metadata_bytes, base_bytes + layer_bytes(&first, 1) + image_bytes(&first));
    assert_eq!((rows[0].layers, rows[0].inodes, rows[1].inodes), (2, 5, 6));

    assert_eq!((told.total.images, told.total.layers, told.total.chunks), (2, 3, 3));
    assert_eq!(told.total.stored_bytes, rows[0].marginal_bytes + rows[1].marginal_bytes);
    assert_eq!(told.total.shared_bytes, shared);
    assert_eq!(told.total.logical_bytes, 4 * CHUNK_BYTES + 25_000);
    let text = told.to_string();
    assert_eq!(text.lines().count(), 4, "{text}");

    // Alone, everything is unique.
    let alone = report(&lab.store, vec![subject("first", &first)], scratch.path(), &Silent, &Cancel::new()).unwrap();
    assert_eq!((alone.images[0].shared_bytes, alone.images[0].unique_bytes), (0, rows[0].stored_bytes));
}
