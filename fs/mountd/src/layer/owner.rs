//! Whose data lies at a place of the data device: a walk through the metadata, for messages.

use dsec_erofs::{FileType, Image, Nid};

/// Directories deeper than this are not looked into.
const MAX_DEPTH: usize = 4096;

/// The path of a file whose data covers an offset of the device; the first that is found of several.
pub(super) fn file_at<B: AsRef<[u8]>>(image: &Image<B>, device_offset: u64) -> Option<String> {
    // Directories that are open, and how far each has been read.
    let mut open: Vec<(Nid, u64)> = vec![(image.root_nid(), 0)];
    let mut names: Vec<Vec<u8>> = Vec::new();
    while let Some((nid, offset)) = open.last().copied() {
        let directory = image.inode(nid).ok()?;
        let Some(entry) = image.read_dir(&directory, offset).next() else {
            open.pop();
            names.pop();
            continue;
        };
        let entry = entry.ok()?;
        if let Some(last) = open.last_mut() {
            last.1 = entry.next_offset;
        }
        if entry.name == b"." || entry.name == b".." {
            continue;
        }
        match entry.file_type {
            FileType::Directory if open.len() < MAX_DEPTH => {
                open.push((entry.nid, 0));
                names.push(entry.name.to_owned());
            }
            FileType::Regular => {
                let file = image.inode(entry.nid).ok()?;
                let covers = |segment: dsec_erofs::Segment| {
                    (segment.device_offset..segment.device_offset.saturating_add(segment.bytes))
                        .contains(&device_offset)
                };
                if image.segments(&file).map_while(Result::ok).any(covers) {
                    names.push(entry.name.to_owned());
                    return Some(format!("/{}", names.join(&b'/').escape_ascii()));
                }
            }
            _ => {}
        }
    }
    None
}
