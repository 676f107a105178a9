//! The edge and dsec as they really are: the built program, real sandboxes on plain directories, and a stand-in for
//! dsec-mountd that speaks its protocol. Root and Debian's `busybox-static` are needed.

mod privileged {
    mod support;

    mod commands;
    mod copies;
    mod flat;
    mod holds;
    mod restarts;
    mod spares;
    mod starts;
    mod streams;
}
