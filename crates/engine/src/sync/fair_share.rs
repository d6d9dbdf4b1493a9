//! The fair share of a set of tags that several users share (`spec/framework.md` section 3.1).
//!
//! A user is a hardware queue or a queue. While it is active, it may hold its share of the tags, rounded up, but at
//! least 4. The shares of the other active users are reserved for them even while they do not use them.
//!
//! | user | `activate` | `deactivate` | `admit(want)` | `release(n)` |
//! |---|---|---|---|---|
//! | idle | active, one user more | same | want, and counted: no limit | held - n |
//! | active, held < limit | same | idle, one user less | `want` or the rest up to the limit, if less | held - n |
//! | active, held >= limit | same | idle, one user less | 0 | held - n |
//!
//! Invariant: `users` is the number of active users once no thread is changing it; `held` is the number of tags
//! admitted and not released.
//!
//! A user that wants more than its share looks for idle users (`deactivate_idle`), because there is no timer.
//!
//! Every access is relaxed: this counts tags and gives no access to them. The bitmap orders the uses of a tag, and the
//! barriers of `TagSet` make a release visible to a waiter. A slightly outdated limit admits a tag too many or too few.
//!
//! Read-modify-writes: `admit` one, `release` one, on a line that only the user and its completions touch.

use super::{AtomicBool, AtomicU32, AtomicU64, Ordering, looks_again};
use blkmq_core::{Instant, Nanos};
use crossbeam_utils::CachePadded;

/// The lower bound of every user's limit.
const MIN_LIMIT: u32 = 4;
/// A user that holds no tag and has taken none for this long is idle. (Linux finds out when its timer for timeouts
/// expires, within 5 s.)
pub(crate) const IDLE: Nanos = Nanos::from_millis(100);

/// The users of a set of tags.
pub(crate) struct FairShare {
    depth: u32,
    users: CachePadded<AtomicU32>,
    /// When the last search for idle users began, in nanoseconds.
    looked: CachePadded<AtomicU64>,
    each: Box<[CachePadded<User>]>,
}

struct User {
    active: AtomicBool,
    /// The user has taken a tag since the last search for idle users.
    seen: AtomicBool,
    held: AtomicU32,
}

impl FairShare {
    /// The shares of `depth` tags for users numbered `0..users`, all idle.
    pub(crate) fn new(depth: u32, users: u16) -> Self {
        let user = |_| {
            CachePadded::new(User {
                active: AtomicBool::new(false),
                seen: AtomicBool::new(false),
                held: AtomicU32::new(0),
            })
        };
        Self {
            depth,
            users: CachePadded::new(AtomicU32::new(0)),
            looked: CachePadded::new(AtomicU64::new(0)),
            each: (0..users).map(user).collect(),
        }
    }

    /// Counts the user as active; called with its first tag. Returns whether it was idle. A plain load if it is already
    /// active.
    #[inline]
    pub(crate) fn activate(&self, who: u16) -> bool {
        let User { active, seen, .. } = &*self.each[usize::from(who)];
        if !seen.load(Ordering::Relaxed) {
            seen.store(true, Ordering::Relaxed);
        }
        let new = !active.load(Ordering::Relaxed)
            && (!active.swap(true, Ordering::Relaxed) || !looks_again());
        if new {
            self.users.fetch_add(1, Ordering::Relaxed);
        }
        new
    }

    /// Counts the user as idle: it has had no I/O pending for a while. Returns whether it was active; then the limits
    /// of the others may rise.
    pub(crate) fn deactivate(&self, who: u16) -> bool {
        let old = self.each[usize::from(who)].active.swap(false, Ordering::Relaxed);
        if old {
            self.users.fetch_sub(1, Ordering::Relaxed);
        }
        old
    }

    /// Counts as idle every user that holds no tag and has taken none since the last search, if that was [`IDLE`] ago.
    /// Returns whether there was such a user. O(users), once in that time.
    pub(crate) fn deactivate_idle(&self, now: Instant) -> bool {
        let (now, looked) = (now.as_nanos(), self.looked.load(Ordering::Relaxed));
        let due = now.saturating_sub(looked) >= IDLE.0;
        let mine = || {
            let (word, new) = (&self.looked, now.max(1));
            let claimed = word.compare_exchange(looked, new, Ordering::Relaxed, Ordering::Relaxed);
            claimed.is_ok() || !looks_again()
        };
        if !due || !mine() {
            return false;
        }
        let mut any = false;
        for (who, user) in (0..).zip(&self.each) {
            // A user that takes its first tag at this moment is counted again with its next tag.
            let idle = !user.seen.swap(false, Ordering::Relaxed)
                && user.held.load(Ordering::Relaxed) == 0
                && user.active.load(Ordering::Relaxed);
            any |= idle && self.deactivate(who);
        }
        any
    }

    #[inline]
    #[must_use]
    pub(crate) fn users(&self) -> u32 {
        self.users.load(Ordering::Relaxed)
    }

    /// The most tags that an active user may hold; `None` if there is nothing to share: no active user, or one tag.
    #[inline]
    #[must_use]
    pub(crate) fn limit(&self) -> Option<u32> {
        let users = self.users();
        let divided = users > 0 && self.depth > 1;
        divided.then(|| self.depth.div_ceil(users).max(MIN_LIMIT))
    }

    /// Admits the user to up to `want` tags, and counts them as held. Returns their number.
    #[inline]
    #[must_use = "what was admitted has to be released"]
    pub(crate) fn admit(&self, who: u16, want: u32) -> u32 {
        let user = &self.each[usize::from(who)];
        let limit = match self.limit() {
            Some(limit) if user.active.load(Ordering::Relaxed) => limit,
            _ => u32::MAX,
        };
        let mut held = user.held.load(Ordering::Relaxed);
        loop {
            let got = want.min(limit.saturating_sub(held));
            if got == 0 {
                return 0;
            }
            match user.held.compare_exchange_weak(
                held,
                held + got,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return got,
                Err(now) => held = now,
            }
        }
    }

    /// Counts `n` of the user's tags as returned.
    #[inline]
    pub(crate) fn release(&self, who: u16, n: u32) {
        if n > 0 {
            let before = self.each[usize::from(who)].held.fetch_sub(n, Ordering::Relaxed);
            debug_assert!(before >= n, "user {who} gives back {n} of {before} tags");
        }
    }

    #[must_use]
    pub(crate) fn held(&self, who: u16) -> u32 {
        self.each[usize::from(who)].held.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn with_active(depth: u32, users: u16) -> FairShare {
        let share = FairShare::new(depth, users.max(1));
        assert!((0..users).all(|who| share.activate(who)));
        share
    }

    #[test]
    fn s16_04_limits() {
        for (depth, users, limit) in [
            (32, 5, Some(7)),
            (8, 5, Some(4)),
            (32, 1, Some(32)),
            (64, 3, Some(22)),
            (2, 2, Some(4)),
        ] {
            assert_eq!(with_active(depth, users).limit(), limit, "depth {depth}, {users} users");
        }
        assert_eq!(with_active(32, 0).limit(), None, "no user is active");
        assert_eq!(with_active(1, 2).limit(), None, "one tag cannot be divided");
    }

    #[test]
    fn s16_04_five_users_of_32_tags_hold_seven_each() {
        let share = with_active(32, 5);
        for who in 0..5 {
            assert_eq!(share.admit(who, 100), 7);
            assert_eq!(share.admit(who, 1), 0);
        }
        share.release(3, 2);
        assert_eq!((share.admit(3, 100), share.held(3)), (2, 7));
    }

    #[test]
    fn users_count_once_and_those_who_leave_make_room() {
        let share = with_active(32, 4);
        assert!(!share.activate(2));
        assert_eq!((share.users(), share.admit(0, 100)), (4, 8));
        assert!(share.deactivate(1) && !share.deactivate(1) && share.deactivate(2));
        assert_eq!((share.users(), share.admit(0, 100)), (2, 8));
    }

    #[test]
    fn who_takes_nothing_for_a_while_is_idle() {
        let share = with_active(32, 4);
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        assert_eq!(share.admit(3, 1), 1);
        assert!(!share.deactivate_idle(at(99)), "it is too early to look");
        assert!(!share.deactivate_idle(at(100)), "all were seen at the beginning");
        share.activate(0);
        assert!(!share.deactivate_idle(at(199)));
        assert!(share.deactivate_idle(at(200)), "1 and 2 were not seen again");
        // User 3 was not seen either, but holds a tag.
        assert_eq!(share.users(), 2);
        share.release(3, 1);
        assert!(share.deactivate_idle(at(300)));
        assert_eq!((share.users(), share.activate(2)), (0, true));
    }

    #[test]
    fn an_idle_user_is_not_limited_but_counted() {
        let share = FairShare::new(32, 2);
        share.activate(0);
        assert_eq!((share.admit(1, 100), share.held(1)), (100, 100));
        share.release(1, 100);
        assert_eq!(share.held(1), 0);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::Arc;
    use loom::thread;

    fn users_count_once(activate: fn(&FairShare, u16) -> bool) {
        loom::model(move || {
            let share = Arc::new(FairShare::new(32, 1));
            let other = {
                let share = Arc::clone(&share);
                thread::spawn(move || activate(&share, 0))
            };
            let new = activate(&share, 0);
            assert!(new != other.join().expect("no thread panics"), "one of the two activates it");
            assert_eq!(share.users(), 1);
        });
    }

    #[test]
    fn loom_users_count_once() {
        users_count_once(FairShare::activate);
    }

    #[test]
    #[should_panic(expected = "one of the two")]
    fn loom_planted_activation_without_a_swap() {
        users_count_once(|share, who| {
            let active = &share.each[usize::from(who)].active;
            let new = !active.load(Ordering::Relaxed);
            if new {
                active.store(true, Ordering::Relaxed);
                share.users.fetch_add(1, Ordering::Relaxed);
            }
            new
        });
    }

    #[test]
    fn loom_users_leave_once() {
        loom::model(|| {
            let share = Arc::new(FairShare::new(32, 1));
            share.activate(0);
            let other = {
                let share = Arc::clone(&share);
                thread::spawn(move || share.deactivate(0))
            };
            let left = share.deactivate(0);
            assert!(left != other.join().expect("no thread panics"), "one of the two says so");
            assert_eq!(share.users(), 0);
        });
    }

    /// Two threads search for idle users at the same time, and one user has taken a tag since the last search.
    fn who_was_seen_stays(look: fn(&FairShare, Instant) -> bool) {
        loom::model(move || {
            let share = Arc::new(FairShare::new(32, 1));
            share.activate(0);
            let now = Instant::ZERO + IDLE;
            let other = {
                let share = Arc::clone(&share);
                thread::spawn(move || look(&share, now))
            };
            let found = look(&share, now) | other.join().expect("no thread panics");
            assert!(!found && share.users() == 1, "one that was seen is taken for idle");
            assert!(share.deactivate_idle(now + IDLE), "the next time it is idle");
        });
    }

    #[test]
    fn loom_who_was_seen_stays() {
        who_was_seen_stays(FairShare::deactivate_idle);
    }

    #[test]
    #[should_panic(expected = "is taken for idle")]
    fn loom_planted_two_who_look_at_once() {
        who_was_seen_stays(|share, now| {
            let looked = share.looked.load(Ordering::Relaxed);
            if now.as_nanos() - looked < IDLE.0 {
                return false;
            }
            share.looked.store(now.as_nanos(), Ordering::Relaxed);
            let user = &share.each[0];
            !user.seen.swap(false, Ordering::Relaxed) && share.deactivate(0)
        });
    }

    /// Two threads of one user, with a limit of 4.
    fn the_limit_holds(admit: fn(&FairShare, u16, u32) -> u32) {
        loom::model(move || {
            let share = Arc::new(FairShare::new(8, 2));
            share.activate(0);
            share.activate(1);
            let other = {
                let share = Arc::clone(&share);
                thread::spawn(move || admit(&share, 0, 3))
            };
            let got = admit(&share, 0, 3) + other.join().expect("no thread panics");
            assert_eq!(got, 4, "what two threads were admitted to");
            assert_eq!(share.held(0), 4);
            share.release(0, got);
            assert_eq!(share.held(0), 0);
        });
    }

    #[test]
    fn loom_the_limit_holds() {
        the_limit_holds(FairShare::admit);
    }

    #[test]
    #[should_panic(expected = "what two threads were admitted to")]
    fn loom_planted_admission_that_adds_after_looking() {
        the_limit_holds(|share, who, want| {
            let held = &share.each[usize::from(who)].held;
            let got = want.min(4 - held.load(Ordering::Relaxed).min(4));
            held.fetch_add(got, Ordering::Relaxed);
            got
        });
    }
}
