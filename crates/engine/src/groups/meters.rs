//! The limits of all groups as submitters keep to them: a meter for each kind of limit, and the parent of each group.

use super::bounds::MAX_GROUPS;
use super::tree::GroupTree;
use crate::sync::{AtomicBool, AtomicU16, Meter, Ordering};
use blkmq_core::{GroupId, Instant, IoMeta, Op, SECTOR_SIZE};

/// The meters of a group.
struct Meters4 {
    /// The group above.
    parent: AtomicU16,
    rbps: Meter,
    wbps: Meter,
    riops: Meter,
    wiops: Meter,
}

/// The meters of every group that there may be, allocated for the life of the queue. A change of a group is a few
/// stores, and a thread that reads meanwhile sees old limits or new ones.
pub(crate) struct Meters {
    /// Does any group have limits? On a line that is rarely written; while no group has limits, submitters read only
    /// this.
    any: AtomicBool,
    groups: Box<[Meters4]>,
}

impl Meters {
    pub(crate) fn new() -> Self {
        let meters = |_| Meters4 {
            parent: AtomicU16::new(GroupId::ROOT.0),
            rbps: Meter::new(),
            wbps: Meter::new(),
            riops: Meter::new(),
            wiops: Meter::new(),
        };
        Self { any: AtomicBool::new(false), groups: (0..=MAX_GROUPS).map(meters).collect() }
    }

    /// Does any group have limits? A plain load.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Sets the limits and parents of `tree`.
    pub(crate) fn set(&self, tree: &GroupTree) {
        for (id, meters) in (0..).map(GroupId).zip(&self.groups) {
            let group = tree.get(id);
            let max = group.map(|group| group.max).unwrap_or_default();
            let parent = group.map_or(GroupId::ROOT, |group| group.parent);
            meters.parent.store(parent.0, Ordering::Relaxed);
            for (meter, rate) in [
                (&meters.rbps, max.rbps),
                (&meters.wbps, max.wbps),
                (&meters.riops, max.riops),
                (&meters.wiops, max.wiops),
            ] {
                if rate.is_none() {
                    meter.reset();
                }
                meter.set_rate(rate);
            }
        }
        let any = tree.iter().any(|group| group.max.is_limited());
        self.any.store(any, Ordering::Relaxed);
    }

    /// The meters from `group` up to below the root. While the tree is being changed the way up may be wrong, but it
    /// ends.
    fn above(&self, group: GroupId) -> impl Iterator<Item = &Meters4> {
        let meters = |id: u16| self.groups.get(usize::from(id)).filter(|_| id != GroupId::ROOT.0);
        let up = move |of: &&Meters4| meters(of.parent.load(Ordering::Relaxed));
        std::iter::successors(meters(group.0), up).take(MAX_GROUPS.into())
    }

    /// Is there a limit for I/Os like this one?
    pub(crate) fn limit(&self, io: &IoMeta) -> bool {
        io.op != Op::Flush
            && self
                .above(io.group)
                .any(|of| of.kinds(io).iter().any(|(meter, _)| meter.is_limited()))
    }

    /// Reserves the time at which `io` may go, by the limits of its group and of all groups above: `now` or later.
    /// The I/O counts as gone.
    pub(crate) fn reserve(&self, now: Instant, io: &IoMeta) -> Instant {
        let mut at = now;
        for of in self.above(io.group) {
            for (meter, units) in of.kinds(io) {
                at = at.max(meter.reserve(now, units));
            }
        }
        at
    }
}

impl Meters4 {
    /// The meters for an I/O, and how many units it takes of each.
    fn kinds(&self, io: &IoMeta) -> [(&Meter, u64); 2] {
        let bytes = u64::from(io.sectors) * u64::from(SECTOR_SIZE);
        match io.op {
            Op::Read => [(&self.rbps, bytes), (&self.riops, 1)],
            Op::Write => [(&self.wbps, bytes), (&self.wiops, 1)],
            // They transfer no data.
            Op::Discard | Op::WriteZeroes | Op::Flush => [(&self.wbps, 0), (&self.wiops, 1)],
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::groups::{GroupSpec, IoMax};
    use blkmq_core::Nanos;

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
