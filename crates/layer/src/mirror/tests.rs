//! A mirror loses no answered write, and returns one value for every other, whatever happens to its legs and its power:
//! [`World`] is a mirror on failing legs, in virtual time, under I/Os whose results are known. Planted bugs are found.
//! Beside that: the legs that reads go to, the ranges of parties, and the records that form a mirror.

use super::{Party, Planted, Ranges, plant};
use crate::mirror::assemble::{Assembly, Given, decide};
use crate::mirror::records::{Found, Member, Places, Record};
use crate::mirror::{Mirror, MirrorError, Only};
use crate::{Findings, Kind, Layer, Piece, Plan, Request, Stack, StackError};
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

/// Random I/Os, during which a leg may die or fail, or the power is cut. Returns false after a cut.
fn session(world: &mut World) -> Result<bool, String> {
    let ends_by_cut = world.rng.chance(1, 2);
    let kills = world.rng.chance(1, 3);
    if world.rng.chance(1, 4) {
        world.may_fail = true;
        let errors = 1 + world.rng.below(100);
        world.legs.iter().for_each(|leg| leg.set(|faults| faults.errors = errors));
    }
    let rounds = 1 + world.rng.below(5);
    let mut until = world.rng.below(rounds * 60);
    for _ in 0..rounds {
        for _ in 0..1 + world.rng.below(12) {
            world.push_any();
        }
        while world.step()? {
            until = until.saturating_sub(1);
            if until > 0 {
                continue;
            }
            if ends_by_cut {
                world.cut_power();
                return Ok(false);
            }
            let leg = world.rng.below(world.legs.len() as u64) as usize;
            let in_step = world.legs.len() as u32 - world.not_in_step.count_ones();
            if kills && in_step > 1 && world.not_in_step >> leg & 1 == 0 {
                world.legs[leg].set(|faults| faults.is_dead = true);
                until = u64::MAX;
            }
        }
        if world.rng.chance(1, 4) {
            world.rest()?;
        }
    }
    if ends_by_cut {
        world.cut_power();
    }
    Ok(!ends_by_cut)
}

/// Opens a mirror of which some legs have died: they return unchanged, are replaced, or stay missing.
fn reopen(world: &mut World, is_last: bool) -> Result<(), String> {
    let (mut missing, mut replace) = (0, false);
    let olds = world.legs.clone();
    world.may_fail = false;
    for leg in 0..world.legs.len() {
        let was_dead = {
            let mut dead = false;
            world.legs[leg].set(|faults| {
                faults.errors = 0;
                dead = std::mem::take(&mut faults.is_dead);
            });
            dead
        };
        match world.rng.below(3) {
            0 if was_dead => (world.legs[leg], replace) = (world.new_leg(), true),
            1 if was_dead && !is_last => missing |= 1 << leg,
            _ => {}
        }
    }
    match world.open(missing, replace) {
        // By its record, the dead leg was the last one in step.
        Err(StackError::Mirror(MirrorError::Behind)) => {
            world.legs = olds;
            world.open(0, replace).map_err(|error| error.to_string())
        }
        // The dead leg was the last one in step: writing its last record failed, but had an effect, and the mirror
        // continued without it.
        Err(StackError::Mirror(MirrorError::Diverged { other, .. })) => {
            world.legs[other] = world.new_leg();
            world.open(missing, true).map_err(|error| error.to_string())
        }
        opened => opened.map_err(|error| error.to_string()),
    }
}

/// The life of a mirror.
fn life(seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut world = World::new(seed, 2 + rng.below(2) as usize, rng.chance(1, 2));
    world.open(0, false).map_err(|error| error.to_string())?;
    for _ in 0..2 + rng.below(4) {
        if rng.chance(1, 2) {
            world.wait_for_copies()?;
        }
        if session(&mut world)? {
            let was_whole = world.not_in_step == 0 && !world.may_fail && !world.is_any_dead();
            world.close();
            reopen(&mut world, false)?;
            if was_whole && world.not_in_step != 0 {
                return Err(format!("behind after an orderly end: {:?}", world.findings));
            }
        } else {
            reopen(&mut world, false)?;
        }
        if rng.chance(1, 2) {
            world.read_all()?;
        }
    }
    world.cut_power();
    reopen(&mut world, true)?;
    world.read_all()?;
    world.wait_for_copies()?;
    if world.not_in_step != 0 {
        return Err(format!("not all legs are in step: {:?}", world.findings));
    }
    world.read_all()?;
    world.read_all()?;
    world.close();
    let bytes = world.legs[0].bytes();
    match world.legs.iter().position(|leg| leg.bytes() != bytes) {
        Some(leg) => Err(format!("leg {leg} is not as leg 0")),
        None => Ok(()),
    }
}

#[test]
fn nothing_is_lost_and_no_stale_byte_is_read() {
    for seed in 0..100 {
        if let Err(why) = life(seed) {
            panic!("seed {seed}: {why}");
        }
    }
}

#[test]
fn planted_bugs_are_found() {
    let lives: &dyn Fn(u64) -> Result<(), String> = &life;
    let ways = [
        (Planted::AnswersEarly, &death as _),
        (Planted::ChangesClean, lives),
        (Planted::HoldsNoRange, lives),
        (Planted::ReadsBehind, lives),
        (Planted::JoinsUnflushed, lives),
        (Planted::CleansUnflushed, lives),
        (Planted::BeginsSilently, lives),
        (Planted::TrustsAll, lives),
    ];
    for (bug, way) in ways {
        plant(Some(bug));
        let found = (0..100).find_map(|seed| way(seed).err());
        plant(None);
        assert!(found.is_some(), "{bug:?}");
    }
}

/// The power is cut as soon as a write is answered that a leg has missed, and that leg returns.
fn death(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed, 2, false);
    world.open(0, false).map_err(|error| error.to_string())?;
    world.wait_for_copies()?;
    load(&mut world, 2)?;
    world.legs[0].set(|faults| faults.is_dead = true);
    (0..8).for_each(|_| world.push_any());
    let before = world.written;
    while world.step()? && world.written == before {}
    world.cut_power();
    world.legs[0].set(|faults| faults.is_dead = false);
    world.open(0, false).map_err(|error| error.to_string())?;
    world.read_all()
}

#[test]
fn a_write_that_a_dead_leg_has_missed_is_not_lost() {
    for seed in 0..20 {
        assert_eq!(death(seed), Ok(()), "seed {seed}");
    }
}

/// I/O under which legs die.
fn load(world: &mut World, rounds: u32) -> Result<(), String> {
    for _ in 0..rounds {
        (0..8).for_each(|_| world.push_any());
        world.finish()?;
    }
    Ok(())
}

#[test]
fn a_leg_that_is_killed_and_replaced_under_load_costs_nothing() -> Result<(), String> {
    let mut world = World::new(1, 2, true);
    world.open(0, false).map_err(|error| error.to_string())?;
    load(&mut world, 20)?;
    world.wait_for_copies()?;
    world.legs[0].set(|faults| faults.is_dead = true);
    load(&mut world, 20)?;
    assert_eq!(world.not_in_step, 0b01);
    world.cut_power();
    world.legs[0] = world.new_leg();
    let refused = world.open(0, false);
    assert_eq!(refused, Err(StackError::Mirror(MirrorError::NoRecord { leg: 0 })));
    world.open(0, true).map_err(|error| error.to_string())?;
    assert_eq!(world.not_in_step, 0b01);
    world.read_all()?;
    while world.not_in_step != 0 {
        load(&mut world, 1)?;
    }
    world.legs[1].set(|faults| faults.is_dead = true);
    load(&mut world, 20)?;
    assert_eq!(world.not_in_step, 0b10);
    world.read_all()?;
    world.push(Op::Flush, false, 0, 0);
    world.finish()?;
    world.close();
    assert_eq!(SECTORS, 2032);
    Ok(())
}

#[test]
fn a_sector_that_a_leg_cannot_read_is_written_anew() -> Result<(), String> {
    let mut world = World::new(3, 2, true);
    world.open(0, false).map_err(|error| error.to_string())?;
    world.wait_for_copies()?;
    load(&mut world, 20)?;
    for leg in 0..2 {
        // Failed devices heal here.
        let store = world.legs[leg].device.memory().expect("it stores").clone();
        store.badblocks("+800-815").expect("a range");
        world.findings.clear();
        for _ in 0..4 {
            world.push(Op::Read, false, 800, 16);
            world.finish()?;
        }
        let failed = format!("device {leg}: a read of 16 sectors at sector 800 failed: I/O error");
        assert_eq!(world.findings, [failed]);
    }
    world.read_all()?;
    assert_eq!(world.not_in_step, 0, "{:?}", world.findings);
    world.close();
    assert!(world.legs[0].bytes() == world.legs[1].bytes());
    Ok(())
}

fn in_step() -> Mirror {
    let assembly = both(record(0, 0b11, true, 5), record(1, 0b11, true, 5)).expect("a mirror");
    let only = Only::new(&Arc::default()).expect("there is no other");
    Mirror::new(assembly, Findings::default(), only)
}

fn request(sector: u64) -> Request {
    Request { op: Op::Read, flags: IoFlags::NONE, sector, sectors: 8 }
}

/// Begins the read with this number at this sector. Returns the leg.
fn begin(mirror: &mut Mirror, id: usize, sector: u64) -> usize {
    let mut plan = Plan { id, ..Plan::default() };
    mirror.begin(&request(sector), &mut plan);
    let [piece] = plan.pieces[..] else { panic!("one piece") };
    assert_eq!((piece.sector, piece.sectors, piece.from), (sector, 8, 0));
    piece.leg
}

#[test]
fn reads_at_a_time_are_spread_and_one_after_another_stay() {
    let mut mirror = in_step();
    let mut by_leg = [0; 2];
    for id in 0..16 {
        by_leg[begin(&mut mirror, id, SECTORS / 16 / 8 * 8 * id as u64)] += 1;
    }
    assert_eq!(by_leg, [8, 8]);
    let mut mirror = in_step();
    let first = begin(&mut mirror, 0, 0);
    for at in 1..9 {
        let piece = Piece::whole(&request(8 * (at - 1)), first);
        let mut plan = Plan::default();
        let answered = mirror.answered(&request(8 * (at - 1)), &piece, Ok(()), &mut plan);
        assert_eq!(answered, Ok(()));
        assert_eq!(begin(&mut mirror, 0, 8 * at), first, "sector {}", 8 * at);
    }
}

#[test]
fn a_read_fails_when_no_leg_can_do_it() {
    let mut mirror = in_step();
    let first = begin(&mut mirror, 0, 64);
    let mut plan = Plan::default();
    let piece = Piece::whole(&request(64), first);
    assert_eq!(mirror.answered(&request(64), &piece, Err(IoError::IO), &mut plan), Ok(()));
    let [piece] = plan.pieces[..] else { panic!("the other is asked") };
    assert_eq!(piece.leg, 1 - first);
    plan = Plan::default();
    let result = mirror.answered(&request(64), &piece, Err(IoError::TIMED_OUT), &mut plan);
    assert_eq!((result, plan.pieces.len()), (Err(IoError::TIMED_OUT), 0));
}

/// The record of leg `leg` of two.
pub(super) fn record(leg: u8, in_step: u8, is_clean: bool, counter: u64) -> Record {
    let legs = [11, 22, 0, 0, 0, 0, 0, 0];
    Record { id: 7, legs, count: 2, leg, in_step, is_clean, counter, sectors: SECTORS }
}

/// Decides about legs with these numbers and records. Ids of legs are drawn from 100 on.
fn decided(given: Given, found: &[(usize, Found)]) -> Result<Assembly, MirrorError> {
    let places = Places { at: [SECTORS, SECTORS + 8], sectors: 8 };
    let member = |(number, found): &(usize, Found)| Member {
        number: *number,
        places,
        next: 0,
        found: *found,
    };
    let mut next = 99;
    let mut draw = || {
        next += 1;
        next
    };
    decide(given, found.iter().map(member).collect(), 1, &mut draw)
}

/// Decides about two legs with these records, none of them missing.
pub(super) fn both(one: Record, other: Record) -> Result<Assembly, MirrorError> {
    decided(Given::default(), &[(0, Found::Record(one)), (1, Found::Record(other))])
}

/// The legs in step, and whether the records must be written.
fn state(decided: Result<Assembly, MirrorError>) -> Result<(u8, bool), MirrorError> {
    decided.map(|assembly| (assembly.in_step, assembly.has_changed))
}

#[test]
fn the_newest_record_says_which_legs_to_believe() {
    let clean = |leg| record(leg, 0b11, true, 5);
    assert_eq!(state(both(clean(0), clean(1))), Ok((0b11, false)));
    let dirty = |leg| record(leg, 0b11, false, 5);
    assert_eq!(state(both(dirty(0), dirty(1))), Ok((0b01, true)), "they may differ");
    assert_eq!(state(both(clean(0), record(1, 0b11, false, 4))), Ok((0b11, false)));
    assert_eq!(state(both(record(0, 0b11, false, 9), record(1, 0b10, true, 10))), Ok((0b10, true)));
    let assembly = both(dirty(0), dirty(1)).expect("a mirror");
    let Record { in_step, is_clean, counter, .. } = assembly.record;
    assert_eq!(
        (in_step, is_clean, counter),
        (0b01, true, 5),
        "one leg does not differ from itself"
    );
}

#[test]
fn a_mirror_is_made_only_of_legs_without_records() {
    let (none, some) = (Found::Nothing, Found::Record(record(1, 0b11, true, 5)));
    let create = Given { create: true, ..Given::default() };
    let made = decided(create, &[(0, none), (1, none)]).expect("a new mirror");
    assert_eq!((made.in_step, made.has_changed, made.record.in_step), (0b01, true, 0b01));
    assert_eq!(made.record.legs[..3], [100, 101, 0]);
    let refused = Err(MirrorError::NoRecords);
    assert_eq!(decided(Given::default(), &[(0, none), (1, none)]), refused);
    let missing = Given { missing: 0b10, ..create };
    assert_eq!(decided(missing, &[(0, none)]), refused);
    assert_eq!(decided(create, &[(0, none), (1, some)]), Err(MirrorError::NoRecord { leg: 0 }));
}

#[test]
fn a_leg_without_a_record_is_taken_if_that_is_meant() {
    let found = [(0, Found::Nothing), (1, Found::Record(record(1, 0b11, true, 5)))];
    assert_eq!(decided(Given::default(), &found), Err(MirrorError::NoRecord { leg: 0 }));
    let replace = Given { replace: true, ..Given::default() };
    let assembly = decided(replace, &found).expect("leg 1 has the contents");
    assert_eq!(
        (assembly.in_step, assembly.has_changed, assembly.record.in_step),
        (0b10, true, 0b10)
    );
    assert_eq!(assembly.record.legs[..2], [100, 22], "the old one is another leg");
    let last = [(0, Found::Nothing), (1, Found::Record(record(1, 0b01, true, 5)))];
    assert_eq!(decided(replace, &last), Err(MirrorError::Behind), "leg 0 had the contents");
}

#[test]
fn a_missing_leg_is_known_to_have_missed_what_is_written() {
    let missing = |missing| Given { missing, ..Given::default() };
    let here = |record| [(1, Found::Record(record))];
    let clean = decided(missing(0b01), &here(record(1, 0b11, true, 5)));
    assert_eq!(state(clean), Ok((0b10, false)), "as long as nothing is written");
    let dirty = decided(missing(0b01), &here(record(1, 0b11, false, 5)));
    assert_eq!(state(dirty), Ok((0b10, true)));
    let behind = decided(missing(0b01), &here(record(1, 0b01, true, 5)));
    assert_eq!(behind, Err(MirrorError::Behind));
    let both = decided(missing(0b101), &here(record(1, 0b11, true, 5)));
    assert_eq!(both, Err(MirrorError::Count { given: 3, accepted: 2 }));
}

#[test]
fn legs_that_were_written_without_each_other_are_refused() {
    let alone = |leg: u8, counter| record(leg, 1 << leg, true, counter);
    for (one, other, diverged) in [(5, 9, (1, 0)), (9, 5, (0, 1))] {
        let refused = MirrorError::Diverged { one: diverged.0, other: diverged.1 };
        assert_eq!(both(alone(0, one), alone(1, other)), Err(refused));
    }
    // Leg 1 was used with a replacement of leg 0, and the original returns.
    let mut with_other = record(1, 0b11, true, 8);
    with_other.legs[0] = 33;
    let refused = both(alone(0, 10), with_other);
    assert_eq!(refused, Err(MirrorError::Diverged { one: 0, other: 1 }));
    with_other.counter = 12;
    assert_eq!(both(alone(0, 10), with_other), Err(MirrorError::Replaced { leg: 0 }));
}

#[test]
fn legs_of_other_mirrors_in_other_places_or_of_later_versions_are_refused() {
    let clean = |leg| record(leg, 0b11, true, 5);
    assert_eq!(both(clean(1), clean(0)), Err(MirrorError::Order { leg: 0, number: 1 }));
    assert_eq!(both(clean(0), clean(0)), Err(MirrorError::Order { leg: 1, number: 0 }));
    let other = Record { id: 8, ..clean(1) };
    assert_eq!(both(clean(0), other), Err(MirrorError::Foreign { leg: 1 }));
    let later = [(0, Found::Record(clean(0))), (1, Found::Later(2))];
    let refused = decided(Given { replace: true, ..Given::default() }, &later);
    assert_eq!(refused, Err(MirrorError::Later { leg: 1, version: 2 }));
    let long = Record { sectors: SECTORS + 8, ..clean(0) };
    let refused = both(long, Record { leg: 1, ..long });
    assert_eq!(refused, Err(MirrorError::Small { leg: 0, least: SECTORS + 8 }));
}

const SECTOR: usize = 512;
/// The capacity of a mirror of two legs of a megabyte each.
const SECTORS: u64 = 2032;

/// The faults of a leg, which the test changes while it runs.
#[derive(Debug)]
struct Faults {
    is_dead: bool,
    /// Out of 1000 requests: how many fail, either before or after they take effect.
    errors: u64,
    rng: Rng,
}

/// A memory device with faults.
#[derive(Clone, Debug)]
struct Leg {
    device: Device,
    faults: Arc<Mutex<Faults>>,
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

    fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().expect("no panic under it"));
    }

    fn cut_power(&self, seed: u64) {
        self.device.memory().expect("it stores").cut_power(seed);
    }

    fn bytes(&self) -> Vec<u8> {
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

struct World {
    rng: Rng,
    legs: Vec<Leg>,
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
    not_in_step: u8,
    /// The legs among them that are being copied to.
    copying: u8,
    findings: Vec<String>,
    /// Errors are expected.
    may_fail: bool,
    /// Writes that were answered.
    written: u32,
}

impl World {
    fn new(seed: u64, legs: usize, has_cache: bool) -> Self {
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

    fn new_leg(&mut self) -> Leg {
        Leg::new(&mut self.rng, self.has_cache)
    }

    /// Opens the mirror without the legs in `missing`.
    fn open(&mut self, missing: u8, replace: bool) -> Result<(), StackError> {
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

    fn is_any_dead(&self) -> bool {
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
    fn push_any(&mut self) {
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

    fn push(&mut self, op: Op, is_fua: bool, at: u64, sectors: u64) {
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
    fn step(&mut self) -> Result<bool, String> {
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
    fn finish(&mut self) -> Result<(), String> {
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
    fn close(&mut self) {
        self.rig = None;
        assert!(self.sent.is_empty(), "I/Os are under way");
        self.reopened(|cell| cell.kept.clone_from(&cell.seen));
    }

    /// Cuts the power of the machine.
    fn cut_power(&mut self) {
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
    fn read_all(&mut self) -> Result<(), String> {
        for at in (0..SECTORS).step_by(16) {
            self.push(Op::Read, false, at, 16);
            if at % 128 == 0 {
                self.finish()?;
            }
        }
        self.finish()
    }

    /// Reads until no copy to a leg is in progress.
    fn wait_for_copies(&mut self) -> Result<(), String> {
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
    fn rest(&mut self) -> Result<(), String> {
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

#[test]
fn overlapping_ranges_go_one_after_another_in_their_order() {
    let mut ranges = Ranges::default();
    let any = |_| true;
    for (range, party) in [
        (0..8, Party::Change(0)),
        (4..12, Party::Change(1)),
        (8..9, Party::Copy),
        (20..21, Party::Change(2)),
    ] {
        ranges.wait(range, party);
    }
    assert_eq!(ranges.next(|party| party == Party::Copy), None, "it is behind a change");
    assert_eq!(ranges.next(any), Some(Party::Change(0)));
    assert_eq!(ranges.next(any), Some(Party::Change(2)));
    assert_eq!(ranges.next(any), None);
    ranges.give_back(Party::Change(0));
    assert_eq!(ranges.next(any), Some(Party::Change(1)));
    assert_eq!(ranges.next(any), None);
    ranges.give_back(Party::Change(1));
    assert!(ranges.waits(|party| party == Party::Copy));
    assert_eq!(Vec::from_iter(ranges.refuse()), [Party::Copy]);
    assert_eq!(ranges.next(any), None);
}
