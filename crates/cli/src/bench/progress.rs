//! A progress bar on standard error; nothing if standard error is no terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Shows the current run and the number of runs left.
pub struct Progress(ProgressBar);

impl Progress {
    /// `steady`: the runs take long enough for the bar to redraw itself during a run.
    pub fn new(runs: usize, steady: bool) -> Self {
        let bar = ProgressBar::new(runs as u64);
        let template = "{spinner} [{bar:30}] {pos}/{len}  {msg}  (about {eta} left)";
        let style = ProgressStyle::with_template(template).expect("the template is well-formed");
        bar.set_style(style.progress_chars("=> "));
        if steady {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self(bar)
    }

    pub fn begin(&mut self, label: &str) {
        self.0.set_message(label.to_owned());
    }

    pub fn end(&mut self) {
        self.0.inc(1);
    }

    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}
