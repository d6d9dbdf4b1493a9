//! The status of an unfinished run (`status_interval`): at each interval every thread copies its counts, from which a
//! report like the final one is made. A thread checks for a request at each step, and every 50 ms while it waits, so
//! that a status takes at most 50 ms.
//!
//! [`Progress`] is a bar on standard error. Nothing is shown if standard error is not a terminal, or cannot move its
//! cursor. The remaining time is computed here from the planned duration of a run and the durations of the runs so far.
//! If it is unknown, it is not shown.

use super::setup::StartError;
use super::tally::{Part, Usage};
use crate::plan::{Plan, RunSpec, ThreadSpec};
use crate::report::model::Run;
use blkmq_core::{Instant, Nanos};
use blkmq_lab::observe::Observation;
use blkmq_lab::workload::Tally;
use blkmq_runtime::Clock;
use blkmq_terminal::program::Stop;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// The companions of a run.
pub struct Beside<'a> {
    pub observation: &'a Observation,
    /// Ends the run before its time.
    pub stop: &'a Stop,
    /// Receives the figures so far; `None` unless a status is requested.
    pub status: Option<Status<'a>>,
}

/// The receiver of the figures of an unfinished run.
pub struct Status<'a> {
    pub every: Nanos,
    pub tell: &'a mut (dyn FnMut(Run) + Send),
}

/// The counts of all threads of `spec` at `now`: the threads of phases before `phase` have `ended`, and those of
/// `phase` have given `answers`. As in fio, a thread that has not begun is included with zero counts.
pub fn all_threads(
    plan: &Plan,
    spec: &RunSpec<'_>,
    ended: &[(ThreadSpec, Part)],
    phase: u32,
    answers: Vec<Option<Part>>,
    now: Instant,
) -> Vec<(ThreadSpec, Part)> {
    let mut others = Vec::from_iter(spec.threads.iter().filter(|thread| thread.phase >= phase));
    others.sort_by_key(|thread| thread.phase);
    let answers = answers.into_iter().chain(std::iter::repeat_with(|| None));
    let others = others.into_iter().zip(answers).map(|(thread, part)| {
        let empty = || {
            let tally = Tally::new(&plan.jobs[thread.job], now);
            Part { tally, usage: Usage::default(), counted: false }
        };
        (*thread, part.unwrap_or_else(empty))
    });
    ended.iter().cloned().chain(others).collect()
}

/// The rounds of questions to the threads of a phase.
pub struct Rounds {
    /// The last round.
    asked: AtomicU32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The last answer of each thread, with its round.
    answers: Vec<(u32, Option<Part>)>,
    /// Whether all threads have ended.
    is_over: bool,
}

/// The round of a thread that has ended.
const LAST: u32 = u32::MAX;

impl Rounds {
    /// Creates the requests for `threads` threads.
    pub fn new(threads: usize) -> Self {
        let answers = (0..threads).map(|_| (0, None)).collect();
        let state = Mutex::new(State { answers, is_over: false });
        Self { asked: AtomicU32::new(0), state, changed: Condvar::new() }
    }

    /// The side of thread number `thread`.
    pub fn of_thread(&self, thread: usize) -> Asked<'_> {
        Asked { rounds: self, thread, seen: 0 }
    }

    /// Runs `work`. At each multiple of `every` on `clock` until `work` ends, `tell` gets the counts of all threads,
    /// with `None` for a thread that has not answered yet.
    ///
    /// # Errors
    /// If no thread can be started for that.
    pub fn during<T>(
        &self,
        (clock, every): (Clock, Nanos),
        mut tell: impl FnMut(Vec<Option<Part>>) + Send,
        work: impl FnOnce() -> T,
    ) -> Result<T, StartError> {
        std::thread::scope(|scope| {
            let reporter = move || {
                let mut due = next(clock.now(), every);
                while let Some(parts) = self.round(clock, due) {
                    tell(parts);
                    due = next(clock.now(), every);
                }
            };
            let _over = Over(self);
            Builder::new()
                .name("status".into())
                .spawn_scoped(scope, reporter)
                .map_err(|why| StartError::Spawn { started: 0, wanted: 1, why })?;
            Ok(work())
        })
    }

    /// At `due`, requests the counts of all threads, and returns them; `None` if the phase ends before.
    fn round(&self, clock: Clock, due: Instant) -> Option<Vec<Option<Part>>> {
        let mut state = self.state();
        while !state.is_over {
            let left = due - clock.now();
            if left == Nanos::ZERO {
                break;
            }
            let waited = self.changed.wait_timeout(state, Duration::from_nanos(left.0));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let round = self.asked.load(Ordering::Relaxed) + 1;
        // The lock orders the answers.
        self.asked.store(round, Ordering::Relaxed);
        while !state.is_over && state.answers.iter().any(|(answered, _)| *answered < round) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let parts = || state.answers.iter().map(|(_, part)| part.clone()).collect();
        (!state.is_over).then(parts)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one store.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first multiple of `every` after `now`.
fn next(now: Instant, every: Nanos) -> Instant {
    now + Nanos(every.0 - now.as_nanos() % every.0)
}

/// Ends the rounds, also where a thread has panicked.
struct Over<'a>(&'a Rounds);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.changed.notify_all();
    }
}

/// The side of one thread, which answers for the last time when it is dropped.
pub struct Asked<'a> {
    rounds: &'a Rounds,
    thread: usize,
    seen: u32,
}

impl Asked<'_> {
    /// Returns whether the thread must answer.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.rounds.asked.load(Ordering::Relaxed) != self.seen
    }

    /// Answers with the counts so far.
    #[cold]
    pub fn answer(&mut self, part: Part) {
        self.seen = self.rounds.asked.load(Ordering::Relaxed);
        self.put(self.seen, Some(part));
    }

    /// Passes the final counts.
    pub fn end(self, part: Part) {
        self.put(LAST, Some(part));
    }

    fn put(&self, round: u32, part: Option<Part>) {
        let answer = &mut self.rounds.state().answers[self.thread];
        *answer = (round, part.or(answer.1.take()));
        self.rounds.changed.notify_all();
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.put(LAST, None);
    }
}

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
    use blkmq_lab::workload::Job;

    fn part() -> Part {
        let tally = Tally::new(&Job::default(), Instant::ZERO);
        Part { tally, usage: Usage::default(), counted: true }
    }

    /// A thread that has ended, or never began, does not delay a round.
    #[test]
    fn a_round_has_an_answer_of_each_thread_that_counts() {
        let rounds = Rounds::new(3);
        rounds.of_thread(0).end(part());
        drop(rounds.of_thread(1));
        let clock = Clock::start();
        let mut thread = rounds.of_thread(2);
        let mut told = Vec::new();
        let tell = |parts: Vec<Option<Part>>| {
            told.push(Vec::from_iter(parts.iter().map(Option::is_some)));
        };
        let work = || {
            for _ in 0..2 {
                while !thread.is_due() {
                    std::hint::spin_loop();
                }
                thread.answer(part());
            }
        };
        rounds.during((clock, Nanos::from_millis(1)), tell, work).expect("a thread");
        assert!(!told.is_empty() && told.len() <= 2, "the last round may end with the work");
        assert!(told.iter().all(|seen| *seen == [true, false, true]), "{told:?}");
    }

    #[test]
    fn rounds_are_at_multiples() {
        let every = Nanos::from_millis(2);
        for (now, due) in [(0, 2_000_000), (1_999_999, 2_000_000), (2_000_000, 4_000_000)] {
            assert_eq!(next(Instant::from_nanos(now), every), Instant::from_nanos(due));
        }
    }

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
