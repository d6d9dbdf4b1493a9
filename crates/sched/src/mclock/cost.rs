//! The cost of a request: the time that a device of the configured capacity needs for it. Rates are parts of that time.
//!
//! A device has two clocks: one counts requests, by kind, and one counts bytes. A request costs the time of the slower
//! clock, since a device is at the limit of its I/Os or of its bytes, and seldom at both. All numbers are integers:
//! nanoseconds, and fractions of the device's time in units of 2^-32.

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
    pub(super) const WHOLE: u64 = 1 << 32;

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
pub(super) const KINDS: usize = 7;
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

/// Prices of one direction.
#[derive(Clone, Copy, Debug)]
struct Prices {
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
    data: [Prices; 2],
    /// The price of a request that moves no data, in nanoseconds.
    other: u64,
}

impl Prices {
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
        let data = capacity.map(|of| Prices::of(of.map(|n| n.max(1))));
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
            let Prices { request: [sequential, random], sector } = self.data[direction];
            let first = 3 * direction;
            Prices {
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
