//! From an error to what a person or a program reads of it: the message, its causes, what to try, and the exit code.
//!
//! Text goes to standard error: `error:`, a `because:` for each cause that adds something, `hint:`. With `--json` it is
//! one object, `{"error": {...}}`, on standard output: that is where the result would be, and nothing else is written
//! there, while standard error may have log lines.

use std::error::Error;
use std::io::{self, Write};

use serde::Serialize;

use crate::Exit;

/// An error, ready to be shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    kind: &'static str,
    message: String,
    causes: Vec<String>,
    hint: Option<String>,
    exit_code: u8,
    #[serde(skip)]
    exit: Exit,
}

impl Report {
    /// Of an error, what it means and what to try. A cause that says only what was said above it is left out.
    #[must_use]
    pub fn new(error: &(dyn Error + 'static), exit: Exit, hint: Option<String>) -> Self {
        let mut causes: Vec<String> = Vec::new();
        let message = error.to_string();
        let mut above = message.clone();
        for cause in std::iter::successors(error.source(), |error| (*error).source()) {
            let text = cause.to_string();
            if !above.contains(&text) {
                above.clone_from(&text);
                causes.push(text);
            }
        }
        Self { kind: exit.word(), message, causes, hint, exit_code: exit.code(), exit }
    }

    /// Ends with another code than that of its kind: the commands that pass on a command's own codes need that.
    #[must_use]
    pub fn ending_with(self, exit: Exit) -> Self {
        Self { exit_code: exit.code(), exit, ..self }
    }

    /// The code to end with.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// As text: lines for standard error.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("error: {}\n", self.message);
        self.causes.iter().for_each(|cause| text.push_str(&format!("  because: {cause}\n")));
        self.hint.iter().for_each(|hint| text.push_str(&format!("hint: {hint}\n")));
        text
    }

    /// As JSON: one line for standard output.
    #[must_use]
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Object<'a> {
            error: &'a Report,
        }
        // Strings and a number always have a JSON form.
        serde_json::to_string(&Object { error: self }).unwrap_or_default() + "\n"
    }

    /// Shows it; the code to end with.
    pub fn show(&self, json: bool) -> Exit {
        // Nobody is left to tell when this fails; the exit code still says it.
        let _ = match json {
            true => io::stdout().lock().write_all(self.json().as_bytes()),
            false => io::stderr().lock().write_all(self.text().as_bytes()),
        };
        self.exit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        #[source]
        below: Option<Box<Layer>>,
    }

    fn chain(texts: &[&'static str]) -> Layer {
        let below = (texts.len() > 1).then(|| Box::new(chain(&texts[1..])));
        Layer { text: texts[0], below }
    }

    #[test]
    fn causes_do_not_repeat_what_was_said() {
        let error = chain(&[
            "cannot open x",
            "cannot open x",
            "no such file",
            "store: no such file (os error 2)",
            "no such file",
        ]);
        let report = Report::new(&error, Exit::NotFound, Some("make it".to_owned()));
        assert_eq!(
            report.text(),
            "error: cannot open x\n  because: no such file\n  because: store: no such file (os error 2)\nhint: make it\n"
        );
    }

    #[test]
    fn json_has_every_member_always() {
        let report = Report::new(&chain(&["a", "b"]), Exit::Full, None);
        let expected = serde_json::json!({"error": {
            "kind": "full", "message": "a", "causes": ["b"], "hint": null, "exit_code": 8
        }});
        assert_eq!(serde_json::from_str::<serde_json::Value>(&report.json()).unwrap(), expected);
        let run = report.ending_with(Exit::Platform);
        assert!(run.json().contains("\"kind\":\"full\"") && run.json().contains("\"exit_code\":125"), "{}", run.json());
    }
}
