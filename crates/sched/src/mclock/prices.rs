//! Finds the prices of the kinds of work on this device, in proportion to each other, while unlike loads compete.
//!
//! A constant mix of two kinds says nothing about the price of either. So the mix is varied: in a *trial* a kind counts
//! as more and as less for the weights, in four windows each. The work that it gains while it is cheap takes the device
//! time of the work that the others lose. `doc/mclock.md` has the rules in full.

use super::cost::{Charge, Costs, KINDS};
use blkmq_core::IoMeta;

/// A factor of one: the price of the capacity.
const ONE: u32 = 1 << 16;
/// The least and the greatest factor: a 64th, and 64.
const FACTORS: [u32; 2] = [ONE >> 6, ONE << 6];
/// The tilts of a kind for the weights, in 64ths of its price.
const DEAR: u64 = 80;
const PLAIN: u64 = 64;
const CHEAP: u64 = 51;
/// The tilts of the windows of a trial, in two halves. Each has as many dear as cheap ones, so a steady trend cancels
/// out. The second half is the reverse, so the halves disagree about a wave.
const HALF: usize = 4;
const STEPS: [u64; 2 * HALF] = [DEAR, CHEAP, CHEAP, DEAR, CHEAP, DEAR, DEAR, CHEAP];
/// A window of a trial ends with `ENOUGH` completions of the kind and as many others at the length `SHORTEST`, in
/// nanoseconds, which grows where the device varies independently of the tilts; or at `LONGEST`.
const ENOUGH: u32 = 32;
const SHORTEST: u64 = 50_000_000;
const LONGEST: u64 = 1_000_000_000;
/// A kind is tried if it and the others each have more than this part of the work, as a shift.
const LEAST: u32 = 4;
/// The fewest and the most windows between trials.
const RESTS: [u32; 2] = [4, 64];
/// Errors in 1024ths: above `OFF` trials become frequent, below `RIGHT` rarer.
const OFF: i64 = 256;
const RIGHT: i64 = 128;

/// The names of the prices in statistics, by kind.
const NAMES: [&str; KINDS] = [
    "price_rseq",
    "price_rrand",
    "price_rbytes",
    "price_wseq",
    "price_wrand",
    "price_wbytes",
    "price_other",
];

/// The work of a window, by kind.
#[derive(Clone, Copy, Default)]
pub(super) struct Work {
    /// Device time in nanoseconds, and completions.
    pub(super) time: [u64; KINDS],
    pub(super) ios: [u32; KINDS],
}

/// The device time a second in a window, by kind, in millionths.
type Rates = [i64; KINDS];

/// A trial of a kind: `step` windows are over.
#[derive(Clone, Copy)]
struct Trial {
    kind: usize,
    step: usize,
    windows: [Rates; 2 * HALF],
}

/// The prices of work.
pub(super) struct Prices {
    /// The prices of the capacity, which is given or guessed.
    capacity: Costs,
    /// By kind: the price that was found over that of the capacity, in units of 2^-16. `found` has the products; `None`
    /// while all factors are one.
    factors: [u32; KINDS],
    found: Option<Costs>,
    /// By kind: the part of its price that counts for the weights, in 64ths.
    tilt: [u64; KINDS],
    trial: Option<Trial>,
    /// The kind of the last trial, the windows until the next one, and those between two.
    last: usize,
    wait: u32,
    rest: u32,
    /// The least length of a window of a trial, in nanoseconds.
    length: u64,
    trials: u64,
}

impl Work {
    #[inline]
    pub(super) fn add(&mut self, kind: u8, time: u64) {
        self.time[usize::from(kind)] += time;
        self.ios[usize::from(kind)] += 1;
    }

    pub(super) fn all(&self) -> u64 {
        self.time.iter().sum()
    }

    /// Returns whether both the kind and all others are more than a 16th of the work.
    fn is_part(&self, kind: usize) -> bool {
        let all = self.all();
        let least = all >> LEAST;
        (least + 1..all - least).contains(&self.time[kind])
    }

    /// Returns whether the work is of more than one kind.
    pub(super) fn is_mixed(&self) -> bool {
        (0..KINDS).any(|kind| self.is_part(kind))
    }

    /// Returns the device time a second by kind, in millionths.
    fn rates(&self, span: u64) -> [i64; KINDS] {
        self.time.map(|time| (u128::from(time) * 1_000_000 / u128::from(span.max(1))) as i64)
    }
}

/// The result of half of a trial.
enum Verdict {
    /// The rate varies more than the tilts explain.
    Noisy,
    /// Weights decide little.
    Mute,
    /// The part by which the price is too low, in 1024ths: the work that others lost while the kind was cheap, less the
    /// work that it gained, over both.
    Off(i64),
}

impl Trial {
    /// Returns the work of the kind, and of all others.
    fn work(&self, windows: &[Rates]) -> (i64, i64) {
        let own = windows.iter().map(|of| of[self.kind]).sum();
        (own, windows.iter().flatten().sum::<i64>() - own)
    }

    /// Judges half of the windows.
    fn half(&self, from: usize) -> Verdict {
        let windows = &self.windows[from..from + HALF];
        let (mut gained, mut lost) = (0, 0);
        for (at, tilt) in STEPS[from..from + HALF].iter().enumerate() {
            let (own, others) = self.work(&windows[at..=at]);
            let sign = if *tilt == CHEAP { 1 } else { -1 };
            (gained, lost) = (gained + sign * own, lost - sign * others);
        }
        // The first and the last window have one tilt, and the two between them the other.
        let rate = |at: usize| windows[at].iter().sum::<i64>();
        let spread = (rate(0) - rate(3)).abs() + (rate(1) - rate(2)).abs();
        // The sum of both that the tilts cause if weights alone decide.
        let (own, others) = self.work(windows);
        let due = own * (others * 7 / 16) / (own + others).max(1);
        let (gained, lost) = (gained.max(0), lost.max(0));
        if spread > due / 2 {
            Verdict::Noisy
        } else if gained + lost < due / 4 {
            Verdict::Mute
        } else {
            Verdict::Off((lost - gained) * 1_024 / (gained + lost).max(due).max(1))
        }
    }
}

impl Prices {
    pub(super) fn new(capacity: Costs) -> Self {
        Self {
            capacity,
            found: None,
            factors: [ONE; KINDS],
            tilt: [PLAIN; KINDS],
            trial: None,
            last: 0,
            wait: RESTS[0],
            rest: RESTS[0],
            length: SHORTEST,
            trials: 0,
        }
    }

    /// The prices of the capacity.
    pub(super) fn capacity(&self) -> &Costs {
        &self.capacity
    }

    /// Returns whether any price is not that of the capacity.
    pub(super) fn are_found(&self) -> bool {
        self.trial.is_some() || self.found.is_some()
    }

    /// Returns the cost of a request, which is `sequential` if it begins where the last one of its group ended.
    #[inline]
    pub(super) fn charge(&self, io: &IoMeta, sequential: bool) -> Charge {
        let clocks = self.capacity.of(io, sequential);
        let found = self.found.as_ref().map_or(clocks, |found| found.of(io, sequential));
        let (time, kind) = (found.cost(), found.kind(io, sequential));
        Charge { clocks, time, weighed: time * self.tilt[kind] / PLAIN, kind: kind as u8 }
    }

    /// Returns whether a trial is under way.
    #[inline]
    pub(super) fn are_tried(&self) -> bool {
        self.trial.is_some()
    }

    /// Returns whether a window of the trial is over with this work and the length `span`, in nanoseconds.
    pub(super) fn suffices(&self, work: &Work, span: u64) -> bool {
        self.trial.is_none_or(|trial| {
            let of = work.ios[trial.kind];
            let all: u32 = work.ios.iter().sum();
            span >= LONGEST || span >= self.length && of.min(all - of) >= ENOUGH
        })
    }

    /// Counts a window between trials in which the device was saturated. Returns whether a trial begins.
    pub(super) fn begin(&mut self, work: &Work) -> bool {
        self.wait = self.wait.saturating_sub(1);
        if self.wait > 0 {
            return false;
        }
        let mut kinds = (1..=KINDS).map(|by| (self.last + by) % KINDS);
        let next = kinds.find(|kind| work.is_part(*kind));
        if let Some(kind) = next {
            self.last = kind;
            self.trial = Some(Trial { kind, step: 0, windows: Default::default() });
            self.tilt[kind] = STEPS[0];
        }
        next.is_some()
    }

    /// Ends a trial without a result.
    pub(super) fn end(&mut self) {
        self.trial = None;
        self.tilt = [PLAIN; KINDS];
        self.wait = self.rest;
    }

    /// Records a window of the trial, and judges the trial after the last one.
    pub(super) fn step(&mut self, work: &Work, span: u64) {
        let Some(trial) = &mut self.trial else { return };
        trial.windows[trial.step] = work.rates(span);
        trial.step += 1;
        if let Some(tilt) = STEPS.get(trial.step) {
            self.tilt[trial.kind] = *tilt;
            return;
        }
        let trial = *trial;
        self.judge(&trial);
        self.end();
    }

    /// Changes the price of the kind that was tried.
    fn judge(&mut self, trial: &Trial) {
        self.trials += 1;
        let (one, other) = match (trial.half(0), trial.half(HALF)) {
            (Verdict::Off(one), Verdict::Off(other)) => (one, other),
            (Verdict::Noisy, _) | (_, Verdict::Noisy) => {
                self.length = (2 * self.length).min(LONGEST);
                return;
            }
            _ => {
                self.rest = (2 * self.rest).min(RESTS[1]);
                return;
            }
        };
        // The halves have to agree on the sign.
        let off = if one.signum() == other.signum() {
            one.signum() * one.abs().min(other.abs())
        } else {
            0
        };
        if off.abs() > OFF {
            self.rest = RESTS[0];
        }
        if off.abs() < RIGHT {
            self.rest = (2 * self.rest).min(RESTS[1]);
        }
        if off == 0 {
            return;
        }
        let (own, rest) = trial.work(&trial.windows);
        let (kind, all) = (trial.kind, own + rest);
        let before = i64::from(self.factors[kind]);
        let after =
            if off > 0 { before + before * off / 1_024 } else { before * 1_024 / (1_024 - off) };
        // The work of the device in a second stays the same.
        let scaled = rest + own * after / before;
        let scale = |factor: i64| {
            let factor = i128::from(factor) * i128::from(all) / i128::from(scaled.max(1));
            factor.clamp(FACTORS[0].into(), FACTORS[1].into()) as u32
        };
        for (of, factor) in self.factors.iter_mut().enumerate() {
            *factor = scale(if of == kind { after } else { i64::from(*factor) });
        }
        self.found = Some(self.capacity.times(&self.factors));
    }

    /// The number of trials, and the prices in thousandths of those of the capacity.
    pub(super) fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("price_trials", self.trials);
        for (name, factor) in NAMES.into_iter().zip(self.factors) {
            out(name, (u64::from(factor) * 1_000) >> 16);
        }
    }
}
