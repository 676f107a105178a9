//! Content-addressed store: local directory, refs, fsck, and the client of a remote registry.
