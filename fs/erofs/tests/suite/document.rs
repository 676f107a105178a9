//! `docs/format/erofs.md` states the constants of the code.

use dsec_erofs::format;

/// Every public constant of the format, by name.
macro_rules! constants {
    ($($name:ident),* $(,)?) => { [$((stringify!($name), u64::try_from(format::$name).unwrap())),*] };
}

fn parse(value: &str) -> u64 {
    match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => value.parse().unwrap(),
    }
}

fn manifest_file(path: &str) -> String {
    fs_err::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn the_document_states_the_constants() {
    let code = constants![
        BLOCK_BYTES,
        BLOCK_BITS,
        SUPERBLOCK_OFFSET,
        MAGIC,
        COMPAT_CHECKSUM,
        COMPAT_MTIME,
        INCOMPAT_CHUNKED_FILE,
        INCOMPAT_DEVICE_TABLE,
        DEVICE_SLOT_BYTES,
        DEVICE_SLOT,
        DATA_DEVICE,
        NULL_BLOCK,
        SLOT_BYTES,
        ROOT_NID,
        INODE_BYTES,
        INLINE_TAIL_MAX_BYTES,
        INODE_EXTENDED,
        INODE_LAYOUT_BIT,
        LAYOUT_FLAT_PLAIN,
        LAYOUT_FLAT_INLINE,
        LAYOUT_CHUNK_BASED,
        CHUNK_BITS_MASK,
        CHUNK_INDEXES,
        CHUNK_INDEX_BYTES,
        CHUNK_INDEXES_MAX,
        GRAIN_INDEXES_MIN,
        GRAIN_INDEXES_PER_BLOCK,
        DIRENT_BYTES,
        NAME_MAX_BYTES,
        SYMLINK_MAX_BYTES,
        XATTR_HEADER_BYTES,
        XATTR_ENTRY_BYTES,
        XATTR_SHARED_MAX,
        XATTR_VALUE_MAX_BYTES,
        XATTR_NAME_MAX_BYTES,
        XATTR_AREA_MAX_BYTES,
        XATTR_INLINE_MAX_BYTES,
        MAJOR_MAX,
        MINOR_MAX,
        FILE_MAX_BYTES,
    ];
    let document = manifest_file("../../docs/format/erofs.md");
    let table = document.split("## Constants").nth(1).unwrap().split("\n## ").next().unwrap().to_owned();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let stated: Vec<(String, u64)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            (cells[1].trim_matches('`').to_owned(), parse(cells[2]))
        })
        .collect();
    let code: Vec<(String, u64)> = code.map(|(name, value)| (name.to_owned(), value)).to_vec();
    assert_eq!(stated, code);
    assert_eq!(format::FEATURES_COMPAT, format::COMPAT_CHECKSUM | format::COMPAT_MTIME);
    assert_eq!(format::FEATURES_INCOMPAT, format::INCOMPAT_CHUNKED_FILE | format::INCOMPAT_DEVICE_TABLE);
}

#[test]
fn no_constant_is_missing_from_the_document() {
    let source = manifest_file("src/format.rs");
    let document = manifest_file("../../docs/format/erofs.md");
    let names = source.lines().filter_map(|line| line.strip_prefix("pub const ")?.split(':').next());
    let combined = ["FEATURES_COMPAT", "FEATURES_INCOMPAT"];
    for name in names.filter(|name| !combined.contains(name)) {
        assert!(document.contains(&format!("| `{name}` |")), "{name}");
    }
}
