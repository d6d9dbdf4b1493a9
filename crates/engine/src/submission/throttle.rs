//! I/Os that a submitter holds back because their group has used its share: the limits of `io.max`.
//!
//! A throttle precedes every scheduler and is private to its thread: no other thread has to know which I/Os wait here,
//! and neither groups nor the two directions of one group wait behind each other. Only the oldest I/O of each line has
//! a time; the next one gets its time when the oldest has left.
//!
//! A change of the limits wakes the threads that sleep (`reconfiguration/change.rs`). They find that the limit for
//! which an I/O waits has changed its price since its time was set, and compute the time again. A thread that is about
//! to sleep checks once more after it has announced that (`submitter/wait.rs`): either it sees the new price, or the
//! thread that has made the change sees that it sleeps. Both have a full fence in between.

use crate::BioTable;
use crate::groups::{Meters, Stand};
use crate::shared::inflight::PluggedRequest;
use crate::shared::slots::Bio;
use blkmq_core::{GroupIndex, Instant, IoMeta, Op};
use std::collections::VecDeque;

/// The reads of a group, or all of its other I/Os.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kind {
    group: GroupIndex,
    reads: bool,
}

impl Kind {
    fn of(group: GroupIndex, op: Op) -> Self {
        Self { group, reads: op == Op::Read }
    }
}

/// The waiting I/Os of one kind, in the order of submission.
struct Line {
    kind: Kind,
    waiting: VecDeque<PluggedRequest>,
    /// The limit for which the first I/O waits; `None` if it may proceed.
    stand: Option<Stand>,
}

impl Line {
    /// The time at which the first I/O may proceed, or reaches the next limit.
    fn at(&self) -> Instant {
        self.stand.map_or(Instant::ZERO, |stand| stand.at())
    }

    fn first(&self) -> &IoMeta {
        &self.waiting.front().expect("a line is not empty").meta
    }
}

/// Lines of I/Os that may not proceed yet. Empty lines are dropped.
#[derive(Default)]
pub(crate) struct Throttle(Vec<Line>);

impl Throttle {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of waiting I/Os. O(lines).
    pub(crate) fn len(&self) -> u32 {
        self.0.iter().map(|line| line.waiting.len() as u32).sum()
    }

    /// Returns whether another I/O of this group and operation would wait behind one that waits.
    pub(crate) fn waits(&self, group: GroupIndex, op: Op) -> bool {
        self.0.iter().any(|line| line.kind == Kind::of(group, op))
    }

    /// Returns whether an I/O may proceed, or needs another time because a limit has changed.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant, meters: &Meters) -> bool {
        !self.is_empty() && (self.0.iter().any(|line| line.at() <= now) || self.has_changed(meters))
    }

    /// Returns whether a limit for which an I/O waits has been changed.
    pub(crate) fn has_changed(&self, meters: &Meters) -> bool {
        let changed =
            |line: &Line| line.stand.is_some_and(|stand| meters.has_changed(line.first(), &stand));
        self.0.iter().any(changed)
    }

    /// Computes the times of the waiting I/Os again, by the current limits.
    pub(crate) fn revise(&mut self, now: Instant, meters: &Meters) {
        for line in &mut self.0 {
            if let Some(mut stand) = line.stand
                && meters.has_changed(line.first(), &stand)
            {
                meters.revise(now, line.first(), &mut stand);
                line.stand = Some(stand);
            }
        }
    }

    /// Takes a limited I/O, or returns it if it may proceed at `now` and none waits before it. O(lines).
    pub(crate) fn hold(
        &mut self,
        now: Instant,
        meters: &Meters,
        proto: PluggedRequest,
    ) -> Option<PluggedRequest> {
        let kind = Kind::of(proto.meta.group, proto.meta.op);
        if let Some(line) = self.0.iter_mut().find(|line| line.kind == kind) {
            line.waiting.push_back(proto);
            return None;
        }
        let Some(stand) = meters.climb(now, &proto.meta, None) else { return Some(proto) };
        self.0.push(Line { kind, waiting: VecDeque::from([proto]), stand: Some(stand) });
        None
    }

    /// Takes out an I/O that may proceed now; the other I/Os of its line continue to wait. O(lines).
    pub(crate) fn next_due(&mut self, now: Instant, meters: &Meters) -> Option<PluggedRequest> {
        loop {
            let at = self.0.iter().position(|line| line.at() <= now)?;
            let line = &mut self.0[at];
            line.stand = line.stand.and_then(|stand| meters.climb(now, line.first(), Some(stand)));
            if line.stand.is_none() {
                return Some(self.take_first(at, now, meters));
            }
        }
    }

    /// Takes the first I/O of a line; the next one begins to climb.
    fn take_first(&mut self, at: usize, now: Instant, meters: &Meters) -> PluggedRequest {
        let line = &mut self.0[at];
        let proto = line.waiting.pop_front().expect("a line is not empty");
        if line.waiting.is_empty() {
            self.0.swap_remove(at);
        } else {
            line.stand = meters.climb(now, line.first(), None);
        }
        proto
    }

    /// Takes all I/Os out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = PluggedRequest> + '_ {
        self.0.drain(..).flat_map(|line| line.waiting)
    }

    /// The time at which the next I/O may proceed; `None` if none waits.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.iter().map(Line::at).min()
    }

    /// Takes out the oldest I/O with this cookie. O(waiting I/Os).
    ///
    /// If the I/O was the first of its line, the meters that it has passed still count it. The next I/O does not
    /// inherit its time but gets its own, because it may cost more.
    pub(crate) fn remove<P>(
        &mut self,
        now: Instant,
        meters: &Meters,
        table: &BioTable<P>,
        cookie: u64,
    ) -> Option<Bio> {
        let is = |proto: &PluggedRequest| table.is_io(&proto.bio, cookie);
        let place = |(at, line): (usize, &Line)| {
            let within = line.waiting.iter().position(is)?;
            Some((line.waiting[within].meta.arrived, at, within))
        };
        let (_, at, within) = self.0.iter().enumerate().filter_map(place).min()?;
        if within == 0 {
            return Some(self.take_first(at, now, meters).bio);
        }
        let proto = self.0[at].waiting.remove(within).expect("it was found there");
        Some(proto.bio)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
