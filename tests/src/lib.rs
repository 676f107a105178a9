//! Tests over the whole tree: architecture, contracts, crash, damage, compatibility.
