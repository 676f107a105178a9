//! From an error to what a person reads: message, causes, hint, and the exit code.

use std::io;

use dsec_commandline::{Exit, Report};

use super::serve::{AddressError, TokenError};

/// Shows `error` and says how to end.
pub(crate) fn report(error: &anyhow::Error, json: bool) -> Exit {
    let (exit, hint) = error.chain().find_map(classify).unwrap_or((Exit::Failure, None));
    Report::new(error.as_ref(), exit, hint.map(str::to_owned)).show(json)
}

/// `None` leaves it to the source of the error.
fn classify(error: &(dyn std::error::Error + 'static)) -> Option<(Exit, Option<&'static str>)> {
    if error.is::<TokenError>() {
        return Some((Exit::Usage, None));
    }
    if error.is::<AddressError>() {
        return Some((Exit::Usage, Some("an address is HOST:PORT, such as localhost:7300 or 0.0.0.0:7300")));
    }
    if error.is::<dsec_commandline::store::Nowhere>() {
        return Some((Exit::Usage, Some("--store DIR or DSEC_STORE names one")));
    }
    if let Some(dsec_commandline::pages::Error::NoSubcommand { .. }) = error.downcast_ref() {
        return Some((Exit::Usage, Some("--help lists the subcommands")));
    }
    if let Some(dsec_registry::Error::Open { .. }) = error.downcast_ref() {
        return Some((
            Exit::Refused,
            Some("`--token-file FILE` protects it; `--insecure` lets everybody read and write"),
        ));
    }
    match error.downcast_ref() {
        Some(dsec_store::Error::NoStore { .. }) => {
            return Some((Exit::NotFound, Some("--create makes one; --store DIR or DSEC_STORE names another")));
        }
        Some(dsec_store::Error::NotAStore { .. }) => {
            return Some((
                Exit::NotFound,
                Some("--create makes a store of an empty directory; --store DIR names another"),
            ));
        }
        Some(dsec_store::Error::Full { .. }) => return Some((Exit::Full, None)),
        _ => {}
    }
    match error.downcast_ref::<io::Error>()?.kind() {
        io::ErrorKind::PermissionDenied => Some((
            Exit::Refused,
            Some("it belongs to somebody else: as its owner or root, or with a store of your own (--store DIR)"),
        )),
        io::ErrorKind::AddrInUse => Some((Exit::Conflict, Some("another port, or 0 for any free one"))),
        io::ErrorKind::NotFound => Some((Exit::NotFound, None)),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some((Exit::Full, None)),
        _ => None,
    }
}
