//! The fleet: edge (one a node, owns its sandboxes).
