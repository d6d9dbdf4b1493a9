//! The pace of the groups without a goal: the bytes a second that the groups of a tier may begin together.
//!
//! A rate is finer than a depth. A drive with a write cache is as fast, and as busy behind its cache, at a depth of one
//! as at 32, so a bound below one request at a time is needed (decision 0024).

use blkmq_core::{Instant, IoMeta, Nanos, SECTOR_SIZE};

/// The number of tiers: groups lighter than the lightest group with a goal, as heavy, and heavier.
pub(super) const TIERS: usize = 3;
/// The cost of a request beside its bytes.
const OF_A_REQUEST: u64 = 16 << 10;
/// The unused time of a rate that may be used later, since a pass may be late.
const LATE: Nanos = Nanos::from_millis(5);
/// The longest time until the next request of a tier, so that none waits for ever.
const LONGEST: Nanos = Nanos::from_millis(250);
/// The part of its rate before anything was taken that a tier keeps in any case.
const LEFT: u64 = 64;

/// The length of a request or an I/O, in bytes.
pub(super) fn bytes(io: &IoMeta) -> u64 {
    u64::from(io.sectors) * u64::from(SECTOR_SIZE)
}

/// The cost of a request, in bytes.
pub(super) fn cost(io: &IoMeta) -> u64 {
    OF_A_REQUEST + bytes(io)
}

#[derive(Clone, Copy, Default)]
struct Tier {
    /// Bytes a second; `None` for no bound.
    rate: Option<u64>,
    /// The rate in use before anything was taken.
    had: u64,
    /// The least rate that it keeps.
    kept: u64,
    /// The cost of the requests of this window.
    used: u64,
    /// The cost a second in the last window.
    lately: u64,
    /// A rate at which a goal was missed, and the time until which it is not tried again.
    ceiling: (u64, Instant),
    /// The distance that it keeps from that rate, as a shift (3: an eighth), and the time from which it may come
    /// closer.
    near: (u32, Instant),
    /// The earliest time of its next request.
    next: Instant,
}

/// The rates of all tiers.
#[derive(Default)]
pub(super) struct Pace {
    tiers: [Tier; TIERS],
    began: Instant,
}

/// The time for which a rate at which a goal was missed is not tried again.
const REMEMBERED: Nanos = Nanos::from_secs(60);

/// A tier comes closer to such a rate after this time, from a distance of `FARTHEST` to one of `NEAREST`, as shifts. At
/// 7/8, a beat between two tenants may leave less than half of the available rate.
const CLOSER: Nanos = Nanos::from_secs(2);
const NEAREST: u32 = 5;
const FARTHEST: u32 = 3;

/// The result of giving back.
pub(super) enum Raise {
    /// A tier has a higher rate. With its number, and the rate before.
    Raised((usize, Option<u64>)),
    /// A tier has a rate, and more was too much lately.
    Held,
    /// No tier has a rate.
    Free,
}

/// The size of a step that lowers a rate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// To three quarters.
    Little,
    /// To a quarter.
    Much,
}

impl Tier {
    /// The rate to which it is lowered at most, in bytes a second.
    fn least(&self) -> u64 {
        self.kept.max(self.had / LEFT).max(1)
    }

    /// Remembers that a goal was missed at this rate.
    fn was_too_much(&mut self, rate: u64, now: Instant) {
        self.ceiling = (rate, now + REMEMBERED);
        self.near = (FARTHEST, now + CLOSER);
    }
}

impl Pace {
    fn tier(&self, tier: u16) -> Option<&Tier> {
        self.tiers.get(usize::from(tier))
    }

    pub(super) fn is_limited(&self, tier: u16) -> bool {
        self.tier(tier).is_some_and(|tier| tier.rate.is_some())
    }

    pub(super) fn charge(&mut self, tier: u16, now: Instant, cost: u64) {
        let Some(tier) = self.tiers.get_mut(usize::from(tier)) else { return };
        tier.used += cost;
        if let Some(rate) = tier.rate {
            let from = tier.next.max(Instant::from_nanos(now.as_nanos().saturating_sub(LATE.0)));
            let next = from + Nanos(cost.saturating_mul(1_000_000_000) / rate.max(1));
            tier.next = next.min(now + LONGEST);
        }
    }

    pub(super) fn admits(&self, tier: u16, now: Instant) -> bool {
        self.tier(tier).is_none_or(|tier| tier.rate.is_none() || tier.next <= now)
    }

    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let limited = self.tiers.iter().filter(|tier| tier.rate.is_some());
        limited.map(|tier| tier.next).filter(|next| *next > now).min()
    }

    pub(super) fn rates(&self) -> [Option<u64>; TIERS] {
        self.tiers.map(|tier| tier.rate)
    }

    /// Notes the rates of the tiers in the window, which is over.
    pub(super) fn measure(&mut self, now: Instant) {
        let elapsed = now.since(self.began).0.max(1);
        for tier in &mut self.tiers {
            let lately = u128::from(tier.used) * 1_000_000_000 / u128::from(elapsed);
            tier.lately = u64::try_from(lately).unwrap_or(u64::MAX);
        }
    }

    /// The number of tiers that have I/O or a rate.
    pub(super) fn busy(&self) -> u64 {
        self.tiers.iter().filter(|tier| tier.lately > 0 || tier.rate.is_some()).count() as u64
    }

    /// Sets the least rates of the tiers. While something is taken (not `is_free`), they do not fall.
    pub(super) fn keep(&mut self, kept: [u64; TIERS], is_free: bool) {
        for (tier, kept) in self.tiers.iter_mut().zip(kept) {
            tier.kept = if is_free { kept } else { tier.kept.max(kept) };
        }
    }

    /// Returns whether all tiers with a rate have their least rate.
    pub(super) fn is_bare(&self) -> bool {
        self.tiers.iter().all(|tier| tier.rate.is_none_or(|rate| rate <= tier.least()))
    }

    /// Returns whether a tier that had I/O used no more than its least rate.
    pub(super) fn is_short(&self) -> bool {
        self.tiers.iter().any(|tier| tier.lately > 0 && tier.lately <= tier.least())
    }

    /// Begins the next window.
    pub(super) fn restart(&mut self, now: Instant) {
        self.began = now;
        self.tiers.iter_mut().for_each(|tier| tier.used = 0);
    }

    /// Takes from the lightest tier above its least rate. Returns false if there is none.
    pub(super) fn cut(&mut self, at: Instant, how: Cut) -> bool {
        for tier in &mut self.tiers {
            if tier.rate.is_none() {
                tier.had = tier.lately;
            }
            let now = tier.rate.map_or(tier.lately, |rate| rate.min(tier.lately.max(1)));
            let least = tier.least();
            if now > least {
                if let (Some(rate), Cut::Little) = (tier.rate, how) {
                    tier.was_too_much(rate, at);
                }
                let lower = if how == Cut::Little { now / 4 * 3 } else { now / 4 };
                tier.rate = Some(lower.max(least));
                return true;
            }
        }
        false
    }

    /// Gives back to the heaviest tier that has a rate, more `with_ease`.
    pub(super) fn raise(&mut self, now: Instant, with_ease: bool) -> Raise {
        let lacks = |place: &usize| self.tiers[*place].rate.is_some();
        let Some(place) = (0..TIERS).rev().find(lacks) else { return Raise::Free };
        let tier = &mut self.tiers[place];
        let before = tier.rate;
        let rate = before.unwrap_or(0);
        let (missed, until) = tier.ceiling;
        let is_held = now < until;
        if is_held && with_ease && now >= tier.near.1 && tier.near.0 < NEAREST {
            tier.near = (tier.near.0 + 1, now + CLOSER);
        }
        let most = if is_held { missed - (missed >> tier.near.0) } else { u64::MAX };
        // Large steps end at the rate that was too much, however long ago that was.
        let large = rate / 2 * 3;
        let more =
            if with_ease && (missed == 0 || large <= missed) { large } else { rate / 8 * 9 } + 1;
        if more.min(most) <= rate + rate / 64 {
            return Raise::Held;
        }
        // The rate is not lifted while it is remembered that less was too much.
        tier.rate = Some(more.min(most)).filter(|rate| is_held || *rate < 2 * tier.had);
        Raise::Raised((place, before))
    }

    /// Undoes the last increase of a tier, which was too much.
    pub(super) fn put_back(&mut self, now: Instant, (place, rate): (usize, Option<u64>)) {
        let tier = &mut self.tiers[place];
        tier.had = tier.had.max(tier.lately);
        tier.was_too_much(tier.rate.unwrap_or(tier.lately), now);
        tier.rate = rate;
    }

    /// Lifts all rates.
    pub(super) fn release(&mut self) {
        self.tiers.iter_mut().for_each(|tier| tier.rate = None);
    }
}
