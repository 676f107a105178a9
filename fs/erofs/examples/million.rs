//! Measures the tree and the writer: `million [FILES]` small files in directories of 100, all with the same two xattrs.
//!
//! Prints seconds and peak memory of each step. The image goes to memory only as a counter, then, for the reader and
//! the checker, to a file in the temporary directory.

use std::io::{self, BufWriter, Write};
use std::time::Instant;

use anyhow::{Context, Result};
use dsec_erofs::{Attributes, Image, Kind, Segment, Timestamp, Tree, check, write};

const BLOCK_BYTES: u64 = 4096;

/// Peak resident memory of this process, in MiB.
fn peak_mib() -> Result<u64> {
    let status = fs_err::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? / 1024)
}

struct Step(Instant);

impl Step {
    fn done(&mut self, out: &mut impl Write, what: &str) -> Result<()> {
        writeln!(out, "{what:<24} {:6.2} s   peak {:4} MiB", self.0.elapsed().as_secs_f64(), peak_mib()?)?;
        self.0 = Instant::now();
        Ok(())
    }
}

fn fill(files: u64) -> Result<Tree> {
    let attributes = |secs| Attributes { mode: 0o644, uid: 0, gid: 0, mtime: Timestamp { secs, nanos: 5 } };
    let mut tree = Tree::new(attributes(0))?;
    let mut dir = Tree::ROOT;
    for number in 0..files {
        if number % 100 == 0 {
            dir = tree.add(attributes(1), Kind::Directory)?;
            tree.link(Tree::ROOT, format!("directory-{:07}", number / 100).as_bytes(), dir)?;
        }
        let file = tree.add(attributes(i64::try_from(number)?), Kind::Regular { bytes: 900 })?;
        tree.set_segments(file, &[Segment { file_offset: 0, bytes: 900, device_offset: number * BLOCK_BYTES }])?;
        tree.set_xattrs(file, &[(b"user.origin", b"example"), (b"security.label", b"system_u:object_r:x")])?;
        tree.link(dir, format!("a-small-file-{:06x}.py", number * 7919 % files).as_bytes(), file)?;
    }
    Ok(tree)
}

fn main() -> Result<()> {
    let files: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let mut out = io::stdout().lock();
    let mut step = Step(Instant::now());
    let tree = fill(files)?;
    step.done(&mut out, "fill the tree")?;
    let summary = write(&tree, files * BLOCK_BYTES, io::sink())?;
    step.done(&mut out, "write")?;
    let mut file = tempfile::NamedTempFile::new()?;
    write(&tree, files * BLOCK_BYTES, BufWriter::new(file.as_file_mut()))?;
    drop(tree);
    step.done(&mut out, "write to a file")?;
    let bytes = fs_err::read(file.path())?;
    step.done(&mut out, "read the file back")?;
    check(&bytes)?;
    step.done(&mut out, "check")?;
    let image = Image::open(bytes)?;
    let root = image.inode(image.root_nid())?;
    let mut found = 0;
    for entry in image.read_dir(&root, 0) {
        for child in image.read_dir(&image.inode(entry?.nid)?, 0) {
            found += u64::from(image.inode(child?.nid)?.nlink > 0);
        }
    }
    step.done(&mut out, "list and stat")?;
    writeln!(out, "{} inodes, image of {} MiB, {found} met", summary.inodes, summary.bytes >> 20)?;
    Ok(())
}
