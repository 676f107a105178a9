//! From an error to what a person reads: message, causes, hint, and the exit code.

use std::error::Error as StdError;
use std::io;

use dsec_commandline::{Exit, Report};
use dsec_format::protocol::mountd::ErrorKind;
use dsec_mountd::{cache, control, fuse, mounts, node, road};

/// Shows `error` and says how to end.
pub(crate) fn report(error: &anyhow::Error, json: bool) -> Exit {
    let (exit, hint) = error.chain().find_map(classify).unwrap_or((Exit::Failure, None));
    Report::new(error.as_ref(), exit, hint.map(str::to_owned)).show(json)
}

/// The first error of a chain that means something decides.
fn classify(error: &(dyn StdError + 'static)) -> Option<(Exit, Option<&'static str>)> {
    if let Some(error) = error.downcast_ref::<dsec_mountd_client::Error>() {
        return classify_client(error);
    }
    if let Some(error) = error.downcast_ref::<node::StartError>() {
        return classify_start(error);
    }
    if let Some(control::Error::InUse { .. }) = error.downcast_ref() {
        return Some((Exit::Conflict, None));
    }
    if let Some(dsec_store::Error::Url { .. }) = error.downcast_ref() {
        return Some((Exit::Usage, None));
    }
    if let Some(dsec_commandline::pages::Error::NoSubcommand { .. }) = error.downcast_ref() {
        return Some((Exit::Usage, Some("--help lists the subcommands")));
    }
    if error.is::<dsec_format::refs::NameError>() {
        return Some((Exit::Usage, None));
    }
    error.downcast_ref::<io::Error>().and_then(classify_io)
}

fn classify_client(error: &dsec_mountd_client::Error) -> Option<(Exit, Option<&'static str>)> {
    use dsec_mountd_client::Error;
    match error {
        Error::Refused { kind, .. } => {
            let hint = (*kind == ErrorKind::NotFound)
                .then_some("`dsec-pack ls` lists the images of the local store, `ls --at URL|DIR` those of another");
            Some((kind_exit(*kind), hint))
        }
        Error::Unreachable { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            Some((Exit::Refused, Some("the daemon is root's: run this as root")))
        }
        Error::Unreachable { .. } | Error::Deadline { .. } => {
            Some((Exit::Unreachable, Some("is `dsec-mountd serve` running, and is --socket or DSEC_MOUNTD the same?")))
        }
        Error::Malformed { .. } | Error::Unexpected { .. } => {
            Some((Exit::Failure, Some("is the daemon of the same version?")))
        }
    }
}

fn classify_start(error: &node::StartError) -> Option<(Exit, Option<&'static str>)> {
    match error {
        node::StartError::Cache(cache::Error::Locked { .. }) => {
            Some((Exit::Conflict, Some("one cache belongs to one daemon: stop the other, or give --cache DIR")))
        }
        node::StartError::Cache(cache::Error::Version { .. }) => {
            Some((Exit::Damaged, Some("a cache holds nothing that cannot be fetched again: it may be removed")))
        }
        node::StartError::Cache(cache::Error::Budget { .. }) => Some((Exit::Usage, None)),
        node::StartError::Run(mounts::RunError::Locked { .. }) => {
            Some((Exit::Conflict, Some("stop the other daemon, or give --run DIR")))
        }
        node::StartError::Run(mounts::RunError::Shared { .. }) => Some((
            Exit::Refused,
            Some("give a directory of the daemon's user with mode 0700, or one that is not there yet"),
        )),
        node::StartError::Cache(cache::Error::Owner { .. }) => {
            Some((Exit::Refused, Some("give a directory that belongs to the daemon's user")))
        }
        node::StartError::Road(road::Error::Unavailable { .. }) => {
            Some((Exit::Refused, Some("`--road fuse` or `--road auto` work without it")))
        }
        node::StartError::Fuse(fuse::Error::Device(_) | fuse::Error::Mount { .. }) => {
            Some((Exit::Refused, Some("serving takes root and /dev/fuse; `dsec-mountd doctor` says what is missing")))
        }
        node::StartError::Cache(cache::Error::Io(_))
        | node::StartError::Run(_)
        | node::StartError::Road(_)
        | node::StartError::Fuse(_)
        | node::StartError::Io(_) => None,
    }
}

fn kind_exit(kind: ErrorKind) -> Exit {
    match kind {
        ErrorKind::BadRequest => Exit::Usage,
        ErrorKind::NotFound => Exit::NotFound,
        ErrorKind::Corrupt => Exit::Damaged,
        ErrorKind::Unreachable => Exit::Unreachable,
        ErrorKind::Node => Exit::Refused,
    }
}

fn classify_io(error: &io::Error) -> Option<(Exit, Option<&'static str>)> {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Some((Exit::Refused, Some("dsec-mountd serves as root only: run it as root")))
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some((Exit::Full, None)),
        _ => None,
    }
}
