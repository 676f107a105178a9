//! What the straight line costs: create, run `/bin/true`, destroy, in microseconds, each on its own.
//!
//!     straight_line LAYER DIRECTORY [COUNT]
//!
//! LAYER holds a `/bin/true`; DIRECTORY is on local disk. Prints medians and the 99th percentile.

#![allow(clippy::print_stdout, reason = "an example that prints what it measured")]

use dsec_sandbox::{Config, ExecSpec, Limits, Profile, Runtime, Spec};
use std::path::Path;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(layer), Some(directory)) = (args.next(), args.next()) else {
        return Err("usage: straight_line LAYER DIRECTORY [COUNT]".into());
    };
    let count: usize = args.next().and_then(|text| text.to_str()?.parse().ok()).unwrap_or(200);
    let runtime = Runtime::open(&Config { cgroup_parent: "dsec-measure".into() })?;
    let mut times: [Vec<Duration>; 5] = Default::default();
    for number in 0..count {
        let spec = spec(Path::new(&layer), Path::new(&directory), number);
        for (list, time) in times.iter_mut().zip(round(&runtime, &spec)?) {
            list.push(time);
        }
    }
    for (name, list) in ["create", "exec to end", "stop", "remove", "all"].iter().zip(&mut times) {
        list.sort();
        let at = |per_cent: usize| list.get(list.len() * per_cent / 100).map_or(0, Duration::as_micros);
        println!("{name:12} p50 {:6} us   p99 {:6} us", at(50), at(99));
    }
    Ok(())
}

fn spec(layer: &Path, directory: &Path, number: usize) -> Spec {
    let id: dsec_sandbox::Id = format!("m{number}").parse().expect("a valid id");
    Spec {
        directory: directory.join(id.as_str()),
        hostname: id.to_string(),
        id,
        layers: vec![layer.to_owned()],
        limits: Limits::default(),
        id_base: 2 * dsec_sandbox::IDS,
        env: Vec::new(),
        nameservers: Vec::new(),
        profile: Profile::Default,
    }
}

fn round(runtime: &Runtime, spec: &Spec) -> Result<[Duration; 5], Box<dyn std::error::Error>> {
    let null = || fs_err::OpenOptions::new().read(true).write(true).open("/dev/null").map(|file| file.into_parts().0);
    let begun = Instant::now();
    let sandbox = runtime.create(spec)?;
    let created = Instant::now();
    let command = ExecSpec {
        argv: vec!["/bin/true".into()],
        env: Vec::new(),
        cwd: None,
        user: None,
        stdio: [null()?.into(), null()?.into(), null()?.into()],
    };
    let process = sandbox.exec(command)?.wait(Duration::from_secs(10))?;
    process.wait()?;
    drop(process);
    let ran = Instant::now();
    sandbox.stop()?;
    let stopped = Instant::now();
    sandbox.destroy()?;
    let end = Instant::now();
    Ok([created - begun, ran - created, stopped - ran, end - stopped, end - begun])
}
