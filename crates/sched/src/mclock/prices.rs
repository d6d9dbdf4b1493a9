//! The cost of a request: the time that a device of the configured capacity needs for it. Rates are parts of that time.
//! Also the search for the prices of the kinds of work on this device, in proportion to each other, while unlike loads
//! compete.
//!
//! A device has two clocks: one counts requests, by kind, and one counts bytes. A request costs the time of the slower
//! clock, since a device is at the limit of its I/Os or of its bytes, and seldom at both. All numbers are integers:
//! nanoseconds, and fractions of the device's time in units of 2^-32.
//!
//! A constant mix of two kinds says nothing about the price of either. So the mix is varied: in a *trial* a kind counts
//! as more and as less for the weights, in four windows each. The work that it gains while it is cheap takes the device
//! time of the work that the others lose. `doc/mclock.md` has the rules in full.

use crate::Rate;
use blkmq_core::{IoMeta, Op};

/// The highest cost of a request, in nanoseconds: 31 bits.
const MOST: u64 = (1 << 31) - 1;
/// The longest gap between two tags, in nanoseconds: 73 minutes.
const MOST_GAP: u64 = 1 << 42;
/// The sectors of the requests of a rate in IOPS: 4 KiB.
const RATED: u64 = 8;
/// The highest rate, in I/Os or bytes a second. Greater ones count as this one.
const MOST_RATE: u64 = 1 << 48;
const SECOND: u64 = 1_000_000_000;

/// A part of the device's time, in units of 2^-32; up to 16 times the whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Share(u64);

impl Share {
    /// The whole device.
    const WHOLE: u64 = 1 << 32;

    pub(super) fn percent(percent: u32) -> Self {
        Self((u64::from(percent) * Self::WHOLE / 100).clamp(1, 16 * Self::WHOLE))
    }

    /// Millionths of the device.
    pub(super) fn ppm(ppm: u64) -> Self {
        let part = u128::from(ppm) * u128::from(Self::WHOLE) / 1_000_000;
        Self(part.clamp(1, 16 * u128::from(Self::WHOLE)) as u64)
    }

    /// The share in units of 2^-32.
    pub(super) fn units(self) -> u64 {
        self.0
    }

    /// Returns the time in which this part of the device does work of `cost`, both in nanoseconds.
    #[inline]
    pub(super) fn gap(self, cost: u64) -> u64 {
        ((cost << 32) / self.0).min(MOST_GAP)
    }
}

/// The number of kinds of work that have a price: sequential requests, random requests and sectors, of reads and then
/// of writes, and all other requests.
const KINDS: usize = 7;
const OTHER: usize = 6;

/// The cost of a request, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    /// By the clocks of the capacity, for floors, ceilings and a pace that is set.
    pub(super) clocks: Clocks,
    /// Device time, by the prices that were found.
    pub(super) time: u64,
    /// Device time as weights count it: more or less while its kind is tried.
    pub(super) weighed: u64,
    pub(super) kind: u8,
}

/// DirectionPrices of one direction.
#[derive(Clone, Copy, Debug)]
struct DirectionPrices {
    /// The price of a sequential and of a random request, by the clock of requests, in nanoseconds.
    request: [u64; 2],
    /// The price of a sector by the clock of bytes, in units of 2^-16 ns.
    sector: u64,
}

/// The cost of a request by the clock of requests and by that of bytes, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks(pub(super) [u64; 2]);

impl Clocks {
    /// The device time that the request costs.
    #[inline]
    pub(super) fn cost(self) -> u64 {
        self.0[0].max(self.0[1])
    }

    /// Returns the kind of work whose price is the cost.
    #[inline]
    pub(super) fn kind(self, io: &IoMeta, sequential: bool) -> usize {
        let of = if self.0[1] > self.0[0] { 2 } else { usize::from(!sequential) };
        match io.op {
            Op::Read => of,
            Op::Write => 3 + of,
            Op::Discard | Op::WriteZeroes | Op::Flush => OTHER,
        }
    }
}

/// The costs of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    data: [DirectionPrices; 2],
    /// The price of a request that moves no data, in nanoseconds.
    other: u64,
}

impl DirectionPrices {
    /// From bytes, sequential I/Os and random I/Os a second, each at least 1.
    fn of([bps, sequential, random]: [u64; 3]) -> Self {
        Self {
            request: [sequential, random].map(|iops| (SECOND / iops).clamp(1, MOST)),
            sector: ((512 * SECOND) << 16) / bps,
        }
    }

    fn transfer(&self, sectors: u64) -> u64 {
        ((u128::from(sectors) * u128::from(self.sector)) >> 16).min(u128::from(MOST)) as u64
    }
}

impl Costs {
    /// The costs on a device of this capacity: bytes, sequential I/Os and random I/Os a second, of reads and then of
    /// writes.
    pub(super) fn new(capacity: [[u64; 3]; 2]) -> Self {
        let data = capacity.map(|of| DirectionPrices::of(of.map(|n| n.max(1))));
        Self { data, other: data[1].request[1] }
    }

    /// Returns the prices, each multiplied by the factor of its kind, in units of 2^-16.
    pub(super) fn times(&self, factors: &[u32; KINDS]) -> Self {
        let times = |price: u64, kind: usize| {
            let price = (u128::from(price) * u128::from(factors[kind])) >> 16;
            u64::try_from(price).unwrap_or(u64::MAX).max(1)
        };
        let request = |price, kind| times(price, kind).min(MOST);
        let of = |direction: usize| {
            let DirectionPrices { request: [sequential, random], sector } = self.data[direction];
            let first = 3 * direction;
            DirectionPrices {
                request: [request(sequential, first), request(random, first + 1)],
                sector: times(sector, first + 2),
            }
        };
        Self { data: [of(0), of(1)], other: request(self.other, OTHER) }
    }

    /// Returns the cost of a request, which is `sequential` if it begins where the group's last one ended. The cost by
    /// the clock of requests is at least 1.
    #[inline]
    pub(super) fn of(&self, io: &IoMeta, sequential: bool) -> Clocks {
        let prices = &self.data[usize::from(io.op.is_write())];
        match io.op {
            Op::Read | Op::Write => Clocks([
                prices.request[usize::from(!sequential)],
                prices.transfer(io.sectors.into()),
            ]),
            Op::Discard | Op::WriteZeroes | Op::Flush => Clocks([self.other, 0]),
        }
    }

    /// Returns the part of the device that a rate is; `None` for no rate.
    pub(super) fn share(&self, rate: &Rate) -> Option<Share> {
        if rate.is_none() {
            return None;
        }
        let reads = &self.data[0];
        let one = u128::from(reads.request[1].max(reads.transfer(RATED)));
        let whole = u128::from(Share::WHOLE);
        let second = u128::from(SECOND);
        let iops = u128::from(rate.iops.min(MOST_RATE)) * one * whole / second;
        let bps = u128::from(rate.bps.min(MOST_RATE)) * u128::from(reads.sector) * (whole >> 16)
            / 512
            / second;
        let all = iops + bps + u128::from(rate.percent) * whole / 100;
        Some(Share(all.clamp(1, 16 * whole) as u64))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// The disk of a cloud: 3566 I/Os of 4 KiB, or 173 MB, a second.
    fn costs() -> Costs {
        Costs::new([[173_471_131, 3_566, 3_566], [173_471_131, 3_566, 1_783]])
    }

    #[test]
    fn a_second_of_the_device_costs_a_second() {
        let second = |op, sectors, count: u64| {
            costs().of(&IoMeta::new(op, 0, sectors), false).cost() * count
        };
        let within = |cost: u64, permille: u64| cost.abs_diff(SECOND) <= SECOND / 1_000 * permille;
        assert!(within(second(Op::Read, 8, 3_566), 1));
        assert!(within(second(Op::Write, 8, 1_783), 1));
        assert!(within(second(Op::Discard, 1 << 20, 1_783), 1));
        assert!(within(second(Op::Read, 2_048, 165), 3));
    }

    /// A linear price, a base and the sectors of each request, is twice what the disk takes for such an I/O.
    #[test]
    fn a_request_costs_what_the_slower_clock_says() {
        let of = |sectors| costs().of(&IoMeta::new(Op::Read, 0, sectors), false).cost();
        let io = SECOND / 3_566;
        // The clocks agree at 48 646 bytes.
        assert_eq!([of(1), of(8), of(95)], [io; 3]);
        let bytes = |sectors: u64| sectors * 512 * SECOND / 173_471_131;
        assert!(of(96).abs_diff(bytes(96)) < 100 && of(256).abs_diff(bytes(256)) < 100);
    }

    #[test]
    fn rates_are_parts_of_the_time() {
        let permille = |rate| costs().share(&rate).expect("a rate").0 * 1_000 / Share::WHOLE;
        assert_eq!(permille(Rate { iops: 357, ..Rate::default() }), 100);
        assert_eq!(permille(Rate { bps: 86_800_000, ..Rate::default() }), 500);
        assert_eq!(permille(Rate { iops: 1_784, bps: 0, percent: 25 }), 750);
        assert_eq!(costs().share(&Rate::default()), None);
    }

    #[test]
    fn nothing_overflows() {
        let least = Costs::new([[1; 3]; 2]);
        let most = Costs::new([[1 << 40, 1 << 30, 1 << 30]; 2]);
        let io = IoMeta::new(Op::Write, 0, u32::MAX);
        let cheap = most.of(&IoMeta::new(Op::Read, 0, 1), true);
        assert_eq!((least.of(&io, true).cost(), cheap.cost()), (MOST, 1));
        let rate = Rate { iops: u64::MAX, bps: u64::MAX, percent: u32::MAX };
        let share = least.share(&rate).expect("a rate");
        assert_eq!((share.0, share.gap(MOST)), (16 * Share::WHOLE, MOST / 16));
        let small = most.share(&Rate { iops: 1, ..Rate::default() }).expect("a rate");
        assert!(small.gap(MOST) <= MOST_GAP);
    }
}
