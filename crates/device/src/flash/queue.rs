//! One hardware queue: hands requests to the device, which all hardware queues share, and takes them back when they
//! end.
//!
//! It never reports busy: a device takes as many commands as there are driver tags, and makes them wait inside.

use super::backend::Backend;
use super::drive::FlashDrive;
use super::params::FlashParams;
use super::requests::Command;
use crate::{Answer, ArrivalLog};
use blkmq_core::{HwQueue, Instant, IoFlags};
use blkmq_engine::{BioTable, DeviceQueue, Enqueued, Finished, Inflight, Verdict, WriteCache};
use std::sync::MutexGuard;

pub(super) struct FlashQueue {
    hw: HwQueue,
    drive: FlashDrive,
    log: Option<ArrivalLog>,
    /// The tokens of the requests inside the device, by driver tag.
    tokens: Vec<Option<Inflight>>,
    inside: u32,
    /// The write buffer is volatile, so that FUA has a meaning.
    volatile: bool,
}

impl FlashQueue {
    pub(super) fn new(
        params: &FlashParams,
        hw: HwQueue,
        drive: FlashDrive,
        log: Option<ArrivalLog>,
    ) -> Self {
        let tokens = (0..params.hw_queue_depth).map(|_| None).collect();
        let volatile = params.cache != WriteCache::Through;
        Self { hw, drive, log, tokens, inside: 0, volatile }
    }

    fn backend(&self) -> MutexGuard<'_, Backend> {
        self.drive.backend()
    }
}

impl<P> DeviceQueue<P> for FlashQueue {
    fn enqueue(&mut self, now: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        if let Some(log) = &self.log {
            log.record(now, &rq, Answer::Taken);
        }
        let tag = rq.tag();
        let command = Command {
            hw: self.hw,
            tag,
            op: rq.op(),
            sector: rq.sector(),
            sectors: rq.sectors(),
            fua: self.volatile && rq.flags().contains(IoFlags::FUA),
        };
        self.backend().submit(now, &command);
        self.tokens[tag.0 as usize] = Some(rq);
        self.inside += 1;
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
        if self.inside == 0 {
            return;
        }
        let mut backend = self.drive.backend();
        backend.advance(now);
        while let Some(tag) = backend.reap(now, self.hw) {
            let rq = self.tokens[tag.0 as usize].take().expect("what ended was inside");
            self.inside -= 1;
            out.push(Finished { rq, verdict: Verdict::Done(Ok(())) });
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let next = (self.inside > 0).then(|| self.backend().next_event(self.hw));
        Some(next.unwrap_or(Instant::MAX))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.tokens.iter_mut().filter_map(Option::take));
        self.inside = 0;
    }
}
