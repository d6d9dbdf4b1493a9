//! I/Os that a submitter holds back because their group has used its share: the limits of `io.max`.
//!
//! A throttle is above every scheduler and private to its thread: no other thread has to know which I/Os wait here,
//! no change of the queue concerns them, and groups do not wait behind each other. Only the oldest I/O of each group
//! has a time; the next one gets its time when the oldest has gone, so that a lifted limit takes effect after one
//! I/O.

use crate::BioTable;
use crate::groups::Meters;
use crate::shared::slots::Bio;
use crate::submission::plugged::PluggedRequest;
use blkmq_core::{GroupId, Instant};
use std::collections::VecDeque;

/// The waiting I/Os of one group, in the order of submission.
struct Line {
    group: GroupId,
    waiting: VecDeque<PluggedRequest>,
    /// When the first I/O may go.
    at: Instant,
}

/// Lines of I/Os that may not go yet. Empty lines are dropped.
#[derive(Default)]
pub(crate) struct Throttle(Vec<Line>);

impl Throttle {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many I/Os wait. O(groups that wait).
    pub(crate) fn len(&self) -> u32 {
        self.0.iter().map(|line| line.waiting.len() as u32).sum()
    }

    /// Does an I/O of this group wait?
    pub(crate) fn waits(&self, group: GroupId) -> bool {
        self.0.iter().any(|line| line.group == group)
    }

    /// May an I/O go by now?
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        !self.is_empty() && self.0.iter().any(|line| line.at <= now)
    }

    /// Takes a limited I/O, or gives it back if it may go now and no I/O of its group waits. O(groups that wait).
    pub(crate) fn hold(
        &mut self,
        now: Instant,
        meters: &Meters,
        proto: PluggedRequest,
    ) -> Option<PluggedRequest> {
        let group = proto.meta.group;
        if let Some(line) = self.0.iter_mut().find(|line| line.group == group) {
            line.waiting.push_back(proto);
            return None;
        }
        let at = meters.reserve(now, &proto.meta);
        if at <= now {
            return Some(proto);
        }
        self.0.push(Line { group, waiting: VecDeque::from([proto]), at });
        None
    }

    /// Takes an I/O that may go by now; the others of its group go on waiting. O(groups that wait).
    pub(crate) fn next_due(&mut self, now: Instant, meters: &Meters) -> Option<PluggedRequest> {
        let at = self.0.iter().position(|line| line.at <= now)?;
        let line = &mut self.0[at];
        let proto = line.waiting.pop_front().expect("a line is not empty");
        match line.waiting.front() {
            Some(next) => line.at = meters.reserve(now, &next.meta),
            None => {
                self.0.swap_remove(at);
            }
        }
        Some(proto)
    }

    /// Takes all I/Os out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = PluggedRequest> + '_ {
        self.0.drain(..).flat_map(|line| line.waiting)
    }

    /// When the next I/O may go.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.iter().map(|line| line.at).min()
    }

    /// Takes out the oldest I/O with this cookie. O(waiting I/Os).
    ///
    /// If the I/O was the first of its line, it counts as gone. The next I/O does not inherit its time but gets its
    /// own, because it may cost more.
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
        let line = &mut self.0[at];
        let proto = line.waiting.remove(within).expect("it was found there");
        match line.waiting.front() {
            Some(next) if within == 0 => line.at = meters.reserve(now, &next.meta),
            Some(_) => {}
            None => {
                self.0.swap_remove(at);
            }
        }
        Some(proto.bio)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
