//! A node of the tree of groups: its place, its promises and its tags, why it is served (the charge depends on that),
//! and the loss from its share: the turns that passed while all its requests were in the device.

use super::cost::Share;
use crate::Guarantee;
use crate::index::Heap;
use alloc::vec::Vec;
use blkmq_core::GroupIndex;

/// A group if its number is even; the next number is the group's own requests.
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
    /// The reservation tag, by the clock of reservations.
    pub(super) r: u64,
    /// The limit tag.
    pub(super) l: u64,
    /// The tag among its siblings, in nanoseconds of service over weight, and the remainder of the last division.
    pub(super) p: u64,
    pub(super) rem: u64,
    /// The tag of the member that was last chosen in order.
    pub(super) v: u64,
    /// Device time that it got, and its account of the shares that are judged now.
    pub(super) got: u64,
    pub(super) account: Account,
    /// For floors; a node of requests that has some is `busy`.
    pub(super) coverage: Coverage,
    pub(super) busy: bool,
    /// It has requests, in itself or below, that no limit below it holds back.
    pub(super) ready: bool,
    /// Nodes below it, by member; a number of none where one was removed.
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

/// How a floor was kept in a window, by the service its group got while it had requests all the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Floors {
    /// No group with a floor had requests all the time.
    Unknown,
    /// The least part of a floor that a group got, in thousandths, is less than the floor, or hardly more.
    Short(u64),
    /// It is a little more.
    Edge,
    /// It is much more.
    Roomy,
}

/// The floor is missed below this, in thousandths; and below the next ones, where all that the group asks for is in the
/// device, it is at the edge, and without room.
const MISSED: u64 = 990;
const EDGE: u64 = 1_050;
const ROOMY: u64 = 1_150;
const SECOND: u64 = 1_000_000_000;
/// A group had requests all the time if it had them for so much of it, in thousandths.
const COVERED: u64 = 940;

/// The time in a window in which a node had requests, and the service it got.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Coverage {
    /// Nodes of requests in it or below it that have some, and the time since which there are any.
    busy: u32,
    since: u64,
    covered: u64,
    /// The device time that it had got when the window began, and the cost of its last request.
    before: u64,
    last: u64,
    /// The part of its floor that it has not got, over windows in a row in which it had requests all the time.
    debt: u64,
}

impl Coverage {
    /// A window begins.
    pub(super) fn begin(&mut self, now: u64, got: u64) {
        *self = Self { since: now, covered: 0, before: got, ..*self };
    }

    /// The floor is another one, and nothing is owed.
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

    /// How the floor was kept that takes `due` of a second of device time. The window took `span`; `waiting`: requests of
    /// the node wait for the policy.
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
        // More than a tenth of a second would be made up for at the expense of all others.
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
    /// The worse of two.
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

/// The account of a node, from its first loss after a judgement to the next judgement. All are nanoseconds of device time.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Account {
    /// The judgement that it is for; none is zero.
    judgement: u64,
    lost: u64,
    /// The service that the node, and its parent, had got before the first loss.
    before: [u64; 2],
}

impl Account {
    /// The loss by the time of `judgement`.
    pub(super) fn lost(&self, judgement: u64) -> u64 {
        if self.judgement == judgement { self.lost } else { 0 }
    }

    /// Adds a loss. The node and its parent have `got` so much so far.
    pub(super) fn add(&mut self, judgement: u64, lost: u64, got: [u64; 2]) {
        if self.judgement != judgement {
            *self = Self { judgement, lost: 0, before: got };
        }
        self.lost += lost;
    }

    /// The part of its share that the node got, in thousandths.
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
    /// The floor of this node was due; below it, weights decided.
    Floor(u32),
    /// It was its turn by weight.
    Turn,
    /// Outside its turn: more of a batch, or a request at the head.
    Extra,
}

/// How a node was served, as far as its siblings are concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Served {
    InTurn,
    Ahead,
    Extra,
}
