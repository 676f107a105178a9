//! The node's lazy file system: cache, fetch, FUSE adapter, EROFS mounts, control socket.
