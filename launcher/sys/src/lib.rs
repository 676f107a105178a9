//! System calls: the only crate with unsafe code.
