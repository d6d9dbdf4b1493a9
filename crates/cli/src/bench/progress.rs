//! A progress bar on standard error. Nothing is shown if standard error is not a terminal, or cannot move its cursor.
//!
//! The remaining time is computed here from the planned duration of a run and the durations of the runs so far. If it
//! is unknown, it is not shown.

use blkmq_core::Nanos;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Shows the current run and the number of runs left.
pub struct Progress {
    bar: ProgressBar,
    estimate: Arc<Mutex<Estimate>>,
}

/// The times from which the rest is estimated.
#[derive(Clone, Copy, Default)]
struct Estimate {
    /// Runs in all.
    runs: u32,
    /// The longest time of a run, if it is planned.
    planned: Option<Duration>,
    /// Runs that have ended.
    done: u32,
    /// The time from the beginning of all runs to that of the current one.
    before: Duration,
}

impl Estimate {
    /// The remaining time at `now`, counted from the beginning of all runs; `None` if it is unknown.
    fn left(&self, now: Duration) -> Option<Duration> {
        let each = if self.done > 0 { self.before / self.done } else { self.planned? };
        // A run that exceeds its planned duration gives no estimate.
        let current = each.checked_sub(now.saturating_sub(self.before))?;
        Some(current + each * self.runs.saturating_sub(self.done + 1))
    }

    /// Formats the result of [`left`](Self::left).
    fn says(&self, now: Duration) -> String {
        match self.left(now) {
            Some(left) if left < Duration::from_secs(1) => "less than 1 s left".into(),
            Some(left) if left < Duration::from_secs(100) => {
                format!("about {} s left", left.as_secs())
            }
            Some(left) => format!("about {} min left", (left.as_secs() + 30) / 60),
            None => format!("{} s so far", now.as_secs()),
        }
    }
}

impl Progress {
    /// Creates a bar for `runs` runs, each of which takes at most `planned`, if that is known.
    pub fn new(runs: usize, planned: Option<Nanos>, is_shown: bool) -> Self {
        let planned = planned.map(|planned| Duration::from_nanos(planned.0));
        let runs = u32::try_from(runs).unwrap_or(u32::MAX);
        let estimate = Arc::new(Mutex::new(Estimate { runs, planned, ..Estimate::default() }));
        let shown = Arc::clone(&estimate);
        let left = move |state: &ProgressState, out: &mut dyn Write| {
            // Text for a terminal that has gone is dropped.
            let _ = out.write_str(&lock(&shown).says(state.elapsed()));
        };
        let bar = ProgressBar::new(runs.into());
        if !is_shown {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let template = "{spinner} [{bar:20}] {pos}/{len}  {wide_msg}  ({left})";
        let style = ProgressStyle::with_template(template).expect("the template is well-formed");
        // ASCII in any locale.
        let style = style.with_key("left", left).tick_chars("-\\|/ ").progress_chars("=> ");
        bar.set_style(style);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, estimate }
    }

    pub fn begin(&mut self, label: &str) {
        // The bar's own lock is not taken while this one is held: its ticks take them in the opposite order.
        let now = self.bar.elapsed();
        lock(&self.estimate).before = now;
        self.bar.set_message(label.to_owned());
    }

    /// Hides the progress while `print` runs.
    pub fn aside(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    pub fn end(&mut self) {
        let now = self.bar.elapsed();
        let mut estimate = lock(&self.estimate);
        (estimate.done, estimate.before) = (estimate.done + 1, now);
        drop(estimate);
        self.bar.inc(1);
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn lock(estimate: &Mutex<Estimate>) -> MutexGuard<'_, Estimate> {
    // Each change is one store.
    estimate.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Regression test: for a run without a runtime, the bar said "about 0s left" for twenty minutes.
    #[test]
    fn nothing_is_claimed_about_a_run_of_unknown_length() {
        let unknown = Estimate { runs: 8, ..Estimate::default() };
        assert_eq!((unknown.left(s(75)), unknown.says(s(75)).as_str()), (None, "75 s so far"));
        let second = Estimate { done: 1, before: s(100), ..unknown };
        assert_eq!(second.left(s(130)), Some(s(70 + 6 * 100)));
        assert_eq!(second.left(s(201)), None, "longer than the first: nothing is known");
    }

    #[test]
    fn a_planned_time_counts_down_and_gives_way_to_what_runs_take() {
        let planned = Estimate { runs: 4, planned: Some(s(10)), ..Estimate::default() };
        assert_eq!(planned.left(s(0)), Some(s(40)));
        assert_eq!((planned.left(s(4)), planned.left(s(11))), (Some(s(36)), None));
        let later = Estimate { done: 2, before: s(24), ..planned };
        assert_eq!(later.left(s(30)), Some(s(6 + 12)));
        assert_eq!(later.says(s(30)), "about 18 s left");
        let last = Estimate { done: 3, before: s(36), ..planned };
        assert_eq!(last.says(s(48)), "less than 1 s left");
    }
}
