//! The private state of a submitter, which the queue keeps while the submitter's number is not in use (`seats.rs`).

use super::plugged::PluggedRequest;
use super::staging::Ask;
use crate::BioTable;
use crate::shared::slots::{BioReceiver, Credit};
use crate::sync::Producer;
use blkmq_core::{HwQueue, SubmitterId};

/// A submitter's ends of its rings, and its credit.
pub(crate) struct Parts {
    pub(crate) id: SubmitterId,
    /// The hardware queue to which the submitter maps.
    pub(crate) hw: HwQueue,
    /// The lane that it pumps first: that of this hardware queue, or its own.
    pub(crate) lane: HwQueue,
    /// The lane leads to the device.
    pub(crate) has_lane: bool,
    pub(crate) staging: Producer<PluggedRequest>,
    pub(crate) asks: Producer<Ask>,
    pub(crate) receiver: BioReceiver,
    pub(crate) credit: Credit,
}

impl Parts {
    /// Is all the credit back?
    pub(crate) fn is_whole(&self) -> bool {
        self.credit.left() == self.credit.depth()
    }

    /// Takes the payload of an I/O that is done.
    pub(crate) fn pop<P>(&mut self, table: &BioTable<P>) -> Option<P> {
        self.receiver.finished(table, &mut self.credit).next().map(|popped| popped.payload)
    }
}
