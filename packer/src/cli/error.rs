//! From an error to what a person reads: message, causes, hint, and the exit code.

use std::error::Error as StdError;
use std::io::{self, Write};

use serde::Serialize;

use super::exit::Exit;
use super::failures;

const FULL_HINT: &str = "no ref was changed; free some space, also by `dsec-pack fsck --remove-unnamed` (what failed writers \
                         have left), and try again";
const REGISTRY_FULL_HINT: &str = "no ref was changed there; its operator frees space, also by `dsec-pack fsck --remove-unnamed` \
                                  on its store; then a push goes on with what is missing";

/// An error as `--json` gives it, on standard error.
#[derive(Debug, Serialize)]
struct Report<'a> {
    error: String,
    causes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    exit: u8,
}

/// Prints `error` and says how to end.
pub(crate) fn report(error: &anyhow::Error, json: bool) -> Exit {
    if is_closed_pipe(error) {
        return Exit::Success;
    }
    let (exit, hint) = classify(error);
    let causes = error.chain().skip(1).map(ToString::to_string).collect();
    let report = Report { error: error.to_string(), causes, hint, exit: exit as u8 };
    let mut text = String::new();
    if json {
        text = serde_json::to_string(&report).unwrap_or_else(|_| report.error.clone()) + "\n";
    } else {
        text.push_str(&format!("error: {}\n", report.error));
        report.causes.iter().for_each(|cause| text.push_str(&format!("  because: {cause}\n")));
        if let Some(hint) = hint {
            text.push_str(&format!("hint: {hint}\n"));
        }
    }
    // Nobody is left to tell when standard error is closed; the exit code still says it.
    let _ = io::stderr().lock().write_all(text.as_bytes());
    exit
}

/// Prints what clap says: help and version are no errors.
pub(crate) fn report_usage(error: &clap::Error) -> Exit {
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Success }
}

/// `dsec-pack ls | head` ends well.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<super::output::Error>().is_some_and(super::output::Error::is_closed_pipe)
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
        Error::Input(input::Error::Tar(tar::Error::ImageArchive)) => {
            Some((Exit::Input, Some("unpack an oci-archive into a directory first; --input tar packs it as it is")))
        }
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
        io::ErrorKind::PermissionDenied => Some((Exit::Refused, None)),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some((Exit::Full, Some(FULL_HINT))),
        _ => None,
    }
}
