//! One sandbox's life: namespaces, mounts, cgroup, seccomp, exec, destroy.
