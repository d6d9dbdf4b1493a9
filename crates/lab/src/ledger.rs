//! Conservation: every I/O goes to the device and back to its submitter once, whole and with its own payload.
//! Bare flushes do not go there, but need one that does (`durable.rs`); and what ends cancelled must not be there,
//! or not any more, and its submitter must have asked for it.

use crate::Payload;
use crate::durable::Durable;
use crate::violation::{Stage, Violation};
use blkmq_core::{HwQueue, IoError, IoFlags, IoResult, Op, SubmitterId};
use blkmq_engine::{Completion, Io, WriteCache};

/// Every I/O of a run, by cookie.
pub(crate) struct Ledger {
    ios: Vec<Entry>,
    ended: u64,
    cancelled: u64,
    pub(crate) durable: Durable,
}

struct Entry {
    io: Io<Payload>,
    by: SubmitterId,
    stage: Stage,
    /// Its submitter asked for it to be given up.
    unwanted: bool,
}

/// A bio as the device saw it.
pub(crate) struct Seen {
    pub(crate) cookie: u64,
    pub(crate) by: SubmitterId,
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
    pub(crate) payload: Payload,
}

/// The payload that goes with a cookie; another number, so that one is not taken for the other.
fn payload_of(cookie: u64) -> Payload {
    cookie.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995
}

impl Ledger {
    /// No I/O yet, and a device with this cache.
    pub(crate) fn new(cache: WriteCache) -> Self {
        Self { ios: Vec::new(), ended: 0, cancelled: 0, durable: Durable::new(cache) }
    }

    /// The next cookie, and the payload to go with it.
    pub(crate) fn next(&self) -> (u64, Payload) {
        let cookie = self.ios.len() as u64;
        (cookie, payload_of(cookie))
    }

    /// I/Os taken by the engine so far.
    pub(crate) fn submitted(&self) -> u64 {
        self.ios.len() as u64
    }

    /// I/Os that have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    /// Of these, I/Os that were given up.
    pub(crate) fn cancelled(&self) -> u64 {
        self.cancelled
    }

    /// `io`, with the next cookie, was taken by the engine.
    pub(crate) fn push(&mut self, by: SubmitterId, io: Io<Payload>) {
        assert_eq!((io.cookie, io.payload), self.next(), "cookies are given out in order");
        self.ios.push(Entry { io, by, stage: Stage::Submitted, unwanted: false });
        self.durable.pushed();
    }

    fn entry(&mut self, cookie: u64) -> Result<&mut Entry, Violation> {
        self.ios.get_mut(cookie as usize).ok_or(Violation::Unknown { cookie })
    }

    fn go(&mut self, cookie: u64, from: Stage, to: Stage) -> Result<(), Violation> {
        let entry = self.entry(cookie)?;
        if entry.stage != from {
            return Err(Violation::Stages { cookie, was: entry.stage, now: to });
        }
        entry.stage = to;
        Ok(())
    }

    /// Its submitter does not want it any more.
    pub(crate) fn unwanted(&mut self, cookie: u64) -> Result<(), Violation> {
        self.entry(cookie)?.unwanted = true;
        Ok(())
    }

    /// The device took it.
    pub(crate) fn taken(&mut self, cookie: u64) -> Result<(), Violation> {
        self.go(cookie, Stage::Submitted, Stage::AtDevice)?;
        let io = self.entry(cookie)?.io;
        self.durable.taken(&io)
    }

    /// The device wants it back later.
    pub(crate) fn put_back(&mut self, cookie: u64) -> Result<(), Violation> {
        self.go(cookie, Stage::AtDevice, Stage::Submitted)
    }

    /// The device finished it.
    pub(crate) fn served(&mut self, cookie: u64, result: IoResult) -> Result<(), Violation> {
        self.durable.served(cookie);
        self.go(cookie, Stage::AtDevice, Stage::Served(result))
    }

    /// `by` took it back.
    pub(crate) fn end(
        &mut self,
        by: SubmitterId,
        completion: &Completion<Payload>,
    ) -> Result<(), Violation> {
        let cookie = completion.cookie;
        let entry = self.entry(cookie)?;
        if entry.by != by || entry.io.payload != completion.payload {
            return Err(Violation::Misrouted { cookie, by });
        }
        let (io, stage) = (entry.io, std::mem::replace(&mut entry.stage, Stage::Ended));
        let given_up = completion.result == Err(IoError::CANCELLED);
        let may_be = entry.unwanted && stage == Stage::Submitted;
        self.ended += 1;
        if given_up {
            self.cancelled += 1;
            let wrong = Violation::Stages { cookie, was: stage, now: Stage::Ended };
            return if may_be { Ok(()) } else { Err(wrong) };
        }
        self.durable.end(&io, stage, completion.result)
    }

    /// A request that arrived on `hw` for `op` with these flags, made of `bios`: are they what was submitted, do
    /// they follow each other, and may they be in one request?
    pub(crate) fn check_request(
        &mut self,
        hw: HwQueue,
        (op, flags): (Op, IoFlags),
        sector: u64,
        bios: &[Seen],
    ) -> Result<(), Violation> {
        let wrong = |what| Err(Violation::Malformed { hw, what, sector });
        if op == Op::Flush {
            let right = self.durable.is_flush_right(bios.len());
            return if right { Ok(()) } else { wrong("a flush with bios, or of nothing") };
        }
        let Some(first) = bios.first() else { return wrong("it has no bios") };
        let head = self.entry(first.cookie)?.io;
        if !self.durable.are_flags_right(&head, flags) {
            return wrong("FUA or PREFLUSH is not as the device can do it");
        }
        let mut end = first.sector;
        for bio in bios {
            let entry = self.entry(bio.cookie)?;
            let io = entry.io;
            if entry.by != bio.by || io.payload != bio.payload {
                return Err(Violation::Misrouted { cookie: bio.cookie, by: bio.by });
            }
            if (io.op, io.sector, io.sectors) != (op, bio.sector, bio.sectors) {
                return wrong("a bio in it is not what was submitted");
            }
            if (io.owner, io.ioprio, io.write_hint) != (head.owner, head.ioprio, head.write_hint) {
                return wrong("bios of different owners, priorities or hints were merged");
            }
            let merges = matches!(op, Op::Read | Op::Write | Op::Discard);
            if bios.len() > 1 && (!merges || self.durable.bars_merging(io.flags)) {
                return wrong("a bio in it may not merge");
            }
            if op != Op::Discard && bio.sector != end {
                return wrong("its bios do not follow each other");
            }
            end = bio.sector + u64::from(bio.sectors);
        }
        // A discard that gathered ranges keeps the start of the first one it was made of.
        if op != Op::Discard && first.sector != sector {
            return wrong("it does not begin with its first bio");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> (Ledger, Completion<Payload>) {
        let mut ledger = Ledger::new(WriteCache::Through);
        let (cookie, payload) = ledger.next();
        ledger.push(SubmitterId(1), Io::new(Op::Write, 8, 8, cookie, payload));
        (ledger, Completion { cookie, result: Ok(()), payload })
    }

    #[test]
    fn an_io_goes_there_and_back_once() {
        let (mut ledger, completion) = ledger();
        assert_eq!(ledger.taken(0), Ok(()));
        assert_eq!(ledger.put_back(0), Ok(()));
        assert_eq!(ledger.taken(0), Ok(()));
        assert_eq!(ledger.served(0, Ok(())), Ok(()));
        assert_eq!(ledger.end(SubmitterId(1), &completion), Ok(()));
        assert_eq!((ledger.submitted(), ledger.ended()), (1, 1));
        let twice = ledger.end(SubmitterId(1), &completion);
        assert!(matches!(twice, Err(Violation::Stages { was: Stage::Ended, .. })), "{twice:?}");
    }

    #[test]
    fn an_io_is_given_up_once_if_that_was_asked_for_and_while_it_waits() {
        let by = SubmitterId(1);
        let gone = |completion| Completion { result: Err(IoError::CANCELLED), ..completion };
        let fails = |verdict, stage| {
            let wrong = matches!(verdict, Err(Violation::Stages { was, .. }) if was == stage);
            assert!(wrong, "{verdict:?}");
        };
        let (mut unasked, completion) = ledger();
        fails(unasked.end(by, &gone(completion)), Stage::Submitted);
        let (mut ledger, completion) = ledger();
        assert_eq!(ledger.unwanted(0), Ok(()));
        assert_eq!((ledger.taken(0), ledger.put_back(0)), (Ok(()), Ok(())));
        assert_eq!(ledger.end(by, &gone(completion)), Ok(()));
        assert_eq!((ledger.ended(), ledger.cancelled()), (1, 1));
        fails(ledger.taken(0), Stage::Ended);
        fails(ledger.end(by, &gone(completion)), Stage::Ended);
        let (mut late, completion) = self::ledger();
        assert_eq!((late.unwanted(0), late.taken(0)), (Ok(()), Ok(())));
        fails(late.end(by, &gone(completion)), Stage::AtDevice);
    }

    #[test]
    fn what_the_device_never_had_does_not_complete() {
        let (mut ledger, completion) = ledger();
        let early = ledger.end(SubmitterId(1), &completion);
        assert!(matches!(early, Err(Violation::Stages { was: Stage::Submitted, .. })), "{early:?}");
    }

    #[test]
    fn another_submitter_or_payload_or_cookie_is_noticed() {
        let (mut ledger, completion) = ledger();
        let other = ledger.end(SubmitterId(2), &completion);
        assert!(matches!(other, Err(Violation::Misrouted { .. })), "{other:?}");
        let payload = Completion { payload: 0, ..completion };
        let other = ledger.end(SubmitterId(1), &payload);
        assert!(matches!(other, Err(Violation::Misrouted { .. })), "{other:?}");
        let cookie = Completion { cookie: 7, ..completion };
        let other = ledger.end(SubmitterId(1), &cookie);
        assert_eq!(other, Err(Violation::Unknown { cookie: 7 }));
    }

    #[test]
    fn a_request_is_made_of_what_was_submitted() {
        let (mut ledger, Completion { cookie, payload, .. }) = ledger();
        let by = SubmitterId(1);
        let seen = |sector| [Seen { cookie, by, sector, sectors: 8, payload }];
        let hw = HwQueue(0);
        assert_eq!(ledger.check_request(hw, (Op::Write, IoFlags::NONE), 8, &seen(8)), Ok(()));
        for (op, sector, bios) in
            [(Op::Read, 8, seen(8)), (Op::Write, 8, seen(16)), (Op::Write, 0, seen(8))]
        {
            let wrong = ledger.check_request(hw, (op, IoFlags::NONE), sector, &bios);
            assert!(matches!(wrong, Err(Violation::Malformed { .. })), "{wrong:?}");
        }
    }
}
