//! The dsec command: sandboxes from the command line, and the edge daemon.
