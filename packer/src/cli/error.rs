//! From an error to what a person reads: message, causes, hint, and the exit code.

use std::error::Error as StdError;
use std::io;

use dsec_commandline::{Exit, Report};

use super::failures::{self, Found};
use super::names::Missing;

const FULL_HINT: &str = "no ref was changed; free some space, also by `dsec-pack fsck --remove-unnamed` (what failed writers \
                         have left), and try again";
const REGISTRY_FULL_HINT: &str = "no ref was changed there; its operator frees space, also by `dsec-pack fsck --remove-unnamed` \
                                  on its store; then a push goes on with what is missing";

/// Shows `error` and says how to end.
pub(crate) fn report(error: &anyhow::Error, json: bool) -> Exit {
    // What a check has found is in its result, which has been printed.
    if json && error.is::<Found>() {
        return Exit::Different;
    }
    let (exit, hint) = match error.downcast_ref::<Missing>() {
        Some(missing) => (Exit::NotFound, Some(missing.hint())),
        None => {
            let (exit, hint) = classify(error);
            (exit, hint.map(str::to_owned))
        }
    };
    Report::new(error.as_ref(), exit, hint).show(json)
}

/// The first error of the chain that means something decides.
fn classify(error: &anyhow::Error) -> (Exit, Option<&'static str>) {
    let with_inner =
        error.chain().flat_map(|error| std::iter::successors(Some(error), |error| failures::inner(*error)));
    with_inner.into_iter().find_map(classify_one).unwrap_or((Exit::Failure, None))
}

fn classify_one(error: &(dyn StdError + 'static)) -> Option<(Exit, Option<&'static str>)> {
    if error.is::<dsec_pack::Cancelled>() {
        return Some((Exit::Interrupted, None));
    }
    if error.is::<dsec_commandline::store::Nowhere>() {
        return Some((Exit::Usage, Some("--store DIR or DSEC_STORE names one")));
    }
    if error.is::<dsec_commandline::pages::Error>() {
        return classify_page(error.downcast_ref()?);
    }
    if let Some(error) = error.downcast_ref::<dsec_store::Error>() {
        return classify_store(error);
    }
    if let Some(error) = error.downcast_ref::<dsec_pack::build::Error>() {
        return classify_build(error);
    }
    if error.is::<dsec_format::refs::NameError>() || error.is::<dsec_format::digest::Error>() {
        return Some((Exit::Usage, None));
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return classify_io(error);
    }
    failures::classify(error)
}

/// `None` leaves it to the source of the error.
fn classify_page(error: &dsec_commandline::pages::Error) -> Option<(Exit, Option<&'static str>)> {
    use dsec_commandline::pages::Error;
    match error {
        Error::NoSubcommand { .. } => Some((Exit::Usage, Some("--help lists the subcommands"))),
        Error::Write(_) | Error::Output(_) => None,
    }
}

/// `None` leaves it to the source of the error.
fn classify_build(error: &dsec_pack::build::Error) -> Option<(Exit, Option<&'static str>)> {
    use dsec_pack::build::Error;
    use dsec_pack::input::{self, oci, tar};
    if error.is_cancelled() {
        return Some((Exit::Interrupted, None));
    }
    match error {
        Error::Store(error) => classify_store(error),
        // The system refused to read or to write: its error says what that means.
        Error::Scratch(_)
        | Error::Input(
            input::Error::Open(_)
            | input::Error::Tar(tar::Error::Spool(_))
            | input::Error::Oci(oci::Error::Read(_))
            | input::Error::Tree(_),
        ) => None,
        Error::Input(input::Error::Changed { .. } | input::Error::Tar(tar::Error::Changed)) => {
            Some((Exit::Input, Some("build from something that nobody writes to")))
        }
        Error::Input(input::Error::Oci(oci::Error::Several { .. } | oci::Error::NoSuchRef { .. })) => {
            Some((Exit::Input, Some("--oci-ref TAG chooses one")))
        }
        Error::Input(_) | Error::File { .. } | Error::Layers { .. } => Some((Exit::Input, None)),
        Error::NotWhole { .. } => Some((Exit::Damaged, Some("the store or its disk is at fault; no ref was set"))),
        Error::Differs { .. } => {
            Some((Exit::Different, Some("if something writes to the input, build from a copy; no ref was set")))
        }
        Error::Verify(_) => None,
        Error::Metadata(_) | Error::Frame(_) | Error::Cancelled(_) => Some((Exit::Failure, None)),
    }
}

/// `None` leaves it to the source of the error.
fn classify_store(error: &dsec_store::Error) -> Option<(Exit, Option<&'static str>)> {
    use dsec_store::Error;
    match error {
        Error::NotFound { .. } => Some((Exit::NotFound, Some("`dsec-pack ls` lists what the store has"))),
        Error::Damaged { .. } => Some((Exit::Damaged, Some("`dsec-pack fsck` says what is affected"))),
        Error::Conflict { .. } => Some((Exit::Conflict, None)),
        Error::Io(_) => None,
        Error::NoStore { .. } => Some((
            Exit::NotFound,
            Some("`dsec-pack build` and `pull` make the local store; --store DIR or DSEC_STORE names another"),
        )),
        Error::NotAStore { .. } => Some((Exit::NotFound, Some("`--store DIR` or DSEC_STORE names another directory"))),
        Error::Unreachable { .. } => Some((Exit::Unreachable, None)),
        Error::Refused { status: 401 | 403, .. } => Some((Exit::Refused, Some("check the token"))),
        Error::Refused { status: 404, .. } => Some((Exit::NotFound, None)),
        Error::Refused { status: 409, .. } => Some((Exit::Conflict, None)),
        Error::Refused { .. } => Some((Exit::Refused, None)),
        Error::Url { .. } => Some((Exit::Usage, None)),
        Error::TooLarge { .. } => Some((Exit::Failure, None)),
        Error::Interrupted => Some((Exit::Interrupted, None)),
        Error::Full { .. } => Some((Exit::Full, Some(FULL_HINT))),
        Error::RegistryFull { .. } => Some((Exit::Full, Some(REGISTRY_FULL_HINT))),
    }
}

fn classify_io(error: &io::Error) -> Option<(Exit, Option<&'static str>)> {
    match error.kind() {
        io::ErrorKind::NotFound => Some((Exit::NotFound, None)),
        io::ErrorKind::PermissionDenied => Some((
            Exit::Refused,
            Some("it belongs to somebody else: as its owner or root, or with a store of your own (--store DIR)"),
        )),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some((Exit::Full, Some(FULL_HINT))),
        _ => None,
    }
}
