//! The HTTP registry: one store, served.
