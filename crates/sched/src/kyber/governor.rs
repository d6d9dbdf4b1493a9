//! The number of tokens of each domain, for all instances together (`spec/kyber.md` section 5).
//!
//! A review sums the counters of the instances. If a domain is too slow at the device, it takes tokens from the others.
//!
//! With `adaptive`, targets and depths are learned from the device, in place of constants, and a [`Learner`] decides
//! about tokens and targets. The time that a request takes at an unloaded device is *measured*: reads alone, then at
//! most one request of each domain. It is never inferred from a loaded device. Targets are a multiple of that time.
//! While the queue is open and a target is missed, the domains that fill the device give up tokens, in proportion to
//! the miss. While no target is missed, domains that were refused tokens and are late get more. `doc/kyber.md` has the
//! rules in full, and the reason why they do not run away. `bursts.rs` acts when fewer tokens are not enough.

use super::bursts::{Bursts, Reads, Verdict};
use super::{
    ALONE_UNTIL, Adaptive, BAD, BUCKETS, DEPTHS, DEVICE_PERCENT, Domain, FINE, Findings, Kind,
    MEASURED, NOT_YET, OLD_COUNTER, PERIOD, SINCE, Tunables, bucket_counter, fine_counter,
    fine_upper, percentile, refused_counter, tail, total,
};
use crate::{Governor, Options};
use blkmq_core::{Instant, Nanos};

/// Enough samples for a percentile.
const ENOUGH: u64 = 500;
/// After this time, fewer samples are enough.
const PATIENCE: Nanos = Nanos::from_secs(1);
/// The percentile judged of total latencies.
const TOTAL_PERCENT: u64 = 99;
/// The value shown if no percentile is remembered.
const NOTHING: u64 = BUCKETS as u64;

/// The samples of each domain by kind and bucket.
type Windows = [[[u64; BUCKETS]; Kind::ALL.len()]; MEASURED];

pub(super) struct Tokens {
    tunables: Tunables,
    /// Samples since the last percentile.
    windows: Windows,
    /// The time from which fewer samples are enough; `None` if no percentile was requested since the last one.
    timeouts: [[Option<Instant>; Kind::ALL.len()]; MEASURED],
    /// The last percentile of total latency, for a review that needs one and has too few samples.
    remembered: [Option<usize>; MEASURED],
    /// Present with `adaptive`.
    learner: Option<Learner>,
}

impl Tokens {
    /// The options are passed in again before the first review, and take effect then.
    pub(super) fn new(options: &Options) -> Self {
        let tunables = Tunables { adaptive: Adaptive::Off, ..Tunables::new(options) };
        Self {
            tunables,
            windows: Windows::default(),
            timeouts: Default::default(),
            remembered: [None; MEASURED],
            learner: None,
        }
    }

    /// Discards the samples, since their buckets are those of other targets.
    fn forget(&mut self) {
        self.windows = Windows::default();
        self.timeouts = Default::default();
        self.remembered = [None; MEASURED];
    }

    fn targets(&self) -> [u64; MEASURED] {
        let set = self.tunables.targets;
        self.learner.as_ref().map_or(set, |learner| learner.targets(set))
    }

    fn publish(&self, values: &mut [u64]) {
        values[..MEASURED].copy_from_slice(&self.targets());
        let learner = self.learner.as_ref();
        values[PERIOD] = learner.map_or(0, Learner::period);
        values[ALONE_UNTIL] = learner.and_then(Learner::alone_until).map_or(0, Instant::as_nanos);
    }

    /// Leaves one token in each pool, so that requests issued later show the unloaded device.
    fn unload(&mut self, now: Instant, tokens: &mut [u32], values: &mut [u64]) {
        self.forget();
        tokens.fill(1);
        values[SINCE] = now.as_nanos();
    }

    /// Begins from scratch, with or without learning.
    fn restart(&mut self, tokens: &mut [u32], values: &mut [u64]) {
        if self.tunables.adaptive != Adaptive::Off {
            self.learner = Some(Learner::new(self.tunables.adaptive));
            self.forget();
            // I/O of OTHER is not measured and leads to no review, so it must not wait for one: OTHER keeps its tokens.
            tokens.copy_from_slice(&DEPTHS);
            tokens[..MEASURED].fill(1);
            values[SINCE] = NOT_YET;
        } else {
            self.learner = None;
            self.open(tokens, values);
        }
    }

    fn open(&mut self, tokens: &mut [u32], values: &mut [u64]) {
        self.forget();
        tokens.copy_from_slice(&DEPTHS);
        values[SINCE] = 0;
    }

    fn take_in(&mut self, grown: &[u64]) {
        for (domain, kinds) in self.windows.iter_mut().enumerate() {
            for (kind, window) in Kind::ALL.into_iter().zip(kinds) {
                for (bucket, count) in window.iter_mut().enumerate() {
                    *count = count.saturating_add(grown[bucket_counter(domain, kind, bucket)]);
                }
            }
        }
    }

    /// The bucket at `percent` of a domain's samples of one kind, which are then discarded; `None` if they are too few.
    fn percentile(
        &mut self,
        now: Instant,
        domain: usize,
        kind: Kind,
        percent: u64,
    ) -> Option<usize> {
        let window = &mut self.windows[domain][kind as usize];
        let found = percentile(window, percent)?;
        // Linux has one timeout for both kinds. The device latency is requested first and uses it up.
        let clock = if self.tunables.linux_quirks { Kind::Device } else { kind };
        let timeout = &mut self.timeouts[domain][clock as usize];
        let expires = *timeout.get_or_insert(now + PATIENCE);
        if total(window) < ENOUGH && expires > now {
            return None;
        }
        *timeout = None;
        window.fill(0);
        Some(found)
    }

    fn findings(&mut self, now: Instant) -> Findings {
        // Evaluation has side effects, so all domains are evaluated in any case.
        let device = Domain::MEASURED
            .map(|domain| self.percentile(now, domain as usize, Kind::Device, DEVICE_PERCENT));
        let bad = device.iter().flatten().any(|bucket| *bucket >= BAD);
        let total = Domain::MEASURED.map(|domain| {
            let domain = domain as usize;
            let fresh = self.percentile(now, domain, Kind::Total, TOTAL_PERCENT);
            let remembered = &mut self.remembered[domain];
            if bad {
                let earlier = remembered.take();
                return fresh.or(earlier);
            }
            *remembered = fresh.or(*remembered);
            fresh
        });
        Findings { bad, device, total }
    }
}

/// Linux's rule: when a domain is too slow at the device, domains with latency to spare give up tokens, and domains
/// that are too slow in total get more.
fn adjust(findings: &Findings, tokens: &mut [u32]) {
    for domain in Domain::MEASURED {
        let domain = domain as usize;
        if let Some(bucket) = findings.total[domain]
            && (findings.bad || bucket >= BAD)
        {
            let depth = tokens[domain] as usize * (bucket + 1) / BAD;
            tokens[domain] = depth.clamp(1, DEPTHS[domain] as usize) as u32;
        }
    }
}

impl Governor for Tokens {
    fn review(&mut self, now: Instant, grown: &[u64], tokens: &mut [u32], values: &mut [u64]) {
        if let Some(learner) = self.learner.as_mut().filter(|learner| learner.is_measuring()) {
            match learner.measure(now, grown) {
                Progress::Begun => self.unload(now, tokens, values),
                Progress::GoesOn => {}
                Progress::Done => self.open(tokens, values),
            }
            self.publish(values);
            return;
        }
        self.take_in(grown);
        let findings = self.findings(now);
        let targets = self.targets();
        let Some(learner) = &mut self.learner else {
            adjust(&findings, tokens);
            return;
        };
        learner.take_in(grown);
        match learner.adjust(now, &findings, targets, tokens) {
            Lesson::None => {}
            Lesson::Faster => self.forget(),
            Lesson::Stale => self.unload(now, tokens, values),
        }
        self.publish(values);
    }

    fn set_attribute(&mut self, name: &str, value: i64, tokens: &mut [u32], values: &mut [u64]) {
        let before = self.tunables;
        let known = self.tunables.set(name, value);
        debug_assert!(known, "the governor is told of '{name}', which kyber has not");
        if self.tunables.adaptive != before.adaptive {
            self.restart(tokens, values);
        }
        if self.tunables.linux_quirks != before.linux_quirks {
            self.timeouts = Default::default();
        }
        self.publish(values);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        const NAMES: [[&str; 4]; MEASURED] = [
            ["read_target", "read_total_samples", "read_device_samples", "read_p99"],
            ["write_target", "write_total_samples", "write_device_samples", "write_p99"],
            ["discard_target", "discard_total_samples", "discard_device_samples", "discard_p99"],
        ];
        let targets = self.targets();
        for (domain, names) in NAMES.into_iter().enumerate() {
            let samples = Kind::ALL.map(|kind| total(&self.windows[domain][kind as usize]));
            let p99 = self.remembered[domain].map_or(NOTHING, |bucket| bucket as u64);
            let values = [targets[domain], samples[0], samples[1], p99];
            names.into_iter().zip(values).for_each(|(name, value)| out(name, value));
        }
        if let Some(learner) = &self.learner {
            learner.inspect(out);
        }
    }
}

/// A target is this many times the 90th percentile of latency at the unloaded device, so that a bucket is as wide as
/// that percentile. With one request of each domain in the device, latency is well below the target; latency of more
/// than a few times the base means that requests queue in the device, which does not make them any faster.
const MULTIPLE: u64 = 4;
/// Learned targets stay within this factor of the configured ones, in either direction.
const REACH: u64 = 64;
/// Enough samples of a domain to know the time that its requests take alone.
const SAMPLES: u64 = 32;
/// Only reads leave for this long while they are measured, unless a review prolongs it.
const ALONE: Nanos = Nanos::from_millis(150);
/// Reads are far off if their 90th percentile is at least this many times their target, and at least as many times as
/// there are tokens, since otherwise taking tokens is enough.
const FAR_OFF: u64 = 4;
/// Reads have a long tail if their 99th percentile is in this bucket: above 1.75 times the target.
const LONG_TAIL: usize = BUCKETS - 1;
const READ: usize = Domain::Read as usize;
/// After this many misses in a row a domain cannot meet its target, since the other domains gave up tokens each time.
const STALE_AFTER: u32 = 16;
/// No measurement begins for this long after the last one. If one begins soon after that, the pause doubles.
const PAUSE: Nanos = Nanos::from_secs(10);
const LONGEST_PAUSE: Nanos = Nanos::from_secs(80);
/// The most tokens of a domain.
const MOST_TOKENS: u32 = 1024;

/// The state of the learner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    /// The measurement has not begun. There is one token for each measured domain.
    #[default]
    Waiting,
    /// Reads are measured, after earlier requests have completed.
    Reads {
        /// The time from which fewer samples are enough.
        until: Instant,
        /// The time until which no other domain leaves.
        alone_until: Instant,
    },
    /// The other domains are measured, one request of each at a time.
    Others {
        /// The time from which fewer samples are enough.
        until: Instant,
    },
    /// Only targets limit the domains.
    Open,
}

/// The effect of a review on a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// The measurement begins. Requests issued from this time on count.
    Begun,
    /// There are not enough samples yet.
    GoesOn,
    /// There are enough samples.
    Done,
}

/// A result of an adjustment beyond the new number of tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lesson {
    /// Nothing.
    None,
    /// The device is faster than assumed: the targets have changed.
    Faster,
    /// The targets cannot be met: a new measurement of the device begins.
    Stale,
}

struct Learner {
    phase: Phase,
    /// By domain, the 90th percentile of latency at the unloaded device, in nanoseconds.
    base: [Option<u64>; MEASURED],
    /// Latencies at the device since they were last judged.
    fine: [[u64; FINE]; MEASURED],
    /// Time that requests have lately spent in the device, summed; old sums count half at each review.
    busy: [u64; MEASURED],
    /// A token was refused since the total latency was last judged.
    refused: [bool; MEASURED],
    /// Misses of the domain's target in a row.
    missed: [u32; MEASURED],
    /// The domain has met its target since tokens last changed.
    vouched: [bool; MEASURED],
    /// A base was found to be far too long.
    doubtful: bool,
    /// The end of the last measurement.
    measured_at: Instant,
    /// The time after that in which no measurement begins.
    pause: Nanos,
    /// Present if the domains that make room for reads may leave in bursts.
    bursts: Option<Bursts>,
    /// There are reads to make room for.
    any_reads: bool,
}

impl Learner {
    pub(super) fn new(adaptive: Adaptive) -> Self {
        Self {
            phase: Phase::Waiting,
            base: [None; MEASURED],
            fine: [[0; FINE]; MEASURED],
            busy: [0; MEASURED],
            refused: [false; MEASURED],
            missed: [0; MEASURED],
            vouched: [false; MEASURED],
            doubtful: false,
            measured_at: Instant::ZERO,
            pause: PAUSE,
            bursts: (adaptive == Adaptive::Bursts).then(Bursts::default),
            any_reads: false,
        }
    }

    fn is_measuring(&self) -> bool {
        self.phase != Phase::Open
    }

    /// The targets that follow from the measurement and from the targets that are `set`.
    pub(super) fn targets(&self, set: [u64; MEASURED]) -> [u64; MEASURED] {
        let set = set.map(|target| target.max(1));
        let within = |target: u128, domain: usize| {
            let (least, most) = (set[domain] / REACH, set[domain].saturating_mul(REACH));
            target.clamp(least.into(), most.into()) as u64
        };
        let alone = self.base.map(|base| base.map(|base| u128::from(base) * u128::from(MULTIPLE)));
        let reads = within(alone[READ].unwrap_or(set[READ].into()), READ);
        let mut targets = [reads; MEASURED];
        for domain in [Domain::Write as usize, Domain::Discard as usize] {
            // In proportion to the target of reads as configured, but not less than the measured time allows.
            let share = u128::from(reads) * u128::from(set[domain]) / u128::from(set[READ]);
            targets[domain] = within(share.max(alone[domain].unwrap_or(0)), domain);
        }
        targets
    }

    /// The time until which only reads leave.
    pub(super) fn alone_until(&self) -> Option<Instant> {
        match self.phase {
            Phase::Reads { alone_until, .. } => Some(alone_until),
            Phase::Waiting | Phase::Others { .. } | Phase::Open => None,
        }
    }

    /// The period from one burst to the next, in nanoseconds; 0 if there are no bursts.
    pub(super) fn period(&self) -> u64 {
        let wanted = self.any_reads && !self.is_measuring();
        self.bursts.filter(|_| wanted).map_or(0, |bursts| bursts.period())
    }

    /// A review while the device is measured, or about to be.
    pub(super) fn measure(&mut self, now: Instant, grown: &[u64]) -> Progress {
        let (until, reads_only) = match self.phase {
            Phase::Waiting | Phase::Open => {
                self.begin(now);
                return Progress::Begun;
            }
            Phase::Reads { until, .. } => (until, true),
            Phase::Others { until } => (until, false),
        };
        if grown[OLD_COUNTER] > 0 {
            // Requests issued before the measurement still complete, and the measured ones have waited behind them.
            self.begin(now);
            return Progress::GoesOn;
        }
        self.take_in_fine(grown);
        if reads_only {
            self.measure_reads(now, until, grown)
        } else {
            self.measure_others(now, until)
        }
    }

    fn begin(&mut self, now: Instant) {
        self.phase = Phase::Reads { until: now + PATIENCE, alone_until: now + ALONE };
        self.fine = [[0; FINE]; MEASURED];
    }

    /// Reviews the measurement of reads. Only reads have left, unless there were none to prolong that.
    fn measure_reads(&mut self, now: Instant, until: Instant, grown: &[u64]) -> Progress {
        let samples = total(&self.fine[READ]);
        if (1..SAMPLES).contains(&samples) && until > now {
            self.phase = Phase::Reads { until, alone_until: now + ALONE };
            return Progress::GoesOn;
        }
        self.base[READ] = tail(&self.fine[READ]).or(self.base[READ]);
        let others_wait = (0..MEASURED).any(|domain| {
            domain != READ && (grown[refused_counter(domain)] > 0 || total(&self.fine[domain]) > 0)
        });
        if !others_wait && samples > 0 {
            self.conclude(now);
            return Progress::Done;
        }
        self.phase = Phase::Others { until: now + PATIENCE };
        self.fine = [[0; FINE]; MEASURED];
        Progress::GoesOn
    }

    fn measure_others(&mut self, now: Instant, until: Instant) -> Progress {
        let most = self.fine.iter().map(|window| total(window)).max().unwrap_or(0);
        if most < SAMPLES && (most == 0 || until > now) {
            return Progress::GoesOn;
        }
        for (domain, window) in self.fine.iter().enumerate().filter(|(domain, _)| *domain != READ) {
            self.base[domain] = tail(window).or(self.base[domain]);
        }
        self.conclude(now);
        Progress::Done
    }

    /// Ends a measurement, which leaves only bases, the pause and the bursts behind.
    fn conclude(&mut self, now: Instant) {
        let Self { base, pause, bursts, .. } = *self;
        let open = Self::new(Adaptive::Learns);
        *self = Self { phase: Phase::Open, base, measured_at: now, pause, bursts, ..open };
    }

    /// Adds the counters of a review while the queue is open.
    fn take_in(&mut self, grown: &[u64]) {
        self.take_in_fine(grown);
        for domain in 0..MEASURED {
            self.refused[domain] |= grown[refused_counter(domain)] > 0;
            let spent = (0..FINE).fold(0u64, |sum, bucket| {
                let count = grown[fine_counter(domain, bucket)];
                sum.saturating_add(count.saturating_mul(fine_upper(bucket)))
            });
            self.busy[domain] = (self.busy[domain] / 2).saturating_add(spent);
        }
    }

    fn take_in_fine(&mut self, grown: &[u64]) {
        for (domain, window) in self.fine.iter_mut().enumerate() {
            for (bucket, count) in window.iter_mut().enumerate() {
                *count = count.saturating_add(grown[fine_counter(domain, bucket)]);
            }
        }
    }

    /// Applies a review while the queue is open.
    fn adjust(
        &mut self,
        now: Instant,
        findings: &Findings,
        targets: [u64; MEASURED],
        tokens: &mut [u32],
    ) -> Lesson {
        let mut p90 = [None; MEASURED];
        let mut faster = false;
        self.any_reads = !self.is_idle(READ);
        let reads = Reads::of(&self.fine[READ], targets[READ]);
        for (domain, judged) in findings.device.iter().enumerate() {
            let Some(bucket) = judged else { continue };
            p90[domain] = tail(&self.fine[domain]);
            faster |= self.is_faster(domain, p90[domain]);
            self.fine[domain].fill(0);
            self.vouched[domain] = *bucket < BAD;
            self.missed[domain] = if *bucket < BAD { 0 } else { self.missed[domain] + 1 };
        }
        // No read arrived during the measurement of reads.
        let unknown = self.base[READ].is_none() && findings.device[READ].is_some();
        let missed = self.missed.iter().any(|missed| *missed >= STALE_AFTER);
        let stale = self.doubtful || unknown || missed;
        // Without a base of reads, the first pause need not be over.
        let at_once = unknown && self.pause == PAUSE;
        if stale && (at_once || self.measured_at + self.pause <= now) {
            let soon = now < self.measured_at + self.pause + self.pause;
            self.pause = if soon { Nanos(self.pause.0 * 2).min(LONGEST_PAUSE) } else { PAUSE };
            self.begin(now);
            return Lesson::Stale;
        }
        self.judge_bursts(findings, reads, tokens);
        if findings.bad {
            self.cut(findings, targets, p90, tokens);
        } else if (0..MEASURED).all(|domain| self.vouched[domain] || self.is_idle(domain)) {
            self.grow(findings, tokens);
        }
        if !faster {
            return Lesson::None;
        }
        self.fine = [[0; FINE]; MEASURED];
        Lesson::Faster
    }

    /// Decides whether the domains that make room for reads leave in bursts, and how often.
    fn judge_bursts(&mut self, findings: &Findings, reads: Reads, tokens: &mut [u32]) {
        let (Some(mut bursts), Some(alone)) = (self.bursts, self.base[READ]) else { return };
        let verdict = self.verdict(findings, reads, bursts.period() > 0, tokens);
        let size = bursts.judge(verdict, alone);
        self.bursts = Some(bursts);
        if bursts.period() == 0 {
            return;
        }
        for domain in Domain::MEASURED.into_iter().filter(|domain| domain.makes_room()) {
            let domain = domain as usize;
            let depth = size.of(tokens[domain], self.refused[domain]).min(MOST_TOKENS);
            if depth > tokens[domain] {
                self.refused[domain] = false;
            }
            tokens[domain] = depth;
        }
    }

    fn verdict(
        &self,
        findings: &Findings,
        reads: Reads,
        in_bursts: bool,
        tokens: &[u32],
    ) -> Verdict {
        let a_quarter = self.busy_in_all() / 4;
        let others = Domain::MEASURED.into_iter().filter(|domain| domain.makes_room());
        let others = others.map(|domain| domain as usize);
        let their_busy = others.clone().fold(0u64, |sum, d| sum.saturating_add(self.busy[d]));
        if !in_bursts && their_busy < a_quarter {
            return Verdict::Open;
        }
        let in_the_way = others.filter(|d| self.busy[*d] >= a_quarter);
        let most = in_the_way.map(|d| tokens[d]).max().unwrap_or(1);
        match (findings.device[READ], findings.total[READ]) {
            (Some(BAD..), _) if reads.times >= FAR_OFF.max(most.into()) => Verdict::FarOff,
            (Some(BAD..), _) if in_bursts || most == 1 => Verdict::Missed,
            (Some(BAD..), _) => Verdict::Open,
            (Some(_), Some(LONG_TAIL)) if !self.refused[READ] => Verdict::LongTail,
            (Some(_), Some(..BAD)) if reads.nearly_all => Verdict::Content,
            (Some(_), Some(..BAD)) => Verdict::Met,
            _ => Verdict::Open,
        }
    }

    fn busy_in_all(&self) -> u64 {
        self.busy.iter().fold(0, |sum, busy| sum.saturating_add(*busy))
    }

    /// Returns whether no request of `domain` has completed since it was last judged.
    fn is_idle(&self, domain: usize) -> bool {
        total(&self.fine[domain]) == 0
    }

    /// Lowers the base of `domain` if its requests took less even under load. The base is never raised here: a loaded
    /// device says nothing about that. If the loaded device is far faster than the base, the device itself has become
    /// faster, by an unknown amount.
    fn is_faster(&mut self, domain: usize, tail: Option<u64>) -> bool {
        let (Some(base), Some(tail)) = (self.base[domain], tail) else { return false };
        let faster = total(&self.fine[domain]) >= SAMPLES && tail < base;
        if faster {
            self.base[domain] = Some(tail);
            self.doubtful |= tail <= base / 4 * 3;
        }
        faster
    }

    /// Takes tokens from the domains that fill the device.
    fn cut(
        &mut self,
        findings: &Findings,
        targets: [u64; MEASURED],
        p90: [Option<u64>; MEASURED],
        tokens: &mut [u32],
    ) {
        self.vouched = [false; MEASURED];
        let busy = self.busy_in_all();
        for (domain, tokens) in tokens.iter_mut().enumerate().take(MEASURED) {
            if self.busy[domain] < busy / 4 {
                // The requests of this domain in the device are too few to matter.
                continue;
            }
            let depth = u64::from(*tokens);
            let missed = (0..MEASURED).filter(|d| findings.device[*d].is_some_and(|b| b >= BAD));
            let fitting = missed.filter_map(|d| {
                let share = u128::from(depth) * u128::from(targets[d]) / u128::from(p90[d]?);
                Some(share.min(depth.into()) as u64)
            });
            let mut left = fitting.min().unwrap_or(depth).clamp(depth / 4, depth * 7 / 8);
            if let Some(bucket) = findings.total[domain].filter(|bucket| *bucket < BAD) {
                // The domain has latency to spare.
                left = left.min(depth * (bucket as u64 + 1) / BAD as u64);
            }
            *tokens = left.max(1) as u32;
        }
    }

    /// Gives tokens to domains that are late for want of tokens.
    fn grow(&mut self, findings: &Findings, tokens: &mut [u32]) {
        let bursts = self.bursts.is_some_and(|bursts| bursts.period() > 0);
        for (domain, judged) in findings.total.iter().enumerate() {
            let Some(bucket) = judged else { continue };
            if bursts && Domain::MEASURED[domain].makes_room() {
                // The size of bursts is decided together with their period.
                continue;
            }
            let refused = core::mem::take(&mut self.refused[domain]);
            if *bucket >= BAD && refused {
                let depth = tokens[domain];
                tokens[domain] = (depth + (depth / 4).max(1)).min(MOST_TOKENS);
                self.vouched = [false; MEASURED];
            }
        }
    }

    pub(super) fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        const NAMES: [[&str; 4]; MEASURED] = [
            ["read_base", "read_missed", "read_busy", "read_refused"],
            ["write_base", "write_missed", "write_busy", "write_refused"],
            ["discard_base", "discard_missed", "discard_busy", "discard_refused"],
        ];
        for (domain, names) in NAMES.into_iter().enumerate() {
            let base = self.base[domain].unwrap_or(0);
            let missed = self.missed[domain].into();
            let values = [base, missed, self.busy[domain], self.refused[domain].into()];
            names.into_iter().zip(values).for_each(|(name, value)| out(name, value));
        }
        out("burst_period", self.period());
        out("measuring", self.is_measuring().into());
        out("measure_pause", self.pause.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The device is busy with reads and writes, half of the time with each.
    const BOTH: [u64; MEASURED] = [100, 100, 0];

    /// A review with these buckets for reads: the 90th percentile at the device and the 99th in total.
    struct Review {
        busy: [u64; MEASURED],
        refused: bool,
        buckets: [Option<usize>; 2],
        reads: Reads,
        in_bursts: bool,
        tokens: u32,
    }

    impl Review {
        fn of(device: Option<usize>, total: Option<usize>) -> Self {
            Self {
                busy: BOTH,
                refused: false,
                buckets: [device, total],
                reads: Reads { times: 1, nearly_all: false },
                in_bursts: true,
                tokens: 1,
            }
        }

        fn verdict(&self) -> Verdict {
            let mut learner = Learner::new(Adaptive::Bursts);
            learner.busy = self.busy;
            learner.refused[READ] = self.refused;
            let [device, total] = self.buckets.map(|bucket| [bucket, None, None]);
            let findings = Findings { bad: false, device, total };
            learner.verdict(&findings, self.reads, self.in_bursts, &[9, self.tokens, 1])
        }
    }

    #[test]
    fn reads_that_meet_their_target_are_met_or_content_or_have_a_long_tail() {
        let met = Review::of(Some(BAD - 1), Some(BAD - 1));
        assert_eq!(met.verdict(), Verdict::Met);
        let nearly_all = Reads { times: 1, nearly_all: true };
        assert_eq!(Review { reads: nearly_all, ..met }.verdict(), Verdict::Content);
        let tail = Review::of(Some(BAD - 1), Some(LONG_TAIL));
        assert_eq!(tail.verdict(), Verdict::LongTail);
        let own_fault = Review { refused: true, ..Review::of(Some(BAD - 1), Some(LONG_TAIL)) };
        assert_eq!(own_fault.verdict(), Verdict::Open, "reads waited for tokens");
        assert_eq!(Review::of(Some(BAD - 1), Some(BAD)).verdict(), Verdict::Open, "neither, nor");
        assert_eq!(Review::of(Some(BAD - 1), Some(LONG_TAIL - 1)).verdict(), Verdict::Open);
        assert_eq!(Review::of(Some(BAD - 1), None).verdict(), Verdict::Open);
        assert_eq!(Review::of(None, Some(0)).verdict(), Verdict::Open);
    }

    #[test]
    fn reads_that_miss_their_target_are_missed_where_one_request_is_too_many() {
        let missed = |in_bursts, tokens| {
            Review { in_bursts, tokens, ..Review::of(Some(BAD), Some(LONG_TAIL)) }.verdict()
        };
        assert_eq!([missed(true, 1), missed(true, 2)], [Verdict::Missed; 2]);
        assert_eq!(missed(false, 1), Verdict::Missed);
        assert_eq!(missed(false, 2), Verdict::Open, "there are tokens to take away");
    }

    #[test]
    fn reads_are_far_off_at_four_targets_and_at_as_many_as_there_are_tokens() {
        let at = |times, tokens| {
            let reads = Reads { times, nearly_all: false };
            Review { reads, tokens, ..Review::of(Some(BAD), None) }.verdict()
        };
        assert_eq!(
            [at(3, 1), at(4, 1), at(4, 4)],
            [Verdict::Missed, Verdict::FarOff, Verdict::FarOff]
        );
        assert_eq!([at(4, 5), at(5, 5)], [Verdict::Missed, Verdict::FarOff]);
    }

    #[test]
    fn those_who_make_room_are_in_the_way_from_a_quarter_of_the_time_on() {
        let with = |writes, in_bursts| {
            let busy = [100 - writes, writes, 0];
            Review { busy, in_bursts, ..Review::of(Some(BAD), None) }.verdict()
        };
        assert_eq!([with(24, false), with(25, false)], [Verdict::Open, Verdict::Missed]);
        assert_eq!(with(24, true), Verdict::Missed, "bursts have made them so few");
        // Writes with two tokens that use little of the device do not count; discards with one token do.
        let busy = [60, 15, 25];
        let discards = Review { busy, in_bursts: false, tokens: 2, ..Review::of(Some(BAD), None) };
        assert_eq!(discards.verdict(), Verdict::Missed);
    }

    /// A learner that has one sample of reads, after `since` of the time for which it waits for more.
    fn with_a_sample(domain: usize, since: Nanos) -> (Learner, Instant) {
        let mut learner = Learner::new(Adaptive::Learns);
        learner.begin(Instant::ZERO);
        learner.fine[domain][9] = 1;
        (learner, Instant::ZERO + since)
    }

    #[test]
    fn one_sample_is_enough_from_a_second_on() {
        let until = Instant::ZERO + PATIENCE;
        for (since, enough) in [(Nanos(PATIENCE.0 - 1), false), (PATIENCE, true)] {
            let (mut learner, now) = with_a_sample(READ, since);
            learner.measure_reads(now, until, &[0; OLD_COUNTER + 1]);
            assert_eq!(learner.base[READ].is_some(), enough, "of reads, after {since:?}");
            let write = Domain::Write as usize;
            let (mut learner, now) = with_a_sample(write, since);
            let done = learner.measure_others(now, until) == Progress::Done;
            assert_eq!((done, learner.base[write].is_some()), (enough, enough), "{since:?}");
        }
    }

    #[test]
    fn the_pause_doubles_for_a_measurement_within_two_of_them() {
        let pause = |now: Nanos| {
            let mut learner = Learner::new(Adaptive::Learns);
            (learner.phase, learner.doubtful) = (Phase::Open, true);
            learner.pause = Nanos::from_secs(20);
            let findings =
                Findings { bad: false, device: [None; MEASURED], total: [None; MEASURED] };
            let now = Instant::ZERO + now;
            let lesson = learner.adjust(now, &findings, [1; MEASURED], &mut [1; MEASURED]);
            assert_eq!(lesson, Lesson::Stale);
            learner.pause
        };
        assert_eq!(pause(Nanos(39_999_999_999)), Nanos::from_secs(40));
        assert_eq!(pause(Nanos::from_secs(40)), PAUSE);
    }

    #[test]
    fn a_domain_with_a_quarter_of_the_time_gives_up_tokens() {
        let left = |writes: u64| {
            let mut learner = Learner::new(Adaptive::Learns);
            learner.busy = [100 - writes, writes, 0];
            let device = [Some(BAD), None, None];
            let findings = Findings { bad: true, device, total: [None; MEASURED] };
            let mut tokens = [8; MEASURED];
            learner.cut(&findings, [1_000; MEASURED], [Some(2_000), None, None], &mut tokens);
            tokens[Domain::Write as usize]
        };
        assert_eq!([left(24), left(25)], [8, 4]);
    }
}
