//! Progress on a terminal: one bar, replaced from stage to stage, gone at the end.

use std::sync::{Mutex, PoisonError};

use dsec_pack::{Monitor, Stage};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A [`Monitor`] that draws on standard error, or shows nothing when that is no terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    visible: bool,
    bar: Mutex<Option<ProgressBar>>,
}

impl Progress {
    pub(crate) fn new(visible: bool) -> Self {
        Self { visible, bar: Mutex::new(None) }
    }

    /// Takes the bar off the terminal.
    pub(crate) fn clear(&self) {
        if let Some(bar) = self.bar.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bar.finish_and_clear();
        }
    }
}

fn style(stage: Stage, known: bool) -> ProgressStyle {
    let (position, rate) = if stage.counts_bytes() {
        (if known { "{binary_bytes}/{binary_total_bytes}" } else { "{binary_bytes}" }, " {binary_bytes_per_sec}")
    } else {
        (if known { "{human_pos}/{human_len}" } else { "{human_pos}" }, "")
    };
    let bar = if known { " [{wide_bar}]" } else { "" };
    ProgressStyle::with_template(&format!("{{spinner}} {{msg}}{bar} {position}{rate} {{elapsed}}"))
        .expect("the templates above are valid")
        .progress_chars("=> ")
}

impl Monitor for Progress {
    fn begin(&self, stage: Stage, total: Option<u64>) {
        if !self.visible {
            return;
        }
        self.clear();
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(10))
            .with_style(style(stage, total.is_some()))
            .with_message(stage.word());
        *self.bar.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar);
    }

    fn advance(&self, amount: u64) {
        if let Some(bar) = self.bar.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            bar.inc(amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_has_a_valid_style() {
        use Stage::{Check, Pack, Publish, Pull, Push, Unpack, Verify, Walk};
        for stage in [Walk, Pack, Publish, Verify, Unpack, Push, Pull, Check] {
            style(stage, true);
            style(stage, false);
        }
    }
}
