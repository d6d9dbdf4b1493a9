//! The number of tokens of each domain, for all instances together (`spec/kyber.md` section 5).
//!
//! A review sums the counters of the instances. If a domain is too slow at the device, it takes tokens from the others.
//! With `adaptive`, `learner.rs` decides about tokens and targets.

use super::domain::{
    ALONE_UNTIL, BAD, BUCKETS, DEPTHS, DEVICE_PERCENT, Domain, Findings, Kind, MEASURED, NOT_YET,
    PERIOD, SINCE, bucket_counter, percentile, total,
};
use super::learner::{Learner, Lesson, Progress};
use super::{Adaptive, Tunables};
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
