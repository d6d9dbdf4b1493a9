//! The disk's one hardware queue: takes tokens and returns them. `drive.rs` models the time between.
//!
//! It never reports busy: a drive holds as many commands as there are tags. It never answers within the call, except
//! to refuse a discard, and it does not look at payloads.

use super::commands::{Command, Kind};
use super::drive::Drive;
use crate::{Answer, ArrivalLog};
use blkmq_core::{Instant, IoError, IoFlags, Op};
use blkmq_engine::{BioTable, DeviceQueue, Enqueued, Finished, Inflight, Verdict, WriteCache};

pub(super) struct DiskQueue {
    drive: Drive,
    cache: WriteCache,
    log: Option<ArrivalLog>,
    /// The tokens of the requests inside the drive, by driver tag.
    held: Box<[Option<Inflight>]>,
}

impl DiskQueue {
    pub(super) fn new(
        drive: Drive,
        depth: u32,
        cache: WriteCache,
        log: Option<ArrivalLog>,
    ) -> Self {
        Self { drive, cache, log, held: (0..depth).map(|_| None).collect() }
    }

    /// Returns whether `rq`, a write, must be on the medium before it ends.
    fn is_durable(&self, rq: &Inflight) -> bool {
        match self.cache {
            WriteCache::Through => true,
            WriteCache::Back { .. } => rq.flags().contains(IoFlags::FUA),
        }
    }
}

impl<P> DeviceQueue<P> for DiskQueue {
    fn enqueue(&mut self, now: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        if let Some(log) = &self.log {
            log.record(now, &rq, Answer::Taken);
        }
        let kind = match rq.op() {
            Op::Read => Some(Kind::Read),
            Op::Write => Some(Kind::Write),
            Op::WriteZeroes => Some(Kind::Zeroes),
            Op::Flush => None,
            // Disks support no discard, as their limits say.
            Op::Discard => return Enqueued::Done(rq, Err(IoError::NOT_SUPPORTED)),
        };
        let tag = rq.tag().0;
        match kind {
            None => self.drive.submit_flush(now, tag),
            Some(kind) => {
                let range = rq.sector()..rq.sector() + u64::from(rq.sectors());
                let durable = self.is_durable(&rq);
                self.drive.submit(now, Command { tag, kind, range }, durable);
            }
        }
        self.held[tag as usize] = Some(rq);
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
        self.drive.advance(now);
        while let Some((tag, result)) = self.drive.pop(now) {
            let rq = self.held[tag as usize].take().expect("an answer is to what is held");
            out.push(Finished { rq, verdict: Verdict::Done(result) });
        }
    }

    /// Never `None`: this device always knows its next event. [`Instant::MAX`] if the drive holds no command.
    fn next_event(&self) -> Option<Instant> {
        Some(self.drive.next_event())
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.held.iter_mut().filter_map(Option::take));
    }
}
