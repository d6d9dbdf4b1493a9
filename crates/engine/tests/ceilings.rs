//! Ceilings as an operator expects them: how a change affects waiting I/Os, and which I/Os wait for which.

use crate::common;

use blkmq_core::{GroupId, Instant, Limits, Nanos, Op};
use blkmq_engine::{
    Config, GroupSpec, GroupTree, Io, IoMax, Queue, Refusal, Submitter, WriteCache,
};
use common::{Call, Calls, config, replan, shape};

fn tree(list: &[(&str, &str, &str)]) -> GroupTree {
    let wanted = |&(name, parent, max): &(&str, &str, &str)| GroupSpec {
        name: name.into(),
        parent: parent.into(),
        max: IoMax::default().set(max).expect("right"),
        ..GroupSpec::default()
    };
    GroupTree::of(list.iter().map(wanted).collect()).expect("a tree")
}

/// A queue with these groups and its submitters, around a device that completes immediately and has a volatile cache.
struct Bench {
    queue: Queue<u32>,
    calls: Calls,
    submitters: Vec<Submitter<u32>>,
    /// Completions that have been reaped but that no test has waited for, by submitter.
    had: Vec<u32>,
    ids: Vec<GroupId>,
    now: Instant,
}

/// The longest I/O of these tests, which the device takes whole: 4 MiB.
const LONGEST: u32 = 8192;

impl Bench {
    fn new(submitters: u16, list: &[(&str, &str, &str)]) -> Self {
        let mut shape = shape(1, 64);
        shape.cache = WriteCache::Back { fua: false };
        shape.limits =
            Limits { max_sectors: LONGEST, max_segment_size: LONGEST * 512, ..shape.limits };
        let (config, device) = config(shape);
        device.with(|c| c.inline = true);
        let (groups, calls) = (tree(list), Calls::default());
        let ids = list.iter().map(|(name, ..)| groups.find(name).expect("there")).collect();
        let host = Box::new(calls.clone());
        let queue = Queue::new(Config { groups, depth: 64, submitters, host, ..config });
        let queue = queue.expect("valid");
        let had = vec![0; submitters.into()];
        let submitters = (0..submitters).map(|_| queue.submitter().expect("asked for")).collect();
        Self { queue, calls, submitters, had, ids, now: Instant::from_nanos(10_000_000_000) }
    }

    /// Submits one I/O of a group.
    fn submit(&mut self, by: usize, op: Op, group: usize, sectors: u32) {
        let sector = if op == Op::Flush { 0 } else { 1 << 20 };
        let io = Io { group: self.ids[group], ..Io::new(op, sector, sectors, 0, 0) };
        self.submitters[by].push(self.now, io).expect("there is credit");
        self.submitters[by].flush(self.now);
    }

    /// Takes the completions of a submitter so far.
    fn reap(&mut self, by: usize) -> u32 {
        self.submitters[by].poll(self.now);
        self.submitters[by].reap(u32::MAX, |done| assert!(done.result.is_ok()))
    }

    /// How long it takes until a submitter has `ios` more completions, while every submitter works when it is due.
    fn wait(&mut self, by: usize, ios: u32) -> Nanos {
        let begin = self.now;
        loop {
            for each in 0..self.submitters.len() {
                self.had[each] += self.reap(each);
            }
            if let Some(left) = self.had[by].checked_sub(ios) {
                self.had[by] = left;
                return self.now - begin;
            }
            let next = self.submitters.iter().filter_map(Submitter::next_deadline).min();
            self.now = next.expect("an I/O is still to come").max(self.now + Nanos(1));
        }
    }

    /// Why an I/O of this group is refused; `None` if it is not.
    fn refusal(&mut self, group: GroupId) -> Option<Refusal> {
        let io = Io { group, ..Io::new(Op::Read, 0, 8, 0, 0) };
        self.submitters[0].push(self.now, io).err().map(|refused| refused.why)
    }

    fn edit(&mut self, edit: impl FnOnce(&mut GroupTree)) {
        let mut plan = self.queue.plan();
        edit(&mut plan.groups);
        let mut change = replan(&self.queue, plan).expect("possible");
        while !change.step(self.now) {}
    }

    fn set_max(&mut self, name: &str, max: &str) {
        let max = IoMax::default().set(max).expect("right");
        self.edit(|tree| tree.set_max(name, max).expect("there"));
    }

    fn pass(&mut self, ms: u64) {
        self.now += Nanos::from_millis(ms);
    }
}

fn ms(wait: Nanos) -> u64 {
    wait.0 / 1_000_000
}

/// Regression test: `wbps=1000`, meant as `1000m`, was corrected after a second. The waiting I/O kept its time of 64 s,
/// and new ones waited for the debt of the earlier ones: 65 s, and 70 minutes after a write of 4 MiB.
#[test]
fn a_ceiling_that_is_corrected_is_felt_by_all_that_waits() {
    let fast = "wbps=1000000000";
    for (wrong, right) in [
        ("wbps=1000", fast),
        ("wbps=1000", ""),
        ("wbps=1000 burst=2 burst_length=0.1", "wbps=1000000000 burst=2 burst_length=0.1"),
        ("wbps=1000 burst=2 burst_length=0.1", fast),
        ("bps=1000 wiops=100000", "bps=1000000000 wiops=100000"),
    ] {
        let mut b = Bench::new(2, &[("a", "/", wrong)]);
        b.submit(0, Op::Write, 0, LONGEST);
        assert_eq!(b.reap(0), 1);
        b.submit(0, Op::Write, 0, 8);
        b.submit(0, Op::Write, 0, 8);
        b.pass(1000);
        assert_eq!(b.reap(0), 0, "{wrong}");
        assert!(b.submitters[0].prepare_park(b.now).is_some(), "there is nothing to do");
        let _ = b.calls.take();
        b.set_max("a", right);
        let id = b.submitters[0].id();
        assert!(b.calls.take().contains(&Call::Submitter(id)), "{wrong}: it sleeps on");
        b.submitters[0].unpark();
        b.submit(1, Op::Write, 0, 8);
        let begin = b.now;
        b.wait(0, 2);
        b.wait(1, 1);
        // 4 MiB at 1 GB/s, and the last two.
        assert!(b.now - begin < Nanos::from_millis(5), "{wrong}, {right}: {:?}", b.now - begin);
    }
}

/// The rest of the debt is scaled: at half the rate, a waiting I/O waits twice as long.
#[test]
fn a_ceiling_that_is_lowered_makes_all_that_waits_wait_longer() {
    let mut b = Bench::new(1, &[("p", "/", "riops=10"), ("a", "p", "")]);
    (0..3).for_each(|_| b.submit(0, Op::Read, 1, 8));
    assert_eq!(b.reap(0), 1);
    b.pass(40);
    b.set_max("p", "riops=5");
    // 50 ms of the first 100 are left, less the slack of 10.
    assert_eq!(ms(b.wait(0, 1)), 100);
    assert_eq!(ms(b.wait(0, 1)), 200);
}

/// A thread that is about to sleep while a ceiling is changed checks once more.
#[test]
fn a_change_that_comes_first_keeps_a_submitter_awake() {
    let mut b = Bench::new(1, &[("a", "/", "riops=1")]);
    (0..3).for_each(|_| b.submit(0, Op::Read, 0, 8));
    assert_eq!(b.reap(0), 1);
    b.set_max("a", "riops=1000");
    assert!(b.submitters[0].prepare_park(b.now).is_none(), "its times are old");
    assert!(ms(b.wait(0, 2)) <= 2);
}

/// Regression test: a group had one line for both directions, so 32 reads that had reached `riops=10` held back a
/// write, which has no ceiling, for 2.9 s.
#[test]
fn a_ceiling_on_reads_delays_no_write() {
    for (held, other) in [(Op::Read, Op::Write), (Op::Write, Op::Read)] {
        let max = if held == Op::Read { "riops=10" } else { "wiops=10" };
        let mut b = Bench::new(1, &[("a", "/", max)]);
        (0..32).for_each(|_| b.submit(0, held, 0, 8));
        assert_eq!(b.reap(0), 1);
        b.submit(0, other, 0, 8);
        assert_eq!(b.reap(0), 1, "{other:?}");
        assert_eq!(ms(b.wait(0, 31)), 3090, "the others keep their rate");
    }
}

/// The time that a read of 4 KiB of `b` takes, 50 ms after each of `threads` has submitted two writes of 4 MiB of `a`.
fn sibling(threads: u16, list: &[(&str, &str, &str)], op: Op) -> u64 {
    let mut b = Bench::new(threads + 1, list);
    for by in 0..usize::from(threads) {
        (0..2).for_each(|_| b.submit(by, Op::Write, 1, LONGEST));
    }
    b.pass(50);
    let by = usize::from(threads);
    b.submit(by, op, 2, 8);
    ms(b.wait(by, 1))
}

/// Regression test: an I/O that waited for the ceiling of its own group was already counted for its ancestors. A
/// sibling waited for 30 ms beside one such thread, 630 ms beside 16, and 10.2 s beside 256, while a hundredth of their
/// shared ceiling was in use.
#[test]
fn what_waits_for_its_own_ceiling_uses_up_none_above() {
    let list = [("p", "/", "bps=104857600"), ("a", "p", "wbps=1048576"), ("b", "p", "")];
    for threads in [1, 16, 64, 256] {
        let waited = sibling(threads, &list, Op::Read);
        assert!(waited <= 40, "{threads}: {waited} ms");
    }
}

/// Within one group, an I/O that waits for `wbps` uses up no `bps`.
#[test]
fn what_waits_for_one_direction_uses_up_no_total() {
    let list = [("p", "/", ""), ("a", "p", "wbps=1048576 bps=104857600"), ("b", "a", "")];
    for threads in [1, 64] {
        let waited = sibling(threads, &list, Op::Read);
        assert!(waited <= 40, "{threads}: {waited} ms");
    }
}

/// Both levels bound what passes through them, whichever is the lower one.
#[test]
fn an_io_meets_one_ceiling_after_the_other() {
    for list in [
        [("p", "/", "riops=100"), ("a", "p", "riops=50")],
        [("p", "/", "riops=50"), ("a", "p", "riops=100")],
        [("p", "/", "iops=50"), ("a", "p", "riops=50 rbps=204800")],
    ] {
        let mut b = Bench::new(2, &list);
        (0..2).for_each(|by| (0..25).for_each(|_| b.submit(by, Op::Read, 1, 8)));
        let first = ms(b.wait(0, 25));
        let last = first + ms(b.wait(1, 25));
        assert!((960..=990).contains(&last), "{list:?}: {last}");
    }
}

/// A flush without data is a write of no bytes, as in Linux. Regression test: a client exceeded a ceiling of one I/O
/// per second with 3866 flushes.
#[test]
fn a_flush_counts_as_a_write() {
    for (max, ios) in [("wiops=10", 10), ("iops=10", 10)] {
        let mut b = Bench::new(1, &[("a", "/", max)]);
        (0..ios).for_each(|_| b.submit(0, Op::Flush, 0, 0));
        assert_eq!(ms(b.wait(0, ios)), 890, "{max}");
    }
    let mut b = Bench::new(1, &[("a", "/", "riops=1 wbps=1")]);
    (0..20).for_each(|_| b.submit(0, Op::Flush, 0, 0));
    assert_eq!(ms(b.wait(0, 20)), 0, "it has no bytes");
}

/// Data with PREFLUSH and FUA is one write, although the device receives three requests for it.
#[test]
fn a_write_with_flushes_around_it_is_one() {
    use blkmq_core::IoFlags;
    let mut b = Bench::new(1, &[("a", "/", "wiops=10")]);
    for n in 0..10 {
        let flags = IoFlags::PREFLUSH | IoFlags::FUA;
        let io = Io { group: b.ids[0], flags, ..Io::new(Op::Write, n * 64, 8, n, 0) };
        b.submitters[0].push(b.now, io).expect("there is credit");
    }
    b.submitters[0].flush(b.now);
    assert_eq!(ms(b.wait(0, 10)), 890);
}

/// As in Linux, each part of a divided I/O counts as one.
#[test]
fn an_io_that_is_divided_counts_for_each_of_its_parts() {
    let mut b = Bench::new(1, &[("a", "/", "wiops=10")]);
    b.submit(0, Op::Write, 0, LONGEST);
    b.submit(0, Op::Write, 0, 3 * LONGEST);
    assert_eq!(ms(b.wait(0, 2)), 290);
}

/// Regression test: the ceilings of a group were lifted when it was removed, and so were its ancestors' for its I/Os:
/// 104 reads in a second while there was a guard, and 233579 after it.
#[test]
fn the_ceilings_of_a_removed_group_hold_for_its_ios() {
    for list in [[("p", "/", ""), ("a", "p", "riops=10")], [("p", "/", "riops=10"), ("a", "p", "")]]
    {
        let mut b = Bench::new(1, &list);
        (0..5).for_each(|_| b.submit(0, Op::Read, 1, 8));
        assert_eq!(b.reap(0), 1);
        b.edit(|tree| tree.remove("a").expect("nothing is below it"));
        (0..5).for_each(|_| b.submit(0, Op::Read, 1, 8));
        assert_eq!(ms(b.wait(0, 9)), 890, "{list:?}");
    }
}

/// Regression test: an id was only the index, so after 1023 additions I/Os of a removed group counted for another one.
/// A reused index inherits nothing from its former group, and neither do the descendants of that group.
#[test]
fn a_stale_id_is_refused_and_its_index_begins_anew() {
    let mut b = Bench::new(1, &[("p", "/", "riops=1"), ("a", "p", "")]);
    (0..3).for_each(|_| b.submit(0, Op::Read, 0, 8));
    assert_eq!(b.reap(0), 1);
    let now = b.now;
    b.edit(|tree| {
        tree.remove("a").expect("nothing is below it");
        tree.remove("p").expect("nor below that");
        tree.add("stays", "/").expect("free");
    });
    assert!(ms(b.wait(0, 2)) >= 1900, "it still counts");
    b.now = now;
    // Up to the index of `p`.
    let stale = b.ids[0];
    b.edit(|tree| {
        while tree.add("next", "/").expect("one is free").index() != stale.index() {
            tree.remove("next").expect("just added");
        }
    });
    b.set_max("next", "wiops=1");
    assert_eq!(b.refusal(stale), Some(Refusal::NoGroup));
    let other = Bench::new(1, &[("p", "/", ""), ("a", "p", "")]);
    assert_eq!(b.refusal(other.ids[1]), Some(Refusal::NoGroup), "of another queue");
    b.ids[0] = b.queue.plan().groups.find("next").expect("there");
    for group in [0, 1] {
        (0..20).for_each(|_| b.submit(0, Op::Read, group, 8));
        assert_eq!(ms(b.wait(0, 20)), 0, "group {group}");
        (0..3).for_each(|_| b.submit(0, Op::Write, group, 8));
        let waited = ms(b.wait(0, 3));
        assert_eq!(waited >= 1900, group == 0, "group {group}: {waited}");
    }
}
