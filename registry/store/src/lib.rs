//! Content-addressed store: local directory, refs, transfer, fsck, and the client of a remote registry.
//!
//! [`Source`] is what can be read, [`Store`] what can be written as well; the local directory ([`LocalStore`]) and the
//! client of a registry ([`RemoteStore`]) are both. Everything that a source returns has been checked against its digest, except ranges of
//! packs, which are checked chunk by chunk by whoever decodes the frames.

pub mod chunks;
pub mod disk;
pub mod error;
pub mod fsck;
mod index;
pub mod layer;
pub mod layout;
pub mod local;
pub mod monitor;
pub mod pack;
pub mod remote;
mod scratch;
pub mod source;
pub mod transfer;

pub use chunks::ChunkReader;
pub use error::Error;
pub use local::LocalStore;
pub use monitor::{Monitor, Silent, Stage};
pub use remote::RemoteStore;
pub use scratch::{Leftover, Scratch};
pub use source::{Session, Source, Store};
pub use transfer::{transfer, transfer_ref};
