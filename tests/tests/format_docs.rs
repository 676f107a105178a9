//! The tables of `docs/format` say what the code says: every field of every struct, every constant, every JSON key.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

use dsec_format::{chunk, environment, extents, frame, image, json, layer, locations, pack, preamble, refs};
use dsec_store::layout;
use dsec_tests::frozen;
use fs_err as fs;

fn document(name: &str) -> String {
    let directory = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/format"));
    fs::read_to_string(directory.join(name)).unwrap()
}

/// The rows of all tables whose header starts with `header`, below the last heading before each: heading and cells.
fn rows(text: &str, header: &str) -> Vec<(String, Vec<String>)> {
    let (mut heading, mut inside, mut rows) = (String::new(), false, Vec::new());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            heading = title.to_owned();
        }
        let cells: Vec<String> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect();
        if !line.starts_with('|') {
            inside = false;
        } else if cells.join(" | ").starts_with(header) {
            inside = true;
        } else if inside && !line.starts_with("| ---") {
            rows.push((heading.clone(), cells));
        }
    }
    rows
}

/// Name, size, and each field's name and offset.
type Struct = (&'static str, usize, Vec<(&'static str, usize)>);

macro_rules! layout_of {
    ($name:literal, $type:ty, $($field:ident)+) => {
        ($name, size_of::<$type>(), vec![$((stringify!($field), offset_of!($type, $field))),+])
    };
}

fn check_structs(name: &str, structs: Vec<Struct>) {
    let text = document(name);
    let documented = rows(&text, "offset | bytes | field");
    let mut expected = Vec::new();
    for (title, bytes, fields) in &structs {
        assert!(
            text.contains(&format!("## `{title}`, {bytes} bytes")),
            "{name} has no heading for {title}, {bytes} bytes"
        );
        let ends = fields.iter().skip(1).map(|(_, offset)| *offset).chain([*bytes]);
        for ((field, offset), end) in fields.iter().zip(ends) {
            let cells = vec![offset.to_string(), (end - offset).to_string(), (*field).to_owned()];
            expected.push((format!("`{title}`, {bytes} bytes"), cells));
        }
    }
    let documented: Vec<_> = documented.into_iter().map(|(heading, cells)| (heading, cells[..3].to_vec())).collect();
    assert_eq!(documented, expected, "{name}");
}

fn check_constants(name: &str, constants: &[(&str, String)]) {
    let documented: Vec<_> = rows(&document(name), "constant | value")
        .into_iter()
        .map(|(_, cells)| (cells[0].clone(), cells[1].clone()))
        .collect();
    let expected: Vec<_> = constants.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    assert_eq!(documented, expected, "{name}");
}

macro_rules! constants {
    ($($module:ident :: $name:ident),+ $(,)?) => { &[$((stringify!($name), $module::$name.to_string())),+] };
}

fn magic(bytes: [u8; 8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn preamble_and_chunks() {
    check_structs(
        "preamble.md",
        vec![layout_of!("Preamble", preamble::Preamble, magic version reserved0 compat ro_compat incompat reserved1)],
    );
    check_constants("preamble.md", constants![preamble::PREAMBLE_BYTES, preamble::VERSION]);
    check_constants(
        "chunk.md",
        constants![
            chunk::CDC_MIN_BYTES,
            chunk::CDC_AVERAGE_BYTES,
            chunk::CDC_MAX_BYTES,
            chunk::MAX_CHUNK_BYTES,
            chunk::BLOCK_BYTES,
            frame::MAX_FRAME_PLAIN_BYTES,
            frame::TARGET_FRAME_PLAIN_BYTES
        ],
    );
    let codecs = rows(&document("chunk.md"), "codec | number");
    let codecs: Vec<_> = codecs.iter().map(|(_, cells)| (cells[0].as_str(), cells[1].as_str())).collect();
    assert_eq!(codecs, [("plain", "0"), ("zstd", "1")]);
    assert_eq!((frame::Codec::Plain as u8, frame::Codec::Zstd as u8), (0, 1));
    assert!(frame::Codec::from_number(2).is_err(), "a codec is not documented");
}

#[test]
fn packs() {
    check_structs(
        "pack.md",
        vec![
            layout_of!("FrameEntry", pack::FrameEntry, offset stored_bytes plain_bytes codec reserved),
            layout_of!("ChunkEntry", pack::ChunkEntry, digest frame offset bytes reserved),
            layout_of!("Footer", pack::Footer, tables_offset frames chunks tables_digest reserved magic),
        ],
    );
    let mut expected = vec![("MAGIC", magic(pack::MAGIC)), ("FOOTER_MAGIC", magic(pack::FOOTER_MAGIC))];
    let numbers: &[_] = constants![
        pack::FRAME_ENTRY_BYTES,
        pack::CHUNK_ENTRY_BYTES,
        pack::FOOTER_BYTES,
        pack::MAX_PACK_BYTES,
        pack::TARGET_PACK_BYTES,
        pack::MAX_PACK_CHUNKS
    ];
    expected.extend_from_slice(numbers);
    check_constants("pack.md", &expected);
}

#[test]
fn extent_maps() {
    check_structs(
        "extents.md",
        vec![
            layout_of!("Header", extents::Header, preamble extents device_bytes reserved),
            layout_of!("Extent", extents::Extent, device_offset chunk bytes reserved),
        ],
    );
    let mut expected = vec![("MAGIC", magic(extents::MAGIC))];
    let numbers: &[_] =
        constants![extents::HEADER_BYTES, extents::ENTRY_BYTES, extents::INCOMPAT_GAPS, extents::MAX_DEVICE_BYTES];
    expected.extend_from_slice(numbers);
    check_constants("extents.md", &expected);
}

#[test]
fn layers() {
    check_structs(
        "layer.md",
        vec![
            layout_of!("Identity", layer::Identity, preamble metadata_bytes metadata_digest extents_bytes extents_digest
                device_bytes data_bytes logical_bytes inodes reserved),
            layout_of!("Storage", layer::Storage, metadata_stored_bytes extents_stored_bytes metadata_codec extents_codec
                reserved),
        ],
    );
    let mut expected = vec![("MAGIC", magic(layer::MAGIC))];
    let numbers: &[_] =
        constants![layer::IDENTITY_BYTES, layer::STORAGE_BYTES, layer::HEADER_BYTES, layer::MAX_BLOB_BYTES];
    expected.extend_from_slice(numbers);
    check_constants("layer.md", &expected);
}

#[test]
fn locations_of_layers() {
    check_structs(
        "locations.md",
        vec![
            layout_of!("Header", locations::Header, preamble layer packs reserved0 records body_digest reserved1),
            layout_of!("Record", locations::Record, frame_offset pack stored_bytes plain_bytes chunk_offset codec reserved),
        ],
    );
    let mut expected = vec![("MAGIC", magic(locations::MAGIC))];
    let numbers: &[_] = constants![locations::HEADER_BYTES, locations::RECORD_BYTES];
    expected.extend_from_slice(numbers);
    check_constants("locations.md", &expected);
}

/// The keys of each object in canonical JSON, in their order, by the path that leads to the object.
fn keys(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut path: Vec<String> = Vec::new();
    let (mut last, mut rest) = (String::new(), text);
    while let Some(character) = rest.chars().next() {
        if character == '"' {
            let end = string_end(rest);
            let string = &rest[1..end - 1];
            rest = &rest[end..];
            if rest.starts_with(':') {
                let keys = found.entry(path.join("/")).or_default();
                if !keys.contains(&string.to_owned()) {
                    keys.push(string.to_owned());
                }
                string.clone_into(&mut last);
            }
            continue;
        }
        match character {
            '{' => path.push(std::mem::take(&mut last)),
            '}' => drop(path.pop()),
            _ => {}
        }
        rest = &rest[character.len_utf8()..];
    }
    found
}

fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    panic!("a string has no end");
}

#[test]
fn json_objects() {
    let text = document("json.md");
    let documented = rows(&text, "key | value");
    let of = |title: &str| -> Vec<String> {
        let heading = format!("`{title}`");
        documented.iter().filter(|(found, _)| *found == heading).map(|(_, cells)| cells[0].clone()).collect()
    };
    let image = keys(&String::from_utf8(frozen::image().encode()).unwrap());
    let environment = keys(&String::from_utf8(frozen::environment().encode()).unwrap());
    let reference = keys(&String::from_utf8(frozen::reference().unwrap().encode()).unwrap());
    assert_eq!(image[""], of("Image"));
    assert_eq!(image["/layers"], of("LayerRecord"));
    assert_eq!(image["/config"], of("Config"));
    assert_eq!(image["/provenance"], of("Provenance"));
    assert_eq!(environment[""], of("Environment"));
    assert_eq!(environment["/limits"], of("Limits"));
    assert_eq!(reference[""], of("Ref"));
    for (title, format) in [("Image", image::FORMAT), ("Environment", environment::FORMAT), ("Ref", refs::FORMAT)] {
        let heading = format!("`{title}`");
        let stated = documented.iter().find(|(found, cells)| *found == heading && cells[0] == "format").unwrap();
        assert_eq!(stated.1[1], format);
    }
    check_constants(
        "json.md",
        constants![
            json::MAX_JSON_BYTES,
            image::MAX_LAYERS,
            environment::MAX_TOOLKITS,
            refs::MAX_NAME_BYTES,
            refs::MAX_TAG_BYTES
        ],
    );
}

#[test]
fn store_directory() {
    let text = document("store.md");
    let paths: Vec<_> = rows(&text, "path | what").into_iter().map(|(_, cells)| cells[0].clone()).collect();
    let mut expected = vec![layout::FORMAT_FILE.to_owned()];
    expected.extend(layout::Kind::ALL.iter().map(|kind| format!("{}/ab/HEX", kind.directory())));
    expected.push(format!("{}/NAME/{}TAG", layout::REFS, layout::TAG_PREFIX));
    expected.push(format!("{}/ID", layout::UPLOADS));
    expected.push(format!("{}/KIND/HEX", layout::QUARANTINE));
    expected.push(format!("{}/NAME", layout::LOCKS));
    expected.push(format!("{}/PID-RANDOM/", layout::TMP));
    assert_eq!(paths, expected);
    assert!(text.contains(&format!("the line `{}`", layout::FORMAT_LINE.trim_end())));
    assert!(text.contains(&format!("`ID` is {} letters and digits", dsec_store::local::upload::ID_BYTES)));
}

#[test]
fn every_document_is_in_the_overview() {
    let overview = document("README.md");
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/format"));
    for entry in fs::read_dir(directory).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name == "README.md" || overview.contains(&format!("({name})")), "{name} is not in the overview");
    }
}
