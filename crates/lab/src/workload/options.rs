//! Options of a job that have types of their own: amounts of data, priorities of a part of the I/Os, the bytes that
//! writes carry, logs, files, and a target of latency, with the search for the depth that keeps it.
//!
//! Storage that compresses or deduplicates would hardly store zeroes. So the buffers of unverified writes begin with
//! random bytes as fio's do, and a few bytes of each sector change with each write. Files are parts of the device, each
//! with its own region, and the order in which a thread visits them. Not here: the choice of the I/Os with a priority
//! (`generator.rs`); logs themselves, which are written by the code that drives a worker, from its
//! [`Journal`](super::Journal); and names and paths of files: the code that opens files decides where on the device
//! each lies.
//!
//! The search is fio's `latency_target` and related options. A thread begins with one I/O in flight. After each window
//! in which enough I/Os were fast, the depth is doubled; after a window that missed the target, the search continues
//! between the best depth that kept it and the one that did not. I/Os that began before a change of depth do not count.

use super::verify::Pattern;
use blkmq_core::{Instant, IoPrio, Nanos, Rng};
use std::fmt;

/// An amount of data: in bytes, or as a share of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the device, or of `size` for `io_size`; 0 to 100.
    Percent(u8),
}

impl Amount {
    /// Zero bytes.
    pub const ZERO: Self = Self::Bytes(0);

    /// The amount in bytes. A share is one of `whole` bytes, and is rounded down to a multiple of `granule` bytes.
    #[must_use]
    pub fn bytes(self, whole: u64, granule: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => {
                let exact = share(whole, percent);
                exact - exact % granule.max(1)
            }
        }
    }

    /// The amount as an offset in bytes: as in fio, a share is rounded up.
    #[must_use]
    pub fn place(self, whole: u64, granule: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => {
                let exact = share(whole, percent);
                exact.checked_next_multiple_of(granule.max(1)).unwrap_or(exact)
            }
        }
    }
}

fn share(whole: u64, percent: u8) -> u64 {
    let exact = u128::from(whole) * u128::from(percent) / 100;
    u64::try_from(exact).unwrap_or(u64::MAX)
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// The I/Os of a direction whose priority differs from that of the job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum CmdPrio {
    /// None.
    #[default]
    None,
    /// A share of all, in percent.
    Percentage(u8, IoPrio),
    /// Shares of the I/Os of a length in bytes, in percent. The shares of one length sum to 100 or less.
    Split(Vec<(u32, u8, IoPrio)>),
}

impl CmdPrio {
    /// The largest sum of the shares of one length, in percent.
    pub(super) fn most(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Percentage(share, _) => u32::from(*share),
            Self::Split(parts) => {
                let same = |len: u32| parts.iter().filter(move |part| part.0 == len);
                let sum = |len: u32| same(len).map(|part| u32::from(part.1)).sum();
                parts.iter().map(|part| sum(part.0)).max().unwrap_or(0)
            }
        }
    }

    pub(super) fn prios(&self) -> Vec<IoPrio> {
        match self {
            Self::None => Vec::new(),
            Self::Percentage(_, prio) => vec![*prio],
            Self::Split(parts) => parts.iter().map(|part| part.2).collect(),
        }
    }
}

/// The bytes that writes carry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contents {
    /// `zero_buffers`: only zeroes.
    pub is_zero: bool,
    /// `refill_buffers`: all bytes are made anew for each write.
    pub refills: bool,
    /// `scramble_buffers`: some bytes of each sector are made anew.
    pub scrambles: bool,
    /// `buffer_pattern`: the bytes that are not random; all bytes if `compress` is 0.
    pub pattern: Option<Pattern>,
    /// `buffer_compress_percentage`: the share of each chunk that is not random.
    pub compress: Option<u8>,
    /// `buffer_compress_chunk`, in bytes.
    pub chunk: u32,
    /// `dedupe_percentage`: the share of writes that repeat the bytes of another one.
    pub dedupe: u8,
    /// `dedupe_mode`: the writes that are repeated.
    pub dedupe_mode: DedupeMode,
    /// `dedupe_working_set_percentage`: the buffers of the working set, as a share of those that the job writes.
    pub working_set: u8,
    /// `dedupe_global`: all jobs have one working set.
    pub is_global: bool,
}

/// The writes that are repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DedupeMode {
    /// The last buffer that was not a repetition.
    Repeat,
    /// Any one of a working set.
    WorkingSet,
}

impl Default for Contents {
    fn default() -> Self {
        Self {
            is_zero: false,
            refills: false,
            scrambles: true,
            pattern: None,
            compress: None,
            chunk: 512,
            dedupe: 0,
            dedupe_mode: DedupeMode::Repeat,
            working_set: 5,
            is_global: false,
        }
    }
}

impl Contents {
    /// Fills a buffer with the next bytes of `rng`.
    pub(super) fn fill(&self, rng: &mut Rng, bytes: &mut [u8]) {
        let share = self.compress.unwrap_or(if self.pattern.is_some() { 100 } else { 0 });
        for chunk in bytes.chunks_mut(self.chunk as usize) {
            let fixed = chunk.len() * usize::from(share) / 100;
            let (random, fixed) = chunk.split_at_mut(chunk.len() - fixed);
            for word in random.chunks_mut(8) {
                let value = rng.next_u64().to_le_bytes();
                word.copy_from_slice(&value[..word.len()]);
            }
            match &self.pattern {
                Some(pattern) => pattern.fill(0, fixed),
                None => fixed.fill(0),
            }
        }
    }
}

/// The logs of a job's completed I/Os. Fields carry the names of fio's options, without `log_`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Logs {
    /// `write_bw_log`: the beginning of the file's name.
    pub bw: Option<String>,
    /// `write_iops_log`.
    pub iops: Option<String>,
    /// `write_lat_log`: three files, of submission, completion and total latency.
    pub lat: Option<String>,
    /// `write_hist_log`: histograms of completion latency.
    pub hist: Option<String>,
    /// `write_iolog`: the file for the I/Os that are issued, which fio can replay.
    pub io: Option<String>,
    /// `log_avg_msec`: one entry for each interval of this length; zero is an entry for each I/O.
    pub avg: Nanos,
    /// `log_hist_msec`: one histogram for each interval of this length; zero is none.
    pub hist_window: Nanos,
    /// `log_hist_coarseness`: 0 to 6, each halves the number of bins.
    pub coarseness: u8,
    /// `log_offset`: entries include the offset of the I/O.
    pub offset: bool,
    /// `log_prio`: entries have the priority of the I/O, and not only whether it is a realtime one.
    pub prio: bool,
    /// `log_unix_epoch`: times are counted from the epoch, not from the beginning of counting.
    pub unix_epoch: bool,
    /// `log_max_value`: with `avg`, the largest latency instead of the mean.
    pub max_value: bool,
    /// `per_job_logs`: each thread has its own files.
    pub per_job: bool,
}

impl Default for Logs {
    fn default() -> Self {
        Self {
            bw: None,
            iops: None,
            lat: None,
            hist: None,
            io: None,
            avg: Nanos::ZERO,
            hist_window: Nanos::ZERO,
            coarseness: 0,
            offset: false,
            prio: false,
            unix_epoch: false,
            max_value: false,
            per_job: true,
        }
    }
}

impl Logs {
    /// Returns whether any log is wanted.
    #[must_use]
    pub fn any(&self) -> bool {
        [&self.bw, &self.iops, &self.lat, &self.hist, &self.io].iter().any(|name| name.is_some())
    }
}

/// A file: a stretch of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    /// First byte on the device, a multiple of a sector.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// `file_service_type`: the order in which a thread visits its files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileService {
    /// One after another, repeatedly.
    RoundRobin,
    /// A random file each time.
    Random,
    /// The next one when one is done.
    Sequential,
}

impl FileService {
    /// fio's words.
    pub const NAMES: [(Self, &'static str); 3] = [
        (Self::RoundRobin, "roundrobin"),
        (Self::Random, "random"),
        (Self::Sequential, "sequential"),
    ];
}

/// The files of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Files {
    /// The files of the first thread, of the second, and so on; or the files that all threads share.
    pub list: Vec<File>,
    /// The number of files of a thread, at least 1.
    pub each: usize,
    /// `file_service_type`.
    pub service: FileService,
    /// The number behind that: I/Os to a file before the next file's turn, at least 1.
    pub turn: u32,
    /// `openfiles`: the number of files that a thread visits at a time, at least 1; when one is done, the next is
    /// opened.
    pub open: usize,
    /// Whether `filesize` determines the length of the files. If so, `size` ends the job, and is not divided among
    /// them.
    pub is_sized: bool,
}

impl Files {
    /// The files of thread `thread`.
    #[must_use]
    pub fn of(&self, thread: u32) -> &[File] {
        let shared = self.list.len() == self.each;
        let first = if shared { 0 } else { thread as usize * self.each };
        &self.list[first..first + self.each]
    }

    /// The bytes of file `at` of `each` that belong to a job of `size` bytes in blocks of at least `block`: as in fio,
    /// the first files are a block longer if the size does not divide.
    #[must_use]
    pub fn share(at: usize, each: usize, size: u64, block: u64) -> u64 {
        let each = each as u64;
        let share = size / each;
        let longer = (size - share * each) / block.max(1);
        share + if (at as u64) < longer { block } else { 0 }
    }
}

/// fio's error for a latency target that no depth keeps: ETIMEDOUT.
pub const NEVER_KEPT: u16 = 110;

/// `latency_target` and its companions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LatencyTarget {
    /// `latency_target`: the longest time of an I/O, from the decision to issue it on.
    pub target: Nanos,
    /// `latency_window`: the time for which a depth is tried.
    pub window: Nanos,
    /// `latency_percentile`: the I/Os that must keep the target, in percent.
    pub percentile: f64,
    /// `latency_run`: continue with the depth that was found, instead of ending.
    pub run: bool,
}

/// The outcome of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Go on.
    Continue,
    /// The depth is found, and the thread ends.
    Found,
    /// Even one I/O at a time misses the target.
    Missed,
}

/// A search, or the watch over the depth that was found.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    wanted: LatencyTarget,
    /// The depth of this window.
    depth: u32,
    /// The largest depth known to keep the target; 0 if none.
    good: u32,
    /// The smallest depth known to miss it, or the maximum depth plus one.
    bad: u32,
    settled: bool,
    since: Option<Instant>,
    ios: u64,
    quick: u64,
}

impl Goal {
    /// A search among depths up to `most`.
    pub(super) fn new(wanted: LatencyTarget, most: u32) -> Self {
        Self {
            wanted,
            depth: 1,
            good: 0,
            bad: most.saturating_add(1),
            settled: false,
            since: None,
            ios: 0,
            quick: 0,
        }
    }

    /// The most I/Os in flight for now.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// An I/O that began at `start` took `took`.
    pub(super) fn count(&mut self, start: Instant, took: Nanos) {
        if self.since.is_some_and(|since| start >= since) {
            self.ios += 1;
            self.quick += u64::from(took <= self.wanted.target);
        }
    }

    /// Judges the window if it is over at `now`, and chooses the next depth.
    pub(super) fn judge(&mut self, now: Instant) -> Verdict {
        let since = *self.since.get_or_insert(now);
        if now - since < self.wanted.window || self.ios == 0 {
            return Verdict::Continue;
        }
        let share = 100.0 * self.quick as f64 / self.ios as f64;
        let kept = share >= self.wanted.percentile;
        (self.since, self.ios, self.quick) = (Some(now), 0, 0);
        if self.settled && kept {
            return Verdict::Continue;
        }
        if kept {
            self.good = self.depth;
        } else {
            self.bad = self.depth;
            // A depth that was good before no longer is.
            self.good = self.good.min(self.depth - 1);
            self.settled = false;
        }
        if self.bad == 1 {
            return Verdict::Missed;
        }
        if self.good > 0 && self.good + 1 == self.bad {
            (self.depth, self.settled) = (self.good, true);
            return if self.wanted.run { Verdict::Continue } else { Verdict::Found };
        }
        let doubled = self.depth.saturating_mul(2);
        let between = self.good + (self.bad - self.good) / 2;
        // While no depth has missed, `bad` is only the limit.
        self.depth = if kept && doubled < self.bad { doubled } else { between.max(1) };
        Verdict::Continue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_divide_goes_to_the_first_files() {
        assert_eq!([0, 1, 3].map(|at| Files::share(at, 4, 10_242, 1)), [2561, 2561, 2560]);
        assert_eq!([0, 3].map(|at| Files::share(at, 4, 10_242, 4096)), [2560; 2]);
    }

    const WINDOW: Nanos = Nanos::from_millis(1);

    fn target(run: bool) -> LatencyTarget {
        let target = Nanos::from_micros(100);
        LatencyTarget { target, window: WINDOW, percentile: 90.0, run }
    }

    /// A device on which an I/O takes 10 us for each in flight.
    fn search(most: u32, run: bool, windows: u32) -> (Goal, Verdict, Vec<u32>) {
        let (mut goal, mut now, mut tried) =
            (Goal::new(target(run), most), Instant::ZERO, Vec::new());
        goal.judge(now);
        for _ in 0..windows {
            tried.push(goal.depth());
            for _ in 0..20 {
                goal.count(now, Nanos::from_micros(10 * u64::from(goal.depth())));
            }
            now += WINDOW;
            match goal.judge(now) {
                Verdict::Continue => {}
                end => return (goal, end, tried),
            }
        }
        (goal, Verdict::Continue, tried)
    }

    #[test]
    fn the_largest_depth_that_keeps_the_target_is_found() {
        let (goal, end, tried) = search(64, false, 100);
        assert_eq!((goal.depth(), end), (10, Verdict::Found));
        assert_eq!(tried, [1, 2, 4, 8, 16, 12, 10, 11]);
        let (goal, end, tried) = search(7, false, 100);
        assert_eq!((goal.depth(), end), (7, Verdict::Found), "all that is allowed");
        assert_eq!(tried, [1, 2, 4, 6, 7]);
        let (goal, end, tried) = search(64, true, 100);
        assert_eq!((goal.depth(), end, tried.len()), (10, Verdict::Continue, 100));
    }

    #[test]
    fn a_target_that_one_io_misses_is_given_up() {
        let mut goal = Goal::new(target(false), 8);
        goal.judge(Instant::ZERO);
        for at in 0..10u64 {
            // Eight of ten are quick, and nine have to be.
            goal.count(Instant::ZERO, Nanos::from_micros(if at < 8 { 5 } else { 101 }));
        }
        assert_eq!(goal.judge(Instant::ZERO + WINDOW), Verdict::Missed);
    }

    #[test]
    fn a_depth_that_was_found_is_left_when_the_device_gets_slower() {
        let (mut goal, ..) = search(64, true, 50);
        let mut now = Instant::ZERO + Nanos::from_secs(1);
        for _ in 0..50 {
            goal.count(now, Nanos::from_micros(30 * u64::from(goal.depth())));
            now += WINDOW;
            goal.judge(now);
        }
        assert_eq!(goal.depth(), 3);
    }

    #[test]
    fn ios_from_before_the_window_do_not_count() {
        let mut goal = Goal::new(target(false), 8);
        let begin = Instant::ZERO + WINDOW;
        goal.judge(begin);
        goal.count(Instant::ZERO, Nanos::from_secs(1));
        assert_eq!(
            goal.judge(begin + WINDOW),
            Verdict::Continue,
            "a window without an I/O goes on"
        );
        goal.count(begin, Nanos::from_micros(1));
        goal.judge(begin + WINDOW);
        assert_eq!(goal.depth(), 2);
    }
}
