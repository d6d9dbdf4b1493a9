//! The limits of all groups as submitters apply them: a ceiling for each kind of limit, and the parent of each group.
//!
//! An I/O climbs the tree. It passes the meters of its own group first, its direction before the totals, then the
//! meters of the parent, and so on. Each meter counts the I/O when it arrives there. So a waiting I/O has used up
//! nothing of the later meters, and does not delay I/Os that pass only these.
//!
//! The ceilings of a removed group, and its place in the tree, stay for the I/Os that carry its id, until its index is
//! reused. From then on the id is stale, and I/Os with it are refused.

use super::IoMax;
use super::tree::GroupTree;
use crate::groups::Burst;
use crate::groups::tree::MAX_GROUPS;
use crate::sync::meter::{Booking, Meter, SLACK};
use crate::sync::{AtomicBool, AtomicU64, OnceLock, Ordering};
use blkmq_core::{GroupId, GroupIndex, Instant, IoMeta, Nanos, Op, SECTOR_SIZE};

/// A limit: the long-term rate, with the credit of a burst as its slack, and the rate during a burst.
struct Ceiling {
    lasting: Meter,
    /// Unlimited unless bursts are allowed.
    peak: Meter,
}

/// The ceilings of a group, in the order of [`IoMax::rates`].
struct Ceilings([Ceiling; 6]);

/// Marks an index that no group has had: a generation that no id has, and the root as the parent.
const NO_GENERATION: u64 = u64::MAX << u16::BITS;

/// A group's place in the tree.
struct Place {
    /// The generation of the group that has or last had this index and, in the low bits, the index of its parent.
    group: AtomicU64,
    /// Made when the group gets its first limit, and kept for the life of the queue.
    ceilings: OnceLock<Box<Ceilings>>,
}

/// The places of all possible groups, allocated for the life of the queue. A change of a group is a few stores; a
/// thread that reads during the change sees old or new limits.
pub(crate) struct Meters {
    /// Whether any group has limits. On a line that is rarely written; while no group has limits, submitters read only
    /// this.
    any: AtomicBool,
    groups: Box<[Place]>,
}

impl Meters {
    pub(crate) fn new() -> Self {
        let groups = (0..=MAX_GROUPS).map(|_| Place::new()).collect();
        Self { any: AtomicBool::new(false), groups }
    }

    /// Returns whether any group has limits. A plain load.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Returns whether the id belongs to a group of this queue, or to a removed one whose index was not reused. The id
    /// of the root is never stale.
    #[inline]
    pub(crate) fn knows(&self, id: GroupId) -> bool {
        let place = self.groups.get(usize::from(id.index().0));
        place.is_some_and(|place| place.generation() == id.generation())
    }

    /// The id of the group that has or last had this index.
    pub(crate) fn id(&self, index: GroupIndex) -> GroupId {
        match index {
            GroupIndex::ROOT => GroupId::ROOT,
            _ => GroupId::new(index, self.groups[usize::from(index.0)].generation()),
        }
    }

    /// Sets the limits and parents of `new`, which replaces `old`. Returns whether I/Os may be waiting for a limit that
    /// has changed: the caller must then make all submitters check again. Called by one thread at a time.
    pub(crate) fn set(&self, now: Instant, old: &GroupTree, new: &GroupTree) -> bool {
        let mut has_changed = false;
        for group in new.iter() {
            let place = &self.groups[usize::from(group.id.index().0)];
            let before = old.get(group.id);
            let is_another = before.is_none_or(|before| before.max != group.max);
            has_changed |= is_another && place.is_limited();
            if before.is_none() {
                self.leave(group.id.index(), new);
                place.set_max(now, &IoMax::default());
            }
            place.set(group.id.generation(), group.parent.index());
            place.set_max(now, &group.max);
        }
        let any = self.groups.iter().any(Place::is_limited);
        self.any.store(any, Ordering::Relaxed);
        has_changed
    }

    /// Prepares the index for reuse: removed groups whose parent had this index become children of its parent.
    fn leave(&self, index: GroupIndex, new: &GroupTree) {
        let parent = self.groups[usize::from(index.0)].parent();
        for (other, place) in (0..).map(GroupIndex).zip(&self.groups) {
            if place.parent() == index && new.at(other).is_none() {
                place.set(place.generation(), parent);
            }
        }
    }

    /// The places of `group` and its ancestors, without the root. While the tree is being changed the path may be
    /// wrong, but it ends.
    fn way_up(&self, group: GroupIndex) -> impl Iterator<Item = (GroupIndex, &Place)> {
        let place = |id: GroupIndex| {
            let place = self.groups.get(usize::from(id.0)).filter(|_| id != GroupIndex::ROOT)?;
            Some((id, place))
        };
        let up = move |of: &(GroupIndex, &Place)| place(of.1.parent());
        std::iter::successors(place(group), up).take(MAX_GROUPS.into())
    }

    /// Returns whether any limit applies to I/Os like this one.
    pub(crate) fn limit(&self, io: &IoMeta) -> bool {
        let counts = |ceilings: &Ceilings| {
            ceilings.for_io(io).iter().any(|(meter, units)| *units > 0 && meter.is_limited())
        };
        self.way_up(io.group).any(|(_, place)| place.ceilings().is_some_and(counts))
    }

    /// Takes `io` past the meters of its group and its ancestors that let it through at `now`, starting after `stand`.
    /// Each meter counts the I/O. Returns the first meter that does not let it through, and the time at which it will;
    /// `None` if the I/O may proceed.
    pub(crate) fn climb(&self, now: Instant, io: &IoMeta, stand: Option<Stand>) -> Option<Stand> {
        let (group, mut first) = stand.map_or((io.group, 0), |it| (it.group, it.meter + 1));
        for (group, place) in self.way_up(group) {
            let behind = std::mem::take(&mut first);
            let Some(ceilings) = place.ceilings() else { continue };
            for (meter, (of, units)) in ceilings.for_io(io).into_iter().enumerate().skip(behind) {
                let booking = of.reserve(now, units);
                if booking.at > now {
                    return Some(Stand { group, meter, booking });
                }
            }
        }
        None
    }

    fn meter(&self, io: &IoMeta, stand: &Stand) -> &Meter {
        let place = &self.groups[usize::from(stand.group.0)];
        let ceilings = place.ceilings().expect("an I/O waits for a ceiling that there is");
        ceilings.for_io(io)[stand.meter].0
    }

    /// Returns whether the limit for which `io` waits has changed since its time was set.
    pub(crate) fn has_changed(&self, io: &IoMeta, stand: &Stand) -> bool {
        self.meter(io, stand).has_changed(stand.booking)
    }

    /// Sets the time of `io` according to the current limit.
    pub(crate) fn revise(&self, now: Instant, io: &IoMeta, stand: &mut Stand) {
        stand.booking = self.meter(io, stand).revised(now, stand.booking);
    }
}

/// The meter at which an I/O waits on its way up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stand {
    group: GroupIndex,
    /// Its position among the meters for the I/O.
    meter: usize,
    booking: Booking,
}

impl Stand {
    /// The time at which the I/O may pass.
    pub(crate) fn at(&self) -> Instant {
        self.booking.at
    }
}

impl Place {
    fn new() -> Self {
        Self { group: AtomicU64::new(NO_GENERATION), ceilings: OnceLock::new() }
    }

    fn set(&self, generation: u64, parent: GroupIndex) {
        let group = generation << u16::BITS | u64::from(parent.0);
        self.group.store(group, Ordering::Relaxed);
    }

    fn generation(&self) -> u64 {
        self.group.load(Ordering::Relaxed) >> u16::BITS
    }

    fn parent(&self) -> GroupIndex {
        GroupIndex(self.group.load(Ordering::Relaxed) as u16)
    }

    fn set_max(&self, now: Instant, max: &IoMax) {
        if max.is_limited() {
            self.ceilings.get_or_init(|| Box::new(Ceilings::new())).set(now, max);
        } else if let Some(ceilings) = self.ceilings() {
            ceilings.set(now, max);
        }
    }

    fn ceilings(&self) -> Option<&Ceilings> {
        self.ceilings.get().map(|ceilings| &**ceilings)
    }

    fn is_limited(&self) -> bool {
        let limited = |of: &Ceilings| of.0.iter().any(|ceiling| ceiling.lasting.is_limited());
        self.ceilings().is_some_and(limited)
    }
}

impl Ceilings {
    fn new() -> Self {
        Self([(); 6].map(|()| Ceiling { lasting: Meter::new(), peak: Meter::new() }))
    }

    fn set(&self, now: Instant, max: &IoMax) {
        for (ceiling, rate) in self.0.iter().zip(max.rates()) {
            ceiling.set(now, rate, max.burst);
        }
    }

    /// The meters for an I/O in the order in which it passes them, and the units that it takes of each.
    fn for_io(&self, io: &IoMeta) -> [(&Meter, u64); 8] {
        let bytes = u64::from(io.sectors) * u64::from(SECTOR_SIZE);
        let [rbps, wbps, riops, wiops, bps, iops] = &self.0;
        let (of_bytes, of_ios, bytes) = match io.op {
            Op::Read => (rbps, riops, bytes),
            Op::Write => (wbps, wiops, bytes),
            // Discards, zeroing and flushes transfer no data.
            Op::Discard | Op::WriteZeroes | Op::Flush => (wbps, wiops, 0),
        };
        let [a, b] = of_bytes.meters(bytes);
        let [c, d] = of_ios.meters(1);
        let [e, f] = bps.meters(bytes);
        let [g, h] = iops.meters(1);
        [a, b, c, d, e, f, g, h]
    }
}

impl Ceiling {
    fn set(&self, now: Instant, rate: Option<u64>, burst: Burst) {
        let peak = rate.filter(|_| burst.is_any()).map(|rate| burst.of(rate));
        let credit = Nanos(SLACK.0 + burst.credit().0);
        self.lasting.set_rate(now, rate, credit);
        self.peak.set_rate(now, peak, SLACK);
    }

    fn meters(&self, units: u64) -> [(&Meter, u64); 2] {
        [(&self.lasting, units), (&self.peak, units)]
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

    /// The meters of a new queue with this tree.
    fn meters(tree: &GroupTree) -> Meters {
        let meters = Meters::new();
        assert!(!meters.set(Instant::ZERO, &GroupTree::default(), tree));
        meters
    }

    /// When an I/O that arrives at `now` proceeds, after all of its waits.
    fn goes(meters: &Meters, now: Instant, io: &IoMeta) -> Instant {
        let first = meters.climb(now, io, None);
        let stands = std::iter::successors(first, |it| meters.climb(it.at(), io, Some(*it)));
        stands.last().map_or(now, |it| it.at())
    }

    fn io(tree: &GroupTree, op: Op, group: &str) -> IoMeta {
        IoMeta { group: tree.find(group).expect("there").index(), ..IoMeta::new(op, 0, 8) }
    }

    /// The number of I/Os like `io` that proceed within a second.
    fn in_a_second(meters: &Meters, io: &IoMeta) -> usize {
        let begin = Instant::from_nanos(1_000_000_000);
        let end = begin + Nanos::from_secs(1);
        (0..1_000_000).take_while(|_| goes(meters, begin, io) < end).count()
    }

    #[test]
    fn each_kind_has_its_own_limit_and_those_above_hold_too() {
        let tree =
            tree(&[("a", "/", "riops=1000"), ("b", "a", "wbps=409600 wiops=500"), ("c", "/", "")]);
        let meters = meters(&tree);
        assert!(meters.any());
        // In addition to the rate: the slack of 10 ms, and one I/O in progress.
        assert_eq!(in_a_second(&meters, &io(&tree, Op::Read, "b")), 1010);
        assert_eq!(in_a_second(&meters, &io(&tree, Op::Write, "b")), 101);
        assert!(
            !meters.limit(&io(&tree, Op::Write, "a")) && meters.limit(&io(&tree, Op::Write, "b"))
        );
        assert!(
            !meters.limit(&io(&tree, Op::Read, "c")) && meters.limit(&io(&tree, Op::Flush, "b"))
        );
        assert!(!meters.limit(&IoMeta::new(Op::Read, 0, 8)), "the root has none");
        let unknown = IoMeta { group: GroupIndex(u16::MAX), ..IoMeta::new(Op::Read, 0, 8) };
        assert_eq!(goes(&meters, Instant::ZERO, &unknown), Instant::ZERO);
    }

    /// The number of I/Os like `io` that proceed in each of `seconds` if one is always waiting.
    fn in_each_second(meters: &Meters, io: &IoMeta, begin: u64, seconds: usize) -> Vec<u64> {
        let mut counts = vec![0; seconds];
        let mut now = Instant::from_nanos(begin * 1_000_000_000);
        loop {
            now = goes(meters, now, io);
            let second = (now.as_nanos() / 1_000_000_000 - begin) as usize;
            match counts.get_mut(second) {
                Some(count) => *count += 1,
                None => return counts,
            }
        }
    }

    /// Within the tenth of a second by which a burst may come early, and one I/O.
    fn near(count: u64, rate: u64) -> bool {
        count.abs_diff(rate) <= rate / 100 + 1
    }

    #[test]
    fn a_burst_lasts_as_long_as_its_credit() {
        let tree = tree(&[("a", "/", "iops=1000 burst=3 burst_length=2")]);
        let meters = meters(&tree);
        let io = io(&tree, Op::Read, "a");
        let counts = in_each_second(&meters, &io, 100, 5);
        // Three times the limit for two seconds, and the limit after that.
        for (count, rate) in counts.iter().zip([3000, 3000, 1000, 1000, 1000]) {
            assert!(near(*count, rate), "{counts:?}");
        }
        // Two of the four seconds that refill the credit have passed.
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
        let meters = meters(&tree);
        let begin = Instant::from_nanos(1_000_000_000);
        let end = begin + Nanos::from_secs(1);
        let mut gone = 0;
        'second: loop {
            for (op, name) in [Op::Read, Op::Write].into_iter().cycle().zip(names) {
                if goes(&meters, begin, &io(&tree, op, name)) >= end {
                    break 'second;
                }
                gone += 1;
            }
        }
        assert_eq!(gone, 1010, "ten groups share the limit of the one above");
        let large = IoMeta { sectors: 32, ..io(&tree, Op::Write, "b3") };
        assert!(meters.limit(&large));
        let quiet = Instant::from_nanos(100_000_000_000);
        let many = (0..1000).filter(|_| goes(&meters, quiet, &large) < quiet + Nanos::from_secs(1));
        assert_eq!(many.count(), 505, "16 KiB each, of 8000 KiB");
    }

    #[test]
    fn a_group_without_limits_has_no_ceilings() {
        let meters = meters(&tree(&[("a", "/", "burst=2")]));
        assert!(!meters.any() && meters.groups.iter().all(|place| place.ceilings.get().is_none()));
    }

    #[test]
    fn discards_are_writes_without_data() {
        let tree = tree(&[("a", "/", "wbps=1 wiops=100")]);
        let meters = meters(&tree);
        assert_eq!(in_a_second(&meters, &io(&tree, Op::Discard, "a")), 101);
    }

    #[test]
    fn what_is_lifted_is_lifted_at_once() {
        let limited = tree(&[("a", "/", "riops=1")]);
        let meters = meters(&limited);
        let io = io(&limited, Op::Read, "a");
        // The second I/O comes early by the slack.
        assert_eq!(in_a_second(&meters, &io), 2);
        assert!(meters.set(Instant::ZERO, &limited, &tree(&[("a", "/", "")])));
        assert!(!meters.any() && !meters.limit(&io));
        assert_eq!(goes(&meters, Instant::ZERO, &io), Instant::ZERO);
    }
}
