//! How an edge is set up. Everything has a default but the three paths.

use std::path::PathBuf;
use std::time::Duration;

use dsec_sandbox::Limits;

use super::ids::Bounds;
use super::output::Caps;

/// How an edge is set up.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its directory: journal, and the writable layers of its sandboxes. Local disk.
    pub root: PathBuf,
    /// Where it listens.
    pub socket: PathBuf,
    /// Where `dsec-mountd` listens.
    pub mountd: PathBuf,
    /// Ids that its sandboxes get.
    pub ids: Bounds,
    /// Files like `/etc/subuid`: ids that others on this node have.
    pub subids: Vec<PathBuf>,
    /// Limits of a sandbox that asks for none.
    pub default_limits: Limits,
    /// Most that a sandbox may ask for.
    pub most_limits: Limits,
    /// How much of each output of a command is kept.
    pub caps: Caps,
    /// Memory for all kept outputs together.
    pub output_budget_bytes: u64,
    /// How many ended commands an edge remembers, and with what memory; the oldest are forgotten first.
    pub ended_execs: usize,
    /// Of [`Config::output_budget_bytes`], what outputs of ended commands may have.
    pub ended_output_bytes: u64,
    /// How long after the end of a command what it left behind may still write to its output.
    pub drain: Duration,
    /// How long a hold may last.
    pub hold_max: Duration,
    /// How long a request waits for a sandbox that is held.
    pub held_wait: Duration,
    /// How long `dsec-mountd` may take for an answer.
    pub mountd_deadline: Duration,
    /// How long an image's layers stay mounted after the last sandbox on them is gone.
    pub warm: Duration,
    /// How many images stay mounted that way.
    pub warm_images: usize,
    /// How many spares there are at most; none when 0. Each takes about half a MiB of the kernel's memory, one range of
    /// ids, and two open files.
    pub spares: usize,
    /// How long a request counts as demand for spares.
    pub spare_time: Duration,
    /// With less memory available on the node there are no spares.
    pub spare_memory_bytes: u64,
    /// Creations, removals and starts of commands that run at once, of each.
    pub parallel: usize,
    /// Copies of files that run at once.
    pub copies: usize,
    /// Commands that run at once, in all sandboxes together. Each costs the edge five descriptors.
    pub commands: usize,
    /// Connections at once.
    pub connections: usize,
    /// How long a request may take for its head or, where it is no stream, for its body; and how long the body of an
    /// upload or the reader of a download may stand still.
    pub progress: Duration,
}

impl Config {
    /// The defaults for a node with `memory_bytes`.
    #[must_use]
    pub fn new(root: PathBuf, socket: PathBuf, mountd: PathBuf, memory_bytes: u64) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            root,
            socket,
            mountd,
            ids: Bounds::default(),
            subids: vec!["/etc/subuid".into(), "/etc/subgid".into()],
            default_limits: Limits::default(),
            most_limits: Limits {
                memory_bytes,
                cpu_millis: u32::try_from(cores).unwrap_or(u32::MAX).saturating_mul(1000),
                pids: 32_768,
            },
            caps: Caps::default(),
            output_budget_bytes: 512 << 20,
            ended_execs: 1024,
            ended_output_bytes: 64 << 20,
            drain: Duration::from_millis(200),
            hold_max: Duration::from_secs(600),
            held_wait: Duration::from_secs(60),
            mountd_deadline: Duration::from_secs(120),
            warm: Duration::from_secs(60),
            warm_images: 64,
            spares: cores * 4,
            spare_time: Duration::from_secs(60),
            spare_memory_bytes: memory_bytes / 16,
            parallel: cores * 2,
            copies: 16,
            commands: 16_384,
            connections: 8192,
            progress: Duration::from_secs(60),
        }
    }
}
