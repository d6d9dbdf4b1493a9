//! Conservation: every I/O goes to the device and back to its submitter once, whole and with its own payload; and the
//! limits of devices and groups are kept.
//!
//! Bare flushes do not reach the device, but need a flush that does (`contents.rs`). An I/O that ends cancelled must
//! not be at the device, nor have been served, and its submitter must have requested the cancellation.
//!
//! An I/O may reach the device in parts if it exceeds a limit of the device, or if it is long and beside a latency
//! goal. The ledger does not predict the cuts: it records every bio that arrives, and in the end the parts must make up
//! the I/O. A missing part never reached the device, and the only permitted reason is a failed flush before it. A
//! divided I/O is not cancelled.
//!
//! From the beginning on, no more of a group arrives at the device than the time allows. The limits apply when I/Os
//! leave their submitters, so bursts are possible behind them; but the total is bounded. Beyond the rate, 10 ms of it
//! and the credit of a burst may be ahead of time, and one I/O may be on its way (`Config::groups`). Only for groups
//! that no operator changes.

use crate::Payload;
use crate::contents::{Durable, Progress};
use crate::violation::{Stage, Violation};
use blkmq_core::{
    GroupId, HwQueue, Instant, IoError, IoFlags, IoResult, Limits, Nanos, Op, SECTOR_SIZE,
    SubmitterId,
};
use blkmq_engine::{Completion, Group, GroupTree, Io, WriteCache};
use std::collections::BTreeMap;

/// Every I/O of a run, by cookie.
pub(crate) struct Ledger {
    pub(crate) takes: Takes,
    /// Groups have, or had, latency goals, for which I/Os of others may be divided.
    pub(crate) shortens: bool,
    /// The number of queues that the device had before this one.
    pub(crate) life: u32,
    ios: Vec<Entry>,
    /// Bios that the device has taken so far, requeued ones once, plus the I/Os that were cancelled before they reached
    /// it.
    pub(crate) bios: u64,
    /// I/Os that have ended, and those of them that were cancelled.
    pub(crate) ended: u64,
    pub(crate) cancelled: u64,
    pub(crate) durable: Durable,
}

struct Entry {
    io: Io<Payload>,
    by: SubmitterId,
    /// The parts that the device has had, by first sector.
    parts: BTreeMap<u64, Part>,
    /// The submitter asked for the I/O to be cancelled.
    unwanted: bool,
    ended: bool,
}

struct Part {
    sectors: u32,
    progress: Progress,
}

/// The identity of a bio: the I/O that it is, or is part of, and its first sector.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Bio {
    pub(crate) cookie: u64,
    pub(crate) sector: u64,
}

/// A bio as the device saw it.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) cookie: u64,
    pub(crate) by: SubmitterId,
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
    pub(crate) payload: Payload,
}

impl Seen {
    pub(crate) fn bio(&self) -> Bio {
        Bio { cookie: self.cookie, sector: self.sector }
    }

    /// The sector behind the last one.
    pub(crate) fn end(&self) -> u64 {
        self.sector + u64::from(self.sectors)
    }
}

/// The payload that goes with a cookie; a different number, so that the two cannot be mistaken for each other. Parts
/// of an I/O have the same payload. No two I/Os have the same, even from different lives of a device.
fn payload_of(life: u32, cookie: u64) -> Payload {
    (cookie | u64::from(life) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995
}

impl Entry {
    /// The sector behind the last one.
    fn end(&self) -> u64 {
        self.io.sector + u64::from(self.io.sectors)
    }

    /// Checks that `bio` is this I/O, or a new valid part of it. The error is the reason.
    fn check_part(&self, takes: &Takes, shortens: bool, bio: &Seen) -> Result<(), &'static str> {
        let io = &self.io;
        if bio.sector < io.sector || bio.end() > self.end() {
            return Err("a bio in it is not what was submitted");
        }
        let is_short = shortens && may_be_shortened(io);
        if bio.sectors < io.sectors && takes.whole(io) && !is_short {
            return Err("a bio in it is part of an I/O that need not have been divided");
        }
        if io.sectors > 0 && bio.sectors == 0 {
            return Err("a bio in it is empty");
        }
        if bio.sectors < io.sectors && io.flags.contains(IoFlags::NOWAIT) {
            return Err("a bio in it is part of an I/O that was not to be divided");
        }
        let before = self.parts.range(..bio.sector).next_back();
        let next = self.parts.range(bio.sector + 1..).next();
        if before.is_some_and(|(at, part)| at + u64::from(part.sectors) > bio.sector)
            || next.is_some_and(|(at, _)| *at < bio.end())
            || self.parts.get(&bio.sector).is_some_and(|part| part.sectors != bio.sectors)
        {
            return Err("a bio in it overlaps another part of its I/O");
        }
        Ok(())
    }

    /// The progress of each part, in ascending order; a gap between two of them counts as a part.
    fn progress(&self) -> Vec<Progress> {
        let (mut at, mut all) = (self.io.sector, Vec::new());
        for (sector, part) in &self.parts {
            if *sector > at {
                all.push(Progress::NONE);
            }
            all.push(part.progress);
            at = sector + u64::from(part.sectors);
        }
        if at < self.end() || all.is_empty() {
            all.push(Progress::NONE);
        }
        all
    }

    /// Checks that the I/O may end with `result`: all its parts must have ended, and `result` is the first error in
    /// ascending order.
    fn check_end(&self, durable: &Durable, result: IoResult) -> Result<(), Violation> {
        let stages = |was| Violation::Stages { cookie: self.io.cookie, was, now: Stage::Ended };
        let all = self.progress();
        for (nth, part) in all.iter().enumerate() {
            if result.is_err() && durable.end(&self.io, part, result).is_ok() {
                let waits = all[nth + 1..].iter().find(|part| !durable.is_over(&self.io, part));
                return waits.map_or(Ok(()), |part| Err(stages(part.stage)));
            }
            durable.end(&self.io, part, Ok(()))?;
        }
        if result.is_ok() { Ok(()) } else { Err(stages(Stage::Served(Ok(())))) }
    }

    /// Checks that the I/O may end cancelled: a cancellation was requested, and no part of it is at the device or was
    /// served.
    fn check_cancelled(&self, takes: &Takes) -> Result<(), Violation> {
        let wrong = |was| Err(Violation::Stages { cookie: self.io.cookie, was, now: Stage::Ended });
        if let Some(part) = self.parts.values().find(|part| part.progress.stage != Stage::Submitted)
        {
            return wrong(part.progress.stage);
        }
        let is_whole = self.io.op == Op::Flush || takes.whole(&self.io);
        if self.unwanted && is_whole { Ok(()) } else { wrong(Stage::Submitted) }
    }
}

impl Ledger {
    /// A ledger without I/Os, for a device with these limits and this cache.
    pub(crate) fn new(limits: Limits, cache: WriteCache) -> Self {
        Self {
            takes: Takes { limits, range: 0 },
            shortens: false,
            life: 0,
            ios: Vec::new(),
            bios: 0,
            ended: 0,
            cancelled: 0,
            durable: Durable::new(cache),
        }
    }

    /// The next cookie, and its payload.
    pub(crate) fn next(&self) -> (u64, Payload) {
        let cookie = self.ios.len() as u64;
        (cookie, payload_of(self.life, cookie))
    }

    /// The I/O with this cookie, and whether the device has had any part of it.
    pub(crate) fn io(&self, cookie: u64) -> Option<(Io<Payload>, bool)> {
        self.ios.get(cookie as usize).map(|entry| (entry.io, !entry.parts.is_empty()))
    }

    /// The number of I/Os taken by the engine so far.
    pub(crate) fn submitted(&self) -> u64 {
        self.ios.len() as u64
    }

    /// `io`, with the next cookie, is offered to the engine.
    pub(crate) fn announce(&mut self, by: SubmitterId, io: Io<Payload>) {
        assert_eq!((io.cookie, io.payload), self.next(), "cookies are given out in order");
        self.ios.push(Entry { io, by, parts: BTreeMap::new(), unwanted: false, ended: false });
        self.durable.announced();
    }

    /// The engine took the I/O with this cookie, the last one that was offered.
    pub(crate) fn pushed(&mut self, cookie: u64) {
        let entry = &self.ios[cookie as usize];
        // The first parts of a divided I/O may have been served already while the others were pushed.
        if entry.parts.is_empty() && self.takes.whole(&entry.io) {
            self.durable.pushed(cookie);
        }
    }

    /// The engine did not take the last offered I/O: then the device must not have seen any part of it.
    pub(crate) fn withdraw(&mut self, cookie: u64) -> Result<(), Violation> {
        assert_eq!(cookie + 1, self.ios.len() as u64, "the last one");
        let entry = self.ios.pop().ok_or(Violation::Unknown { cookie })?;
        self.durable.withdrawn();
        match entry.parts.values().next() {
            None => Ok(()),
            Some(part) => {
                let was = part.progress.stage;
                Err(Violation::Stages { cookie, was, now: Stage::Submitted })
            }
        }
    }

    fn entry(&mut self, cookie: u64) -> Result<&mut Entry, Violation> {
        self.ios.get_mut(cookie as usize).ok_or(Violation::Unknown { cookie })
    }

    fn go(&mut self, bio: Bio, from: Stage, to: Stage) -> Result<(), Violation> {
        let cookie = bio.cookie;
        let entry = self.entry(cookie)?;
        let part = entry.parts.get_mut(&bio.sector);
        let was = match &part {
            _ if entry.ended => Stage::Ended,
            Some(part) => part.progress.stage,
            None => Stage::Submitted,
        };
        match part {
            Some(part) if was == from => {
                part.progress.stage = to;
                Ok(())
            }
            _ => Err(Violation::Stages { cookie, was, now: to }),
        }
    }

    /// Its submitter asks for the I/O to be cancelled.
    pub(crate) fn unwanted(&mut self, cookie: u64) -> Result<(), Violation> {
        self.entry(cookie)?.unwanted = true;
        Ok(())
    }

    /// The group of a bio that the device has not had before.
    pub(crate) fn group_of_new(&self, bio: &Seen) -> Option<GroupId> {
        let entry = self.ios.get(bio.cookie as usize)?;
        (!entry.parts.contains_key(&bio.sector)).then_some(entry.io.group)
    }

    /// The device took the bio.
    pub(crate) fn taken(&mut self, bio: &Seen) -> Result<(), Violation> {
        let entry = self.entry(bio.cookie)?;
        let io = entry.io;
        if !entry.ended && !entry.parts.contains_key(&bio.sector) {
            let part = Part { sectors: bio.sectors, progress: Progress::NONE };
            entry.parts.insert(bio.sector, part);
            self.bios += 1;
        }
        self.go(bio.bio(), Stage::Submitted, Stage::AtDevice)?;
        self.durable.taken(&io)
    }

    /// The device requeued the bio.
    pub(crate) fn put_back(&mut self, bio: Bio) -> Result<(), Violation> {
        self.go(bio, Stage::AtDevice, Stage::Submitted)
    }

    /// The device finished the bio.
    pub(crate) fn served(&mut self, bio: Bio, result: IoResult) -> Result<(), Violation> {
        let now = self.durable.served();
        if let Some(part) = self.entry(bio.cookie)?.parts.get_mut(&bio.sector) {
            part.progress.served = now;
        }
        self.go(bio, Stage::AtDevice, Stage::Served(result))
    }

    /// `by` reaped the completion.
    pub(crate) fn end(
        &mut self,
        by: SubmitterId,
        completion: &Completion<Payload>,
    ) -> Result<(), Violation> {
        let cookie = completion.cookie;
        let entry = self.ios.get_mut(cookie as usize).ok_or(Violation::Unknown { cookie })?;
        if entry.by != by || entry.io.payload != completion.payload {
            return Err(Violation::Misrouted { cookie, by });
        }
        if entry.ended {
            return Err(Violation::Stages { cookie, was: Stage::Ended, now: Stage::Ended });
        }
        if completion.result == Err(IoError::CANCELLED) {
            entry.check_cancelled(&self.takes)?;
            // The device will get no further part of it.
            self.bios += u64::from(entry.parts.is_empty());
            self.cancelled += 1;
        } else {
            entry.check_end(&self.durable, completion.result)?;
        }
        entry.ended = true;
        self.ended += 1;
        Ok(())
    }

    /// Checks a request that arrived on `hw` for `op` with these flags, made of `bios`. The bios must be parts of
    /// submitted I/Os, be contiguous, and be allowed in one request.
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
        let (takes, shortens) = (self.takes, self.shortens);
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
            if io.op != op {
                return wrong("a bio in it is for another operation");
            }
            if let Err(what) = entry.check_part(&takes, shortens, bio) {
                return wrong(what);
            }
            let kind = |io: &Io<Payload>| (io.group, io.ioprio, io.write_hint);
            if kind(&io) != kind(&head) {
                return wrong("bios of different groups, priorities or hints were merged");
            }
            let merges = matches!(op, Op::Read | Op::Write | Op::Discard);
            let front_part = bio.end() < entry.end();
            let barred = self.durable.bars_merging(io.flags);
            if bios.len() > 1 && (!merges || front_part || barred) {
                return wrong("a bio in it may not merge");
            }
            if op != Op::Discard && bio.sector != end {
                return wrong("its bios do not follow each other");
            }
            end = bio.end();
        }
        // A merged discard of several ranges keeps the start of its first range.
        if op != Op::Discard && first.sector != sector {
            return wrong("it does not begin with its first bio");
        }
        Ok(())
    }
}

/// Unused time that may be caught up.
const SLACK: Nanos = Nanos::from_millis(10);

/// The arrivals of one kind.
#[derive(Clone, Copy, Default)]
struct Used {
    units: u64,
    /// The units of the largest bio.
    most: u64,
}

/// A group, and its arrivals in the order of [`IoMax::rates`](blkmq_engine::IoMax::rates).
type Arrivals = (Group, [Used; 6]);

/// The arrivals of each group and the groups below it.
pub(crate) struct Rates(Vec<Arrivals>);

impl Rates {
    /// No arrivals yet, for the groups of this tree.
    pub(crate) fn new(tree: &GroupTree) -> Self {
        let is_limited = tree.iter().any(|group| group.max.is_limited());
        let groups = tree.iter().filter(|_| is_limited);
        Self(groups.map(|group| (group.clone(), Default::default())).collect())
    }

    /// From now on limits may change, so nothing is checked any more.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }

    /// A bio of `group` has arrived, for the first time.
    pub(crate) fn arrived(
        &mut self,
        now: Instant,
        group: GroupId,
        (op, sectors): (Op, u32),
    ) -> Result<(), Violation> {
        let bytes = u64::from(sectors) * u64::from(SECTOR_SIZE);
        let units = match op {
            Op::Read => [bytes, 0, 1, 0, bytes, 1],
            Op::Write => [0, bytes, 0, 1, bytes, 1],
            Op::Discard | Op::WriteZeroes => [0, 0, 0, 1, 0, 1],
            Op::Flush => return Ok(()),
        };
        let mut verdict = Ok(());
        let mut at = group;
        // The root is not in the list, and is above all groups.
        while let Some((group, all)) = self.0.iter_mut().find(|(group, _)| group.id == at) {
            at = group.parent;
            for (used, units) in all.iter_mut().zip(units) {
                used.units += units;
                used.most = used.most.max(units);
            }
            verdict = verdict.and(check_rates(group, all, now));
        }
        verdict
    }
}

fn check_rates(group: &Group, all: &[Used; 6], now: Instant) -> Result<(), Violation> {
    let burst = group.max.burst;
    let credit = u128::from(burst.length.0) * u128::from(burst.thousandths - 1000) / 1000;
    for (rate, &Used { units, most }) in group.max.rates().into_iter().zip(all) {
        let Some(rate) = rate else { continue };
        let lasting = allowed(rate, credit, now);
        let of = lasting.min(allowed(burst.of(rate), 0, now)).saturating_add(most);
        if units > of {
            return Err(Violation::TooFast { group: group.id, units, of, rate });
        }
    }
    Ok(())
}

/// The amount that may have arrived by `now` at `rate` with `credit` nanoseconds ahead of time.
fn allowed(rate: u64, credit: u128, now: Instant) -> u64 {
    let time = u128::from(now.as_nanos() + SLACK.0) + credit;
    u64::try_from((u128::from(rate) * time).div_ceil(1_000_000_000)).unwrap_or(u64::MAX)
}

/// The I/Os that the device takes whole.
#[derive(Clone, Copy)]
pub(crate) struct Takes {
    pub(crate) limits: Limits,
    /// Sectors in each range of memory of a read or write; 0 if it has one range.
    pub(crate) range: u32,
}

impl Takes {
    /// Returns whether the device takes `io` whole. Checks each limit separately.
    pub(crate) fn whole(&self, io: &Io<Payload>) -> bool {
        let limits = &self.limits;
        let moves_data = matches!(io.op, Op::Read | Op::Write);
        let chunk = if moves_data { u64::from(limits.chunk_sectors) } else { 0 };
        let last = io.sector + u64::from(io.sectors.max(1)) - 1;
        io.sectors <= limits.max_sectors_of(io.op)
            && self.segments(io) <= limits.max_segments.into()
            && (chunk == 0 || io.sector / chunk == last / chunk)
            && !self.has_gap(io)
    }

    fn is_list(&self, io: &Io<Payload>) -> bool {
        let is_data = matches!(io.op, Op::Read | Op::Write);
        is_data && (1..io.sectors).contains(&self.range)
    }

    /// Each range has segments of its own.
    fn segments(&self, io: &Io<Payload>) -> u64 {
        if !self.is_list(io) {
            return self.limits.segments(io.op, io.sectors);
        }
        let (whole, last) = (io.sectors / self.range, io.sectors % self.range);
        let of = |sectors| self.limits.segments(io.op, sectors);
        u64::from(whole) * of(self.range) + if last > 0 { of(last) } else { 0 }
    }

    /// Returns whether two ranges meet where segments may not. Every range begins at such a boundary.
    fn has_gap(&self, io: &Io<Payload>) -> bool {
        let bytes = u64::from(self.range) * u64::from(SECTOR_SIZE);
        self.is_list(io) && bytes & self.limits.virt_boundary_mask != 0
    }
}

/// Returns whether `io` may be divided for the latency goal of a group.
fn may_be_shortened(io: &Io<Payload>) -> bool {
    let is_data = matches!(io.op, Op::Read | Op::Write);
    is_data && !io.flags.intersects(IoFlags::PREFLUSH | IoFlags::FUA) && io.sectors > SHORTEST
}

/// No I/O is divided into shorter parts for a latency goal, in sectors.
const SHORTEST: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Tag;
    use blkmq_engine::{GroupSpec, IoMax};

    const BY: SubmitterId = SubmitterId(1);

    /// A ledger with one write with these flags, of 8 sectors, to a device that takes 4 at a time and has this cache.
    fn ledger_of(cache: WriteCache, flags: IoFlags) -> (Ledger, Completion<Payload>) {
        let mut ledger = Ledger::new(Limits { max_sectors: 4, ..Limits::default() }, cache);
        let (cookie, payload) = ledger.next();
        ledger.announce(BY, Io { flags, ..Io::new(Op::Write, 8, 8, cookie, payload) });
        ledger.pushed(cookie);
        (ledger, Completion { cookie, result: Ok(()), payload })
    }

    fn ledger() -> (Ledger, Completion<Payload>) {
        ledger_of(WriteCache::Through, IoFlags::NONE)
    }

    fn seen(sector: u64, sectors: u32) -> Seen {
        Seen { cookie: 0, by: BY, sector, sectors, payload: payload_of(0, 0) }
    }

    fn check(ledger: &mut Ledger, bios: &[Seen]) -> Result<(), Violation> {
        let plain = (Op::Write, IoFlags::NONE);
        ledger.check_request(HwQueue(0), plain, bios[0].sector, bios)
    }

    fn serve(ledger: &mut Ledger, bio: Seen, result: IoResult) {
        assert_eq!(check(ledger, &[bio]), Ok(()));
        assert_eq!(ledger.taken(&bio), Ok(()));
        assert_eq!(ledger.served(bio.bio(), result), Ok(()));
    }

    #[test]
    fn an_io_goes_there_and_back_once() {
        let (mut ledger, completion) = ledger();
        let bio = seen(8, 8);
        assert_eq!(ledger.taken(&bio), Ok(()));
        assert_eq!(ledger.put_back(bio.bio()), Ok(()));
        assert_eq!(ledger.taken(&bio), Ok(()));
        assert_eq!(ledger.served(bio.bio(), Ok(())), Ok(()));
        assert_eq!(ledger.end(BY, &completion), Ok(()));
        assert_eq!((ledger.submitted(), ledger.bios, ledger.ended), (1, 1, 1));
        let again = ledger.end(BY, &completion);
        assert!(matches!(again, Err(Violation::Stages { was: Stage::Ended, .. })), "{again:?}");
        let again = ledger.taken(&bio);
        assert!(matches!(again, Err(Violation::Stages { was: Stage::Ended, .. })), "{again:?}");
    }

    #[test]
    fn an_io_is_given_up_once_if_that_was_asked_for_and_while_it_waits() {
        let gone = |completion| Completion { result: Err(IoError::CANCELLED), ..completion };
        let fails = |verdict, stage| {
            let wrong = matches!(verdict, Err(Violation::Stages { was, .. }) if was == stage);
            assert!(wrong, "{verdict:?}");
        };
        let bio = seen(8, 8);
        // The device takes the I/O whole.
        let ledger = || {
            let (mut ledger, completion) = ledger();
            ledger.takes.limits.max_sectors = 8;
            (ledger, completion)
        };
        let (mut unasked, completion) = ledger();
        fails(unasked.end(BY, &gone(completion)), Stage::Submitted);
        let (mut asked, completion) = ledger();
        assert_eq!(asked.unwanted(0), Ok(()));
        assert_eq!((asked.taken(&bio), asked.put_back(bio.bio())), (Ok(()), Ok(())));
        assert_eq!(asked.end(BY, &gone(completion)), Ok(()));
        assert_eq!((asked.bios, asked.ended, asked.cancelled), (1, 1, 1));
        fails(asked.taken(&bio), Stage::Ended);
        fails(asked.end(BY, &gone(completion)), Stage::Ended);
        let (mut late, completion) = ledger();
        assert_eq!((late.unwanted(0), late.taken(&bio)), (Ok(()), Ok(())));
        fails(late.end(BY, &gone(completion)), Stage::AtDevice);
        let (mut divided, completion) = self::ledger();
        assert_eq!(divided.unwanted(0), Ok(()));
        fails(divided.end(BY, &gone(completion)), Stage::Submitted);
        let mut unseen = ledger().0;
        assert_eq!((unseen.unwanted(0), unseen.end(BY, &gone(completion))), (Ok(()), Ok(())));
        assert_eq!(unseen.bios, 1, "the device will have none of it");
    }

    #[test]
    fn what_the_device_never_had_does_not_complete() {
        let (mut ledger, completion) = ledger();
        let early = ledger.end(BY, &completion);
        assert!(matches!(early, Err(Violation::Stages { was: Stage::Submitted, .. })), "{early:?}");
        serve(&mut ledger, seen(8, 4), Ok(()));
        let early = ledger.end(BY, &completion);
        assert!(matches!(early, Err(Violation::Stages { was: Stage::Submitted, .. })), "{early:?}");
        assert_eq!(ledger.taken(&seen(12, 4)), Ok(()));
        let early = ledger.end(BY, &completion);
        assert!(matches!(early, Err(Violation::Stages { was: Stage::AtDevice, .. })), "{early:?}");
    }

    #[test]
    fn an_io_in_parts_ends_with_the_first_error_in_ascending_order() {
        let (mut ledger, completion) = ledger();
        serve(&mut ledger, seen(12, 4), Err(IoError::NO_SPACE));
        serve(&mut ledger, seen(8, 4), Err(IoError::IO));
        for result in [Ok(()), Err(IoError::NO_SPACE)] {
            let wrong = ledger.end(BY, &Completion { result, ..completion });
            assert!(matches!(wrong, Err(Violation::Stages { .. })), "{wrong:?}");
        }
        assert_eq!(ledger.end(BY, &Completion { result: Err(IoError::IO), ..completion }), Ok(()));
        assert_eq!((ledger.submitted(), ledger.bios, ledger.ended), (1, 2, 1));
    }

    fn flush(ledger: &mut Ledger, result: IoResult) {
        ledger.durable.flush_began(HwQueue(0), Tag(0));
        ledger.durable.gave_back(HwQueue(0), Tag(0), Some(result));
    }

    #[test]
    fn a_part_whose_flush_ahead_fails_need_not_get_there() {
        let back = WriteCache::Back { fua: true };
        let (mut ledger, completion) = ledger_of(back, IoFlags::PREFLUSH);
        let failed = Completion { result: Err(IoError::IO), ..completion };
        assert!(ledger.taken(&seen(8, 4)).is_err(), "no flush went ahead");
        let (mut ledger, _) = ledger_of(back, IoFlags::PREFLUSH);
        flush(&mut ledger, Ok(()));
        serve(&mut ledger, seen(8, 4), Ok(()));
        assert!(ledger.end(BY, &completion).is_err(), "a part is missing");
        assert!(ledger.end(BY, &failed).is_err(), "and nothing has failed");
        flush(&mut ledger, Err(IoError::IO));
        assert!(ledger.end(BY, &completion).is_err());
        assert_eq!(ledger.end(BY, &failed), Ok(()));
    }

    #[test]
    fn the_flush_behind_an_io_is_behind_each_of_its_parts() {
        let (mut ledger, completion) = ledger_of(WriteCache::Back { fua: false }, IoFlags::FUA);
        let failed = Completion { result: Err(IoError::IO), ..completion };
        serve(&mut ledger, seen(8, 4), Ok(()));
        flush(&mut ledger, Ok(()));
        serve(&mut ledger, seen(12, 4), Ok(()));
        assert!(ledger.end(BY, &completion).is_err(), "the second part may be lost");
        assert!(ledger.end(BY, &failed).is_err(), "and nothing has failed");
        flush(&mut ledger, Err(IoError::IO));
        assert!(ledger.end(BY, &completion).is_err());
        flush(&mut ledger, Ok(()));
        assert_eq!(ledger.end(BY, &completion), Ok(()));
    }

    #[test]
    fn parts_are_of_the_io_and_of_nothing_else() {
        let (mut ledger, _) = ledger();
        serve(&mut ledger, seen(10, 2), Ok(()));
        for bio in [seen(8, 4), seen(10, 4), seen(11, 1), seen(4, 8), seen(12, 8), seen(12, 0)] {
            let wrong = check(&mut ledger, &[bio]);
            assert!(matches!(wrong, Err(Violation::Malformed { .. })), "{wrong:?}");
        }
        assert_eq!(check(&mut ledger, &[seen(12, 4)]), Ok(()));
        // The front part of an I/O merges with nothing.
        let wrong = check(&mut ledger, &[seen(8, 2), seen(10, 2)]);
        assert!(matches!(wrong, Err(Violation::Malformed { .. })), "{wrong:?}");
    }

    #[test]
    fn what_the_device_takes_whole_is_not_divided() {
        for (max_sectors, flags) in [(8, IoFlags::NONE), (4, IoFlags::NOWAIT)] {
            let limits = Limits { max_sectors, ..Limits::default() };
            let mut ledger = Ledger::new(limits, WriteCache::Through);
            let (cookie, payload) = ledger.next();
            ledger.announce(BY, Io { flags, ..Io::new(Op::Write, 8, 8, cookie, payload) });
            let wrong = check(&mut ledger, &[seen(8, 4)]);
            assert!(matches!(wrong, Err(Violation::Malformed { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn what_was_refused_has_not_reached_the_device() {
        let (mut one, _) = ledger();
        assert_eq!((one.withdraw(0), one.submitted()), (Ok(()), 0));
        let (mut one, _) = ledger();
        assert_eq!(one.taken(&seen(8, 4)), Ok(()));
        let seen = one.withdraw(0);
        assert!(matches!(seen, Err(Violation::Stages { was: Stage::AtDevice, .. })), "{seen:?}");
    }

    #[test]
    fn another_submitter_or_payload_or_cookie_is_noticed() {
        let (mut ledger, completion) = ledger();
        let other = ledger.end(SubmitterId(2), &completion);
        assert!(matches!(other, Err(Violation::Misrouted { .. })), "{other:?}");
        let payload = Completion { payload: 0, ..completion };
        let other = ledger.end(BY, &payload);
        assert!(matches!(other, Err(Violation::Misrouted { .. })), "{other:?}");
        let cookie = Completion { cookie: 7, ..completion };
        let other = ledger.end(BY, &cookie);
        assert_eq!(other, Err(Violation::Unknown { cookie: 7 }));
    }

    #[test]
    fn a_request_is_made_of_what_was_submitted() {
        let (mut ledger, _) = ledger();
        let hw = HwQueue(0);
        let plain = IoFlags::NONE;
        assert_eq!(ledger.check_request(hw, (Op::Write, plain), 8, &[seen(8, 8)]), Ok(()));
        for (op, sector, bio) in
            [(Op::Read, 8, seen(8, 8)), (Op::Write, 8, seen(16, 8)), (Op::Write, 0, seen(8, 8))]
        {
            let wrong = ledger.check_request(hw, (op, plain), sector, &[bio]);
            assert!(matches!(wrong, Err(Violation::Malformed { .. })), "{wrong:?}");
        }
    }

    fn tree(list: &[(&str, &str, &str)]) -> GroupTree {
        let wanted = |&(name, parent, max): &(&str, &str, &str)| GroupSpec {
            name: name.into(),
            parent: parent.into(),
            weight: 100,
            max: IoMax::default().set(max).expect("right"),
            ..GroupSpec::default()
        };
        GroupTree::of(list.iter().map(wanted).collect()).expect("a tree")
    }

    #[test]
    fn a_burst_is_bounded_by_its_rate_and_by_its_credit() {
        let tree = tree(&[("a", "/", "iops=1000 burst=2 burst_length=1")]);
        let a = tree.find("a").expect("there");
        let mut rates = Rates::new(&tree);
        let mut arrive = |ms, count| {
            let now = Instant::ZERO + Nanos::from_millis(ms);
            (0..count).find(|_| rates.arrived(now, a, (Op::Read, 1)).is_err())
        };
        // Twice the rate from the beginning on, with 10 ms of it ahead of time, and one on its way.
        assert_eq!(arrive(500, 2000), Some(1021));
        // A thousand of credit at most.
        assert_eq!(arrive(2000, 5000), Some(3011 - 1022));
    }

    #[test]
    fn what_comes_too_early_is_noticed_in_the_group_and_above() {
        let tree = tree(&[("a", "/", "riops=1000"), ("b", "a", "wbps=512000")]);
        let (a, b) = (tree.find("a").expect("there"), tree.find("b").expect("there"));
        let mut rates = Rates::new(&tree);
        let mut arrive = |ms, group, op| {
            let now = Instant::ZERO + Nanos::from_millis(ms);
            rates.arrived(now, group, (op, 1))
        };
        // Ten I/Os ahead of time, and one on its way.
        for _ in 0..11 {
            assert_eq!(arrive(0, a, Op::Read), Ok(()));
        }
        assert!(arrive(0, b, Op::Read).is_err(), "the one above has had its share");
        assert_eq!(arrive(2, b, Op::Read), Ok(()));
        for _ in 0..13 {
            assert_eq!(arrive(2, b, Op::Write), Ok(()));
        }
        assert!(arrive(2, b, Op::Write).is_err());
        assert_eq!(arrive(3, b, Op::Discard), Ok(()), "which moves no data");
        assert_eq!(arrive(3, GroupId::ROOT, Op::Write), Ok(()));
        rates.forget();
        assert_eq!(rates.arrived(Instant::ZERO, b, (Op::Write, 1000)), Ok(()));
    }
}
