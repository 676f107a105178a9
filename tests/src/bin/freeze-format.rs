//! Writes samples of formats that have none yet into `fixtures/format`, and lists them. A sample that is there is never
//! changed: a form that was ever written stays readable.

use anyhow::Result;
use dsec_tests::frozen;
use fs_err as fs;

fn main() -> Result<()> {
    let directory = frozen::directory();
    fs::create_dir_all(&directory)?;
    let list = directory.join("digests.txt");
    let mut lines = if list.exists() { fs::read_to_string(&list)? } else { String::new() };
    for sample in frozen::all()? {
        let path = directory.join(sample.name);
        if !path.exists() {
            fs::write(&path, &sample.bytes)?;
            lines.push_str(&format!("{} {}\n", sample.name, sample.digest));
        }
    }
    Ok(fs::write(list, lines)?)
}
