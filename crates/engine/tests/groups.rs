//! Groups: the limits of `io.max` under every scheduler, and the changes of the tree that schedulers are notified of.
//! Ceilings are tested as an operator expects them: how a change affects waiting I/Os, and which I/Os wait for which.
//! Under a policy that shares by group, waiting I/Os get scheduler tags by group (decision 0013).

use crate::common::{Call, Calls, Handle, accesses, assert_at_rest, config, drain, replan, shape};
use blkmq_core::{GroupId, GroupIndex, Instant, IoError, Limits, Nanos, Op, Owner};
use blkmq_engine::{
    Config, GroupSpec, GroupTree, Io, IoMax, Plan, Queue, Refusal, Submitter, WriteCache,
    leaked_bios,
};
use blkmq_sched::{
    Cx, Factory, GroupChange, Observed, Observer, Options, Scheduler, Scope, Shape, none, registry,
};
use std::cell::RefCell;

fn tree(list: &[(&str, &str, &str)]) -> GroupTree {
    let wanted = |&(name, parent, max): &(&str, &str, &str)| GroupSpec {
        name: name.into(),
        parent: parent.into(),
        max: IoMax::default().set(max).expect("right"),
        ..GroupSpec::default()
    };
    GroupTree::of(list.iter().map(wanted).collect()).expect("a tree")
}

/// A queue with these groups around a device that completes immediately, and a submitter with a credit of 64.
fn grouped(groups: GroupTree, change: impl Fn(&mut Config<u32>)) -> (Queue<u32>, Submitter<u32>) {
    let (config, device) = config(shape(1, 64));
    device.with(|c| c.inline = true);
    let mut config = Config { groups, depth: 64, ..config };
    change(&mut config);
    let queue = Queue::new(config).expect("valid");
    let submitter = queue.submitter().expect("one was asked for");
    (queue, submitter)
}

fn io(op: Op, sector: u64, group: GroupId) -> Io<u32> {
    Io { group, ..Io::new(op, sector, 8, sector, sector as u32) }
}

fn set(queue: &Queue<u32>, now: Instant, edit: impl FnOnce(&mut GroupTree)) {
    let mut plan: Plan = queue.plan();
    edit(&mut plan.groups);
    let mut change = replan(queue, plan).expect("possible");
    while !change.step(now) {}
}

/// Keeps `in_flight` reads of each group in flight for a second, sleeping whenever that is allowed. Returns how many of
/// each group completed.
fn second(submitter: &mut Submitter<u32>, groups: &[GroupId], in_flight: u64) -> Vec<u64> {
    let begin = Instant::from_nanos(10_000_000_000);
    let (mut now, end) = (begin, begin + Nanos::from_secs(1));
    let (mut pushed, mut ended) = (vec![0; groups.len()], vec![0; groups.len()]);
    while now < end {
        for (at, group) in groups.iter().enumerate() {
            while pushed[at] - ended[at] < in_flight {
                let sector = (at as u64) << 32 | (pushed[at] * 64);
                submitter.push(now, io(Op::Read, sector, *group)).expect("there is credit");
                pushed[at] += 1;
            }
        }
        submitter.flush(now);
        submitter.poll(now);
        submitter.reap(u32::MAX, |done| ended[(done.cookie >> 32) as usize] += 1);
        let full = pushed.iter().zip(&ended).all(|(pushed, ended)| pushed - ended == in_flight);
        if full && submitter.prepare_park(now).is_some() {
            now = submitter.next_deadline().expect("something is to come").max(now);
            submitter.unpark();
        } else {
            now += Nanos::from_micros(100);
        }
    }
    // Waits for the I/Os that are still held back.
    while submitter.in_flight() > 0 {
        now += Nanos::from_millis(1);
        submitter.poll(now);
        submitter.reap(u32::MAX, |_| {});
    }
    ended
}

#[test]
fn a_limited_group_has_its_rate_and_the_others_do_not_wait_for_it() {
    for access in accesses() {
        let groups = tree(&[("a", "/", "riops=1000"), ("b", "/", "rbps=2048000"), ("c", "/", "")]);
        let ids = ["a", "b", "c"].map(|name| groups.find(name).expect("there"));
        let (queue, mut submitter) = grouped(groups, |c| c.access = access);
        let ended = second(&mut submitter, &ids, 8);
        // Within the slack of 10 ms.
        assert!((1000..=1011).contains(&ended[0]), "{access:?}: {ended:?}");
        assert!((500..=506).contains(&ended[1]), "{access:?}: {ended:?}");
        assert!(ended[2] > 5_000, "{access:?}: {ended:?}");
        assert!(queue.stats().throttled > 1000);
        assert_at_rest(&queue, 1);
    }
}

#[test]
fn groups_share_the_limit_of_the_group_above_them() {
    let groups = tree(&[("top", "/", "riops=900"), ("a", "top", ""), ("b", "top", "riops=300")]);
    let ids = ["a", "b"].map(|name| groups.find(name).expect("there"));
    let (_, mut submitter) = grouped(groups, |_| {});
    let ended = second(&mut submitter, &ids, 4);
    assert!((900..=912).contains(&(ended[0] + ended[1])), "{ended:?}");
    assert!(ended[1] <= 304, "{ended:?}");
}

#[test]
fn a_burst_exceeds_the_limit_by_its_credit() {
    let max = "iops=1000 burst=3 burst_length=0.25";
    let groups = tree(&[("a", "/", max), ("b", "a", ""), ("c", "/", "iops=1000")]);
    let ids = ["b", "c"].map(|name| groups.find(name).expect("there"));
    let (_, mut submitter) = grouped(groups, |_| {});
    let ended = second(&mut submitter, &ids, 8);
    // A quarter of a second at three times the limit, and the rest at the limit.
    assert!((1500..=1511).contains(&ended[0]), "{ended:?}");
    assert!((1000..=1011).contains(&ended[1]), "{ended:?}");
}

#[test]
fn what_is_held_back_keeps_its_order_and_can_be_given_up() {
    let groups = tree(&[("slow", "/", "wiops=10")]);
    let slow = groups.find("slow").expect("there");
    let (queue, mut submitter) = grouped(groups, |_| {});
    let mut now = Instant::from_nanos(1_000_000_000);
    for n in 0..6 {
        submitter.push(now, io(Op::Write, n * 64, slow)).expect("there is credit");
    }
    submitter.flush(now);
    submitter.cancel(now, 3 * 64);
    let mut ended = Vec::new();
    for _ in 0..7 {
        submitter.poll(now);
        submitter.reap(u32::MAX, |done| ended.push((done.cookie / 64, done.result)));
        assert!(submitter.prepare_park(now).is_some(), "there is nothing to do");
        submitter.unpark();
        now = submitter.next_deadline().unwrap_or(now);
    }
    let order = [
        (0, Ok(())),
        (3, Err(IoError::CANCELLED)),
        (1, Ok(())),
        (2, Ok(())),
        (4, Ok(())),
        (5, Ok(())),
    ];
    let mut sorted = ended.clone();
    sorted.sort_by_key(|(cookie, _)| order.iter().position(|(at, _)| at == cookie));
    assert_eq!(sorted, order);
    let done = ended.iter().filter(|(_, result)| result.is_ok()).map(|(cookie, _)| *cookie);
    assert_eq!(done.collect::<Vec<_>>(), [0, 1, 2, 4, 5]);
    // Four more I/Os, a tenth of a second each, less the slack.
    assert!(now.since(Instant::from_nanos(1_000_000_000)) >= Nanos::from_millis(390));
    assert_at_rest(&queue, 1);
}

/// Only the oldest I/O held back by a group's limits has a time; the next one gets its time when the oldest leaves.
/// Regression test: when the oldest was cancelled, the next one went at that time without being counted, so a group
/// could let small I/Os wait, cancel them, and send large ones at their price.
#[test]
fn what_is_given_up_does_not_pay_for_what_is_behind_it() {
    let groups = tree(&[("slow", "/", "wbps=512000")]);
    let slow = groups.find("slow").expect("there");
    let (_, mut submitter) = grouped(groups, |_| {});
    let begin = Instant::from_nanos(1_000_000_000);
    let write = |cookie: u64, sectors| {
        let at = cookie * 2000;
        Io { group: slow, ..Io::new(Op::Write, at, sectors, cookie, 0) }
    };
    // A second's worth, which goes immediately. Then, alternately, a small I/O, which is cancelled, and a large one.
    submitter.push(begin, write(0, 1000)).expect("there is credit");
    for n in 0..10 {
        submitter.push(begin, write(1 + 2 * n, 1)).expect("there is credit");
        submitter.push(begin, write(2 + 2 * n, 1000)).expect("there is credit");
    }
    submitter.flush(begin);
    let (mut now, mut ended) = (begin, Vec::new());
    for n in 0..10 {
        submitter.cancel(now, 1 + 2 * n);
        assert!(submitter.prepare_park(now).is_some() || submitter.has_completions(1));
        now = submitter.next_deadline().expect("the next one has a time").max(now);
        submitter.unpark();
        submitter.poll(now);
        submitter.reap(u32::MAX, |done| ended.push((done.cookie, done.result)));
    }
    let done = ended.iter().filter(|(_, result)| result.is_ok()).count();
    assert_eq!((done, ended.len()), (11, 21));
    let seconds = (now - begin).0 / 1_000_000_000;
    assert!(seconds >= 9, "11 seconds' worth took {seconds} s");
}

#[test]
fn a_limit_that_is_lifted_is_felt_at_once() {
    let groups = tree(&[("slow", "/", "riops=2")]);
    let slow = groups.find("slow").expect("there");
    let (queue, mut submitter) = grouped(groups, |_| {});
    let now = Instant::from_nanos(1_000_000_000);
    for n in 0..20 {
        submitter.push(now, io(Op::Read, n * 64, slow)).expect("there is credit");
    }
    submitter.flush(now);
    set(&queue, now, |tree| tree.set_max("slow", IoMax::default()).expect("there"));
    submitter.poll(now);
    assert_eq!(submitter.reap(u32::MAX, |done| assert!(done.result.is_ok())), 20);
    assert_at_rest(&queue, 1);
}

thread_local! {
    static HEARD: RefCell<Vec<GroupChange>> = const { RefCell::new(Vec::new()) };
}

/// `none`, which records the changes of groups that it is notified of.
static LISTENING: Factory = Factory {
    name: "listening",
    summary: "none, and it listens",
    scope: Scope::HwQueue,
    attributes: &[],
    common: None,
    build: |shape: &Shape, options: &Options| {
        Box::new(Observed::new((none::FACTORY.build)(shape, options), Listening))
    },
};

struct Listening;

impl Observer for Listening {
    fn regroup(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, change: GroupChange) {
        HEARD.with_borrow_mut(|heard| heard.push(change));
        policy.regroup(cx, change);
    }
}

#[test]
fn schedulers_hear_of_the_tree_when_they_are_built_and_of_every_change() {
    let (queue, _submitter) = grouped(tree(&[("b", "a", ""), ("a", "/", "")]), |c| {
        c.scheduler = &LISTENING;
        c.options = Options::defaults(&[]);
    });
    let heard = || HEARD.with_borrow_mut(std::mem::take);
    let (a, b) = (GroupIndex(1), GroupIndex(2));
    let added = |group, parent, weight| GroupChange::Added { group, parent, weight };
    assert_eq!(heard(), [added(a, GroupIndex::ROOT, 100), added(b, a, 100)]);
    let now = Instant::ZERO;
    set(&queue, now, |tree| tree.set_weight("b", 7).expect("there"));
    assert_eq!(heard(), [GroupChange::Weight { group: b, weight: 7 }]);
    set(&queue, now, |tree| {
        tree.remove("b").expect("nothing is below it");
        tree.add("c", "/").expect("free");
    });
    let c = GroupIndex(3);
    assert_eq!(heard(), [GroupChange::Removed { group: b }, added(c, GroupIndex::ROOT, 100)]);
    // Another depth needs another instance of the policy, which knows no groups yet.
    let mut change = queue.set_attribute("queue/nr_requests", "8").expect("possible");
    while !change.step(now) {}
    assert_eq!(heard(), [added(a, GroupIndex::ROOT, 100), added(c, GroupIndex::ROOT, 100)]);
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

const BFQ: &str = "bfq";

fn policy(name: &str) -> &'static Factory {
    registry::find(name).expect("it is registered")
}

/// Groups `a` and `b`, on a device with one tag and two scheduler tags; one submitter.
struct Fixture {
    queue: Queue<u32>,
    submitter: Submitter<u32>,
    device: Handle,
    groups: [GroupId; 2],
}

fn fixture(scheduler: &str, change: impl Fn(&mut Config<u32>)) -> Fixture {
    let wanted = |name: &str| GroupSpec {
        name: name.into(),
        parent: "/".into(),
        weight: 100,
        max: IoMax::default(),
        ..GroupSpec::default()
    };
    let tree = GroupTree::of(vec![wanted("a"), wanted("b")]).expect("a tree");
    let groups = ["a", "b"].map(|name| tree.find(name).expect("it is there"));
    let (config, device) = config(shape(1, 1));
    let mut config = Config { groups: tree, depth: 64, ..config }.scheduler(policy(scheduler));
    change(&mut config);
    let queue = Queue::new(config).expect("valid");
    let submitter = queue.submitter().expect("one was asked for");
    Fixture { queue, submitter, device, groups }
}

impl Fixture {
    fn push(&mut self, now: Instant, group: usize, sectors: impl IntoIterator<Item = u64>) {
        for sector in sectors {
            let io = Io::new(Op::Read, sector, 8, sector, sector as u32);
            let io = Io { group: self.groups[group], owner: Owner(group as u32 + 1), ..io };
            self.submitter.push(now, io).expect("there is credit");
            self.submitter.flush(now);
        }
    }
}

/// Ten I/Os that do not merge.
fn ten(from: u64) -> impl Iterator<Item = u64> {
    (0..10).map(move |n| from + n * 1000)
}

#[test]
fn a_group_does_not_wait_behind_another_ones_backlog() {
    for access in accesses() {
        // Turns of one I/O, so that the policy does not prefer the group in service.
        let mut it = fixture(BFQ, |c| {
            c.access = access;
            let options = Options::parse(c.scheduler.attributes, "low_latency=0,max_budget=8");
            c.options = options.expect("options of bfq");
        });
        let mut now = Instant::from_nanos(1_000_000_000);
        it.push(now, 0, ten(0));
        it.push(now, 1, [500_000]);
        it.device.with(|c| c.service = Some(Nanos::from_millis(1)));
        it.device.finish(1);
        assert_eq!(drain(&mut it.submitter, &mut now, 1000).len(), 11);
        let at = it.device.sectors().iter().position(|sector| *sector == 500_000);
        assert!(at <= Some(4), "{access:?}: {:?}", it.device.sectors());
        assert_at_rest(&it.queue, 1);
    }
}

#[test]
fn without_groups_in_the_policy_the_order_of_arrival_stays() {
    let mut it = fixture("none", |c| c.nr_requests = Some(2));
    let mut now = Instant::ZERO;
    it.push(now, 0, ten(0));
    it.push(now, 1, [500_000]);
    it.device.with(|c| c.service = Some(Nanos(1)));
    it.device.finish(1);
    drain(&mut it.submitter, &mut now, 1000);
    assert_eq!(it.device.sectors().last(), Some(&500_000));
}

#[test]
fn what_waits_still_merges_with_what_is_held() {
    for access in accesses() {
        let mut it = fixture(BFQ, |c| c.access = access);
        let mut now = Instant::from_nanos(1_000_000_000);
        // One I/O at the device, one held; sixteen contiguous ones wait.
        it.push(now, 0, [1 << 20, 1 << 21]);
        it.push(now, 0, (0..16).map(|n| n * 8));
        it.device.with(|c| c.service = Some(Nanos::from_millis(1)));
        it.device.finish(1);
        assert_eq!(drain(&mut it.submitter, &mut now, 1000).len(), 18);
        assert_eq!(it.device.with(|c| c.arrivals.len()), 3, "{access:?}");
        assert_at_rest(&it.queue, 1);
    }
}

#[test]
fn what_waits_can_be_given_up() {
    for access in accesses() {
        let mut it = fixture(BFQ, |c| c.access = access);
        let mut now = Instant::from_nanos(1_000_000_000);
        it.push(now, 0, ten(0));
        it.push(now, 1, ten(500_000));
        for cookie in [0, 7000, 503_000] {
            it.submitter.cancel(now, cookie);
        }
        let mut cancelled = Vec::new();
        it.submitter.poll(now);
        it.submitter.reap(u32::MAX, |done| {
            assert_eq!(done.result, Err(IoError::CANCELLED));
            cancelled.push(done.cookie);
        });
        cancelled.sort_unstable();
        // The I/O at 0 is at the device.
        assert_eq!(cancelled, [7000, 503_000], "{access:?}");
        it.device.with(|c| c.service = Some(Nanos::from_millis(1)));
        it.device.finish(1);
        assert_eq!(drain(&mut it.submitter, &mut now, 1000).len(), 18);
        assert_eq!(it.queue.stats().cancelled.staged, 2);
        assert_at_rest(&it.queue, 1);
    }
}

#[test]
fn what_waits_outlives_its_queue_and_its_group() {
    for access in accesses() {
        for next in ["none", "mq-deadline", BFQ] {
            let mut it = fixture(BFQ, |c| c.access = access);
            let mut now = Instant::from_nanos(1_000_000_000);
            it.push(now, 0, ten(0));
            it.push(now, 1, ten(500_000));
            it.device.with(|c| c.service = Some(Nanos::from_millis(1)));
            it.device.finish(1);
            let mut plan = it.queue.plan();
            plan.groups.remove("b").expect("nothing is below it");
            let mut change = replan(&it.queue, plan).expect("possible");
            while !change.step(now) {}
            it.push(now, 1, ten(900_000));
            let plan = it.queue.plan().scheduler(policy(next)).nr_requests(4);
            let mut change = replan(&it.queue, plan).expect("possible");
            while !change.step(now) {
                it.submitter.poll(now);
                now = it.submitter.next_deadline().map_or(now, |at| at.max(now));
            }
            let mut done = drain(&mut it.submitter, &mut now, 1000);
            done.sort_unstable();
            let expected: Vec<u64> = ten(0).chain(ten(500_000)).chain(ten(900_000)).collect();
            assert_eq!(done, expected, "{access:?} {next}");
            assert_at_rest(&it.queue, 1);
        }
    }
}

#[test]
fn groups_may_come_while_i_os_wait_in_staging() {
    for access in accesses() {
        let mut it = fixture(BFQ, |c| {
            c.access = access;
            c.groups = GroupTree::default();
        });
        it.groups = [GroupId::ROOT; 2];
        let mut now = Instant::from_nanos(1_000_000_000);
        it.push(now, 0, ten(0));
        let mut plan = it.queue.plan();
        it.groups = ["c", "d"].map(|name| plan.groups.add(name, "/").expect("a new name"));
        let mut change = replan(&it.queue, plan).expect("possible");
        while !change.step(now) {}
        it.push(now, 1, ten(500_000));
        it.device.with(|c| c.service = Some(Nanos::from_millis(1)));
        it.device.finish(1);
        assert_eq!(drain(&mut it.submitter, &mut now, 1000).len(), 20, "{access:?}");
        assert_at_rest(&it.queue, 1);
    }
}

#[test]
fn payloads_of_what_waits_are_freed_with_the_queue() {
    let before = leaked_bios();
    let mut it = fixture(BFQ, |_| {});
    it.push(Instant::ZERO, 0, ten(0));
    it.push(Instant::ZERO, 1, ten(500_000));
    drop(it);
    assert_eq!(leaked_bios(), before);
}
