//! The costs of requests and the shares of rates, by the formulas of the page.

use blkmq_core::{IoMeta, Op};
use blkmq_sched::{Options, Rate};
use std::collections::BTreeMap;

const NAMES: [&str; 15] = [
    "rbps",
    "rseqiops",
    "rrandiops",
    "wbps",
    "wseqiops",
    "wrandiops",
    "safe_percent",
    "pace_percent",
    "inflight_usec",
    "fifo_batch",
    "merge_kib",
    "learn",
    "bound_nsec",
    "saturated_ppm",
    "front_merges",
];

pub(super) struct Values {
    set: BTreeMap<&'static str, i64>,
    rotational: bool,
}

impl Values {
    pub(super) fn new(rotational: bool, options: &Options) -> Self {
        Self { set: NAMES.iter().map(|n| (*n, options.get(n))).collect(), rotational }
    }

    pub(super) fn shown(&self, name: &str) -> Option<i64> {
        self.set.get(name).copied()
    }

    pub(super) fn set(&mut self, name: &str, value: i64) -> bool {
        self.set.get_mut(name).map(|v| *v = value).is_some()
    }

    pub(super) fn get(&self, name: &str) -> u64 {
        self.set[name] as u64
    }

    pub(super) fn batch(&self) -> u64 {
        match (self.get("fifo_batch"), self.rotational) {
            (0, true) => 16,
            (0, false) => 1,
            (given, _) => given,
        }
    }

    /// Neither the capacity nor a bound is given.
    pub(super) fn untold(&self) -> bool {
        NAMES[..6].iter().all(|name| self.get(name) == 0) && self.get("inflight_usec") == 0
    }

    /// All prices, and whether they are guesses.
    pub(super) fn priced(&self) -> (Vec<u128>, bool) {
        let of =
            |write| [self.request(write, true), self.request(write, false), self.bps(write).into()];
        ([false, true].map(of).concat(), self.untold())
    }

    /// The first of `names` that was given, or the guess.
    fn first(&self, names: &[&str], rotating: u64, solid: u64) -> u64 {
        let given = names.iter().map(|name| self.get(name)).find(|value| *value > 0);
        given.unwrap_or(if self.rotational { rotating } else { solid })
    }

    fn bps(&self, write: bool) -> u64 {
        if write {
            self.first(&["wbps", "rbps"], 178_075_866, 427_891_549)
        } else {
            self.first(&["rbps"], 174_019_176, 488_636_629)
        }
    }

    fn iops(&self, write: bool, sequential: bool) -> u64 {
        match (write, sequential) {
            (false, true) => self.first(&["rseqiops", "rrandiops"], 41_708, 8_932),
            (false, false) => self.first(&["rrandiops"], 370, 8_518),
            (true, true) => self.first(&["wseqiops", "rseqiops", "rrandiops"], 42_705, 28_755),
            (true, false) => self.first(&["wrandiops", "rrandiops"], 378, 21_940),
        }
    }

    /// Nanoseconds of a sector, in units of 2^-16.
    pub(super) fn sector(&self, write: bool) -> u128 {
        (512_000_000_000 << 16) / u128::from(self.bps(write))
    }

    pub(super) fn request(&self, write: bool, sequential: bool) -> u128 {
        (1_000_000_000 / u128::from(self.iops(write, sequential))).clamp(1, MOST)
    }
}

pub(super) const MOST: u128 = (1 << 31) - 1;

/// By the clock of requests, and by that of bytes; the greater one is the cost.
pub(super) fn clocks(values: &Values, io: &IoMeta, sequential: bool) -> [u64; 2] {
    let write = io.op != Op::Read;
    if matches!(io.op, Op::Discard | Op::WriteZeroes) {
        return [values.request(true, false) as u64, 0];
    }
    let sectors = (u128::from(io.sectors) * values.sector(write)) >> 16;
    [values.request(write, sequential), sectors.min(MOST)].map(|clock| clock as u64)
}

/// The part of the device in units of 2^-32; zero for no rate.
pub(super) fn share(values: &Values, rate: Rate) -> u128 {
    if rate == Rate::default() {
        return 0;
    }
    let whole: u128 = 1 << 32;
    let one = values.request(false, false).max(((values.sector(false) * 8) >> 16).min(MOST));
    let iops = u128::from(rate.iops) * one * whole / 1_000_000_000;
    let bps = u128::from(rate.bps) * values.sector(false) * (whole >> 16) / 512_000_000_000;
    (iops + bps + u128::from(rate.percent) * whole / 100).clamp(1, 16 * whole)
}

/// The time in which `share` of the device does what costs `cost`.
pub(super) fn gap(cost: u64, share: u128) -> u64 {
    ((u128::from(cost) << 32) / share).min(1 << 42) as u64
}
