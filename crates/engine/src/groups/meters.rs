//! The limits of all groups as submitters keep to them: a ceiling for each kind of limit, and the parent of each group.

use super::bounds::MAX_GROUPS;
use super::burst::Burst;
use super::limits::IoMax;
use super::tree::GroupTree;
use crate::sync::meter::{Meter, SLACK};
use crate::sync::{AtomicBool, AtomicU16, OnceLock, Ordering};
use blkmq_core::{GroupId, Instant, IoMeta, Nanos, Op, SECTOR_SIZE};

/// A limit: the rate over a long time, with the credit of a burst as its slack, and the rate during a burst.
struct Ceiling {
    lasting: Meter,
    /// Without a limit unless there are bursts.
    peak: Meter,
}

/// The ceilings of a group, in the order of [`IoMax::rates`].
struct Ceilings([Ceiling; 6]);

/// The place of a group among the others.
struct Place {
    /// The group above.
    parent: AtomicU16,
    /// Made when the group gets its first limit, and kept for the life of the queue.
    ceilings: OnceLock<Box<Ceilings>>,
}

/// The places of every group that there may be, allocated for the life of the queue. A change of a group is a few
/// stores, and a thread that reads meanwhile sees old limits or new ones.
pub(crate) struct Meters {
    /// Does any group have limits? On a line that is rarely written; while no group has limits, submitters read only
    /// this.
    any: AtomicBool,
    groups: Box<[Place]>,
}

impl Meters {
    pub(crate) fn new() -> Self {
        let place =
            |_| Place { parent: AtomicU16::new(GroupId::ROOT.0), ceilings: OnceLock::new() };
        Self { any: AtomicBool::new(false), groups: (0..=MAX_GROUPS).map(place).collect() }
    }

    /// Does any group have limits? A plain load.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Sets the limits and parents of `tree`.
    pub(crate) fn set(&self, tree: &GroupTree) {
        for (id, place) in (0..).map(GroupId).zip(&self.groups) {
            let group = tree.get(id);
            let max = group.map(|group| group.max).unwrap_or_default();
            let parent = group.map_or(GroupId::ROOT, |group| group.parent);
            place.parent.store(parent.0, Ordering::Relaxed);
            if max.is_limited() {
                place.ceilings.get_or_init(|| Box::new(Ceilings::new())).set(&max);
            } else if let Some(ceilings) = place.ceilings.get() {
                ceilings.set(&max);
            }
        }
        let any = tree.iter().any(|group| group.max.is_limited());
        self.any.store(any, Ordering::Relaxed);
    }

    /// The ceilings from `group` up to below the root. While the tree is being changed the way up may be wrong, but it
    /// ends.
    fn above(&self, group: GroupId) -> impl Iterator<Item = &Ceilings> {
        let place = |id: u16| self.groups.get(usize::from(id)).filter(|_| id != GroupId::ROOT.0);
        let up = move |of: &&Place| place(of.parent.load(Ordering::Relaxed));
        let places = std::iter::successors(place(group.0), up).take(MAX_GROUPS.into());
        places.filter_map(|place| place.ceilings.get().map(|ceilings| &**ceilings))
    }

    /// Is there a limit for I/Os like this one?
    pub(crate) fn limit(&self, io: &IoMeta) -> bool {
        let is_limited = |of: &Ceilings| of.for_io(io).iter().any(|(of, _)| of.is_limited());
        io.op != Op::Flush && self.above(io.group).any(is_limited)
    }

    /// Reserves the time at which `io` may go, by the limits of its group and of all groups above: `now` or later.
    /// The I/O counts as gone.
    pub(crate) fn reserve(&self, now: Instant, io: &IoMeta) -> Instant {
        let mut at = now;
        for of in self.above(io.group) {
            for (ceiling, units) in of.for_io(io) {
                at = at.max(ceiling.reserve(now, units));
            }
        }
        at
    }
}

impl Ceilings {
    fn new() -> Self {
        Self([(); 6].map(|()| Ceiling { lasting: Meter::new(), peak: Meter::new() }))
    }

    fn set(&self, max: &IoMax) {
        for (ceiling, rate) in self.0.iter().zip(max.rates()) {
            ceiling.set(rate, max.burst);
        }
    }

    /// The ceilings for an I/O, and how many units it takes of each.
    fn for_io(&self, io: &IoMeta) -> [(&Ceiling, u64); 4] {
        let bytes = u64::from(io.sectors) * u64::from(SECTOR_SIZE);
        let [rbps, wbps, riops, wiops, bps, iops] = &self.0;
        match io.op {
            Op::Read => [(rbps, bytes), (riops, 1), (bps, bytes), (iops, 1)],
            Op::Write => [(wbps, bytes), (wiops, 1), (bps, bytes), (iops, 1)],
            // They transfer no data.
            Op::Discard | Op::WriteZeroes | Op::Flush => {
                [(wbps, 0), (wiops, 1), (bps, 0), (iops, 1)]
            }
        }
    }
}

impl Ceiling {
    fn set(&self, rate: Option<u64>, burst: Burst) {
        let peak = rate.filter(|_| burst.is_any()).map(|rate| burst.of(rate));
        let credit = Nanos(SLACK.0 + burst.credit().0);
        for (meter, rate, slack) in [(&self.lasting, rate, credit), (&self.peak, peak, SLACK)] {
            if rate.is_none() {
                meter.reset();
            }
            meter.set_rate(rate, slack);
        }
    }

    fn is_limited(&self) -> bool {
        self.lasting.is_limited()
    }

    /// An I/O that one of the two holds back goes later than the other asks for, which keeps to the other's rate, too.
    fn reserve(&self, now: Instant, units: u64) -> Instant {
        self.lasting.reserve(now, units).max(self.peak.reserve(now, units))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::groups::{GroupSpec, IoMax};

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

    fn io(tree: &GroupTree, op: Op, group: &str) -> IoMeta {
        IoMeta { group: tree.find(group).expect("there"), ..IoMeta::new(op, 0, 8) }
    }

    /// How many I/Os like `io` go within a second.
    fn in_a_second(meters: &Meters, io: &IoMeta) -> usize {
        let begin = Instant::from_nanos(1_000_000_000);
        let end = begin + Nanos::from_secs(1);
        (0..1_000_000).take_while(|_| meters.reserve(begin, io) < end).count()
    }

    #[test]
    fn each_kind_has_its_own_limit_and_those_above_hold_too() {
        let tree =
            tree(&[("a", "/", "riops=1000"), ("b", "a", "wbps=409600 wiops=500"), ("c", "/", "")]);
        let meters = Meters::new();
        meters.set(&tree);
        assert!(meters.any());
        // The slack of 10 ms comes on top, and one I/O that is on its way.
        assert_eq!(in_a_second(&meters, &io(&tree, Op::Read, "b")), 1010);
        assert_eq!(in_a_second(&meters, &io(&tree, Op::Write, "b")), 101);
        assert!(
            !meters.limit(&io(&tree, Op::Write, "a")) && meters.limit(&io(&tree, Op::Write, "b"))
        );
        assert!(
            !meters.limit(&io(&tree, Op::Read, "c")) && !meters.limit(&io(&tree, Op::Flush, "b"))
        );
        assert!(!meters.limit(&IoMeta::new(Op::Read, 0, 8)), "the root has none");
        let unknown = IoMeta { group: GroupId(u16::MAX), ..IoMeta::new(Op::Read, 0, 8) };
        assert_eq!(meters.reserve(Instant::ZERO, &unknown), Instant::ZERO);
    }

    /// The I/Os of `io`'s kind that go in each of `seconds` if there is always one more.
    fn in_each_second(meters: &Meters, io: &IoMeta, begin: u64, seconds: usize) -> Vec<u64> {
        let mut counts = vec![0; seconds];
        let mut now = Instant::from_nanos(begin * 1_000_000_000);
        loop {
            now = meters.reserve(now, io);
            let second = (now.as_nanos() / 1_000_000_000 - begin) as usize;
            match counts.get_mut(second) {
                Some(count) => *count += 1,
                None => return counts,
            }
        }
    }

    /// Within the tenth of a second that a burst may come early by, and one I/O.
    fn near(count: u64, rate: u64) -> bool {
        count.abs_diff(rate) <= rate / 100 + 1
    }

    #[test]
    fn a_burst_lasts_as_long_as_its_credit() {
        let tree = tree(&[("a", "/", "iops=1000 burst=3 burst_length=2")]);
        let meters = Meters::new();
        meters.set(&tree);
        let io = io(&tree, Op::Read, "a");
        let counts = in_each_second(&meters, &io, 100, 5);
        // Three times the limit for two seconds, and the limit from there.
        for (count, rate) in counts.iter().zip([3000, 3000, 1000, 1000, 1000]) {
            assert!(near(*count, rate), "{counts:?}");
        }
        // Two of the four seconds that fill the credit.
        let counts = in_each_second(&meters, &io, 107, 3);
        for (count, rate) in counts.iter().zip([3000, 1000, 1000]) {
            assert!(near(*count, rate), "{counts:?}");
        }
    }

    #[test]
    fn totals_count_both_directions_and_all_groups_below() {
        let names = ["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9"];
        let list = [("top", "/", "iops=1000 bps=8192000")];
        let list = list.into_iter().chain(names.map(|name| (name, "top", "")));
        let tree = tree(&Vec::from_iter(list));
        let meters = Meters::new();
        meters.set(&tree);
        let begin = Instant::from_nanos(1_000_000_000);
        let end = begin + Nanos::from_secs(1);
        let mut gone = 0;
        'second: loop {
            for (op, name) in [Op::Read, Op::Write].into_iter().cycle().zip(names) {
                if meters.reserve(begin, &io(&tree, op, name)) >= end {
                    break 'second;
                }
                gone += 1;
            }
        }
        assert_eq!(gone, 1010, "ten groups share the limit of the one above");
        let large = IoMeta { sectors: 32, ..io(&tree, Op::Write, "b3") };
        assert!(meters.limit(&large));
        let quiet = Instant::from_nanos(100_000_000_000);
        let many =
            (0..1000).filter(|_| meters.reserve(quiet, &large) < quiet + Nanos::from_secs(1));
        assert_eq!(many.count(), 505, "16 KiB each, of 8000 KiB");
    }

    #[test]
    fn a_group_without_limits_has_no_ceilings() {
        let meters = Meters::new();
        meters.set(&tree(&[("a", "/", "burst=2")]));
        assert!(!meters.any() && meters.groups.iter().all(|place| place.ceilings.get().is_none()));
    }

    #[test]
    fn discards_are_writes_without_data() {
        let tree = tree(&[("a", "/", "wbps=1 wiops=100")]);
        let meters = Meters::new();
        meters.set(&tree);
        assert_eq!(in_a_second(&meters, &io(&tree, Op::Discard, "a")), 101);
    }

    #[test]
    fn what_is_lifted_is_lifted_at_once() {
        let limited = tree(&[("a", "/", "riops=1")]);
        let meters = Meters::new();
        meters.set(&limited);
        let io = io(&limited, Op::Read, "a");
        // The second I/O comes early by the slack.
        assert_eq!(in_a_second(&meters, &io), 2);
        meters.set(&tree(&[("a", "/", "")]));
        assert!(!meters.any() && !meters.limit(&io));
        assert_eq!(meters.reserve(Instant::ZERO, &io), Instant::ZERO);
    }
}
