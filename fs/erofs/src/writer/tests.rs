//! The writer alone: the same tree gives the same bytes, and what cannot be written is refused.

use super::*;
use crate::attributes::{Attributes, Kind, Segment, Timestamp};

fn attributes() -> Attributes {
    Attributes { mode: 0o644, uid: 0, gid: 0, mtime: Timestamp { secs: 1, nanos: 2 } }
}

fn image(tree: &Tree, device_bytes: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let summary = write(tree, device_bytes, &mut bytes)?;
    assert_eq!(summary.bytes, bytes.len() as u64);
    Ok(bytes)
}

#[test]
fn the_order_of_filling_does_not_show() {
    let names: Vec<String> = (0..500).map(|number| format!("name-{number}")).collect();
    let build = |backwards: bool| {
        let mut tree = Tree::new(attributes()).unwrap();
        let mut order: Vec<usize> = (0..names.len()).collect();
        if backwards {
            order.reverse();
        }
        let dir = tree.add(attributes(), Kind::Directory).unwrap();
        for number in order {
            let file = tree.add(attributes(), Kind::Regular { bytes: 4096 }).unwrap();
            let segment = Segment { file_offset: 0, bytes: 4096, device_offset: number as u64 * 4096 };
            tree.set_segments(file, &[segment]).unwrap();
            let own = number.to_le_bytes();
            let pairs: [(&[u8], &[u8]); 2] = [(b"user.shared", b"x"), (b"user.own", &own)];
            tree.set_xattrs(file, &pairs).unwrap();
            let parent = if number % 2 == 0 { dir } else { Tree::ROOT };
            tree.link(parent, names[number].as_bytes(), file).unwrap();
        }
        tree.link(Tree::ROOT, b"dir", dir).unwrap();
        image(&tree, 500 * 4096).unwrap()
    };
    let forwards = build(false);
    assert_eq!(forwards, build(true));
    assert_eq!(forwards.len() % 4096, 0);
}

#[test]
fn what_is_not_linked_is_left_out() {
    let mut tree = Tree::new(attributes()).unwrap();
    let before = image(&tree, 0).unwrap();
    let dir = tree.add(attributes(), Kind::Directory).unwrap();
    let file = tree.add(attributes(), Kind::Fifo).unwrap();
    tree.add_xattr(file, b"user.unused", &[0; 5000]).unwrap();
    tree.link(dir, b"file", file).unwrap();
    assert_eq!(image(&tree, 0).unwrap(), before);
}

#[test]
fn the_device_bounds_the_data() {
    let mut tree = Tree::new(attributes()).unwrap();
    let file = tree.add(attributes(), Kind::Regular { bytes: 5000 }).unwrap();
    tree.set_segments(file, &[Segment { file_offset: 0, bytes: 5000, device_offset: 4096 }]).unwrap();
    tree.link(Tree::ROOT, b"file", file).unwrap();
    assert!(image(&tree, 12_288).is_ok());
    let error = image(&tree, 8192).unwrap_err();
    assert_eq!(error.to_string(), "data of `file` ends at 12288, the device at 8192");
    assert!(matches!(image(&tree, 8191), Err(Error::DeviceSize { bytes: 8191 })));
    assert!(matches!(image(&tree, 1 << 44), Err(Error::DeviceSize { .. })));
}

#[test]
fn xattrs_beyond_the_area_of_an_inode_are_refused_by_path() {
    let mut tree = Tree::new(attributes()).unwrap();
    let file = tree.add(attributes(), Kind::Fifo).unwrap();
    tree.link(Tree::ROOT, b"file", file).unwrap();
    let names: Vec<String> = (0..900).map(|number| format!("user.{number}")).collect();
    let value = [1; 400];
    let pairs = |count: usize| -> Vec<(&[u8], &[u8])> {
        names[..count].iter().map(|name| (name.as_bytes(), &value[..])).collect()
    };
    tree.set_xattrs(file, &pairs(640)).unwrap();
    assert!(image(&tree, 0).is_ok());
    tree.set_xattrs(file, &pairs(900)).unwrap();
    assert!(matches!(image(&tree, 0), Err(Error::XattrsTooLarge { path, .. }) if path == b"file"));
}
