//! What the errors of reading, unpacking, mounting and pack-diff mean for the exit code.

use std::error::Error as StdError;
use std::io;

use dsec_commandline::Exit;
use dsec_format::protocol::mountd::ErrorKind;
use dsec_pack::{compare, hold, mount, pack_diff, report, tree, unpack, upper, verify};

/// Something was checked, and it is not as it should be. What is wrong has been printed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Found {
    #[error("{image} differs from {directory} in {count} places")]
    Differences { image: String, directory: String, count: u64 },
    #[error("{count} objects of {image} are missing or damaged")]
    Damage { image: String, count: u64 },
    #[error("the store has {count} problems")]
    Store { count: usize },
}

/// Sees through errors that show themselves as what is in them, which hides that from a walk over the causes.
pub(crate) fn inner<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    let store = |error: &'a dsec_store::Error| Some(error as &(dyn StdError + 'static));
    // A boxed source is seen as the box.
    if let Some(error) = error.downcast_ref::<Box<dsec_store::Error>>() {
        return store(error);
    }
    if let Some(error) = error.downcast_ref::<Box<tree::Error>>() {
        return Some(&**error);
    }
    let cancelled = |error: &'a dsec_pack::Cancelled| Some(error as &(dyn StdError + 'static));
    if let Some(error) = error.downcast_ref::<verify::Error>() {
        return match error {
            verify::Error::Store(error) => store(error),
            verify::Error::Cancelled(error) => cancelled(error),
            verify::Error::Compare(error) => Some(error),
            verify::Error::Directory { .. } | verify::Error::Image(_) => None,
        };
    }
    if let Some(error) = error.downcast_ref::<pack_diff::Error>() {
        return match error {
            pack_diff::Error::Store(error) => store(error),
            pack_diff::Error::Build(error) => Some(error),
            pack_diff::Error::Hold(error) => Some(error),
            pack_diff::Error::Cancelled(error) => cancelled(error),
            pack_diff::Error::OtherLayers { .. }
            | pack_diff::Error::Full { .. }
            | pack_diff::Error::Sync(_)
            | pack_diff::Error::Layer(_)
            | pack_diff::Error::Compare(_)
            | pack_diff::Error::Different { .. } => None,
        };
    }
    if let Some(error) = error.downcast_ref::<report::Error>() {
        return match error {
            report::Error::Store(error) => store(error),
            report::Error::Cancelled(error) => cancelled(error),
            _ => None,
        };
    }
    match error.downcast_ref::<tree::Error>() {
        Some(tree::Error::Store(error)) => return store(error),
        Some(tree::Error::Upper(error)) => return Some(error),
        _ => {}
    }
    match (error.downcast_ref::<compare::Error>(), error.downcast_ref::<unpack::Error>()) {
        (Some(compare::Error::Cancelled(error)), _) | (_, Some(unpack::Error::Cancelled(error))) => cancelled(error),
        _ => None,
    }
}

/// What one of these errors means by itself.
pub(crate) fn classify(error: &(dyn StdError + 'static)) -> Option<(Exit, Option<&'static str>)> {
    if error.is::<Found>() {
        return Some((Exit::Different, None));
    }
    if error.is::<upper::Error>() {
        return Some((Exit::Input, None));
    }
    if let Some(error) = error.downcast_ref::<tree::Error>() {
        return match error {
            tree::Error::Layer { .. }
            | tree::Error::Unsound { .. }
            | tree::Error::TooLarge { .. }
            | tree::Error::Extents { .. }
            | tree::Error::NoChunk { .. } => Some((Exit::Damaged, None)),
            tree::Error::OtherFileSystem => {
                Some((Exit::Input, Some("--cross-mounts goes into it; or unmount it, or build from a copy")))
            }
            tree::Error::FileType { .. } | tree::Error::Changed => Some((Exit::Input, None)),
            tree::Error::Io { .. } | tree::Error::Upper(_) | tree::Error::Store(_) => None,
        };
    }
    if let Some(error) = error.downcast_ref::<unpack::Error>() {
        return classify_unpack(error);
    }
    if let Some(error) = error.downcast_ref::<mount::Error>() {
        return classify_mount(error);
    }
    if let Some(error) = error.downcast_ref::<hold::Error>() {
        return Some(classify_hold(error));
    }
    match error.downcast_ref::<pack_diff::Error>()? {
        pack_diff::Error::OtherLayers { .. } | pack_diff::Error::Full { .. } => Some((Exit::Input, None)),
        pack_diff::Error::Different { .. } => Some((Exit::Different, Some("nothing may write to the upper directory"))),
        // What is in them says it.
        pack_diff::Error::Store(_)
        | pack_diff::Error::Sync(_)
        | pack_diff::Error::Build(_)
        | pack_diff::Error::Layer(_)
        | pack_diff::Error::Compare(_)
        | pack_diff::Error::Hold(_)
        | pack_diff::Error::Cancelled(_) => None,
    }
}

fn classify_unpack(error: &unpack::Error) -> Option<(Exit, Option<&'static str>)> {
    match error {
        unpack::Error::NotEmpty { .. } | unpack::Error::MountPoint { .. } => Some((Exit::Conflict, None)),
        unpack::Error::Busy { .. } | unpack::Error::Foreign { .. } => Some((Exit::Conflict, None)),
        unpack::Error::Privileges { .. } => Some((Exit::Refused, Some("--no-same-owner leaves these out"))),
        unpack::Error::Image(_)
        | unpack::Error::Content { .. }
        | unpack::Error::Place { .. }
        | unpack::Error::Entry { .. }
        | unpack::Error::Cancelled(_) => None,
    }
}

fn classify_mount(error: &mount::Error) -> Option<(Exit, Option<&'static str>)> {
    match error {
        mount::Error::Daemon(error) => classify_daemon(error),
        mount::Error::NotOurs { .. } | mount::Error::Occupied { .. } => Some((Exit::Conflict, None)),
        mount::Error::NotMounted { .. } => Some((Exit::NotFound, None)),
        mount::Error::Name { .. } => Some((Exit::Usage, None)),
        mount::Error::Directory { .. } | mount::Error::Table { .. } | mount::Error::Kernel { .. } => None,
    }
}

fn classify_daemon(error: &dsec_mountd_client::Error) -> Option<(Exit, Option<&'static str>)> {
    use dsec_mountd_client::Error;
    match error {
        Error::Unreachable { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            Some((Exit::Refused, Some("dsec-mountd is root's, and mounting takes root: run this as root")))
        }
        Error::Unreachable { .. } | Error::Deadline { .. } => {
            Some((Exit::Unreachable, Some("is dsec-mountd running? --mountd or DSEC_MOUNTD names its socket")))
        }
        Error::Refused { kind, .. } => Some(match kind {
            ErrorKind::BadRequest => (Exit::Usage, None),
            ErrorKind::NotFound => (Exit::NotFound, None),
            ErrorKind::Corrupt => (Exit::Damaged, None),
            ErrorKind::Unreachable => (Exit::Unreachable, None),
            ErrorKind::Node => (Exit::Refused, None),
        }),
        Error::Malformed { .. } | Error::Unexpected { .. } => None,
    }
}

fn classify_hold(error: &hold::Error) -> (Exit, Option<&'static str>) {
    match error {
        hold::Error::Edge { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            (Exit::Refused, Some("the edge and its sandboxes are root's: run this as root"))
        }
        hold::Error::Edge { .. } => {
            (Exit::Unreachable, Some("is the edge running? --edge or DSEC_EDGE names its socket"))
        }
        hold::Error::Refused { status: 404, .. } => (Exit::NotFound, None),
        hold::Error::Refused { status: 409, .. } | hold::Error::Lost { .. } => (Exit::Conflict, None),
        hold::Error::Refused { status: 503, .. } => (Exit::Unreachable, None),
        hold::Error::Refused { .. } => (Exit::Refused, None),
        hold::Error::Protocol { .. } => (Exit::Failure, None),
        hold::Error::Id { .. } => (Exit::Usage, None),
    }
}
