//! A goal over time: its windows, its rest while it is infeasible, and the report of its state with the bounds on
//! length, depth and rates that are taken for it.
//!
//! A window has the latencies of one kind of I/O of a group since the controller's last step, counted by all requests
//! or by samples. At high rates, while nothing is taken, a part of the requests tells as much as all. A window with
//! [`ENOUGH_SAMPLES`] samples is judged by them, and the next one is sampled to have as many again at the same rate. If
//! a window has too few samples to be judged, every request is counted from the next look on.
//!
//! While a goal rests, nothing is taken for it, and its I/Os show the device uncontrolled. If the slow ones become much
//! faster than they usually were in this rest, the device or a neighbour has changed, and the goal is tried again. The
//! mean is no sign: a device that answers some I/Os late does as many of them, and has a queue that is as much shorter.
//! Without a sign the goal is tried again after a time that doubles with each failure, and halves with each minute in
//! which the goal is kept.
//!
//! The neighbours keep a part of what the device usually does. A cache that takes a burst makes that seem more than the
//! device can do, so hardly anything was left to take. If the device then does less than a quarter of that, the goal is
//! tried again, after a time that doubles with each such trial.

use super::control::TIERS;
use blkmq_core::{GroupIndex, Instant, Nanos, Op};

/// The kind of I/O that a goal is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GoalKind {
    /// Reads.
    Read,
    /// Writes, discards and write-zeroes; also flushes, unless the group has a goal for flushes.
    Write,
    /// Flushes.
    Sync,
}

impl GoalKind {
    /// All kinds, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Sync];

    /// The kind of an operation.
    pub(super) fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Flush => Self::Sync,
            Op::Write | Op::Discard | Op::WriteZeroes => Self::Write,
        }
    }

    /// The attribute that sets the goal.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Read => "p99_read",
            Self::Write => "p99_write",
            Self::Sync => "p99_sync",
        }
    }
}

/// The state of a goal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GoalState {
    /// No I/O came and none waits.
    #[default]
    Idle,
    /// I/Os wait, and none has ended.
    Unknown,
    /// At most 1 % took longer than the goal.
    Met,
    /// More than 1 % took longer than the goal.
    Missed,
    /// Missed, and the group has its share of the device: its I/Os wait for each other. Nothing is taken for it.
    OwnBacklog,
    /// Missed although nothing was left to take.
    Infeasible,
}

impl GoalState {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Unknown => "unknown",
            Self::Met => "met",
            Self::Missed => "missed",
            Self::OwnBacklog => "own-backlog",
            Self::Infeasible => "infeasible",
        }
    }
}

/// A goal and its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GoalReport {
    /// The group.
    pub group: GroupIndex,
    /// The kind of I/O.
    pub kind: GoalKind,
    /// The target.
    pub goal: Nanos,
    /// Its state.
    pub state: GoalState,
    /// The 99th percentile in the last window that was judged, at most 25 % above the true one; zero before the first.
    pub p99: Nanos,
    /// Windows judged so far, without those that had no I/O.
    pub windows: u64,
    /// Windows in which the goal was missed.
    pub missed: u64,
    /// The 99th percentile with nothing left to take, the evidence of an infeasible goal; zero if never infeasible.
    pub best: Nanos,
}

/// The bounds that the controller sets on the groups without a goal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// The most sectors of a read or write of groups without a floor; `None` for as many as the device takes.
    pub sectors: Option<u32>,
    /// The most requests at the device; `None` for as many as it takes.
    pub device_depth: Option<u32>,
    /// Bytes a second, with 16 KiB for each request, of all groups that are lighter than the lightest group with a
    /// goal, as heavy, and heavier; `None` for no bound. I/O by a floor is not counted.
    pub rates: [Option<u64>; TIERS],
}

/// With fewer I/Os than this, a window continues until [`ENOUGH_TIME`].
const ENOUGH: u32 = 100;
const ENOUGH_TIME: Nanos = Nanos::from_secs(1);
/// One late I/O may be chance. It counts if it took more than so many times the goal, or after this time in a window
/// with few I/Os.
const FAR: u64 = 4;
const FEW_TIME: Nanos = Nanos::from_millis(500);
/// The number of buckets: four for each power of two of microseconds, up to two minutes.
const BUCKETS: usize = 4 * 27;

/// The judgement on a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The window continues.
    Open,
    /// The window continues. I/Os wait, and none has ended.
    Unknown,
    /// No I/O came.
    Idle,
    /// At most 1 % took longer than the goal.
    Met,
    /// More than 1 % took longer than the goal, or one waits for longer.
    Missed,
}

/// Counts of latencies.
pub(super) struct Window {
    /// I/Os counted, and those that took longer than the goal.
    ios: u32,
    over: u32,
    /// One took more than [`FAR`] times the goal.
    far: bool,
    /// All I/Os that have ended, and the longest latency from arrival on.
    ended: u32,
    slowest: Nanos,
    /// The sum of latencies, in nanoseconds.
    sum: u64,
    buckets: [u32; BUCKETS],
    /// The longest wait of an I/O that had not ended at the last judgement.
    waits: Nanos,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            ios: 0,
            over: 0,
            far: false,
            ended: 0,
            slowest: Nanos::ZERO,
            sum: 0,
            buckets: [0; BUCKETS],
            waits: Nanos::ZERO,
        }
    }
}

/// The bucket of a latency.
fn bucket(latency: Nanos) -> usize {
    let quarters = (latency.0 / 250).max(4);
    let power = quarters.ilog2();
    // `fine` is from 4 to 7.
    let fine = (quarters >> (power - 2)) as usize;
    (power as usize * 4 + fine - 12).min(BUCKETS - 1)
}

/// The upper end of a bucket.
fn upper(bucket: usize) -> Nanos {
    let (power, fine) = (bucket / 4, bucket as u64 % 4);
    Nanos(((4 + fine + 1) << power) * 250)
}

impl Window {
    /// Counts an I/O that ended `at`. If it came before the window began, only the time in the window counts, and only
    /// if that is longer than the goal: earlier steps are responsible for the rest.
    pub(super) fn count(&mut self, came: Instant, at: Instant, began: Instant, goal: Nanos) {
        self.ended += 1;
        self.slowest = self.slowest.max(at.since(came));
        let latency = at.since(came.max(began));
        if latency > goal {
            self.count_late(latency, goal);
        } else if came < began {
            return;
        }
        self.ios += 1;
        self.sum += latency.0;
        self.buckets[bucket(latency)] += 1;
    }

    #[cold]
    fn count_late(&mut self, latency: Nanos, goal: Nanos) {
        self.over += 1;
        self.far |= latency.0 / FAR > goal.0;
    }

    /// Judges the window after `elapsed`, with the longest wait of an I/O that has not ended.
    pub(super) fn verdict(&mut self, elapsed: Nanos, waits: Option<Nanos>, goal: Nanos) -> Verdict {
        self.waits = waits.unwrap_or_default();
        let late = u64::from(self.over) + u64::from(self.waits > goal);
        let too_many = late * 100 > u64::from(self.ios);
        let far = self.far || self.waits.0 / FAR > goal.0;
        if too_many && (late > 1 || far || self.ios < ENOUGH / 2 && elapsed >= FEW_TIME) {
            return Verdict::Missed;
        }
        match (self.ios, waits) {
            (0, None) => Verdict::Idle,
            (0, Some(_)) => Verdict::Unknown,
            (ios, _) if ios >= ENOUGH || elapsed >= ENOUGH_TIME => Verdict::Met,
            _ => Verdict::Open,
        }
    }

    /// The I/Os that were counted.
    pub(super) fn ios(&self) -> u32 {
        self.ios
    }

    /// The I/Os that have ended, and the latency of the slow ones: the 99th percentile of many, and of few the longest,
    /// from the arrival on even if that was before the window began.
    pub(super) fn whole(&self) -> (u32, Nanos) {
        let slow = if self.ios < ENOUGH { self.slowest } else { self.p99() };
        (self.ended, slow)
    }

    /// The mean latency in nanoseconds; without ended I/Os, the wait of the oldest.
    pub(super) fn mean(&self) -> u64 {
        if self.ios == 0 { self.waits.0 } else { self.sum / u64::from(self.ios) }
    }

    /// The 99th percentile, rounded up to the end of a bucket. An I/O that waits for longer counts as ended.
    pub(super) fn p99(&self) -> Nanos {
        let mut beyond = self.ios / 100;
        for place in (0..BUCKETS).rev() {
            let here = self.buckets[place];
            if here > beyond {
                return upper(place).max(self.waits);
            }
            beyond -= here;
        }
        self.waits
    }
}

/// The samples of a window. Where one request in 200 is late, 4 % of windows with so many seem to have more than one in
/// 100, and a tenth of windows with 100 requests.
const ENOUGH_SAMPLES: u32 = 500;
/// The most requests that a sample stands for.
pub(super) const MOST: u32 = 16;

/// If a goal had I/Os within this time, but none in the window, every request is counted.
const LATELY: Nanos = Nanos::from_secs(10);

/// The choice of samples: one stands for `stride` requests.
pub(super) struct Sampling {
    stride: u32,
    /// Samples since the window began, of all groups.
    samples: u32,
    /// A pseudorandom sequence. A fixed stride would match the pattern of plugs, whose last request waits longest.
    noise: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { stride: 1, samples: 0, noise: 1 }
    }
}

impl Sampling {
    pub(super) fn stride(&self) -> u32 {
        self.stride
    }

    /// The number of requests up to and including the next sample: from 1 to twice the stride less one.
    pub(super) fn next(&mut self) -> u32 {
        self.samples = self.samples.saturating_add(1);
        if self.stride == 1 {
            return 1;
        }
        // The upper bits of a linear congruential generator are the better ones.
        self.noise = self.noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1 + (self.noise >> 16) % (2 * self.stride - 1)
    }

    /// The stride with which the next window has [`ENOUGH_SAMPLES`] samples, if this one had `samples`.
    fn enough(&self, samples: u32) -> u32 {
        let stride = u64::from(self.stride) * u64::from(samples) / u64::from(ENOUGH_SAMPLES);
        stride.clamp(1, MOST.into()) as u32
    }

    /// The greatest stride after a look at a goal's window, which has `samples` samples.
    pub(super) fn wanted(&self, verdict: Verdict, samples: u32, idle_for: Nanos) -> u32 {
        match verdict {
            Verdict::Idle if idle_for >= LATELY => self.enough(self.samples),
            Verdict::Met => self.enough(samples),
            Verdict::Idle | Verdict::Open | Verdict::Unknown | Verdict::Missed => 1,
        }
    }

    pub(super) fn set(&mut self, stride: u32) {
        self.stride = stride;
    }

    /// Begins the next window.
    pub(super) fn restart(&mut self) {
        self.samples = 0;
    }
}

/// The shortest rest, whatever the signs.
const LEAST_REST: Nanos = Nanos::from_secs(5);
/// The time after the begin of a rest in which I/Os are ignored: they still show the effect of taking.
const SETTLES: Nanos = Nanos::from_secs(3);
/// A goal is tried again if the device does less than this part of the assumed cost a second: others kept most of it.
const LESS: u64 = 4;
/// The time without a sign until the first trial, and the longest until a later one.
const FIRST_REST: Nanos = Nanos::from_secs(120);
const LONGEST_REST: Nanos = Nanos::from_secs(960);
/// The next rest of a goal is half as long for each such time for which it is kept.
const KEPT: Nanos = Nanos::from_secs(60);
/// A percentile is taken over at least this time and so many I/Os.
const SPELL: Nanos = Nanos::from_secs(1);
const ENOUGH_OF_A_SPELL: u32 = 5;
/// The number of good percentiles in a row that are a sign.
const SIGNS: u8 = 3;
/// The usual percentile changes by this part of the difference to the last one.
const SLOWLY: u64 = 8;

pub(super) struct Rest {
    /// The length of the next rest without a sign.
    length: Nanos,
    began: Instant,
    until: Instant,
    /// The I/Os since the time `since`, and the largest percentile of a window.
    seen: (u32, Nanos),
    since: Instant,
    /// The usual percentile in this rest, as a moving mean; zero before the first.
    usual: Nanos,
    /// Good percentiles in a row.
    good: u8,
    /// The percentile at the sign for the last trial. The next sign has to be below half of it.
    tried: Option<Nanos>,
    /// The usual cost a second of the device at the begin of the rest, of which others kept a part.
    assumed: u64,
    /// The shortest rest before a trial because the device does less.
    doubt: Nanos,
    /// The time since which the goal is kept.
    kept: Option<Instant>,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            length: FIRST_REST,
            began: Instant::ZERO,
            until: Instant::ZERO,
            seen: (0, Nanos::ZERO),
            since: Instant::ZERO,
            usual: Nanos::ZERO,
            good: 0,
            tried: None,
            assumed: 0,
            doubt: LEAST_REST,
            kept: None,
        }
    }
}

impl Rest {
    /// Begins a rest, after a trial that left others a part of the cost `usual` a second.
    pub(super) fn begin(&mut self, now: Instant, usual: u64) {
        self.assumed = usual;
        (self.began, self.until) = (now, now + self.length);
        self.length = Nanos((2 * self.length.0).min(LONGEST_REST.0));
        // The first seconds still show the effect of taking.
        (self.since, self.seen) = (now + SETTLES, (0, Nanos::ZERO));
        (self.usual, self.good, self.kept) = (Nanos::ZERO, 0, None);
    }

    /// Counts a window in which the goal was met, or had no I/O.
    pub(super) fn keeps(&mut self, now: Instant) {
        let since = *self.kept.get_or_insert(now);
        if now.since(since) >= KEPT {
            self.kept = Some(now);
            (self.tried, self.doubt) = (None, LEAST_REST);
            self.length = Nanos((self.length.0 / 2).max(FIRST_REST.0));
        }
    }

    /// Counts a window in which the goal was missed.
    pub(super) fn breaks(&mut self) {
        self.kept = None;
    }

    /// Counts a window of a resting goal: the I/Os that ended, their percentile, the goal, and the usual cost a second
    /// of the device. Returns whether the goal is tried again.
    pub(super) fn is_over(
        &mut self,
        now: Instant,
        (ios, p99): (u32, Nanos),
        (goal, usual): (Nanos, u64),
    ) -> bool {
        if now >= self.until {
            self.tried = None;
            return true;
        }
        if now.since(self.began) >= self.doubt && usual < self.assumed / LESS {
            self.doubt = Nanos((2 * self.doubt.0).min(LONGEST_REST.0));
            return true;
        }
        if now < self.since {
            return false;
        }
        self.seen = (self.seen.0 + ios, self.seen.1.max(p99));
        if now.since(self.since) < SPELL || self.seen.0 < ENOUGH_OF_A_SPELL {
            return false;
        }
        let (_, p99) = self.seen;
        (self.since, self.seen) = (now, (0, Nanos::ZERO));
        let is_new = self.tried.is_none_or(|tried| p99.0 < tried.0 / 2);
        let is_good = is_new && (p99.0 < self.usual.0 / 2 || p99 <= goal);
        self.good = if is_good { self.good + 1 } else { 0 };
        self.usual = match self.usual {
            Nanos::ZERO => p99,
            usual => Nanos(usual.0 - usual.0 / SLOWLY + p99.0 / SLOWLY),
        };
        if self.good >= SIGNS && now.since(self.began) >= LEAST_REST {
            self.tried = Some(p99);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_at_most_a_quarter_wide() {
        for ns in [1, 999, 1_000, 1_250, 77_777, 1_000_000, 9_999_999, 60_000_000_000] {
            let end = upper(bucket(Nanos(ns))).0;
            assert!(end > ns && (end <= ns + ns / 4 || end <= 1_250), "{ns}: {end}");
        }
    }

    #[test]
    fn one_in_a_hundred_may_take_longer() {
        let mut window = Window::default();
        let (began, goal) = (Instant::ZERO, Nanos::from_millis(2));
        for n in 0..100 {
            let latency = if n == 7 { Nanos::from_millis(9) } else { Nanos::from_millis(1) };
            window.count(began, began + latency, began, goal);
        }
        assert_eq!(window.verdict(Nanos::from_millis(100), None, goal), Verdict::Met);
        assert!(window.p99() < goal, "{:?}", window.p99());
        window.count(began, began + Nanos::from_millis(3), began, goal);
        window.count(began, began + Nanos::from_millis(3), began, goal);
        assert_eq!(window.verdict(Nanos::from_millis(100), None, goal), Verdict::Missed);
        assert!(window.p99() >= Nanos::from_millis(3));
    }

    #[test]
    fn no_completions_while_some_wait_is_never_good() {
        let goal = Nanos::from_millis(2);
        let mut window = Window::default();
        let second = Nanos::from_secs(1);
        assert_eq!(window.verdict(second, None, goal), Verdict::Idle);
        assert_eq!(window.verdict(second, Some(goal), goal), Verdict::Unknown);
        assert_eq!(window.verdict(second, Some(Nanos(goal.0 + 1)), goal), Verdict::Missed);
        assert_eq!(window.verdict(Nanos(0), Some(Nanos(5 * goal.0)), goal), Verdict::Missed);
        let soon = Nanos::from_millis(400);
        assert_eq!(window.verdict(soon, Some(Nanos(goal.0 + 1)), goal), Verdict::Unknown);
    }

    #[test]
    fn samples_are_as_many_as_a_window_needs() {
        let mut sampling = Sampling::default();
        let met =
            |sampling: &Sampling, samples| sampling.wanted(Verdict::Met, samples, Nanos::ZERO);
        assert_eq!((sampling.next(), met(&sampling, 999)), (1, 1));
        sampling.set(met(&sampling, 2_500));
        assert_eq!(sampling.stride(), 5);
        assert_eq!(met(&sampling, 500), 5, "the rate is as before");
        assert_eq!(met(&sampling, 1_000), 10, "it is twice that");
        assert_eq!(met(&sampling, 2_000), MOST);
        for scarce in [Verdict::Open, Verdict::Unknown, Verdict::Missed] {
            assert_eq!(sampling.wanted(scarce, 99, Nanos::ZERO), 1);
        }
    }

    #[test]
    fn beside_a_goal_without_ios_samples_are_of_the_others() {
        let mut sampling = Sampling::default();
        (0..2_500).for_each(|_| assert_eq!(sampling.next(), 1));
        assert_eq!(sampling.wanted(Verdict::Idle, 0, Nanos(LATELY.0 - 1)), 1, "it had some lately");
        assert_eq!(sampling.wanted(Verdict::Idle, 0, LATELY), 5);
        sampling.restart();
        assert_eq!(sampling.wanted(Verdict::Idle, 0, LATELY), 1, "others had none either");
    }

    #[test]
    fn samples_are_of_every_place_in_a_plug() {
        let mut sampling = Sampling::default();
        sampling.set(8);
        let mut of_places = [0; 8];
        let mut at = 0;
        for _ in 0..8_000 {
            at += sampling.next() as usize;
            of_places[at % 8] += 1;
        }
        assert!((63_000..65_000).contains(&at), "one in eight on average: 8000 of {at}");
        assert!(of_places.iter().all(|n| (900..1_100).contains(n)), "{of_places:?}");
    }

    const GOAL: Nanos = Nanos::from_millis(6);
    const RATE: u64 = 1_000_000;

    /// Begins a rest at the second `from`, with percentiles of `of(second)` ms. Returns the second of its end.
    fn over(rest: &mut Rest, from: u64, of: impl Fn(u64) -> u64) -> u64 {
        let at = |tenth: u64| Instant::from_nanos(tenth * 100_000_000);
        rest.begin(at(from * 10), RATE);
        let mut tenths = (from * 10 + 1)..;
        let ends = |tenth: &u64| {
            rest.is_over(at(*tenth), (2, Nanos::from_millis(of(tenth / 10))), (GOAL, RATE))
        };
        tenths.find(ends).expect("it ends") / 10
    }

    #[test]
    fn it_ends_soon_after_the_device_is_as_before() {
        let mut rest = Rest::default();
        for spell in 0..10 {
            let from = spell * 100;
            let healthy = from + 20;
            let ends = over(&mut rest, from, |at| if at < healthy { 190 } else { 48 });
            assert!((healthy + 1..=healthy + 3).contains(&ends), "{spell}: {ends}");
            (0..70).for_each(|at| rest.keeps(Instant::from_nanos((ends + at) * 1_000_000_000)));
        }
    }

    #[test]
    fn it_ends_for_a_device_that_does_a_quarter_of_what_was_assumed() {
        let mut rest = Rest::default();
        let at = |second: u64| Instant::from_nanos(second * 1_000_000_000);
        let slow = (100, Nanos::from_millis(90));
        rest.begin(at(0), 5 * RATE);
        assert!(!rest.is_over(at(4), slow, (GOAL, RATE)), "too soon");
        assert!(!rest.is_over(at(5), slow, (GOAL, 2 * RATE)));
        assert!(rest.is_over(at(6), slow, (GOAL, RATE)));
        rest.begin(at(10), 5 * RATE);
        assert!(!rest.is_over(at(19), slow, (GOAL, RATE)), "such trials are ever fewer");
        assert!(rest.is_over(at(20), slow, (GOAL, RATE)));
    }

    #[test]
    fn without_a_sign_it_is_longer_each_time_and_shorter_with_each_minute_kept() {
        let mut rest = Rest::default();
        let mut from = 0;
        for length in [120, 240, 480, 960, 960] {
            let ends = over(&mut rest, from, |at| 40 + at % 30);
            assert_eq!(ends - from, length);
            from = ends;
        }
        (0..=120).for_each(|at| rest.keeps(Instant::from_nanos((from + at) * 1_000_000_000)));
        assert_eq!(over(&mut rest, from + 120, |_| 40), from + 120 + 240);
    }

    #[test]
    fn a_sign_that_misled_does_not_do_so_again() {
        let mut rest = Rest::default();
        let quiet = |at: u64| if at % 20 < 10 { 100 } else { 20 };
        let first = over(&mut rest, 0, quiet);
        assert!(first < 20, "{first}");
        assert_eq!(over(&mut rest, 20, quiet), 20 + 240, "the rest without a sign");
    }
}
