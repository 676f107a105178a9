//! Makes a sandbox, prints its state as JSON, and ends without it: for the test that another process adopts it.
//!
//!     make_and_leave SPEC_JSON CGROUP_PARENT

#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use dsec_sandbox::{Config, Runtime, Spec};
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(spec), Some(cgroup_parent)) = (args.next(), args.next()) else {
        return Err("usage: make_and_leave SPEC_JSON CGROUP_PARENT".into());
    };
    let spec: Spec = serde_json::from_str(&spec)?;
    let sandbox = Runtime::open(&Config { cgroup_parent })?.create(&spec)?;
    sandbox.create_file("/from-maker", 0o644, 0, 0)?.write_all(b"made\n")?;
    println!("{}", serde_json::to_string(sandbox.state())?);
    Ok(())
}
