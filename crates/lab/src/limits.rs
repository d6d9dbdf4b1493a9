//! Checks that the limits of devices and groups are kept: which I/Os the engine may divide, and how much of a group may
//! arrive at the device.
//!
//! An I/O may be divided if it exceeds a limit of the device, or if it is long and beside a latency goal.
//!
//! From the beginning on, no more of a group arrives at the device than the time allows. The limits apply when I/Os
//! leave their submitters, so bursts are possible behind them; but the total is bounded. Beyond the rate, 10 ms of it
//! and the credit of a burst may be ahead of time, and one I/O may be on its way (`Config::groups`). Only for groups
//! that no operator changes.

use crate::Payload;
use crate::violation::Violation;
use blkmq_core::{GroupId, Instant, IoFlags, Limits, Nanos, Op, SECTOR_SIZE};
use blkmq_engine::{GroupTree, Io, IoMax};

/// Unused time that may be caught up.
const SLACK: Nanos = Nanos::from_millis(10);

/// The arrivals of one kind.
#[derive(Clone, Copy, Default)]
struct Used {
    units: u64,
    /// The units of the largest bio.
    most: u64,
}

struct Group {
    id: GroupId,
    parent: GroupId,
    max: IoMax,
    /// The arrivals, in the order of [`IoMax::rates`].
    used: [Used; 6],
}

/// The arrivals of each group and the groups below it.
pub(crate) struct Rates(Vec<Group>);

impl Rates {
    /// No arrivals yet, for the groups of this tree.
    pub(crate) fn new(tree: &GroupTree) -> Self {
        let is_limited = tree.iter().any(|group| group.max.is_limited());
        let groups = tree.iter().filter(|_| is_limited);
        let group = |group: &blkmq_engine::Group| Group {
            id: group.id,
            parent: group.parent,
            max: group.max,
            used: Default::default(),
        };
        Self(groups.map(group).collect())
    }

    /// From now on limits may change, so nothing is checked any more.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }

    /// A bio of `group` has arrived, for the first time.
    pub(crate) fn arrived(
        &mut self,
        now: Instant,
        group: GroupId,
        (op, sectors): (Op, u32),
    ) -> Result<(), Violation> {
        let bytes = u64::from(sectors) * u64::from(SECTOR_SIZE);
        let units = match op {
            Op::Read => [bytes, 0, 1, 0, bytes, 1],
            Op::Write => [0, bytes, 0, 1, bytes, 1],
            Op::Discard | Op::WriteZeroes => [0, 0, 0, 1, 0, 1],
            Op::Flush => return Ok(()),
        };
        let mut verdict = Ok(());
        let mut at = group;
        // The root is not in the list, and is above all groups.
        while let Some(group) = self.0.iter_mut().find(|group| group.id == at) {
            at = group.parent;
            for (used, units) in group.used.iter_mut().zip(units) {
                used.units += units;
                used.most = used.most.max(units);
            }
            verdict = verdict.and(group.check(now));
        }
        verdict
    }
}

impl Group {
    fn check(&self, now: Instant) -> Result<(), Violation> {
        let burst = self.max.burst;
        let credit = u128::from(burst.length.0) * u128::from(burst.thousandths - 1000) / 1000;
        for (rate, used) in self.max.rates().into_iter().zip(self.used) {
            let Some(rate) = rate else { continue };
            let lasting = allowed(rate, credit, now);
            let of = lasting.min(allowed(burst.of(rate), 0, now)).saturating_add(used.most);
            if used.units > of {
                let Used { units, .. } = used;
                return Err(Violation::TooFast { group: self.id, units, of, rate });
            }
        }
        Ok(())
    }
}

/// The amount that may have arrived by `now` at `rate` with `credit` nanoseconds ahead of time.
fn allowed(rate: u64, credit: u128, now: Instant) -> u64 {
    let time = u128::from(now.as_nanos() + SLACK.0) + credit;
    u64::try_from((u128::from(rate) * time).div_ceil(1_000_000_000)).unwrap_or(u64::MAX)
}

/// The I/Os that the device takes whole.
#[derive(Clone, Copy)]
pub(crate) struct Takes {
    pub(crate) limits: Limits,
    /// Sectors in each range of memory of a read or write; 0 if it has one range.
    pub(crate) range: u32,
}

impl Takes {
    /// Returns whether the device takes `io` whole. Checks each limit separately.
    pub(crate) fn whole(&self, io: &Io<Payload>) -> bool {
        let limits = &self.limits;
        let moves_data = matches!(io.op, Op::Read | Op::Write);
        let chunk = if moves_data { u64::from(limits.chunk_sectors) } else { 0 };
        let last = io.sector + u64::from(io.sectors.max(1)) - 1;
        io.sectors <= limits.max_sectors_of(io.op)
            && self.segments(io) <= limits.max_segments.into()
            && (chunk == 0 || io.sector / chunk == last / chunk)
            && !self.has_gap(io)
    }

    fn is_list(&self, io: &Io<Payload>) -> bool {
        let is_data = matches!(io.op, Op::Read | Op::Write);
        is_data && (1..io.sectors).contains(&self.range)
    }

    /// Each range has segments of its own.
    fn segments(&self, io: &Io<Payload>) -> u64 {
        if !self.is_list(io) {
            return self.limits.segments(io.op, io.sectors);
        }
        let (whole, last) = (io.sectors / self.range, io.sectors % self.range);
        let of = |sectors| self.limits.segments(io.op, sectors);
        u64::from(whole) * of(self.range) + if last > 0 { of(last) } else { 0 }
    }

    /// Returns whether two ranges meet where segments may not. Every range begins at such a boundary.
    fn has_gap(&self, io: &Io<Payload>) -> bool {
        let bytes = u64::from(self.range) * u64::from(SECTOR_SIZE);
        self.is_list(io) && bytes & self.limits.virt_boundary_mask != 0
    }
}

/// Returns whether `io` may be divided for the latency goal of a group.
pub(crate) fn may_be_shortened(io: &Io<Payload>) -> bool {
    let is_data = matches!(io.op, Op::Read | Op::Write);
    is_data && !io.flags.intersects(IoFlags::PREFLUSH | IoFlags::FUA) && io.sectors > SHORTEST
}

/// No I/O is divided into shorter parts for a latency goal, in sectors.
const SHORTEST: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_engine::GroupSpec;

    fn tree(list: &[(&str, &str, &str)]) -> GroupTree {
        let wanted = |&(name, parent, max): &(&str, &str, &str)| GroupSpec {
            name: name.into(),
            parent: parent.into(),
            weight: 100,
            max: IoMax::default().set(max).expect("right"),
            ..GroupSpec::default()
        };
        GroupTree::of(list.iter().map(wanted).collect()).expect("a tree")
    }

    #[test]
    fn a_burst_is_bounded_by_its_rate_and_by_its_credit() {
        let tree = tree(&[("a", "/", "iops=1000 burst=2 burst_length=1")]);
        let a = tree.find("a").expect("there");
        let mut rates = Rates::new(&tree);
        let mut arrive = |ms, count| {
            let now = Instant::ZERO + Nanos::from_millis(ms);
            (0..count).find(|_| rates.arrived(now, a, (Op::Read, 1)).is_err())
        };
        // Twice the rate from the beginning on, with 10 ms of it ahead of time, and one on its way.
        assert_eq!(arrive(500, 2000), Some(1021));
        // A thousand of credit at most.
        assert_eq!(arrive(2000, 5000), Some(3011 - 1022));
    }

    #[test]
    fn what_comes_too_early_is_noticed_in_the_group_and_above() {
        let tree = tree(&[("a", "/", "riops=1000"), ("b", "a", "wbps=512000")]);
        let (a, b) = (tree.find("a").expect("there"), tree.find("b").expect("there"));
        let mut rates = Rates::new(&tree);
        let mut arrive = |ms, group, op| {
            let now = Instant::ZERO + Nanos::from_millis(ms);
            rates.arrived(now, group, (op, 1))
        };
        // Ten I/Os ahead of time, and one on its way.
        for _ in 0..11 {
            assert_eq!(arrive(0, a, Op::Read), Ok(()));
        }
        assert!(arrive(0, b, Op::Read).is_err(), "the one above has had its share");
        assert_eq!(arrive(2, b, Op::Read), Ok(()));
        for _ in 0..13 {
            assert_eq!(arrive(2, b, Op::Write), Ok(()));
        }
        assert!(arrive(2, b, Op::Write).is_err());
        assert_eq!(arrive(3, b, Op::Discard), Ok(()), "which moves no data");
        assert_eq!(arrive(3, GroupId::ROOT, Op::Write), Ok(()));
        rates.forget();
        assert_eq!(rates.arrived(Instant::ZERO, b, (Op::Write, 1000)), Ok(()));
    }
}
