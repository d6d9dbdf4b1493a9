//! Marks that one thread leaves for another one: that it waits for a tag ([`Restart`]), that it has staged work
//! ([`Pending`]), that it sleeps ([`Sleepers`]), that it polls its lane ([`Attendance`]).
//!
//! # Why the orderings are enough
//!
//! One argument serves all four. A thread that is about to leave writes its mark, has a full fence, and checks once
//! more for the thing it waits for. A thread that provides the thing makes it visible, has a full fence, and reads the
//! mark. One of the two fences is first, and the read behind the second fence sees the write ahead of the first. So
//! the thing is found by the last check, or the mark is found, or both. Where a mark orders nothing else, relaxed
//! accesses suffice. A fence that needs to know which work is made visible is in the caller.

use super::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence, fence_after_rmw, looks_again};
use crate::planted::{self, Planted};
use blkmq_core::Instant;
use crossbeam_utils::CachePadded;

/// A request to be kicked when a tag has been freed: Linux's `SCHED_RESTART`, one bit per hardware queue
/// (`spec/framework.md` section 8.4).
///
/// A dispatcher that found no driver tag marks the bit and *tries once more*; only then does it leave. A thread that
/// frees a tag of that hardware queue takes the bit *afterwards* and, if it was set, runs the queue.
///
/// | state | `mark`, then a retry | free, then `take` |
/// |---|---|---|
/// | clear | set: a completer will run the queue, or the retry finds the tag | false: no dispatcher waits |
/// | set | set | clear, true: *you* run the queue |
///
/// Invariant: the completer sees the bit, or the retry of the dispatcher that marked it sees the freed tag, or both.
///
/// `mark` is a read-modify-write even if the bit is set. If a completer is about to take the bit, it either reads from
/// this mark, and then its run sees the marker's leftovers (mark releases, take acquires), or the bit stays set behind
/// it.
#[derive(Debug)]
pub(crate) struct Restart(AtomicBool);

impl Restart {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Requests a kick. The caller must try again before it relies on that. One read-modify-write.
    #[inline]
    pub(crate) fn mark(&self) {
        if planted::is(Planted::ForgetsRestart) {
            return;
        }
        self.0.swap(true, Ordering::Release);
        fence_after_rmw();
    }

    /// Must be called after freeing. Returns whether a dispatcher requested a kick; then the caller has to run the
    /// queue. A fence and a load, and one read-modify-write if the bit is set.
    #[inline]
    #[must_use = "the thread that marked the bit relies on it"]
    pub(crate) fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.take_fenced()
    }

    /// Like [`take`](Self::take), for a caller whose last write to a shared word was a read-modify-write.
    #[inline]
    #[must_use = "the thread that marked the bit relies on it"]
    pub(crate) fn take_after_rmw(&self) -> bool {
        fence_after_rmw();
        self.take_fenced()
    }

    #[inline]
    fn take_fenced(&self) -> bool {
        self.0.load(Ordering::Relaxed) && (self.0.swap(false, Ordering::Acquire) || !looks_again())
    }
}

const WORD_BITS: u32 = u64::BITS;

/// Which submitters have staged work that a runner should admit: a set of numbers, with a value that takers write and
/// setters read, because both have that cache line anyway.
///
/// A submitter stages into its own ring and then sets its bit; a runner takes all bits and drains those rings. So a
/// pass does not touch the rings of idle submitters.
///
/// | bit | `set(id)` | `take` |
/// |---|---|---|
/// | 0 | 1: the next `take` visits id | - |
/// | 1 | 1 | 0, and id is visited: *the caller* drains it |
///
/// Invariant: a bio staged before a `set` is found by the visit of the `take` that clears the bit, or by an earlier
/// one.
///
/// `set` is a read-modify-write that releases; `take` swaps with acquire, and whichever read-modify-write it reads
/// from, all sets of the word so far are in that release sequence. The plain load of a word before the swap may be
/// outdated; the run state ensures that the pass after a kick sees a `set` before that kick (`run_state`, R1), because
/// begin and kick have a full fence or a read-modify-write in between.
///
/// `set` writes even where the bit looks set already. That load may be older than the swap of a runner that drains the
/// ring just before the new bio gets there, and then no pass would visit the ring again.
pub(crate) struct Pending<B = ()> {
    words: Box<[CachePadded<Word<B>>]>,
    /// Where the next `take` begins. Written by runners only, one at a time.
    start: CachePadded<AtomicU32>,
}

/// One word of bits. The first word also holds the value beside the set.
#[derive(Default)]
struct Word<B> {
    bits: AtomicU64,
    beside: B,
}

impl<B: Default> Pending<B> {
    /// An empty set, for ids below `submitters`.
    pub(crate) fn new(submitters: u16) -> Self {
        let words = u32::from(submitters).div_ceil(WORD_BITS).max(1);
        Self {
            words: (0..words).map(|_| CachePadded::default()).collect(),
            start: CachePadded::new(AtomicU32::new(0)),
        }
    }

    /// Lets the next [`take`](Self::take) visit `id`. One read-modify-write and a full fence, so that the caller may
    /// check again the condition that made it set the bit. Either the caller finds the condition changed, or it is
    /// visited by the thread that changes it, has a full fence, and then takes.
    ///
    /// # Panics
    /// If `id` is beyond the words of the set.
    #[inline]
    pub(crate) fn set(&self, id: u16) {
        let (word, bit) = (u32::from(id) / WORD_BITS, u32::from(id) % WORD_BITS);
        self.words[word as usize].bits.fetch_or(1 << bit, Ordering::Release);
        fence_after_rmw();
    }

    /// The value stored with the set.
    #[inline]
    pub(crate) fn beside(&self) -> &B {
        &self.words[0].beside
    }

    /// Returns whether `id` is in the set. A plain load.
    ///
    /// # Panics
    /// If `id` is beyond the words of the set.
    #[inline]
    #[must_use]
    pub(crate) fn has(&self, id: u16) -> bool {
        let (word, bit) = (u32::from(id) / WORD_BITS, u32::from(id) % WORD_BITS);
        self.words[word as usize].bits.load(Ordering::Relaxed) & 1 << bit != 0
    }

    /// Returns whether the set is non-empty. Plain loads.
    #[inline]
    #[must_use]
    pub(crate) fn any(&self) -> bool {
        self.words.iter().any(|word| word.bits.load(Ordering::Relaxed) != 0)
    }

    /// Empties the set and visits every number that was in it, in ascending order from a rotating start, so that each
    /// number is first in turn. For the runner: one caller at a time. One read-modify-write per non-empty word.
    #[inline]
    pub(crate) fn take(&self, mut f: impl FnMut(u16)) {
        self.take_ahead(|id, _| f(id));
    }

    /// Like [`take`](Self::take), but passes each number together with the next one in the same word.
    #[inline]
    pub(crate) fn take_ahead(&self, mut f: impl FnMut(u16, Option<u16>)) {
        let start = self.start.load(Ordering::Relaxed);
        let (first, offset) = ((start / WORD_BITS) as usize, start % WORD_BITS);
        let wrapped = self.swap(first);
        let mut visited = None;
        let mut visit = |word: usize, mut bits: u64| {
            // There are at most 2^16 bits, because ids are 16 bits wide.
            let lowest = |bits: u64| (word as u32 * WORD_BITS + bits.trailing_zeros()) as u16;
            while bits != 0 {
                let id = lowest(bits);
                bits &= bits - 1;
                visited.get_or_insert(id);
                f(id, (bits != 0).then(|| lowest(bits)));
            }
        };
        let below = (1 << offset) - 1;
        visit(first, wrapped & !below);
        for word in (first + 1..self.words.len()).chain(0..first) {
            visit(word, self.swap(word));
        }
        visit(first, wrapped & below);
        if let Some(id) = visited {
            let next = (u32::from(id) + 1) % (self.words.len() as u32 * WORD_BITS);
            self.start.store(next, Ordering::Relaxed);
        }
    }

    #[inline]
    fn swap(&self, word: usize) -> u64 {
        let word = &self.words[word].bits;
        if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) }
    }
}

/// The sleepers of a shard: how many submitters are asleep or about to sleep, and when one of them will check for work
/// without being woken. Both words, with a separate cache line.
///
/// Which submitters sleep is recorded elsewhere, one cache line each ([`completion_ring`](super::completion_ring)).
/// This is one line for all of them. A thread that goes to sleep writes it; a thread that has work for a sleeper reads
/// it. While no thread sleeps it is not written, so it stays in every reader's cache.
///
/// | asleep | `lie_down` | `get_up` | `any` |
/// |---|---|---|---|
/// | 0 | 1: check for work once more, then sleep | a bug | false: none is asleep; one that is about to sleep will check |
/// | n > 0 | n + 1: likewise | n - 1 | true: *you* find out which, and wake one |
///
/// | alarm | `set_alarm(at)` | `get_up(its own alarm)` | `look_by(due)` |
/// |---|---|---|---|
/// | none | `at`: *you* sleep no longer than that | none | false: *you* wake a sleeper for work that is due then |
/// | `a` | the earlier of both | none if it was `a`, else `a` | true if `a <= due`: the sleeper that set it checks in time |
///
/// Invariants: a sleeper is counted from before its last check for work until after it has woken up. A counted thread
/// need not be asleep. While the alarm is `a`, a sleeper that set `a` has not got up. The converse need not hold: a
/// sleeper with a later alarm, or with the same one, is forgotten when another one gets up, and is then woken more
/// often than necessary.
///
/// A sleeper that gets up clears its alarm, has a full fence, and checks for work: it parks again, or leaves and looks
/// for a successor. A thread with a timer sets it, has a full fence, and calls `look_by`. So a thread that relies on an
/// alarm relies on a sleeper that checks the timer later.
#[derive(Default)]
pub(crate) struct Sleepers(CachePadded<Words>);

struct Words {
    asleep: AtomicU32,
    /// In nanoseconds; [`NO_ALARM`] for none.
    alarm: AtomicU64,
}

const NO_ALARM: u64 = u64::MAX;

impl Default for Words {
    fn default() -> Self {
        Self { asleep: AtomicU32::new(0), alarm: AtomicU64::new(NO_ALARM) }
    }
}

impl Sleepers {
    /// Notes that the caller is about to sleep. It must have a full fence and check for work once more before it does.
    /// One read-modify-write.
    #[inline]
    pub(crate) fn lie_down(&self) {
        self.0.asleep.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the caller, which has lain down, will check for work at `at` at the latest. One read-modify-write.
    #[inline]
    pub(crate) fn set_alarm(&self, at: Instant) {
        self.0.alarm.fetch_min(at.as_nanos(), Ordering::Relaxed);
    }

    /// Notes that the caller has woken up, or stays awake. `alarm` is the alarm that it has set, if any. It must have a
    /// full fence before it checks for work. One read-modify-write, or two with an alarm.
    #[inline]
    pub(crate) fn get_up(&self, alarm: Option<Instant>) {
        if let Some(at) = alarm {
            let (mine, none) = (at.as_nanos(), NO_ALARM);
            // Another sleeper may have set an earlier alarm.
            let _ = self.0.alarm.compare_exchange(mine, none, Ordering::Relaxed, Ordering::Relaxed);
        }
        let before = self.0.asleep.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a thread gets up that has not lain down");
    }

    /// Returns whether a sleeper will check for work by `due` without being woken. For a caller that has work for a
    /// sleeper, and has had a full fence since. One load.
    #[inline]
    #[must_use]
    pub(crate) fn look_by(&self, due: Instant) -> bool {
        let alarm = self.0.alarm.load(Ordering::Relaxed);
        alarm != NO_ALARM && alarm <= due.as_nanos()
    }

    /// Returns whether any thread is asleep. For a caller that has work for a sleeper, and has had a full fence since.
    /// One load.
    #[inline]
    #[must_use]
    pub(crate) fn any(&self) -> bool {
        self.0.asleep.load(Ordering::Relaxed) > 0
    }
}

/// Decides which thread pumps the lane of a submitter after another thread has put a request into its outbox: the owner
/// if it waits for completions, because it polls its lane until the wait ends; otherwise the other thread.
///
/// | word | `begin` | `end`, then a check of the lane | `kick` of the lane, then `is_waiting` |
/// |---|---|---|---|
/// | away | waiting | - | false: *you* pump the lane |
/// | waiting | waiting | away; *you* pump the lane if it is kicked | true: the owner pumps it |
///
/// Invariant: a lane that is kicked is pumped by the thread that kicked it, or by its owner, or by both in turn.
///
/// `begin` needs no fence: if an owner is taken to be away, another thread pumps its lane, under the lane's run.
#[derive(Default)]
pub(crate) struct Attendance(AtomicBool);

impl Attendance {
    /// Notes that the owner polls its lane until [`end`](Self::end). One store.
    #[inline]
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Notes that the owner stops waiting. It must check its lane once more after this call. A store and a full fence.
    #[inline]
    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns whether the owner will check its lane without being woken. For a caller that has kicked the lane, and
    /// has had a full fence since. One load.
    #[inline]
    #[must_use]
    pub(crate) fn is_waiting(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_taken_once() {
        let restart = Restart::new();
        assert!(!restart.take());
        restart.mark();
        restart.mark();
        assert!(restart.take());
        assert!(!restart.take());
    }

    fn taken(pending: &Pending) -> Vec<u16> {
        let mut ids = Vec::new();
        pending.take(|id| ids.push(id));
        ids
    }

    #[test]
    fn each_is_visited_once_and_first_in_turn() {
        let pending = Pending::new(200);
        let set = |ids: &[u16]| ids.iter().for_each(|id| pending.set(*id));
        assert!(!pending.any());
        set(&[3, 70, 199, 70]);
        assert!(pending.any() && pending.has(70) && !pending.has(71) && !pending.has(6));
        assert_eq!(taken(&pending), [3, 70, 199]);
        assert!(!pending.any());
        assert_eq!(taken(&pending), []);
        set(&[3, 70, 199]);
        assert_eq!(taken(&pending), [70, 199, 3]);
        set(&[3, 70, 199]);
        assert_eq!(taken(&pending), [199, 3, 70]);
        set(&[3, 70, 199]);
        assert_eq!(taken(&pending), [3, 70, 199]);
    }

    #[test]
    fn the_next_number_is_passed_ahead() {
        let pending: Pending = Pending::new(200);
        [3, 5, 70].into_iter().for_each(|id| pending.set(id));
        let mut seen = Vec::new();
        pending.take_ahead(|id, next| seen.push((id, next)));
        assert_eq!(seen, [(3, Some(5)), (5, None), (70, None)]);
    }

    #[test]
    fn a_start_within_a_word_goes_round_that_word() {
        let pending = Pending::new(4);
        for expected in [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2], [0, 1, 2, 3]] {
            (0..4).for_each(|id| pending.set(id));
            assert_eq!(taken(&pending), expected);
        }
    }

    #[test]
    fn the_largest_id() {
        let pending = Pending::new(u16::MAX);
        pending.set(u16::MAX - 1);
        assert_eq!(taken(&pending), [u16::MAX - 1]);
        pending.set(0);
        assert_eq!(taken(&pending), [0]);
    }

    #[test]
    fn a_number_set_during_a_visit_is_visited_next_time() {
        let pending = Pending::new(2);
        pending.set(0);
        pending.take(|_| pending.set(0));
        assert_eq!(taken(&pending), [0]);
    }

    #[test]
    fn a_sleeper_is_counted_until_it_is_up() {
        let sleepers = Sleepers::default();
        assert!(!sleepers.any());
        sleepers.lie_down();
        sleepers.lie_down();
        sleepers.get_up(None);
        assert!(sleepers.any());
        sleepers.get_up(None);
        assert!(!sleepers.any());
    }

    #[test]
    fn the_earliest_alarm_counts_until_its_sleeper_is_up() {
        let at = Instant::from_nanos;
        let sleepers = Sleepers::default();
        assert!(!sleepers.look_by(Instant::MAX), "no sleeper has an alarm");
        for alarm in [20, 10, 30] {
            sleepers.lie_down();
            sleepers.set_alarm(at(alarm));
        }
        assert!(sleepers.look_by(at(10)) && !sleepers.look_by(at(9)));
        sleepers.get_up(Some(at(30)));
        assert!(sleepers.look_by(at(10)), "another sleeper has it");
        sleepers.get_up(Some(at(10)));
        assert!(!sleepers.look_by(Instant::MAX), "nothing is known of the third");
        sleepers.get_up(Some(at(20)));
        assert!(!sleepers.any());
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "that has not lain down")]
    fn a_thread_that_is_up_does_not_get_up() {
        Sleepers::default().get_up(None);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::Arc;
    use loom::thread;

    /// One tag, in use. It is freed while a dispatcher that could not get it marks the bit and tries again.
    fn a_freed_tag_is_noticed(mark: fn(&Restart), take: fn(&Restart) -> bool) {
        notices(mark, |tag| tag.store(true, Ordering::Relaxed), take);
    }

    /// Like [`a_freed_tag_is_noticed`], but with a way to free the tag.
    fn notices(mark: fn(&Restart), free: fn(&AtomicBool), take: fn(&Restart) -> bool) {
        loom::model(move || {
            let shared = Arc::new((Restart::new(), AtomicBool::new(false)));
            let completer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    free(&shared.1);
                    take(&shared.0)
                })
            };
            mark(&shared.0);
            let retried = shared.1.load(Ordering::Relaxed);
            let is_called = completer.join().expect("the completer does not panic");
            assert!(retried || is_called, "the tag is free and no thread knows");
        });
    }

    #[test]
    fn loom_a_freed_tag_is_noticed() {
        a_freed_tag_is_noticed(Restart::mark, Restart::take);
    }

    #[test]
    fn loom_a_tag_freed_by_a_read_modify_write_is_noticed() {
        let free = |tag: &AtomicBool| assert!(!tag.swap(true, Ordering::Relaxed));
        notices(Restart::mark, free, Restart::take_after_rmw);
    }

    #[test]
    #[should_panic(expected = "no thread knows")]
    fn loom_planted_take_after_a_read_modify_write_without_a_fence() {
        let free = |tag: &AtomicBool| assert!(!tag.swap(true, Ordering::Relaxed));
        notices(Restart::mark, free, Restart::take_fenced);
    }

    #[test]
    #[should_panic(expected = "no thread knows")]
    fn loom_planted_mark_without_a_fence() {
        a_freed_tag_is_noticed(|restart| restart.0.store(true, Ordering::Release), Restart::take);
    }

    #[test]
    #[should_panic(expected = "no thread knows")]
    fn loom_planted_take_without_a_fence() {
        a_freed_tag_is_noticed(Restart::mark, |restart| {
            restart.0.load(Ordering::Relaxed) && restart.0.swap(false, Ordering::AcqRel)
        });
    }

    #[test]
    #[should_panic(expected = "no thread knows")]
    fn loom_planted_try_before_the_mark() {
        loom::model(|| {
            let shared = Arc::new((Restart::new(), AtomicBool::new(false)));
            let completer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.1.store(true, Ordering::Relaxed);
                    shared.0.take()
                })
            };
            let tried = shared.1.load(Ordering::Relaxed);
            shared.0.mark();
            let is_called = completer.join().expect("the completer does not panic");
            assert!(tried || is_called, "the tag is free and no thread knows");
        });
    }

    /// Two completers, and one dispatcher that requested a kick: one completer runs the queue.
    fn one_completer_runs_the_queue(take: fn(&Restart) -> bool) {
        loom::model(move || {
            let restart = Arc::new(Restart::new());
            restart.mark();
            let other = {
                let restart = Arc::clone(&restart);
                thread::spawn(move || take(&restart))
            };
            let mine = take(&restart);
            let theirs = other.join().expect("the completer does not panic");
            assert!(mine != theirs, "one mark is for one run");
        });
    }

    #[test]
    fn loom_one_completer_runs_the_queue() {
        one_completer_runs_the_queue(Restart::take);
    }

    #[test]
    #[should_panic(expected = "one mark is for one run")]
    fn loom_planted_take_that_does_not_claim() {
        one_completer_runs_the_queue(|restart| {
            let marked = restart.0.load(Ordering::Acquire);
            restart.0.store(false, Ordering::Relaxed);
            marked
        });
    }

    /// A second dispatcher marks a bit that is set already while it is being taken. The completer that takes it sees
    /// the leftovers of both, or the bit is still set.
    fn a_second_mark_counts(mark: fn(&Restart)) {
        loom::model(move || {
            let shared = Arc::new((Restart::new(), AtomicBool::new(false)));
            shared.0.mark();
            let completer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    assert!(shared.0.take());
                    shared.1.load(Ordering::Relaxed)
                })
            };
            shared.1.store(true, Ordering::Relaxed);
            mark(&shared.0);
            let seen = completer.join().expect("the completer does not panic");
            assert!(seen || shared.0.take(), "a mark was swallowed");
        });
    }

    #[test]
    fn loom_a_second_mark_counts() {
        a_second_mark_counts(Restart::mark);
    }

    #[test]
    #[should_panic(expected = "a mark was swallowed")]
    fn loom_planted_mark_that_skips_a_set_bit() {
        a_second_mark_counts(|restart| {
            if !restart.0.load(Ordering::Relaxed) {
                restart.mark();
            }
        });
    }

    /// A submitter stages twice while a runner takes; the remaining bits are taken afterwards.
    fn nothing_staged_is_missed(take: fn(&Pending, &mut dyn FnMut(u16))) {
        loom::model(move || {
            let shared = Arc::new((Pending::new(1), AtomicU32::new(0)));
            let submitter = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    for n in 1..=2 {
                        shared.1.store(n, Ordering::Relaxed);
                        shared.0.set(0);
                    }
                })
            };
            let mut drained = 0;
            take(&shared.0, &mut |_| drained = shared.1.load(Ordering::Relaxed));
            submitter.join().expect("the submitter does not panic");
            take(&shared.0, &mut |_| drained = shared.1.load(Ordering::Relaxed));
            assert_eq!(drained, 2, "something staged was missed");
            assert!(!shared.0.has(0), "nothing is left to visit");
        });
    }

    #[test]
    fn loom_nothing_staged_is_missed() {
        nothing_staged_is_missed(|pending, f| pending.take(f));
    }

    #[test]
    #[should_panic(expected = "was missed")]
    fn loom_planted_bits_cleared_after_the_visit() {
        nothing_staged_is_missed(|pending, f| {
            if pending.any() {
                f(0);
                pending.swap(0);
            }
        });
    }

    #[test]
    #[should_panic(expected = "was missed")]
    fn loom_planted_take_without_acquire() {
        nothing_staged_is_missed(|pending, f| {
            if pending.words[0].bits.swap(0, Ordering::Relaxed) != 0 {
                f(0);
            }
        });
    }

    /// A caller that finds no budget sets its bit and checks again, while the budget is put back.
    fn a_refused_caller_is_visited(set: fn(&Pending, u16)) {
        loom::model(move || {
            let shared = Arc::new((Pending::new(1), AtomicBool::new(false)));
            let holder = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.1.store(true, Ordering::Release);
                    fence(Ordering::SeqCst);
                    let mut is_called = false;
                    shared.0.take(|_| is_called = true);
                    is_called
                })
            };
            set(&shared.0, 0);
            let got = shared.1.load(Ordering::Acquire);
            let is_called = holder.join().expect("the holder does not panic");
            assert!(got || is_called, "the budget is free and no thread knows");
        });
    }

    #[test]
    fn loom_a_refused_caller_is_visited() {
        a_refused_caller_is_visited(Pending::set);
    }

    #[test]
    #[should_panic(expected = "no thread knows")]
    fn loom_planted_set_without_a_fence() {
        a_refused_caller_is_visited(|pending, id| {
            pending.words[0].bits.fetch_or(1 << id, Ordering::AcqRel);
        });
    }

    struct Bed {
        sleepers: Sleepers,
        something: AtomicBool,
    }

    /// One thread goes to sleep unless there is work, while another one makes work visible and checks for sleepers.
    fn no_sleeper_misses_work(sleep: fn(&Bed) -> bool, wake: fn(&Bed) -> bool) {
        loom::model(move || {
            let bed =
                Arc::new(Bed { sleepers: Sleepers::default(), something: AtomicBool::new(false) });
            let sleeper = {
                let bed = Arc::clone(&bed);
                thread::spawn(move || sleep(&bed))
            };
            let woken = wake(&bed);
            let sleeps = sleeper.join().expect("the sleeper does not panic");
            assert!(!sleeps || woken, "a submitter sleeps, and no thread knows");
            bed.sleepers.get_up(None);
            assert!(!bed.sleepers.any(), "no sleeper is counted");
        });
    }

    fn sleep(bed: &Bed) -> bool {
        bed.sleepers.lie_down();
        fence(Ordering::SeqCst);
        !bed.something.load(Ordering::Relaxed)
    }

    fn wake(bed: &Bed) -> bool {
        bed.something.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        bed.sleepers.any()
    }

    #[test]
    fn loom_no_sleeper_misses_work() {
        no_sleeper_misses_work(sleep, wake);
    }

    #[test]
    #[should_panic(expected = "no thread knows")]
    fn loom_planted_counted_after_the_last_look() {
        let sleep = |bed: &Bed| {
            let sleeps = !bed.something.load(Ordering::Relaxed);
            bed.sleepers.lie_down();
            fence(Ordering::SeqCst);
            sleeps
        };
        no_sleeper_misses_work(sleep, wake);
    }

    #[test]
    #[should_panic(expected = "no thread knows")]
    fn loom_planted_a_waker_without_a_fence() {
        let wake = |bed: &Bed| {
            bed.something.store(true, Ordering::Relaxed);
            bed.sleepers.any()
        };
        no_sleeper_misses_work(sleep, wake);
    }

    /// A thread with an alarm gets up, and checks the timers; another one sets a timer, and relies on the alarm.
    fn no_timer_is_left_alone(get_up: fn(&Bed) -> bool, set: fn(&Bed) -> bool) {
        loom::model(move || {
            let bed =
                Arc::new(Bed { sleepers: Sleepers::default(), something: AtomicBool::new(false) });
            bed.sleepers.lie_down();
            bed.sleepers.set_alarm(ALARM);
            let sleeper = {
                let bed = Arc::clone(&bed);
                thread::spawn(move || get_up(&bed))
            };
            let relies = set(&bed);
            let has_seen = sleeper.join().expect("the sleeper does not panic");
            assert!(!relies || has_seen, "the timer is left alone");
        });
    }

    const ALARM: Instant = Instant::from_nanos(8);

    fn get_up(bed: &Bed) -> bool {
        bed.sleepers.get_up(Some(ALARM));
        fence(Ordering::SeqCst);
        bed.something.load(Ordering::Relaxed)
    }

    fn set(bed: &Bed) -> bool {
        bed.something.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        bed.sleepers.look_by(ALARM)
    }

    #[test]
    fn loom_no_timer_is_left_alone() {
        no_timer_is_left_alone(get_up, set);
    }

    #[test]
    #[should_panic(expected = "left alone")]
    fn loom_planted_an_alarm_taken_back_after_the_look() {
        let get_up = |bed: &Bed| {
            let seen = bed.something.load(Ordering::Relaxed);
            bed.sleepers.get_up(Some(ALARM));
            fence(Ordering::SeqCst);
            seen
        };
        no_timer_is_left_alone(get_up, set);
    }

    #[test]
    #[should_panic(expected = "left alone")]
    fn loom_planted_a_timer_without_a_fence() {
        let set = |bed: &Bed| {
            bed.something.store(true, Ordering::Relaxed);
            bed.sleepers.look_by(ALARM)
        };
        no_timer_is_left_alone(get_up, set);
    }

    #[test]
    #[should_panic(expected = "left alone")]
    fn loom_planted_a_sleeper_that_keeps_its_alarm() {
        let get_up = |bed: &Bed| {
            bed.sleepers.get_up(None);
            fence(Ordering::SeqCst);
            bed.something.load(Ordering::Relaxed)
        };
        no_timer_is_left_alone(get_up, set);
    }

    struct Lane {
        attendance: Attendance,
        kicked: AtomicBool,
    }

    /// An owner leaves while another thread kicks its lane.
    fn a_kicked_lane_is_pumped(leave: fn(&Lane) -> bool, call: fn(&Lane) -> bool) {
        loom::model(move || {
            let (attendance, kicked) = (Attendance::default(), AtomicBool::new(false));
            let lane = Arc::new(Lane { attendance, kicked });
            lane.attendance.begin();
            let owner = {
                let lane = Arc::clone(&lane);
                thread::spawn(move || leave(&lane))
            };
            let left_to_owner = call(&lane);
            let owner_pumps = owner.join().expect("the owner does not panic");
            assert!(owner_pumps || !left_to_owner, "the lane is left alone");
        });
    }

    fn leave(lane: &Lane) -> bool {
        lane.attendance.end();
        lane.kicked.load(Ordering::Relaxed)
    }

    fn call(lane: &Lane) -> bool {
        lane.kicked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        lane.attendance.is_waiting()
    }

    #[test]
    fn loom_a_kicked_lane_is_pumped() {
        a_kicked_lane_is_pumped(leave, call);
    }

    #[test]
    #[should_panic(expected = "left alone")]
    fn loom_planted_an_owner_that_leaves_after_its_look() {
        let leave = |lane: &Lane| {
            let kicked = lane.kicked.load(Ordering::Relaxed);
            lane.attendance.end();
            kicked
        };
        a_kicked_lane_is_pumped(leave, call);
    }

    #[test]
    #[should_panic(expected = "left alone")]
    fn loom_planted_an_owner_that_leaves_without_a_fence() {
        let leave = |lane: &Lane| {
            lane.attendance.0.store(false, Ordering::Relaxed);
            lane.kicked.load(Ordering::Relaxed)
        };
        a_kicked_lane_is_pumped(leave, call);
    }

    #[test]
    #[should_panic(expected = "left alone")]
    fn loom_planted_a_call_without_a_fence() {
        let call = |lane: &Lane| {
            lane.kicked.store(true, Ordering::Relaxed);
            lane.attendance.is_waiting()
        };
        a_kicked_lane_is_pumped(leave, call);
    }
}
