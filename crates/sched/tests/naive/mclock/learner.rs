//! The bound and the prices that are found, written from the page. For the bound, a list of samples, one for each
//! completion of a window, and the rules. For the prices, trials of one kind of work after the other.

use super::nodes::Floors;
use super::{MOST, Values};
use blkmq_core::{IoMeta, Op};

const SECOND: u64 = 1_000_000_000;

/// The numbers at a completion.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    pub(super) now: u64,
    pub(super) cost: u64,
    pub(super) kind: usize,
    pub(super) inside: u64,
    pub(super) outstanding: u64,
    pub(super) issued: u64,
    pub(super) competing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Saturating(u32),
    Trying,
    /// A wide window. The saturated rate is at least this.
    Looking(u64),
}

pub(super) struct Learner {
    told: (u64, u64),
    doing: Doing,
    /// The rate of the window before the first of two wide ones.
    before_looking: Option<u64>,
    begun: u64,
    skip: u64,
    samples: Vec<Sample>,
    /// `None` without a bound.
    bound: Option<u64>,
    saturated: u64,
    crowd: u64,
    checked: u64,
    good: u64,
    slow: u64,
    unfair: u64,
    until: u64,
    /// Beliefs and resignations so far, which double their times; and the end of the last resignation.
    beliefs: u32,
    resigned: u64,
    resignations: u32,
    /// The rate without a bound, times the part of its share that the group with the greatest loss got.
    poorest: u64,
    /// The time of belief in an unfair bound is over for the first time.
    doubted: bool,
    /// A floor was short.
    owed: bool,
    /// The mean in the device of the narrow window, while a floor is owed.
    narrow: Option<u64>,
    pace: u64,
    /// The last pace at which a floor was short, and the cuts in a row.
    too_fast: u64,
    cuts: u32,
    /// The time until which neither a bound nor a pace is found for floors, and the number of such times in a row.
    vain: u64,
    vains: u32,
    seen: (u64, u64),
    /// The bound of the last window.
    tried: Option<u64>,
    /// The least length of a window, and whether it was lengthened since findings were last forgotten.
    shortest: u64,
    varied: bool,
    windows: u64,
    /// The time at which groups began to compete.
    began: u64,
}

/// The means of a window.
#[derive(Clone, Copy)]
struct Means {
    rate: u64,
    inside: u64,
    outstanding: u64,
    /// In hundredths of a request.
    issued: u64,
    mixed: bool,
    many: bool,
    span: u64,
}

impl Learner {
    pub(super) fn new(bound: u64, saturated: u64) -> Self {
        let known = bound > 0 && saturated > 0;
        Self {
            told: (bound, saturated),
            doing: if known { Doing::Trying } else { Doing::Saturating(0) },
            before_looking: None,
            begun: 0,
            skip: 0,
            samples: Vec::new(),
            bound: (bound > 0).then_some(bound),
            saturated,
            crowd: 0,
            checked: 0,
            good: 0,
            slow: 0,
            unfair: 0,
            until: 0,
            beliefs: 0,
            resigned: 0,
            resignations: 0,
            poorest: 0,
            doubted: false,
            owed: false,
            narrow: None,
            pace: 0,
            too_fast: 0,
            cuts: 0,
            vain: 0,
            vains: 0,
            seen: (0, 0),
            tried: Some(0),
            shortest: SECOND / 20,
            varied: false,
            windows: 0,
            began: 0,
        }
    }

    /// Sets the values with which the search begins. If they change, it begins anew.
    pub(super) fn begin_with(&mut self, bound: u64, saturated: u64) {
        if self.told != (bound, saturated) {
            *self = Self::new(bound, saturated);
        }
    }

    pub(super) fn bound(&self) -> Option<u64> {
        let wide = if let Doing::Looking(_) = self.doing { self.bound? / 2 } else { 0 };
        Some(self.bound? + wide)
    }

    /// Returns whether groups competed in the last window.
    pub(super) fn is_searching(&self) -> bool {
        self.windows > 0
    }

    /// Returns whether requests issued under another bound are in the device.
    pub(super) fn is_waiting(&self) -> bool {
        self.skip > 0
    }

    pub(super) fn pace(&self) -> u64 {
        self.pace
    }

    /// Counts a completion. Returns whether it ends a window.
    pub(super) fn completed(&mut self, sample: Sample, longest: u64) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            self.begun = sample.now;
            return false;
        }
        self.samples.push(sample);
        let (span, count) = (sample.now - self.begun, self.samples.len());
        (span >= self.shortest.min(longest) && count >= 128) || (span >= longest && count >= 24)
    }

    /// The work of the window and its length; `None` if groups did not compete.
    pub(super) fn work(&self) -> Option<(Work, u64)> {
        let competed = self.samples.iter().filter(|s| s.competing).count();
        let now = self.samples.last()?.now;
        let work = self.samples.iter().map(|s| (s.kind, s.cost)).collect();
        (competed >= self.samples.len() / 2).then_some((work, now - self.begun))
    }

    pub(super) fn is_settled(&self, now: u64) -> bool {
        self.doing == Doing::Trying && now - self.began >= 2 * SECOND
    }

    /// Begins a window after the completions of the requests in the device.
    pub(super) fn begin_anew(&mut self, now: u64, issued: u64) {
        self.samples.clear();
        (self.begun, self.skip) = (now, issued);
    }

    /// Judges a window. The group with the greatest loss has `got` thousandths of its share.
    pub(super) fn judge(&mut self, got: u64, floors: Floors, mixed: bool, issued: u64) {
        let samples = std::mem::take(&mut self.samples);
        let count = samples.len() as u64;
        let now = samples.last().expect("a window has some").now;
        let span = (now - self.begun).max(1);
        if self.windows == 0 {
            self.began = self.begun;
        }
        let sum = |of: fn(&Sample) -> u64| samples.iter().map(of).sum::<u64>();
        let work = u128::from(sum(|s| s.cost));
        let means = Means {
            rate: (work * 1_000_000 / u128::from(span)) as u64,
            inside: sum(|s| s.inside) / count,
            outstanding: sum(|s| s.outstanding) / count,
            issued: 100 * sum(|s| s.issued) / count,
            mixed: mixed && now - self.began >= 2 * SECOND,
            many: count >= 512,
            span,
        };
        let before = self.bound();
        if sum(|s| s.competing.into()) < count / 2 {
            *self = Self::new(self.told.0, self.told.1);
        } else {
            self.windows += 1;
            let tried = self.tried;
            let no_less = before.is_none() || tried.is_some() && before >= tried;
            let no_more = tried.is_none() || before.is_some() && before <= tried;
            let falls = no_less && self.seen.0 / 1_400 > means.rate / 1_000;
            let rises = no_more && means.rate / 1_400 > self.seen.0 / 1_000;
            if means.mixed {
                self.shortest = SECOND / 20;
            } else if !matches!(self.doing, Doing::Saturating(_)) && (falls || rises) {
                (self.shortest, self.varied) = ((2 * self.shortest).min(SECOND), true);
            }
            self.follow(now, means, got, floors);
        }
        self.tried = before;
        self.seen = (means.rate, means.inside);
        (self.begun, self.skip) = (now, if before == self.bound() { 0 } else { issued });
    }

    fn follow(&mut self, now: u64, means: Means, got: u64, floors: Floors) {
        if self.crowd == 0 && self.doing == Doing::Trying {
            self.crowd = means.outstanding;
            self.forget(now, means.span);
        }
        match floors {
            Floors::Short(part) if now >= self.vain => return self.hold(now, means, part),
            Floors::Short(_) => {}
            Floors::Edge => self.cuts = 0,
            Floors::Unknown | Floors::Roomy => {
                (self.cuts, self.vains) = (0, 0);
                if self.pace > 0 {
                    let (low, high) =
                        (self.too_fast - self.too_fast / 32, self.too_fast + self.too_fast / 128);
                    let near = self.pace >= low && self.pace < high;
                    self.pace += (self.pace / if near { 2_048 } else { 32 }).max(1);
                    if self.pace > self.saturated + self.saturated / 4 {
                        (self.pace, self.too_fast) = (0, 0);
                    }
                }
                if self.owed {
                    self.unfair = 0;
                }
            }
        }
        self.learn(now, means, got);
    }

    fn hold(&mut self, now: u64, means: Means, part: u64) {
        if let Doing::Saturating(_) = self.doing {
            (self.saturated, self.bound) = (means.rate, Some(means.inside));
            self.forget(now, means.span);
        }
        (self.doing, self.checked, self.owed) = (Doing::Trying, now, true);
        self.before_looking = None;
        self.widens(means);
        let bound = self.bound.expect("there is one").min(means.inside);
        self.unfair = bound;
        if means.issued > 250 {
            self.bound = Some((bound / 1_000 * part.clamp(63, 950)).max(1));
            return;
        }
        self.too_fast = if self.pace == 0 { means.rate } else { means.rate.min(self.pace) };
        let parts = [64, 32, 16, 8, 4][self.cuts.min(4) as usize];
        self.pace = (self.too_fast - self.too_fast / parts).max(1);
        self.cuts += 1;
        if self.pace < self.saturated / 1_000 * 100 {
            (self.pace, self.too_fast, self.cuts) = (0, 0, 0);
            self.vain = now + (8 << self.vains.min(3)) * SECOND;
            self.vains += 1;
            (self.owed, self.unfair) = (false, 0);
        }
    }

    fn learn(&mut self, now: u64, means: Means, got: u64) {
        match self.doing {
            Doing::Saturating(tries) => {
                let off = means.rate.abs_diff(self.saturated);
                self.saturated = means.rate;
                self.crowd = self.crowd.max(means.outstanding);
                if off > means.rate / 16 && tries < 16 {
                    self.doing = Doing::Saturating(tries + 1);
                    return;
                }
                if off > means.rate / 16 {
                    (self.shortest, self.varied) = (SECOND / 5, true);
                }
                self.doing = Doing::Trying;
                self.checked = now;
                self.bound = Some(means.inside + means.inside / 8);
                self.poorest = means.rate / 1_000 * got;
                self.forget(now, means.span);
                self.try_bound(now, means, got);
            }
            Doing::Looking(least) => {
                let is_more = |than: u64| means.rate / 1_250 > than / 1_000;
                let before = self.before_looking.take();
                if is_more(self.saturated) && is_more(before.unwrap_or(self.seen.0)) {
                    if before.is_none() {
                        self.before_looking = Some(self.seen.0);
                        return;
                    }
                    let (windows, shortest) = (self.windows, self.shortest);
                    *self = Self { windows, shortest, ..Self::new(0, 0) };
                    return;
                }
                self.doing = Doing::Trying;
                if is_more(self.saturated) {
                    self.beliefs = 0;
                    self.forget(now, means.span);
                }
                self.saturated = means.rate.max(least);
                self.checked = if least > 0 { self.checked } else { now };
                self.crowd = self.crowd.max(means.outstanding);
            }
            Doing::Trying => {
                if self.owed {
                    if means.rate / 1_250 > self.saturated / 1_000 {
                        self.saturated = means.rate;
                    }
                } else if now >= self.until {
                    if self.unfair == 0 {
                        self.forget(now, means.span);
                        self.doing = Doing::Looking(0);
                        return;
                    }
                    if !self.doubted {
                        self.doubted = true;
                        let seconds = [2, 4, 8][self.beliefs.min(2) as usize];
                        self.until = now + (seconds * SECOND).max(32 * means.span.min(2 * SECOND));
                        self.doing = Doing::Looking(self.saturated);
                        return;
                    }
                    self.forget(now, means.span);
                }
                self.try_bound(now, means, got);
            }
        }
    }

    fn forget(&mut self, now: u64, span: u64) {
        (self.good, self.slow, self.unfair, self.doubted) = (0, 0, 0, false);
        let seconds = [2, 4, 8][self.beliefs.min(2) as usize];
        self.until = now + (seconds * SECOND).max(32 * span.min(2 * SECOND));
        self.beliefs += 1;
        if !std::mem::take(&mut self.varied) {
            self.shortest = (self.shortest / 2).max(SECOND / 20);
        }
    }

    /// Returns whether the saturated rate is believed. If not, the next window is wide.
    fn knows(&mut self, now: u64, means: Means) -> bool {
        if self.owed {
            if self.widens(means) {
                return false;
            }
            self.narrow = self.narrow.or(Some(means.inside));
            return true;
        }
        let known = now < self.checked + SECOND.max(4 * means.span.min(2 * SECOND));
        if !known {
            self.doing = Doing::Looking(0);
        }
        known
    }

    /// Returns whether the device held a third more than in the narrow window.
    fn widens(&mut self, means: Means) -> bool {
        let wide = self.narrow.is_some_and(|narrow| means.inside >= narrow + narrow / 3);
        if wide {
            (self.saturated, self.slow, self.narrow) = (means.rate, 0, None);
        }
        wide
    }

    fn try_bound(&mut self, now: u64, means: Means, got: u64) {
        let mut bound = self.bound.expect("it is tried");
        let waits = (100 * means.outstanding).saturating_sub(means.issued);
        if means.inside < bound - bound / 8 && waits < 100 {
            bound = means.inside + means.inside / 8;
            (self.saturated, self.checked, self.bound) = (means.rate, now, Some(bound));
        }
        if means.rate / 1_250 > self.saturated / 1_000 {
            self.doing = Doing::Looking(0);
            return;
        }
        bound = bound.max(if means.mixed { means.inside / 16 } else { means.inside / 4 * 3 });
        self.bound = Some(bound);
        let thousandths = |n: u64| self.saturated / 1_000 * n;
        let aim = if self.pace == 0 { self.saturated } else { self.saturated.min(self.pace) };
        let enough = aim / 1_000 * if means.many { 980 } else { 950 };
        let fast = means.rate >= enough && means.outstanding <= self.crowd + self.crowd / 8 + 1;
        let lacks = got >= if means.mixed { 1 } else { 500 } && got < if fast { 990 } else { 980 };
        let grown = means.mixed && means.rate / 1_000 * got > self.poorest / 1_000 * 1_050;
        let worth = thousandths(if grown { 400 } else { 700 });
        if lacks && now >= self.resigned {
            if means.rate >= worth {
                self.unfair = bound;
                self.bound = Some((means.inside.min(bound) / 1_000 * got.max(250)).max(1));
            } else {
                self.resign(now, means, bound);
            }
        } else if fast {
            self.good = bound;
            let lower = bound / 8 * if self.slow == 0 { 6 } else { 7 };
            self.bound = Some(if lower > self.slow { lower } else { bound });
        } else if self.unfair == 0 || bound + bound / 8 < self.unfair {
            if self.knows(now, means) {
                self.slow = self.slow.max(bound);
                self.bound = Some(bound + bound / 8);
            }
        } else if means.mixed && means.rate < worth {
            self.resign(now, means, bound);
        }
    }

    fn resign(&mut self, now: u64, means: Means, bound: u64) {
        if self.knows(now, means) {
            let seconds = 2 << self.resignations.min(5);
            self.resigned = now + seconds * SECOND;
            self.resignations += 1;
            self.unfair = 0;
            self.bound = Some(bound.max(self.good) + bound / 2);
        }
    }

    pub(super) fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("windows", self.windows);
        out("pace_ppm", self.pace);
        out("bound_nsec", self.bound.unwrap_or(0));
        out("saturated_ppm", self.saturated);
        out("seen_ppm", self.seen.0);
        out("seen_nsec", self.seen.1);
        out("slow_nsec", self.slow);
        out("unfair_nsec", self.unfair);
    }
}

const KINDS: usize = 7;
const NAMES: [&str; KINDS] = [
    "price_rseq",
    "price_rrand",
    "price_rbytes",
    "price_wseq",
    "price_wrand",
    "price_wbytes",
    "price_other",
];
/// The windows of a trial, with `true` where the kind is dear.
const DEAR: [bool; 8] = [true, false, false, true, false, true, true, false];

/// The completions of a window, each with its kind and cost.
type Work = Vec<(usize, u64)>;

pub(super) struct Trials {
    factors: [u128; KINDS],
    /// The kind that is tried, and the rates of its windows so far.
    trial: Option<(usize, Vec<[i64; KINDS]>)>,
    last: usize,
    wait: u32,
    rest: u32,
    length: u64,
    trials: u64,
}

fn time(work: &Work, kind: usize) -> u64 {
    work.iter().filter(|(of, _)| *of == kind).map(|(_, cost)| cost).sum()
}

fn all(work: &Work) -> u64 {
    work.iter().map(|(_, cost)| cost).sum()
}

fn is_part(work: &Work, kind: usize) -> bool {
    let (own, least) = (time(work, kind), all(work) / 16);
    own > least && own < all(work) - least
}

pub(super) fn is_mixed(work: &Work) -> bool {
    (0..KINDS).any(|kind| is_part(work, kind))
}

impl Trials {
    pub(super) fn new() -> Self {
        Self {
            factors: [1 << 16; KINDS],
            trial: None,
            last: 0,
            wait: 4,
            rest: 4,
            length: 50_000_000,
            trials: 0,
        }
    }

    pub(super) fn are_found(&self) -> bool {
        self.is_on() || self.factors != [1 << 16; KINDS]
    }

    pub(super) fn is_on(&self) -> bool {
        self.trial.is_some()
    }

    /// The cost of a request, its cost for the weights, and its kind.
    pub(super) fn charge(
        &self,
        values: &Values,
        io: &IoMeta,
        sequential: bool,
    ) -> (u64, u64, usize) {
        let times = |price: u128, kind: usize| ((price * self.factors[kind]) >> 16).max(1);
        let write = io.op != Op::Read;
        let first = if write { 3 } else { 0 };
        let kind = first + usize::from(!sequential);
        let (cost, kind) = if matches!(io.op, Op::Read | Op::Write) {
            let request = times(values.request(write, sequential), kind).min(MOST);
            let sector = times(values.sector(write), first + 2);
            let bytes = ((u128::from(io.sectors) * sector) >> 16).min(MOST);
            if bytes > request { (bytes, first + 2) } else { (request, kind) }
        } else {
            (times(values.request(true, false), 6).min(MOST), 6)
        };
        let parts = match &self.trial {
            Some((tried, windows)) if *tried == kind => {
                if DEAR[windows.len()] {
                    80
                } else {
                    51
                }
            }
            _ => 64,
        };
        (cost as u64, cost as u64 * parts / 64, kind)
    }

    /// Counts a window between trials. Returns whether a trial begins.
    pub(super) fn begin(&mut self, work: &Work) -> bool {
        self.wait = self.wait.saturating_sub(1);
        if self.wait > 0 {
            return false;
        }
        let after = (self.last + 1..KINDS).chain(0..=self.last);
        let next = after.into_iter().find(|kind| is_part(work, *kind));
        if let Some(kind) = next {
            self.last = kind;
            self.trial = Some((kind, Vec::new()));
        }
        next.is_some()
    }

    pub(super) fn end(&mut self) {
        self.trial = None;
        self.wait = self.rest;
    }

    pub(super) fn suffices(&self, work: &Work, span: u64) -> bool {
        let (kind, _) = self.trial.as_ref().expect("one is on");
        let of = work.iter().filter(|(other, _)| other == kind).count();
        span >= 1_000_000_000 || (span >= self.length && of >= 32 && work.len() - of >= 32)
    }

    pub(super) fn step(&mut self, work: &Work, span: u64) {
        let (kind, windows) = self.trial.as_mut().expect("one is on");
        let rate =
            |kind| (u128::from(time(work, kind)) * 1_000_000 / u128::from(span.max(1))) as i64;
        windows.push(std::array::from_fn(rate));
        if windows.len() == DEAR.len() {
            let (kind, windows) = (*kind, windows.clone());
            self.judge(kind, &windows);
            self.end();
        }
    }

    fn judge(&mut self, kind: usize, windows: &[[i64; KINDS]]) {
        self.trials += 1;
        let halves = [0, 4].map(|from| off(kind, &windows[from..from + 4], &DEAR[from..from + 4]));
        if halves.contains(&Err(true)) {
            self.length = (2 * self.length).min(1_000_000_000);
            return;
        }
        let [Ok(a), Ok(b)] = halves else {
            self.rest = (2 * self.rest).min(64);
            return;
        };
        let off = match (a, b) {
            (1.., 1..) => a.min(b),
            (..=-1, ..=-1) => a.max(b),
            _ => 0,
        };
        match off.abs() {
            257.. => self.rest = 4,
            ..128 => self.rest = (2 * self.rest).min(64),
            _ => {}
        }
        let own: i64 = windows.iter().map(|of| of[kind]).sum();
        let all: i64 = windows.iter().flatten().sum();
        let before = self.factors[kind] as i64;
        let after =
            if off > 0 { before + before * off / 1_024 } else { before * 1_024 / (1_024 - off) };
        self.factors[kind] = after as u128;
        let scaled = (all - own + own * after / before).max(1);
        self.factors =
            self.factors.map(|of| (of * all as u128 / scaled as u128).clamp(1 << 10, 1 << 22));
    }

    pub(super) fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("price_trials", self.trials);
        NAMES
            .into_iter()
            .zip(self.factors)
            .for_each(|(name, of)| out(name, ((of * 1_000) >> 16) as u64));
    }
}

/// The part by which the price is too low, in 1024ths, by the windows of a half. An error drops the trial, and is true
/// if the device varies independently of the tilts.
fn off(kind: usize, windows: &[[i64; KINDS]], dear: &[bool]) -> Result<i64, bool> {
    let sum = |kind: usize, is_dear: bool| {
        let of = windows.iter().zip(dear).filter(|(_, dear)| **dear == is_dear);
        of.map(|(rates, _)| rates[kind]).sum::<i64>()
    };
    let others = || (0..KINDS).filter(|of| *of != kind);
    let gained = (sum(kind, false) - sum(kind, true)).max(0);
    let lost = others().map(|of| sum(of, true) - sum(of, false)).sum::<i64>().max(0);
    let own = sum(kind, true) + sum(kind, false);
    let rest: i64 = others().map(|of| sum(of, true) + sum(of, false)).sum();
    let due = own * (rest * 7 / 16) / (own + rest).max(1);
    let both = gained + lost;
    let total: Vec<i64> = windows.iter().map(|of| of.iter().sum()).collect();
    if (total[0] - total[3]).abs() + (total[1] - total[2]).abs() > due / 2 {
        return Err(true);
    }
    if both < due / 4 { Err(false) } else { Ok((lost - gained) * 1_024 / both.max(due).max(1)) }
}
