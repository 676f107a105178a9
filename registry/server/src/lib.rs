//! The HTTP registry: one store directory, served.
//!
//! The protocol is `dsec_format::protocol::registry`. All state is in the store, so several servers may serve one, and a
//! restart loses nothing but what was on the wire. What is sent is stored bytes; what arrives is checked before it
//! counts. Every wait has a deadline, every body a limit.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

mod app;
mod body;
mod connections;
mod failure;
mod objects;
mod pace;
mod refs;
mod seated;
mod server;
mod stream;
mod uploads;

pub use app::{Limits, Token};
pub use server::{Error, Registry};
