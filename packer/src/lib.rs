//! Images: build, import, pack-diff, verify, unpack, report.
