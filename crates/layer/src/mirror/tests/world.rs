//! A mirror on failing legs, in virtual time, under I/Os whose results are known.

use crate::{Kind, Stack, StackError};
use blkmq_buf::{AlignedBuf, IoBuf};
use blkmq_core::{Instant, IoError, IoFlags, IoResult, Nanos, Op, Rng, Tag};
use blkmq_device::{Device, MachineShape, registry};
use blkmq_engine::{
    BioTable, BlockDevice, Config, DeviceQueue, DeviceQueues, DeviceShape, Enqueued, Expiry,
    Finished, Inflight, Io, Queue, Submitter, Verdict,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

const SECTOR: usize = 512;
/// The capacity of a mirror of two legs of a megabyte each.
pub(super) const SECTORS: u64 = 2032;

/// The faults of a leg, which the test changes while it runs.
#[derive(Debug)]
pub(super) struct Faults {
    pub(super) is_dead: bool,
    /// Out of 1000 requests: how many fail, either before or after they take effect.
    pub(super) errors: u64,
    rng: Rng,
}

/// A memory device with faults.
#[derive(Clone, Debug)]
pub(super) struct Leg {
    pub(super) device: Device,
    pub(super) faults: Arc<Mutex<Faults>>,
}

impl Leg {
    fn new(rng: &mut Rng, has_cache: bool) -> Self {
        let cache = if has_cache { ",cache_size=1" } else { "" };
        let (seed, time) = (rng.below(1 << 32), 1000 + rng.below(9000));
        let text = format!(
            "faults,requeue=0.1,late=0.3,late_nsec=20000,reorder=0.2,seed={seed}:memory,size=1,irqmode=2,hw_queue_depth=8,\
             completion_nsec={time},badblocks_once=1,seed={seed}{cache}"
        );
        let machine = MachineShape { cpus: 1, nodes: 1 };
        let device = registry::parse(&text, &machine).expect("a device");
        let faults = Faults { is_dead: false, errors: 0, rng: Rng::new(seed) };
        Self { device, faults: Arc::new(Mutex::new(faults)) }
    }

    pub(super) fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().expect("no panic under it"));
    }

    fn cut_power(&self, seed: u64) {
        self.device.memory().expect("it stores").cut_power(seed);
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; SECTORS as usize * SECTOR];
        self.device.memory().expect("it stores").read_at(0, &mut bytes);
        bytes
    }
}

impl<P: IoBuf> BlockDevice<P> for Leg {
    fn shape(&self) -> DeviceShape {
        self.device.shape
    }

    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        let faulty = |inside| {
            let faults = Arc::clone(&self.faults);
            Box::new(Faulty { inside, faults, failed: Vec::new(), doomed: Vec::new() }) as _
        };
        Ok(self.device.queues().into_iter().map(faulty).collect())
    }
}

struct Faulty<P> {
    inside: Box<dyn DeviceQueue<P>>,
    faults: Arc<Mutex<Faults>>,
    failed: Vec<Finished>,
    doomed: Vec<Tag>,
}

const FAILED: IoResult = Err(IoError::IO);

impl<P> DeviceQueue<P> for Faulty<P> {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        let mut faults = self.faults.lock().expect("no panic under it");
        let errors = faults.errors;
        let fails = faults.is_dead || faults.rng.chance(errors, 1000);
        if fails && (faults.is_dead || faults.rng.chance(1, 2)) {
            self.failed.push(Finished { rq, verdict: Verdict::Done(FAILED) });
            return Enqueued::Accepted;
        }
        if fails {
            self.doomed.push(rq.tag());
        }
        self.inside.enqueue(now, bios, rq)
    }

    fn commit(&mut self, now: Instant) {
        self.inside.commit(now);
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<P>, out: &mut Vec<Finished>) {
        out.append(&mut self.failed);
        let from = out.len();
        self.inside.reap(now, bios, out);
        for finished in &mut out[from..] {
            let tag = finished.rq.tag();
            if let Some(at) = self.doomed.iter().position(|doomed| *doomed == tag) {
                self.doomed.swap_remove(at);
                if matches!(finished.verdict, Verdict::Done(_)) {
                    finished.verdict = Verdict::Done(FAILED);
                }
            }
        }
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        self.inside.timed_out(now, tag)
    }

    fn next_event(&self) -> Option<Instant> {
        if self.failed.is_empty() { self.inside.next_event() } else { Some(Instant::ZERO) }
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.failed.drain(..).map(|finished| finished.rq));
        self.inside.abandon(out);
    }
}

/// The values that a sector may have: numbers of writes.
#[derive(Clone, Debug)]
struct Cell {
    /// Values that answered I/Os allow.
    seen: Vec<u32>,
    /// Values that a power cut may leave.
    kept: Vec<u32>,
    /// The sector was written since the mirror was opened.
    is_touched: bool,
}

/// An I/O, or a write that has ended.
#[derive(Clone, Debug)]
struct Sent {
    op: Op,
    is_fua: bool,
    at: u64,
    sectors: u64,
    /// The number of a write.
    number: u32,
    issued: u64,
    /// The values that a read could return when it was sent.
    snapshot: Vec<Vec<u32>>,
}

/// A queue in front of the mirror.
struct Rig {
    submitter: Submitter<AlignedBuf>,
    _queue: Queue<AlignedBuf>,
    stack: Stack<Leg>,
    now: Instant,
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) legs: Vec<Leg>,
    has_cache: bool,
    cells: Vec<Cell>,
    /// Writes, by number: when each was issued, and when it ended.
    writes: Vec<(u64, u64)>,
    /// Writes that were answered and not flushed.
    unflushed: Vec<u32>,
    clock: u64,
    sent: BTreeMap<u64, Sent>,
    ranges: BTreeMap<u32, (u64, u64)>,
    rig: Option<Rig>,
    /// Legs that are behind or out according to the findings, a bit each.
    pub(super) not_in_step: u8,
    /// The legs among them that are being copied to.
    copying: u8,
    pub(super) findings: Vec<String>,
    /// Errors are expected.
    pub(super) may_fail: bool,
    /// Writes that were answered.
    pub(super) written: u32,
}

impl World {
    pub(super) fn new(seed: u64, legs: usize, has_cache: bool) -> Self {
        let mut rng = Rng::new(seed);
        let legs = (0..legs).map(|_| Leg::new(&mut rng, has_cache)).collect();
        let cell = Cell { seen: vec![0], kept: vec![0], is_touched: false };
        Self {
            rng,
            legs,
            has_cache,
            cells: vec![cell; SECTORS as usize],
            writes: vec![(0, 0)],
            unflushed: Vec::new(),
            clock: 1,
            sent: BTreeMap::new(),
            ranges: BTreeMap::new(),
            rig: None,
            not_in_step: 0,
            copying: 0,
            findings: Vec::new(),
            may_fail: false,
            written: 0,
        }
    }

    pub(super) fn new_leg(&mut self) -> Leg {
        Leg::new(&mut self.rng, self.has_cache)
    }

    /// Opens the mirror without the legs in `missing`.
    pub(super) fn open(&mut self, missing: u8, replace: bool) -> Result<(), StackError> {
        assert!(self.rig.is_none(), "it is open");
        let here = self.legs.iter().enumerate().filter(|(leg, _)| missing >> leg & 1 == 0);
        let here = here.map(|(_, leg)| leg.clone()).collect();
        let kind = Kind::Mirror { create: missing == 0, replace, missing };
        let stack = Stack::new(kind, here)?;
        assert_eq!(stack.shape().limits.capacity, SECTORS);
        let device: &dyn BlockDevice<AlignedBuf> = &stack;
        let config = device.config().expect("records that can be written");
        let queue = Queue::new(Config { submitters: 1, ..config }).expect("valid");
        let submitter = queue.submitter().expect("one");
        self.rig = Some(Rig { submitter, _queue: queue, stack, now: Instant::ZERO });
        (self.not_in_step, self.copying) = (missing, 0);
        self.look();
        Ok(())
    }

    pub(super) fn is_any_dead(&self) -> bool {
        self.legs.iter().any(|leg| leg.faults.lock().expect("no panic under it").is_dead)
    }

    /// Reads the findings.
    fn look(&mut self) {
        let Some(rig) = &self.rig else { return };
        for finding in rig.stack.take_findings().iter().map(ToString::to_string) {
            let number = finding.strip_prefix("device ").and_then(|rest| rest[..1].parse().ok());
            let bit = 1_u8 << number.unwrap_or(7_u32);
            if finding.contains("is behind") {
                (self.not_in_step, self.copying) = (self.not_in_step | bit, self.copying | bit);
            } else if finding.contains("is out") {
                (self.not_in_step, self.copying) = (self.not_in_step | bit, self.copying & !bit);
            } else if finding.contains("is in step") {
                (self.not_in_step, self.copying) = (self.not_in_step & !bit, self.copying & !bit);
            }
            self.findings.push(finding);
        }
    }

    /// Sends a random I/O.
    pub(super) fn push_any(&mut self) {
        let sectors = 8 * (1 + self.rng.below(6));
        let at = self.rng.below((SECTORS - sectors) / 8) * 8;
        // Low offsets are more popular, so that writes overlap.
        let at = if self.rng.chance(1, 3) { at % 64 } else { at };
        let op = match self.rng.below(10) {
            0 => Op::Flush,
            1..4 => Op::Read,
            _ => Op::Write,
        };
        let is_fua = op == Op::Write && self.rng.chance(1, 5);
        self.push(op, is_fua, at, sectors);
    }

    pub(super) fn push(&mut self, op: Op, is_fua: bool, at: u64, sectors: u64) {
        self.clock += 1;
        let len = sectors as usize * SECTOR;
        let mut sent =
            Sent { op, is_fua, at, sectors, number: 0, issued: self.clock, snapshot: Vec::new() };
        let cells = &mut self.cells[at as usize..(at + sectors) as usize];
        let payload = match op {
            Op::Write => {
                sent.number = self.writes.len() as u32;
                self.writes.push((self.clock, u64::MAX));
                self.ranges.insert(sent.number, (at, sectors));
                for cell in cells {
                    cell.seen.push(sent.number);
                    cell.kept.push(sent.number);
                    cell.is_touched = true;
                }
                AlignedBuf::copy_of(&sent.number.to_le_bytes().repeat(len / 4))
            }
            Op::Read => {
                sent.snapshot = cells.iter().map(|cell| cell.seen.clone()).collect();
                AlignedBuf::copy_of(&vec![0xEE; len])
            }
            _ => AlignedBuf::empty(),
        };
        let (place, count) = if op == Op::Flush { (0, 0) } else { (at, sectors as u32) };
        let flags = if is_fua { IoFlags::FUA } else { IoFlags::NONE };
        let cookie = self.clock;
        let rig = self.rig.as_mut().expect("it is open");
        let io = Io::new(op, place, count, cookie, payload).with(flags);
        rig.submitter.push(rig.now, io).expect("there is credit");
        self.sent.insert(cookie, sent);
    }

    /// Runs a step. Returns whether I/Os are in flight.
    pub(super) fn step(&mut self) -> Result<bool, String> {
        let rig = self.rig.as_mut().expect("it is open");
        let mut ended = Vec::new();
        rig.submitter.flush(rig.now);
        rig.submitter.poll(rig.now);
        rig.submitter.reap(u32::MAX, |done| ended.push((done.cookie, done.result, done.payload)));
        let next = rig.submitter.next_deadline().filter(|at| *at < Instant::MAX);
        rig.now = next.unwrap_or(rig.now).max(rig.now + Nanos(1));
        self.look();
        for (cookie, result, payload) in ended {
            self.ended(cookie, result, payload)?;
        }
        Ok(!self.sent.is_empty())
    }

    /// Runs until every I/O has ended.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        for _ in 0..200_000 {
            if !self.step()? {
                return Ok(());
            }
        }
        Err(format!("{:?} do not end", self.sent.values().next()))
    }

    fn ended(
        &mut self,
        cookie: u64,
        result: IoResult,
        mut payload: AlignedBuf,
    ) -> Result<(), String> {
        self.clock += 1;
        let sent = self.sent.remove(&cookie).expect("an I/O that was sent");
        let Sent { op, at, sectors, number, issued, .. } = sent;
        if op == Op::Write {
            self.writes[number as usize].1 = self.clock;
        }
        if let Err(error) = result {
            if self.may_fail {
                return Ok(());
            }
            return Err(format!("{op:?} of {sectors} sectors at {at}: {error}"));
        }
        match op {
            Op::Write => {
                self.written += 1;
                self.unflushed.push(number);
                self.prune(number, |cell| &mut cell.seen);
                if sent.is_fua || !self.has_cache {
                    self.prune(number, |cell| &mut cell.kept);
                }
            }
            Op::Flush => {
                let writes = std::mem::take(&mut self.unflushed);
                let is_before = |number: &u32| self.writes[*number as usize].1 < issued;
                let (before, rest): (Vec<_>, Vec<_>) = writes.into_iter().partition(is_before);
                self.unflushed = rest;
                for number in before {
                    self.prune(number, |cell| &mut cell.kept);
                }
            }
            _ => {
                let (range, bytes) = (at as usize.., payload.as_mut_slice());
                for (nth, bytes) in bytes.chunks_exact(SECTOR).enumerate() {
                    let sector = range.start + nth;
                    let snapshot = &sent.snapshot[nth];
                    let has_ended = |number: &u32| self.writes[*number as usize].1 < issued;
                    let is_still = snapshot.iter().all(has_ended);
                    check(&mut self.cells[sector], snapshot, is_still, bytes)
                        .map_err(|why| format!("sector {sector}: {why}"))?;
                }
            }
        }
        Ok(())
    }

    /// Drops the values of writes that ended before write `number` began.
    fn prune(&mut self, number: u32, values: fn(&mut Cell) -> &mut Vec<u32>) {
        let (at, sectors) = self.ranges[&number];
        let issued = self.writes[number as usize].0;
        for cell in &mut self.cells[at as usize..(at + sectors) as usize] {
            values(cell).retain(|other| self.writes[*other as usize].1 >= issued);
        }
    }

    /// Ends the queue: an orderly end if no I/O is in flight and no fault is set.
    pub(super) fn close(&mut self) {
        self.rig = None;
        assert!(self.sent.is_empty(), "I/Os are under way");
        self.reopened(|cell| cell.kept.clone_from(&cell.seen));
    }

    /// Cuts the power of the machine.
    pub(super) fn cut_power(&mut self) {
        for leg in &self.legs {
            leg.cut_power(self.rng.below(1 << 32));
        }
        self.rig = None;
        self.clock += 1;
        for sent in std::mem::take(&mut self.sent).into_values() {
            self.writes[sent.number as usize].1 = self.clock;
        }
        self.writes[0].1 = 0;
        self.reopened(|cell| cell.seen.clone_from(&cell.kept));
    }

    fn reopened(&mut self, change: impl Fn(&mut Cell)) {
        self.unflushed.clear();
        for cell in &mut self.cells {
            change(cell);
            cell.is_touched = false;
        }
    }

    /// Reads every sector.
    pub(super) fn read_all(&mut self) -> Result<(), String> {
        for at in (0..SECTORS).step_by(16) {
            self.push(Op::Read, false, at, 16);
            if at % 128 == 0 {
                self.finish()?;
            }
        }
        self.finish()
    }

    /// Reads until no copy to a leg is in progress.
    pub(super) fn wait_for_copies(&mut self) -> Result<(), String> {
        for _ in 0..10_000 {
            if self.copying == 0 {
                return Ok(());
            }
            self.push(Op::Read, false, 0, 8);
            self.finish()?;
        }
        Err(format!("legs are behind for ever: {:?}", self.findings))
    }

    /// Reads until the mirror has been quiet for some seconds.
    pub(super) fn rest(&mut self) -> Result<(), String> {
        for _ in 0..4 {
            self.rig.as_mut().expect("it is open").now += Nanos::from_secs(1);
            for _ in 0..8 {
                self.push(Op::Read, false, 0, 8);
                self.finish()?;
            }
        }
        Ok(())
    }
}

/// Checks a sector that was read. `is_still`: no write was in flight when the read was sent.
fn check(cell: &mut Cell, snapshot: &[u32], is_still: bool, bytes: &[u8]) -> Result<(), String> {
    let value = u32::from_le_bytes(bytes[..4].try_into().expect("four"));
    if bytes[4..] != bytes[..bytes.len() - 4] {
        return Err("it is torn".into());
    }
    if !snapshot.contains(&value) && !cell.seen.contains(&value) {
        return Err(format!("{value} was read, of {snapshot:?} and {:?}", cell.seen));
    }
    // Without writes in the meantime, later reads must return the same.
    if is_still && cell.seen == snapshot {
        cell.seen = vec![value];
        if !cell.is_touched {
            cell.kept = vec![value];
        }
    }
    Ok(())
}
