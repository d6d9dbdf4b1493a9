//! The prices that are found, from the page: trials of one kind of work after the other.

use super::prices::{MOST, Values};
use blkmq_core::{IoMeta, Op};

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
/// The windows of a trial; in those with `true` the kind is dear.
const DEAR: [bool; 8] = [true, false, false, true, false, true, true, false];

/// The completions of a window, each with its kind and cost.
pub(super) type Work = Vec<(usize, u64)>;

pub(super) struct Trials {
    factors: [u128; KINDS],
    /// The kind that is tried, and the rates of the windows so far.
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

    /// The cost of a request, the same for the weights, and its kind.
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

    /// A window between trials; true if a trial begins.
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

/// How much too low the price is, by the windows of a half; the error says whether that is because of noise.
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
