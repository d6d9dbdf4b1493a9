//! Converts requests to I/Os, and completions to answers.

use super::Serving;
use crate::carrier::Finished;
use crate::flight::Work;
use blkmq::{IoError, IoResult};
use blkmq_ublk::queues::Taken;
use blkmq_ublk::wire::{Allowed, Descriptor, Op};

/// How often the queues are polled before messages are: a disk that completes each I/O within its push could be busy
/// for ever.
const ROUNDS: usize = 8;

impl Serving {
    /// Takes requests from the kernel, performs them as far as the disk permits, and answers.
    pub(super) fn serve(&mut self) {
        for _ in 0..ROUNDS {
            self.carrier.go_on(&self.seat);
            // All of them: the kernel signals until its ring is empty.
            let queues = &mut self.queues;
            self.waiting.extend(std::iter::from_fn(|| queues.take()));
            let has_begun = self.begin_waiting();
            let has_reaped = self.carrier.has_ended() && self.reap();
            self.publish();
            if !has_begun && !has_reaped {
                return;
            }
        }
    }

    /// Returns whether another request may begin.
    pub(super) fn may_begin(&self) -> bool {
        self.carrier.has_room(self.shared.bounds.bytes)
    }

    /// Begins waiting requests, within limits. Returns whether there was one.
    fn begin_waiting(&mut self) -> bool {
        let mut has_begun = false;
        while self.may_begin()
            && let Some(Taken { tag, request }) = self.waiting.pop_front()
        {
            has_begun = true;
            self.begin(tag, request);
        }
        has_begun
    }

    /// Begins a request, or answers it.
    fn begin(&mut self, tag: u32, request: Descriptor) {
        if self.has_given_up {
            return self.answer(tag, Err(IoError::IO), 0);
        }
        let Self { seat, carrier, queues, .. } = self;
        let export = &**seat;
        let allowed = Allowed {
            bytes: export.bytes(),
            most: carrier.portion() as u32,
            discards: export.discard > 0,
            is_read_only: export.is_read_only(),
        };
        let Some(range) = request.range(&allowed) else {
            return self.answer(tag, Err(IoError::IO), 0);
        };
        let of = (tag, export.ioprio);
        // For a read or write, whose length is at most a portion.
        let (at, len) = (range.start, (range.end - range.start) as u32);
        let fua = request.fua || self.through;
        match request.op {
            Op::Flush => carrier.flush(of, export),
            Op::Read => carrier.read(of, export, (at, len)),
            Op::Write => {
                let fill = |_: &u32, data: &mut [u8], _| {
                    queues.data(tag, data.len()).map(|from| data.copy_from_slice(from)).is_some()
                };
                if carrier.write(of, export, (at, len, fua), fill).is_err() {
                    self.answer(tag, Err(IoError::IO), 0);
                }
            }
            Op::Discard => carrier.discard(of, export, range),
            Op::WriteZeroes { no_hole } => carrier.zero(of, export, (range, no_hole, fua)),
            Op::Other(_) => self.answer(tag, Err(IoError::NOT_SUPPORTED), 0),
        }
    }

    /// Flushes the plug and reaps completions. Returns whether there were any.
    pub(super) fn reap(&mut self) -> bool {
        let mut finished = std::mem::take(&mut self.finished);
        let has_some = self.carrier.reap(&mut finished);
        if self.has_given_up {
            // They have been answered.
            finished.clear();
        }
        finished.drain(..).for_each(|done| self.finish(done));
        self.finished = finished;
        has_some
    }

    /// Handles the completion of all I/Os of a request.
    fn finish(&mut self, mut done: Finished<u32>) {
        if let Some((what, error)) = done.failure() {
            self.shared.disks[self.disk].failed(&self.export, what, error);
        }
        let mut len = 0;
        if done.result.is_ok() {
            match done.work {
                Work::Read(_) => match self.queues.data(done.to, done.payload.len()) {
                    Some(data) => {
                        data.copy_from_slice(done.payload.as_mut_slice());
                        len = done.payload.len();
                        self.totals.read += len as u64;
                    }
                    None => done.result = Err(IoError::IO),
                },
                Work::Write(written) => {
                    len = written as usize;
                    self.totals.written += u64::from(written);
                }
                // No request is longer than a portion.
                Work::Plain | Work::Steps(_) | Work::Long(_) => {}
            }
        }
        self.totals.requests += 1;
        self.answer(done.to, done.result, len);
    }

    /// Answers a request, with the bytes of a read or write. [`publish`](Self::publish) passes the answers to the
    /// kernel.
    fn answer(&mut self, tag: u32, result: IoResult, len: usize) {
        let result = match result {
            Ok(()) => len as i32,
            Err(error) => -i32::from(error.0),
        };
        self.queues.answer(tag, result);
    }

    /// Passes the answers to the kernel.
    pub(super) fn publish(&mut self) {
        if let Err(error) = self.queues.submit() {
            let export = &self.export;
            // The next turn tries again.
            self.faults.log(self.clock.now(), |before| {
                tracing::warn!(before, export, "the kernel takes no answers: {error}");
            });
        }
    }
}
