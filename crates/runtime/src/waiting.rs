//! How a thread waits: how long it stays awake before it sleeps, and when it stops spinning first.

use crate::hybrid::Hybrid;
use blkmq_core::{Instant, Nanos};

/// A thread with an event due within this time yields until then instead of sleeping: a timer would overshoot by
/// more.
pub(crate) const AWAKE_FOR: Nanos = Nanos::from_micros(60);

/// How long a waiting thread stays awake before it parks.
///
/// Waking a thread on another core costs some 50 us, so for a short wait spinning is cheaper. But where threads
/// outnumber cores, the thread that this one waits for may need this very core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Looks at the thread's own completion queue between two looks for work to help with.
    pub spins: u32,
    /// Looks for work before giving the CPU away.
    pub rounds: u32,
    /// Times to give the CPU away before parking.
    pub yields: u32,
}

impl Waiting {
    /// For a thread that shares `cpus` CPUs with others, `threads` in all.
    #[must_use]
    pub const fn for_threads(threads: u16, cpus: u16) -> Self {
        if threads <= cpus {
            Self { spins: 32, rounds: 64, yields: 16 }
        } else {
            Self { spins: 16, rounds: 4, yields: 32 }
        }
    }

    /// The same for a client of a queue with pump threads, which count among `threads`.
    ///
    /// Where `threads` exceed the CPUs, the pump thread that a client waits for needs the client's CPU: 8 clients, a
    /// pump thread and two CPUs did 2.7 M IOPS with 4 rounds and 3.4 M with one at depth 1024, 395 and 440 k at depth
    /// 16.
    #[must_use]
    pub const fn on_pump_threads(threads: u16, cpus: u16) -> Self {
        let usual = Self::for_threads(threads, cpus);
        if threads <= cpus { usual } else { Self { rounds: 1, ..usual } }
    }

    /// The same for a thread that can sleep on the device itself: the interrupt wakes it without another thread in
    /// between.
    ///
    /// Then no other thread needs the CPU for this one to make progress, and to yield instead of sleeping only costs
    /// the thread its claim to get the CPU back at once. Waking up takes longer than many a device, so this thread
    /// spins while that pays and no other thread wants the CPU: on a disk of 45 us one read at a time took 72 us
    /// asleep and 50 us awake. In waits of up to half a millisecond that are alike it sleeps by a timer first, and spins
    /// only shortly before the completion (hybrid polling), unless it spins for fewer than 32 rounds.
    #[must_use]
    pub const fn on_device(self) -> Self {
        Self { yields: 0, ..self }
    }
}

/// Rounds of spinning below which a thread does not sleep ahead of them: it would hardly meet the completion.
const WINDOW: u32 = 32;

/// Waits in a row that spun in vain before spinning is left out.
const GIVE_UP: u32 = 4;
/// Waits without spinning before a wait spins once more: the device may be faster now.
const TRY_AGAIN: u32 = 32;
/// The upper bound of that number, reached where another thread wanted the CPU every time.
const TRY_AGAIN_AT_MOST: u32 = 1 << 14;
/// A thread that has had a CPU to itself for this long shares it with nothing but an occasional kernel worker. Longer
/// than any thread's time slice.
const ALONE: Nanos = Nanos::from_millis(20);

/// What a thread that has found no work does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pause {
    /// Look this many times at the thread's own completion queue.
    Spin(u32),
    /// Yield the CPU.
    Yield,
    /// Sleep, if that is allowed.
    Sleep,
}

/// One thread's way of waiting, with the experience of its earlier waits.
#[derive(Debug)]
pub(crate) struct Patience {
    waiting: Waiting,
    /// Waits in a row that spun in vain.
    in_vain: u32,
    /// Waits without spinning since then; once there are `try_again` of them, the next wait spins.
    left_out: u32,
    try_again: u32,
    /// Does the current wait spin?
    spins: bool,
    /// Looks in the current wait that ended with sleep ahead of spinning: one or none.
    slept: u32,
    hybrid: Hybrid,
}

impl Patience {
    pub(crate) fn new(waiting: Waiting) -> Self {
        Self {
            waiting,
            in_vain: 0,
            left_out: 0,
            try_again: TRY_AGAIN,
            spins: true,
            slept: 0,
            hybrid: Hybrid::default(),
        }
    }

    /// What to do when `looks` in a row have found nothing; a wait begins with 1.
    pub(crate) fn next(&mut self, looks: u32) -> Pause {
        let Waiting { spins, rounds, yields } = self.waiting;
        if looks == 1 {
            self.begin();
        }
        let rounds = if self.spins { rounds } else { 0 };
        let looks = looks - self.slept;
        if looks <= rounds {
            return Pause::Spin(spins);
        }
        if self.spins && looks == rounds + 1 {
            self.in_vain = self.in_vain.saturating_add(1);
        }
        if looks - rounds <= yields { Pause::Yield } else { Pause::Sleep }
    }

    /// Does this thread learn when not to spin? A thread that yields before it sleeps spins in every wait: it relies
    /// on another thread that is awake, and yields the CPU to any thread that wants it.
    pub(crate) fn learns(&self) -> bool {
        self.waiting.yields == 0
    }

    fn begin(&mut self) {
        let pays = !self.learns() || self.in_vain < GIVE_UP;
        self.spins = pays || self.left_out >= self.try_again;
        self.left_out = if self.spins { 0 } else { self.left_out + 1 };
        self.slept = 0;
    }

    /// After [`next`](Self::next): the time until which to sleep instead of spinning at once, if any. The thread that
    /// has slept calls [`woke`](Self::woke).
    pub(crate) fn ahead(&mut self, looks: u32, now: Instant) -> Option<Instant> {
        if looks != 1 || !self.learns() {
            return None;
        }
        self.hybrid.begin(now);
        let spins = self.spins && self.waiting.rounds >= WINDOW;
        let until = if spins { self.hybrid.sleep(now) } else { None };
        self.slept = until.is_some().into();
        until
    }

    /// The thread is awake again, if it has slept. True if another thread had the CPU when it was to wake.
    #[inline]
    pub(crate) fn woke(&mut self, now: Instant) -> bool {
        self.hybrid.woke(now)
    }

    /// Another thread had the CPU while this one spun, or when it was to wake and spin, after this one had had it alone for
    /// `after`. A thread that spins has used up its CPU share by the time it needs it; a thread that sleeps has not.
    pub(crate) fn disturbed(&mut self, after: Nanos) {
        assert!(self.learns(), "nobody watches the CPU of one who gives it away");
        self.spins = false;
        self.in_vain = GIVE_UP;
        let last = if after < ALONE { self.try_again } else { TRY_AGAIN };
        self.try_again = (last * 4).min(TRY_AGAIN_AT_MOST);
    }

    /// A completion arrived at `now`, after `looks` that had found nothing. If it ended the sleep ahead of spinning,
    /// spinning was neither in vain nor of use.
    pub(crate) fn came(&mut self, looks: u32, now: Instant) {
        self.hybrid.came(now);
        if self.spins && looks > self.slept && looks - self.slept <= self.waiting.rounds {
            self.in_vain = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One wait in which nothing arrives for `looks`; returns how often it spun. After that it slept, as it should on
    /// a device.
    fn wait(patience: &mut Patience, looks: u32) -> usize {
        let pauses = Vec::from_iter((1..=looks).map(|n| patience.next(n)));
        patience.came(looks, Instant::ZERO);
        let spun = pauses.iter().take_while(|pause| matches!(pause, Pause::Spin(_))).count();
        assert!(pauses[spun..].iter().all(|pause| *pause == Pause::Sleep), "{pauses:?}");
        spun
    }

    #[test]
    fn it_spins_then_yields_then_sleeps() {
        let mut patience = Patience::new(Waiting { spins: 5, rounds: 2, yields: 1 });
        for _ in 0..GIVE_UP + 1 {
            let pauses = [1, 2, 3, 4, 5].map(|looks| patience.next(looks));
            let expected =
                [Pause::Spin(5), Pause::Spin(5), Pause::Yield, Pause::Sleep, Pause::Sleep];
            assert_eq!(pauses, expected);
        }
    }

    #[test]
    fn where_threads_outnumber_cpus_those_who_wait_for_a_pump_thread_spin_little() {
        assert_eq!(Waiting::on_pump_threads(4, 4), Waiting::for_threads(4, 4));
        let (clients, usual) = (Waiting::on_pump_threads(5, 4), Waiting::for_threads(5, 4));
        assert!(clients.rounds < usual.rounds && clients.yields == usual.yields);
    }

    #[test]
    fn on_a_device_spinning_that_never_pays_is_given_up_and_tried_now_and_then() {
        let mut patience = Patience::new(Waiting::for_threads(1, 2).on_device());
        let waits = GIVE_UP + 2 * (TRY_AGAIN + 1);
        let spun = Vec::from_iter((0..waits).map(|_| wait(&mut patience, 100)));
        let (first, rest) = spun.split_at(GIVE_UP as usize);
        assert!(first.iter().all(|n| *n == 64), "{first:?}");
        for period in rest.chunks(TRY_AGAIN as usize + 1) {
            let (last, others) = period.split_last().expect("a period");
            assert!(*last == 64 && others.iter().all(|n| *n == 0), "{period:?}");
        }
    }

    #[test]
    fn spinning_on_a_cpu_that_others_want_is_tried_ever_more_seldom_until_it_is_free() {
        let mut patience = Patience::new(Waiting::for_threads(1, 2).on_device());
        let left_out =
            |patience: &mut Patience| (0..).take_while(|_| wait(patience, 3) == 0).count();
        let mut disturbed = |after| {
            assert_eq!(patience.next(1), Pause::Spin(32));
            patience.disturbed(after);
            assert_eq!(patience.next(2), Pause::Sleep);
            patience.came(2, Instant::ZERO);
            left_out(&mut patience)
        };
        let soon = [(); 6].map(|()| disturbed(Nanos::from_millis(3)));
        assert_eq!(soon, [128, 512, 2048, 8192, 16384, 16384]);
        assert_eq!(disturbed(ALONE), 128);
    }

    /// Sleeps ahead of spinning where it is told to, and finds the completion at the last of `looks`, 180 us after the
    /// start. Returns how the wait went.
    fn wait_ahead(patience: &mut Patience, now: &mut Instant, looks: u32) -> (bool, Vec<Pause>) {
        let came = *now + Nanos::from_micros(180);
        let mut slept = false;
        let mut pauses = Vec::new();
        for look in 1..=looks {
            pauses.push(patience.next(look));
            if let Some(until) = patience.ahead(look, *now) {
                slept = true;
                assert!(!patience.woke(until));
            }
        }
        patience.came(looks, came);
        *now = came;
        (slept, pauses)
    }

    #[test]
    fn in_waits_that_are_alike_it_sleeps_first_and_then_spins() {
        let mut patience = Patience::new(Waiting::for_threads(1, 2).on_device());
        let mut now = Instant::from_nanos(1);
        assert!(!wait_ahead(&mut patience, &mut now, 65).0, "it knows no wait yet");
        for _ in 0..100 {
            let (slept, pauses) = wait_ahead(&mut patience, &mut now, 65);
            let all_spin = pauses.iter().all(|pause| *pause == Pause::Spin(32));
            assert!(slept && all_spin, "the look before the sleep is none of the 64 rounds");
        }
        let (slept, pauses) = wait_ahead(&mut patience, &mut now, 66);
        assert!(slept && pauses[64] == Pause::Spin(32) && pauses[65] == Pause::Sleep);
    }

    #[test]
    fn sleep_ahead_of_spinning_in_vain_is_left_out_with_it() {
        let mut patience = Patience::new(Waiting::for_threads(1, 2).on_device());
        let mut now = Instant::from_nanos(1);
        let in_vain = Vec::from_iter((0..100).map(|_| wait_ahead(&mut patience, &mut now, 70).0));
        let slept = in_vain.iter().filter(|slept| **slept).count();
        assert!((3..8).contains(&slept), "{in_vain:?}");
    }

    #[test]
    fn a_completion_that_ends_the_sleep_does_not_count() {
        let mut patience = Patience::new(Waiting::for_threads(1, 2).on_device());
        let mut now = Instant::from_nanos(1);
        (0..GIVE_UP).for_each(|_| _ = wait_ahead(&mut patience, &mut now, 70));
        for _ in 0..200 {
            wait_ahead(&mut patience, &mut now, 1);
        }
        assert_eq!(patience.in_vain, GIVE_UP, "neither in vain nor of use");
    }

    #[test]
    fn a_thread_that_shares_its_cpu_does_not_sleep_ahead_of_spinning() {
        let mut patience = Patience::new(Waiting::for_threads(3, 2).on_device());
        let mut now = Instant::from_nanos(1);
        assert!((0..20).all(|_| !wait_ahead(&mut patience, &mut now, 3).0));
    }

    #[test]
    fn spinning_that_pays_goes_on_and_comes_back() {
        let mut patience = Patience::new(Waiting::for_threads(1, 2).on_device());
        for _ in 0..100 {
            assert_eq!(wait(&mut patience, 3), 3);
        }
        (0..GIVE_UP).for_each(|_| _ = wait(&mut patience, 100));
        (0..TRY_AGAIN).for_each(|_| assert_eq!(wait(&mut patience, 100), 0));
        assert_eq!(
            (wait(&mut patience, 3), wait(&mut patience, 3)),
            (3, 3),
            "the device is fast now"
        );
    }
}
