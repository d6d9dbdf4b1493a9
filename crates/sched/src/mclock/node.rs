//! A node of the tree of groups: its place, its promises and its tags, the reasons for its service, on which the charge
//! depends, and its account: the turns that it lost while all its requests were in the device.

use super::cost::Share;
use crate::Guarantee;
use crate::index::Heap;
use alloc::vec::Vec;
use blkmq_core::GroupIndex;

/// A node: with an even number a group, with the next number the group's own requests.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: GroupIndex,
    pub(super) parent: u32,
    /// Its number among the members of its parent.
    pub(super) member: u32,
    pub(super) depth: u16,
    pub(super) weight: u32,
    pub(super) guarantee: Guarantee,
    pub(super) reserve: Option<Share>,
    pub(super) limit: Option<Share>,
    /// The reservation tag (R), in nanoseconds of the clock of reservations.
    pub(super) r: u64,
    /// The limit tag (L), in nanoseconds.
    pub(super) l: u64,
    /// The tag among its siblings (P), in nanoseconds of service over weight, and the remainder of the last division.
    pub(super) p: u64,
    pub(super) rem: u64,
    /// The time of its members (V): the greatest P of a member at its turn.
    pub(super) v: u64,
    /// The device time that it got, in nanoseconds, and its account in the present judgement of shares.
    pub(super) got: u64,
    pub(super) account: Account,
    /// For floors. A node of requests is `busy` while it has any, waiting or in the device.
    pub(super) coverage: Coverage,
    pub(super) busy: bool,
    /// It has requests, in itself or below, that no limit below it holds back.
    pub(super) ready: bool,
    /// The nodes below it, by member; `u32::MAX` where a node was removed.
    pub(super) members: Vec<u32>,
    /// Members that are ready and within their limits.
    pub(super) standing: Heap<(u64, u32)>,
}

impl Node {
    pub(super) fn new(id: GroupIndex, parent: u32, depth: u16, weight: u32) -> Self {
        Self {
            id,
            parent,
            member: 0,
            depth,
            weight,
            guarantee: Guarantee::default(),
            reserve: None,
            limit: None,
            r: 0,
            l: 0,
            p: 0,
            rem: 0,
            v: 0,
            got: 0,
            account: Account::default(),
            coverage: Coverage::default(),
            busy: false,
            ready: false,
            members: Vec::new(),
            standing: Heap::new(),
        }
    }
}

/// How a floor was kept in a window in which its group had requests all the time, by the service that it got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Floors {
    /// No group with a floor had requests all the time.
    Unknown,
    /// A group got less than its floor, or hardly more: the least part of a floor, in thousandths.
    Short(u64),
    /// A group got a little more than its floor.
    Edge,
    /// Every group got much more than its floor, or its floor while requests of it waited.
    Roomy,
}

/// Parts of a floor, in thousandths. The floor is short below the first where requests wait, and below the second where
/// all that the group asks for is in the device. There it is at the edge below the third.
const MISSED: u64 = 990;
const EDGE: u64 = 1_050;
const ROOMY: u64 = 1_150;
const SECOND: u64 = 1_000_000_000;
/// A group that had requests for this part of a window, in thousandths, counts as having had them all the time.
const COVERED: u64 = 940;

/// The time in a window in which a node had requests, and the service that it got, in nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Coverage {
    /// Busy nodes of requests in it or below it, and the time since which there are any.
    busy: u32,
    since: u64,
    covered: u64,
    /// The device time that it had got at the begin of the window, and the cost of its last request.
    before: u64,
    last: u64,
    /// The missing part of its floor, over windows in a row in which it had requests all the time.
    debt: u64,
}

impl Coverage {
    /// Begins a window.
    pub(super) fn begin(&mut self, now: u64, got: u64) {
        *self = Self { since: now, covered: 0, before: got, ..*self };
    }

    /// Begins a window for another floor, of which nothing is owed.
    pub(super) fn begin_anew(&mut self, now: u64, got: u64) {
        self.begin(now, got);
        self.debt = 0;
    }

    #[inline]
    pub(super) fn charge(&mut self, cost: u64) {
        self.last = cost;
    }

    pub(super) fn began(&mut self, now: u64) {
        if self.busy == 0 {
            self.since = now;
        }
        self.busy += 1;
    }

    pub(super) fn ended(&mut self, now: u64) {
        self.busy -= 1;
        if self.busy == 0 {
            self.covered += now - self.since;
        }
    }

    /// Returns how the floor was kept. The floor is `due`, a part of the device's time in units of 2^-32, and the
    /// window took `span` ns. With `waiting`, requests of the node wait in the policy.
    pub(super) fn judge(
        &mut self,
        now: u64,
        span: u64,
        got: u64,
        due: u64,
        waiting: bool,
    ) -> Floors {
        let last = if self.busy > 0 { now - self.since } else { 0 };
        let covered = self.covered + last;
        if covered < span / 1_000 * COVERED {
            self.debt = 0;
            return Floors::Unknown;
        }
        let of = |time: u64| ((u128::from(time) * u128::from(due)) >> 32) as u64;
        let (due, got) = (of(covered), got - self.before);
        // A debt of more than a tenth of a second would be repaid at the expense of all others.
        self.debt = (self.debt + due).saturating_sub(got).min(of(SECOND / 10));
        let part = u128::from(got) * 1_000 / u128::from(due.max(1));
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        if self.debt > of(SECOND / 50).max(2 * self.last) {
            return Floors::Short(part.min(MISSED));
        }
        if part < if waiting { MISSED } else { EDGE } {
            Floors::Short(part)
        } else if waiting || part >= ROOMY {
            Floors::Roomy
        } else {
            Floors::Edge
        }
    }
}

impl Floors {
    /// Returns the worse of two.
    pub(super) fn or_worse(self, other: Self) -> Self {
        match (self, other) {
            (Self::Short(a), Self::Short(b)) => Self::Short(a.min(b)),
            (Self::Short(_), _) | (_, Self::Unknown) => self,
            (_, Self::Short(_)) | (Self::Unknown, _) => other,
            (Self::Edge, _) | (_, Self::Edge) => Self::Edge,
            _ => Self::Roomy,
        }
    }
}

/// The account of a node, from its first loss after a judgement to the next judgement, in nanoseconds of device time.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Account {
    /// The number of its judgement. Zero is no judgement.
    judgement: u64,
    lost: u64,
    /// The service of the node and of its parent before the first loss.
    before: [u64; 2],
}

impl Account {
    /// Returns the loss so far in `judgement`.
    pub(super) fn lost(&self, judgement: u64) -> u64 {
        if self.judgement == judgement { self.lost } else { 0 }
    }

    /// Adds a loss. `got` is the service of the node and of its parent so far.
    pub(super) fn add(&mut self, judgement: u64, lost: u64, got: [u64; 2]) {
        if self.judgement != judgement {
            *self = Self { judgement, lost: 0, before: got };
        }
        self.lost += lost;
    }

    /// Returns the part of its share that the node got, in thousandths.
    pub(super) fn part(&self, judgement: u64, got: [u64; 2]) -> u64 {
        let lost = self.lost(judgement);
        if lost == 0 {
            return 1_000;
        }
        let [got, all] = [0, 1].map(|at| got[at] - self.before[at]);
        let part = |got: u64, of: u64| u128::from(got) * 1_000_000 / u128::from(of.max(1));
        let (has, due) = (part(got, all), part(got + lost, all + lost));
        (has * 1_000 / due.max(1)).min(1_000) as u64
    }
}

/// Why a node was served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// The floor of this node was due. Below the node, weights decided.
    Floor(u32),
    /// Its turn by weight.
    Turn,
    /// Outside of its turn: more of a batch, or a request at the head.
    Extra,
}

/// How a node was served, as far as its siblings are concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Served {
    InTurn,
    Ahead,
    Extra,
}
