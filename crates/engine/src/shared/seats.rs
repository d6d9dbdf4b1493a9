//! The parts of submitters: the ends of their rings, and their credit. A queue keeps the parts that no registered
//! submitter has: idle ones, and those with I/Os still in flight.
//!
//! A submitter that is dropped with I/Os in flight leaves its parts here. Its completions still arrive in its ring;
//! the parts become idle when their credit is complete, at the latest when the next submitter is registered.

use crate::BioTable;
use crate::shared::inflight::PluggedRequest;
use crate::shared::slots::{BioReceiver, Credit};
use crate::sync::{Mark, Mutex, MutexGuard, PoisonError, Producer};
use blkmq_core::{HwQueue, SubmitterId};

/// The parts of all submitters that are not registered.
pub(crate) struct Seats(Mutex<Lists>);

struct Lists {
    idle: Vec<Parts>,
    /// Parts with I/Os in flight that no submitter waits for.
    departed: Vec<Parts>,
}

impl Seats {
    /// The last of `idle` is used first.
    pub(crate) fn new(idle: Vec<Parts>) -> Self {
        Self(Mutex::new(Lists { idle, departed: Vec::new() }))
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Payloads are dropped elsewhere, so no user code runs while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a submitter's parts back.
    pub(crate) fn put(&self, parts: Parts) {
        let mut lists = self.lists();
        let list = if parts.is_whole() { &mut lists.idle } else { &mut lists.departed };
        list.push(parts);
    }

    /// Parts for a new submitter: idle ones, or those of a dropped submitter whose I/Os are done. O(dropped submitters,
    /// and their new completions).
    pub(crate) fn take<P>(&self, table: &BioTable<P>) -> Option<Parts> {
        let idle = self.lists().idle.pop();
        idle.or_else(|| {
            self.settle(table);
            self.lists().idle.pop()
        })
    }

    /// Returns whether there are parts with I/Os in flight that no submitter waits for. O(dropped submitters, and their
    /// new completions).
    pub(crate) fn has_departed<P>(&self, table: &BioTable<P>) -> bool {
        self.settle(table);
        !self.lists().departed.is_empty()
    }

    /// Takes the completions of dropped submitters. Parts whose I/Os are all done become idle.
    fn settle<P>(&self, table: &BioTable<P>) {
        let mut payloads = Vec::new();
        let mut lists = self.lists();
        let Lists { idle, departed } = &mut *lists;
        idle.extend(departed.extract_if(.., |parts| {
            payloads.extend(std::iter::from_fn(|| parts.pop(table)));
            parts.is_whole()
        }));
        drop(lists);
        drop(payloads);
    }

    /// Takes all parts, at the end of the queue.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Parts> {
        let Lists { idle, departed } = &mut *self.lists();
        std::mem::take(idle).into_iter().chain(std::mem::take(departed))
    }
}

/// A submitter's ends of its rings, and its credit.
pub(crate) struct Parts {
    pub(crate) id: SubmitterId,
    /// The hardware queue to which the submitter maps.
    pub(crate) hw: HwQueue,
    /// The lane that it pumps first: its own, or that of the hardware queue.
    pub(crate) lane: HwQueue,
    /// The lane leads to the device.
    pub(crate) has_lane: bool,
    pub(crate) staging: Producer<PluggedRequest>,
    pub(crate) asks: Producer<Ask>,
    pub(crate) receiver: BioReceiver,
    pub(crate) credit: Credit,
}

impl Parts {
    /// Returns whether all of the credit has returned.
    pub(crate) fn is_whole(&self) -> bool {
        self.credit.left() == self.credit.depth()
    }

    /// Takes the payload of an I/O that is done.
    pub(crate) fn pop<P>(&mut self, table: &BioTable<P>) -> Option<P> {
        self.receiver.finished(table, &mut self.credit).next().map(|popped| popped.payload)
    }
}

/// "Cancel my I/O with this cookie" (`elevator/runner/admission.rs`).
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) cookie: u64,
    /// Only an I/O that was pushed before this mark in its submitter's staging ring is cancelled.
    pub(crate) before: Mark,
}
