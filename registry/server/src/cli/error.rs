//! From an error to what a person reads: message, causes, hint, and the exit code.

use std::io::{self, Write};

use super::exit::Exit;
use super::serve::TokenError;

/// Prints `error` and says how to end.
pub(crate) fn report(error: &anyhow::Error, json: bool) -> Exit {
    let (exit, hint) = error.chain().find_map(classify).unwrap_or((Exit::Failure, None));
    let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
    let text = if json {
        let mut report = serde_json::json!({"error": error.to_string(), "causes": causes, "exit": exit as u8});
        if let (Some(hint), Some(object)) = (hint, report.as_object_mut()) {
            object.insert("hint".to_owned(), hint.into());
        }
        format!("{report}\n")
    } else {
        let causes: String = causes.iter().map(|cause| format!("  because: {cause}\n")).collect();
        let hint = hint.map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
        format!("error: {error}\n{causes}{hint}")
    };
    // Nobody is left to tell when standard error is closed; the exit code still says it.
    let _ = io::stderr().lock().write_all(text.as_bytes());
    exit
}

/// Prints what clap says: help and version are no errors.
pub(crate) fn report_usage(error: &clap::Error) -> Exit {
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Success }
}

/// `None` leaves it to the source of the error.
fn classify(error: &(dyn std::error::Error + 'static)) -> Option<(Exit, Option<&'static str>)> {
    if error.is::<TokenError>() {
        return Some((Exit::Usage, None));
    }
    if let Some(dsec_registry::Error::Open { .. }) = error.downcast_ref() {
        return Some((
            Exit::Refused,
            Some("`--token-file FILE` protects it; `--insecure` lets everybody read and write"),
        ));
    }
    match error.downcast_ref() {
        Some(dsec_store::Error::NotAStore { .. }) => {
            return Some((Exit::NotFound, Some("`--create` makes a store of a missing or empty directory")));
        }
        Some(dsec_store::Error::Full { .. }) => return Some((Exit::Full, None)),
        _ => {}
    }
    match error.downcast_ref::<io::Error>()?.kind() {
        io::ErrorKind::PermissionDenied => Some((Exit::Refused, None)),
        io::ErrorKind::AddrInUse => Some((Exit::Conflict, Some("another port, or 0 for any free one"))),
        io::ErrorKind::NotFound => Some((Exit::NotFound, None)),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some((Exit::Full, None)),
        _ => None,
    }
}
