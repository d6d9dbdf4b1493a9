//! The wording of reports for people: figures with three significant digits and a unit, and dates; the shortest name
//! that distinguishes a run from the others, and the runs that form a curve.
//!
//! Machine-readable formats (JSON, CSV) have full numbers in the unit given by the name.

use super::model::{Report, Run};
use std::fmt::Display;

/// Three significant digits of a number from 0 to 999.
fn three(value: f64) -> String {
    if value >= 99.95 || value == 0.0 {
        format!("{value:.0}")
    } else if value >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Scales `value` by the largest of `units` (factor, name) that gives at least 1 after rounding.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let fits = |factor: f64| value / factor >= 0.9995;
    let &(factor, unit) = units.iter().rev().find(|(factor, _)| fits(*factor)).unwrap_or(&units[0]);
    format!("{}{unit}", three(value / factor))
}

/// A count or rate: `950`, `31.2k`, `8.21M`.
#[must_use]
pub fn count(value: f64) -> String {
    scaled(value, &[(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")])
}

/// Formats a round count on an axis: like [`count`], without trailing zeros: `5M`, `0.5`.
#[must_use]
pub fn tick(value: f64) -> String {
    let text = count(value);
    let digits = text.trim_end_matches(char::is_alphabetic);
    let unit = &text[digits.len()..];
    if digits.contains('.') {
        format!("{}{unit}", digits.trim_end_matches('0').trim_end_matches('.'))
    } else {
        text
    }
}

/// Nanoseconds: `950 ns`, `12.3 us`, `4.00 ms`, `10.0 s`.
#[must_use]
pub fn nanos(value: f64) -> String {
    scaled(value, &[(1.0, " ns"), (1e3, " us"), (1e6, " ms"), (1e9, " s")])
}

/// Bytes in powers of 1024: `4.00 KiB`, `31.3 GiB`.
#[must_use]
pub fn bytes(value: f64) -> String {
    const K: f64 = 1024.0;
    let units =
        [(1.0, " B"), (K, " KiB"), (K * K, " MiB"), (K * K * K, " GiB"), (K * K * K * K, " TiB")];
    scaled(value, &units)
}

/// Bytes in powers of 1000 as fio has them, without a blank: `4.10kB`, `33.6GB`.
#[must_use]
pub fn decimal_bytes(value: f64) -> String {
    scaled(value, &[(1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")])
}

/// A unit of time, named as in fio.
#[derive(Clone, Copy, Debug)]
pub struct TimeUnit {
    /// `nsec`, `usec` or `msec`.
    pub name: &'static str,
    nanos: f64,
}

impl TimeUnit {
    /// The largest that leaves at least 1 of `nanos`.
    #[must_use]
    pub fn of(nanos: f64) -> Self {
        let units = [("msec", 1e6), ("usec", 1e3), ("nsec", 1.0)];
        let units = units.map(|(name, nanos)| Self { name, nanos });
        units.into_iter().find(|unit| nanos / unit.nanos >= 0.9995).unwrap_or(units[2])
    }

    /// Formats nanoseconds in this unit without its name: three significant digits, or all digits before the point.
    #[must_use]
    pub fn show(self, nanos: f64) -> String {
        let value = nanos / self.nanos;
        let digits = if value > 0.0 { 2.0 - value.log10().floor() } else { 0.0 };
        format!("{value:.*}", digits.clamp(0.0, 9.0) as usize)
    }
}

/// Bytes per second: `31.3 GiB/s`.
#[must_use]
pub fn bandwidth(value: f64) -> String {
    format!("{}/s", bytes(value))
}

/// A share from 0 to 1: `12.3 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// `1 thread`, `4 threads`.
#[must_use]
pub fn counted(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// Names and their values: `plug=1, back=20`.
#[must_use]
pub fn pairs<N: Display, V: Display>(all: impl IntoIterator<Item = (N, V)>) -> String {
    let text = all.into_iter().map(|(name, value)| format!("{name}={value}"));
    Vec::from_iter(text).join(", ")
}

/// Milliseconds since the epoch as `Sat Nov 21 11:16:37 2026`, in UTC.
#[must_use]
pub fn date(ms: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = ms / 1000;
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let weekday = DAYS[(day % 7) as usize];
    let is_leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let length = |year, month| match month {
        1 => 28 + u64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    };
    let (mut year, mut month, mut left) = (1970, 0, day);
    while left >= length(year, month) {
        left -= length(year, month);
        month += 1;
        if month == 12 {
            (year, month) = (year + 1, 0);
        }
    }
    let (hours, minutes) = (second / 3600, second / 60 % 60);
    let clock = format!("{hours:02}:{minutes:02}:{:02}", second % 60);
    format!("{weekday} {} {:2} {clock} {year}", MONTHS[month], left + 1)
}

/// The properties that differ between the runs of a report, from which distinguishing names are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Varying {
    /// How threads share the elevator.
    pub access: bool,
    /// The scope of an elevator, where a scheduler was measured with several.
    pub scope: bool,
    /// The number of threads.
    pub threads: bool,
    /// The device.
    pub device: bool,
}

/// Runs that differ only in the number of threads.
#[derive(Clone, Debug)]
pub struct Series<'a> {
    /// The properties that its runs share and other runs do not.
    pub label: String,
    /// Its runs, by number of threads.
    pub runs: Vec<&'a Run>,
}

impl Varying {
    /// Compares all runs of a report.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        let Some((first, rest)) = report.runs.split_first() else { return Self::default() };
        let differs = |same: fn(&Run, &Run) -> bool| rest.iter().any(|run| !same(first, run));
        Self {
            access: differs(|a, b| a.access == b.access),
            scope: report.runs.iter().any(|a| {
                let is_other = |b: &Run| scheduler(a) == scheduler(b) && a.scope != b.scope;
                report.runs.iter().any(is_other)
            }),
            threads: differs(|a, b| a.threads == b.threads),
            device: differs(|a, b| a.device.text == b.device.text),
        }
    }

    /// The run's name without its number of threads.
    #[must_use]
    pub fn series_name(self, run: &Run) -> String {
        let mut name = scheduler(run);
        let details =
            [(self.access, &run.access), (self.scope, &run.scope), (self.device, &run.device.text)];
        let shown = details.into_iter().filter(|(is_shown, _)| *is_shown);
        let shown = Vec::from_iter(shown.map(|(_, text)| text.as_str()));
        if !shown.is_empty() {
            name.push_str(&format!(" ({})", shown.join(", ")));
        }
        name
    }

    /// The run's name.
    #[must_use]
    pub fn run_name(self, run: &Run) -> String {
        let name = self.series_name(run);
        if self.threads {
            format!("{name}, {}", counted(run.threads.into(), "thread"))
        } else {
            name
        }
    }
}

/// The scheduler and its attributes that were set.
#[must_use]
pub fn scheduler(run: &Run) -> String {
    if run.scheduler_options.is_empty() {
        run.scheduler.clone()
    } else {
        format!("{} {}", run.scheduler, run.scheduler_options)
    }
}

/// Each value once, in order of first appearance.
#[must_use]
pub fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    for value in values {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all
}

/// All runs as series, in order of first appearance. Runs of one series with equal numbers of threads (for instance
/// with another workload) are all kept.
#[must_use]
pub fn series(report: &Report) -> Vec<Series<'_>> {
    let varying = Varying::of(report);
    let mut all: Vec<Series<'_>> = Vec::new();
    for run in &report.runs {
        let label = varying.series_name(run);
        match all.iter_mut().find(|s| s.label == label) {
            Some(series) => series.runs.push(run),
            None => all.push(Series { label, runs: vec![run] }),
        }
    }
    all.iter_mut().for_each(|series| series.runs.sort_by_key(|run| run.threads));
    all
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let counts = [(0.0, "0"), (950.0, "950"), (999.7, "1.00k"), (31_249.0, "31.2k")];
        for (value, text) in counts.into_iter().chain([(8_214_000.0, "8.21M"), (99.96, "100")]) {
            assert_eq!(count(value), text);
        }
        let ticks = [(0.0, "0"), (0.5, "0.5"), (100.0, "100"), (2e4, "20k"), (2.5e6, "2.5M")];
        for (value, text) in ticks {
            assert_eq!(tick(value), text);
        }
        assert_eq!(nanos(77.04), "77.0 ns");
        assert_eq!(nanos(12_340.0), "12.3 us");
        assert_eq!(nanos(10e9), "10.0 s");
        assert_eq!(nanos(0.25), "0.25 ns");
        assert_eq!(bytes(4096.0), "4.00 KiB");
        assert_eq!(bandwidth(33.6e9), "31.3 GiB/s");
        assert_eq!((decimal_bytes(4096.0), decimal_bytes(999.0)), ("4.10kB".into(), "999B".into()));
        assert_eq!(percent(0.1234), "12.3 %");
        let unit = TimeUnit::of(887_000.0);
        assert_eq!(unit.name, "usec");
        let shown = [0.0, 786.0, 51_500.0, 887_000.0, 137e6].map(|nanos| unit.show(nanos));
        assert_eq!(shown, ["0", "0.786", "51.5", "887", "137000"]);
        let names = [0.0, 999.0, 999.7, 12e9].map(|nanos| TimeUnit::of(nanos).name);
        assert_eq!(names, ["nsec", "nsec", "usec", "msec"]);
        assert_eq!(
            (counted(1, "thread"), counted(2, "core")),
            ("1 thread".into(), "2 cores".into())
        );
    }

    #[test]
    fn dates_across_leap_years() {
        assert_eq!(date(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(date(951_782_400_000), "Tue Feb 29 00:00:00 2000");
        assert_eq!(date(1_795_259_797_343), "Sat Nov 21 11:16:37 2026");
        assert_eq!(date(1_798_761_599_999), "Thu Dec 31 23:59:59 2026");
    }

    #[test]
    fn only_what_differs_is_named() {
        let report = sample::comparison();
        let varying = Varying::of(&report);
        assert!(varying.access && varying.threads && !varying.scope && !varying.device);
        let names: Vec<String> = series(&report).into_iter().map(|s| s.label).collect();
        assert_eq!(names, ["none (combining)", "mq-deadline (combining)", "mq-deadline (spin)"]);
        let one = Report { runs: vec![report.runs[0].clone()], ..report };
        assert_eq!(Varying::of(&one).run_name(&one.runs[0]), "none");
    }

    /// Schedulers have different default scopes, which names do not mention.
    #[test]
    fn a_scope_is_named_where_a_scheduler_has_several() {
        let mut report = sample::starved();
        report.runs[0].scope = "hwqueue".into();
        assert!(!Varying::of(&report).scope);
        report.runs.push(report.runs[1].clone());
        report.runs[2].scope = "hwqueue".into();
        let varying = Varying::of(&report);
        assert_eq!(varying.run_name(&report.runs[2]), "bfq (hwqueue)");
    }

    #[test]
    fn a_series_ascends() {
        let mut report = sample::comparison();
        report.runs.reverse();
        for series in series(&report) {
            let threads: Vec<u32> = series.runs.iter().map(|run| run.threads).collect();
            assert!(threads.is_sorted(), "{threads:?}");
        }
    }
}
