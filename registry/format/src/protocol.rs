//! Messages between the programs. They talk over sockets and never link each other; what they say is defined here.
//!
//! * [`mountd`]: JSON lines over the Unix socket of `dsec-mountd`.
//! * [`edge`]: HTTP/JSON over the Unix socket of `dsec edge`; [`stream`] is its framing of output.
//! * [`registry`]: HTTP of `dsec-registry`.

pub mod edge;
pub mod mountd;
pub mod registry;
pub mod stream;

/// Where `dsec-mountd` listens by default.
pub const MOUNTD_SOCKET: &str = "/run/dsec/mountd.sock";
/// Where `dsec edge` listens by default.
pub const EDGE_SOCKET: &str = "/run/dsec/edge.sock";
/// Where the local store of root lies by default.
pub const STORE_DIRECTORY: &str = "/var/lib/dsec/store";
