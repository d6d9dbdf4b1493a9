//! How long a device may keep a request: a deadline for each driver tag, and the time of the next check
//! (`spec/framework.md` section 10).
//!
//! A plain structure that a pump owns. The pump reports which requests go to the device and which return, and learns
//! which have timed out. It then asks the device about those, and acts on the answer. This file handles tags, not
//! requests.
//!
//! Setting and clearing a deadline is one store each. The deadlines are not sorted: a walk over all tags finds the
//! earliest, and is made only when the earliest known so far has passed, or [`LOOK_AHEAD`] has. So there is at most one
//! walk for each request that was, or was thought to be, at the device at its deadline, and none while the device is
//! idle. Linux rounds the time of its scan up to a whole second, so that one timer serves several deadlines. Here the
//! time is exact, because it costs no timer, only a number that every passing thread compares with the time.
//!
//! *Invariant: no request at the device has a deadline before the time of the next check.*

use blkmq_core::{Instant, Nanos, Tag};

/// The next check is never further away than this (`spec/framework.md` section 1).
const LOOK_AHEAD: Nanos = Nanos::from_secs(5);

/// The deadline of a tag that is not at the device.
const AWAY: Instant = Instant::MAX;

/// The deadline of a request that may stay for ever: later than any time in use.
const NEVER: Instant = Instant::from_nanos(u64::MAX - 1);

/// The deadlines of one hardware queue.
pub(crate) struct Deadlines {
    by_tag: Box<[Instant]>,
    timeout: Nanos,
    look_at: Instant,
}

impl Deadlines {
    /// Deadlines for the tags below `tags`, none of which is at the device.
    pub(crate) fn new(tags: u32, timeout: Nanos) -> Self {
        let by_tag = vec![AWAY; tags as usize].into_boxed_slice();
        let mut deadlines = Self { by_tag, timeout, look_at: NEVER };
        deadlines.set_timeout(timeout);
        deadlines
    }

    /// Sets the timeout of requests that go to the device later (`io_timeout`); requests at the device keep their
    /// deadlines. A timeout beyond the end of time never expires.
    ///
    /// # Panics
    /// If the timeout is zero: no device could ever meet it.
    pub(crate) fn set_timeout(&mut self, timeout: Nanos) {
        assert!(timeout > Nanos::ZERO, "no device can answer in no time");
        self.timeout = timeout;
        // The next check may be too late for the new timeout.
        self.look_at = Instant::ZERO;
    }

    fn after(&self, now: Instant) -> Instant {
        (now + self.timeout).min(NEVER)
    }

    /// Notes that the request with this tag goes to the device.
    #[inline]
    pub(crate) fn begin(&mut self, now: Instant, tag: Tag) {
        let deadline = self.after(now);
        let entry = &mut self.by_tag[tag.0 as usize];
        assert!(*entry == AWAY, "tag {} is at the device already", tag.0);
        *entry = deadline;
    }

    /// Notes that the request with this tag has returned.
    #[inline]
    pub(crate) fn end(&mut self, tag: Tag) {
        let entry = &mut self.by_tag[tag.0 as usize];
        assert!(*entry != AWAY, "tag {} came back and was not at the device", tag.0);
        *entry = AWAY;
    }

    /// Restarts the whole timeout of a request that the device is still working on.
    pub(crate) fn restart(&mut self, now: Instant, tag: Tag) {
        self.end(tag);
        self.begin(now, tag);
    }

    /// Returns whether a check is due. If true, the caller goes through [`next_expired`](Self::next_expired), and then
    /// calls [`look_again`](Self::look_again).
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.look_at <= now
    }

    /// The first expired tag from `from` on. Walks over the tags in between.
    pub(crate) fn next_expired(&self, from: u32, now: Instant) -> Option<Tag> {
        let rest = &self.by_tag[from as usize..];
        let found = rest.iter().position(|deadline| *deadline <= now)?;
        Some(Tag(from + found as u32))
    }

    /// Finds the time of the next check, after a check. Walks over all tags.
    pub(crate) fn look_again(&mut self, now: Instant) {
        let earliest = self.by_tag.iter().copied().min().unwrap_or(AWAY);
        // The earliest deadline of requests at the device, and of later ones.
        let earliest = earliest.min(self.after(now));
        self.look_at = if earliest == NEVER { NEVER } else { earliest.min(now + LOOK_AHEAD) };
    }

    /// When to check the requests at the device if nothing happens before. `None` if all of them may stay for ever.
    #[inline]
    pub(crate) fn timer(&self) -> Option<Instant> {
        (self.look_at < NEVER).then_some(self.look_at)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    const T: Nanos = Nanos::from_millis(10);

    fn ms(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    /// One check. Returns the expired tags; the time of the next check is exact.
    fn look(deadlines: &mut Deadlines, now: Instant) -> Vec<u32> {
        assert!(deadlines.is_due(now));
        let (mut expired, mut from) = (Vec::new(), 0);
        while let Some(tag) = deadlines.next_expired(from, now) {
            expired.push(tag.0);
            deadlines.end(tag);
            from = tag.0 + 1;
        }
        deadlines.look_again(now);
        expired
    }

    #[test]
    fn the_next_look_is_at_the_earliest_deadline() {
        let mut d = Deadlines::new(4, T);
        d.begin(ms(0), Tag(3));
        d.begin(ms(2), Tag(0));
        assert_eq!(look(&mut d, ms(2)), [], "the first one, to find out");
        assert_eq!(d.timer(), Some(ms(10)));
        assert!(!d.is_due(ms(9)));
        assert_eq!(look(&mut d, ms(10)), [3]);
        assert_eq!(d.timer(), Some(ms(12)));
        d.end(Tag(0));
        d.begin(ms(11), Tag(1));
        assert_eq!(look(&mut d, ms(12)), [], "what it was for has come back");
        assert_eq!(d.timer(), Some(ms(21)));
        d.restart(ms(20), Tag(1));
        assert_eq!(look(&mut d, ms(21)), []);
        assert_eq!(look(&mut d, ms(30)), [1]);
    }

    #[test]
    fn with_nothing_there_the_next_look_is_early_enough_for_what_may_come() {
        let mut d = Deadlines::new(1, T);
        assert_eq!(look(&mut d, ms(5)), []);
        d.begin(ms(5), Tag(0));
        assert_eq!(d.timer(), Some(ms(15)));
    }

    #[test]
    fn the_next_look_is_at_most_5_s_away() {
        let mut d = Deadlines::new(1, Nanos::from_secs(30));
        d.begin(ms(0), Tag(0));
        let looks: Vec<_> = (0..6).map(|i| (look(&mut d, ms(i * 5000)), d.timer())).collect();
        let expected: Vec<_> = (1..7).map(|i| (Vec::<u32>::new(), Some(ms(i * 5000)))).collect();
        assert_eq!(looks, expected);
        assert_eq!(look(&mut d, ms(30_000)), [0]);
    }

    #[test]
    fn a_shorter_timeout_is_looked_after_at_once() {
        let mut d = Deadlines::new(2, Nanos(u64::MAX));
        d.begin(ms(1), Tag(0));
        assert_eq!((look(&mut d, ms(1)), d.timer()), (vec![], None), "it may stay for ever");
        d.set_timeout(T);
        d.begin(ms(2), Tag(1));
        assert_eq!(look(&mut d, ms(2)), []);
        assert_eq!(look(&mut d, ms(12)), [1]);
        assert_eq!(d.timer(), Some(ms(22)), "what may come has a deadline");
    }

    #[test]
    fn a_request_that_may_stay_for_ever_is_at_the_device_all_the_same() {
        let mut d = Deadlines::new(1, Nanos(u64::MAX));
        for _ in 0..2 {
            d.begin(ms(1), Tag(0));
            d.restart(ms(2), Tag(0));
            assert_eq!(d.next_expired(0, ms(1 << 40)), None);
            d.end(Tag(0));
        }
    }

    #[test]
    fn all_whose_time_is_up_are_found_in_one_look() {
        let mut d = Deadlines::new(6, T);
        [1, 3, 4].into_iter().for_each(|tag| d.begin(ms(0), Tag(tag)));
        d.begin(ms(1), Tag(5));
        assert_eq!(look(&mut d, ms(10)), [1, 3, 4]);
        assert_eq!(d.timer(), Some(ms(11)));
    }

    #[test]
    #[should_panic(expected = "no device can answer in no time")]
    fn a_timeout_of_zero_is_refused() {
        let _ = Deadlines::new(1, Nanos::ZERO);
    }

    #[test]
    #[should_panic(expected = "tag 1 is at the device already")]
    fn a_tag_is_not_there_twice() {
        let mut d = Deadlines::new(2, T);
        d.begin(ms(0), Tag(1));
        d.begin(ms(1), Tag(1));
    }

    #[test]
    #[should_panic(expected = "tag 1 came back and was not at the device")]
    fn what_comes_back_was_there() {
        Deadlines::new(2, T).end(Tag(1));
    }
}
